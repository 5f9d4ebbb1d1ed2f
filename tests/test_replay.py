"""The schedule of a compiled program replayed: programs of a few lines, with their seconds worked out by hand.

A cycle is a second here, and a collective takes as many as its bytes say: an all-gather of ``f32[n]`` over two devices
sends 4n bytes, a permute too. Axes x and y have two devices each.
"""

import pytest

from shardwright.request.targets import parse_target
from shardwright.verify.device_groups import permuted_span, span
from shardwright.verify.figures import program_figures
from shardwright.verify.hlo import parse_hlo
from shardwright.verify.replay import replay
from shardwright.verify.replay_steps import Prices

HEAD = "HloModule jit_f, is_scheduled=true, num_partitions=4\n\n"
X, Y = "{{0,2},{1,3}}", "{{0,1},{2,3}}"


def at(line):
    return f'metadata={{op_name="f" source_file="/m.py" source_line={line}}}'


def compute(name, cycles, line=1):
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    return f"%{name} = f32[8]{{0}} fusion(%p), kind=kLoop, calls=%c, {at(line)}, {config}"


def start(name, seconds, over=X, line=9):
    size = f"f32[{seconds // 4}]"
    return [
        f"%{name}.p = {size}{{0}} bitcast(%p)",
        f"%{name} = ({size}{{0}}, f32[{seconds // 2}]{{0}}) all-gather-start(%{name}.p), replica_groups={over}, "
        f"dimensions={{0}}, {at(line)}",
    ]


def done(name):
    return f"%{name}.d = f32[8]{{0}} all-gather-done(%{name})"


def at_once(name, seconds, over=X, line=9):
    size = f"f32[{seconds // 4}]"
    return [
        f"%{name}.p = {size}{{0}} bitcast(%p)",
        f"%{name} = f32[8]{{0}} all-gather(%{name}.p), replica_groups={over}, dimensions={{0}}, {at(line)}",
    ]


def lines(parts):
    flat = [line for part in parts for line in ([part] if isinstance(part, str) else part)]
    return "\n".join(f"  {line}" for line in flat)


def program(*parts, before=""):
    return (
        HEAD + before + "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n" + lines(parts) + "\n}\n"
    )


def price(found):
    groups = permuted_span(found.groups, (2, 2)) if found.kind == "collective-permute" else span(found.groups, (2, 2))
    return tuple("xy"[a] for a in groups.axes), 0.0 if found.opposite else found.bytes


def replayed(text, host_bytes_per_second=0.0, memory_bytes_per_second=0.0):
    rates = host_bytes_per_second, memory_bytes_per_second
    return replay(parse_hlo(text), Prices(lambda cost: float(cost.cycles), price, *rates))


def loop(*parts, turns):
    return (
        "%cond (a: (s32[], f32[8])) -> pred[] {\n  %a = (s32[], f32[8]{0}) parameter(0)\n"
        "  ROOT %lt = pred[] custom-call(%a)\n}\n\n"
        "%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {\n  %b = (s32[], f32[8]{0}) parameter(0)\n"
        "  %p = f32[8]{0} get-tuple-element(%b), index=1\n" + lines(parts) + "\n}\n\n",
        f"%loop = (s32[], f32[8]{{0}}) while(%p), condition=%cond, body=%body, "
        f'backend_config={{"known_trip_count":{{"n":"{turns}"}}}}',
    )


def test_what_stands_between_start_and_done_hides_it():
    found = replayed(
        program(compute("a", 10), start("g", 40), compute("b", 25, line=2), compute("d", 5, line=3), done("g"))
    )
    # 10 of compute, then 30 beside the gather, of which 10 are left.
    assert (found.compute_seconds, found.comm_seconds, found.exposed_seconds) == (40, 40, 10)
    assert found.replayed_seconds == 50
    share = found.shares["g"]
    assert share.hidden_seconds == 30
    assert share.largest() == (("m.py:2", 25), ("m.py:3", 5))


def test_a_collective_that_is_through_before_its_done_adds_nothing():
    found = replayed(program(start("g", 40), compute("a", 100), done("g"), compute("b", 7)))
    assert (found.replayed_seconds, found.exposed_seconds) == (107, 0)
    assert found.shares["g"].largest() == (("m.py:1", 40),)


def test_without_a_start_a_collective_is_waited_for_in_full():
    found = replayed(program(compute("a", 10), at_once("g", 40), compute("b", 30)))
    assert (found.replayed_seconds, found.exposed_seconds) == (80, 40)
    assert found.shares["g"].hidden_seconds == 0 and not found.shares["g"].behind


def test_with_nothing_in_between_all_of_it_is_exposed():
    found = replayed(program(start("g", 40), done("g"), compute("a", 30)))
    assert (found.replayed_seconds, found.exposed_seconds) == (70, 40)


def test_on_one_link_collectives_stand_in_a_queue():
    found = replayed(program(start("g", 40), start("h", 40), compute("a", 50), done("g"), done("h")))
    # The second has the link from 40 to 80; at 50 the device begins to wait for it.
    assert (found.replayed_seconds, found.exposed_seconds) == (80, 30)
    assert found.shares["g"].hidden_seconds == 40
    assert found.shares["h"].hidden_seconds == 10 and found.shares["h"].behind == {"m.py:1": 10}


def test_on_two_axes_they_run_at_the_same_time():
    found = replayed(program(start("g", 40), start("h", 60, Y), compute("a", 20), done("g"), done("h")))
    assert (found.replayed_seconds, found.exposed_seconds, found.comm_seconds) == (60, 40, 100)
    # 20 beside compute, 20 beside the wait for the other.
    assert found.shares["h"].hidden_seconds == 40
    assert found.shares["h"].behind == {"m.py:1": 20, "all-gather at m.py:9": 20}


def test_one_over_both_axes_waits_for_both_links():
    both = "{{0,1,2,3}}"
    found = replayed(program(start("g", 40), start("h", 20, Y), start("k", 12, both), compute("a", 41), done("k")))
    # Over four devices an all-gather sends three times its operand: 36, from 40 on.
    assert found.shares["k"].seconds == 36
    assert found.shares["k"].exposed_seconds == 35 and found.replayed_seconds == 76


def test_a_synchronous_collective_stands_behind_what_has_its_link():
    found = replayed(program(start("g", 40), at_once("s", 8), compute("a", 5), done("g")))
    # It waits for 40 and takes 8; the gather is then through.
    assert (found.replayed_seconds, found.exposed_seconds) == (53, 48)
    assert found.shares["g"].behind == {"all-gather at m.py:9": 40}


def test_a_loop_is_its_turns():
    before, line = loop(start("g", 40), compute("a", 30), done("g"), turns=5)
    found = replayed(program(line, compute("b", 1), before=before))
    assert (found.compute_seconds, found.comm_seconds, found.exposed_seconds) == (151, 200, 50)
    assert (found.shares["g"].times, found.shares["g"].behind) == (5, {"m.py:1": 150})


def test_a_loop_is_what_an_earlier_start_hides_behind():
    before, line = loop(compute("a", 30, line=2), at_once("s", 8, Y, line=3), turns=5)
    found = replayed(program(start("g", 400), line, compute("b", 10), done("g"), before=before))
    # Five turns of 38, then 10: at 200 there are 200 left.
    assert (found.compute_seconds, found.exposed_seconds, found.replayed_seconds) == (160, 240, 400)
    behind = {"m.py:1": 10, "m.py:2": 150, "all-gather at m.py:3": 40}
    assert found.shares["g"].behind == pytest.approx(behind)


def test_the_first_turn_meets_what_is_under_way():
    before, line = loop(start("g", 20), compute("a", 30, line=2), done("g"), turns=4)
    found = replayed(program(start("h", 40), line, done("h"), before=before))
    # In the first turn the gather has the link from 40 to 60, with 30 to hide behind; in the others it is hidden.
    assert (found.compute_seconds, found.exposed_seconds) == (120, 30)
    assert found.shares["g"].exposed_seconds == 30 and found.shares["h"].exposed_seconds == 0


def test_a_loop_inside_a_loop_runs_as_often_as_both():
    before, line = loop(start("g", 40), compute("a", 30), done("g"), turns=3)
    inner = before.replace("%cond", "%cond2").replace("%body", "%body2")
    outer, outer_line = loop(line.replace("%cond", "%cond2").replace("%body", "%body2"), compute("b", 5), turns=4)
    found = replayed(program(outer_line, before=inner + outer))
    assert (found.compute_seconds, found.comm_seconds, found.exposed_seconds) == (380, 480, 120)


def test_a_loop_that_never_runs_takes_nothing():
    before, line = loop(at_once("s", 8), turns=0)
    assert replayed(program(line, before=before)).replayed_seconds == 0


def test_permutes_that_go_both_ways_take_the_link_once():
    def permute(name, pairs):
        return (
            f"%{name} = (f32[8]{{0}}, f32[8]{{0}}) collective-permute-start(%p), source_target_pairs={pairs}, {at(9)}"
        )

    def arrived(name):
        return f"%{name}.d = f32[8]{{0}} collective-permute-done(%{name})"

    there, back = "{{0,2},{1,3}}", "{{2,0},{3,1}}"
    text = program(permute("a", there), permute("b", back), compute("c", 20), arrived("a"), arrived("b"))
    found = replayed(text)
    assert (found.comm_seconds, found.exposed_seconds, found.replayed_seconds) == (32, 12, 32)


def test_an_all_gather_in_fusions_runs_beside_their_products():
    def fused(name, last):
        gather = f'replica_groups={X}, dimensions={{0}}, frontend_attributes={{chain_id="3"}}, {at(9)}'
        inside = [
            "%q = f32[10]{0} parameter(0)",
            f"%g.{name} = f32[20]{{0}} all-gather(%q), {gather}",
            f"ROOT %r {last}",
        ]
        return f"%{name} (q: f32[10]) -> f32[8] {{\n{lines(inside)}\n}}\n\n"

    before = (
        fused("first", '= f32[8]{0} custom-call(%g.first), custom_call_target="AsyncCollectiveStart"')
        + fused("step", "= f32[8]{0} bitcast(%g.step)")
        + fused("last", '= f32[8]{0} custom-call(%q, %g.last), custom_call_target="AsyncCollectiveDone"')
    )
    text = program(
        "%async-collective-start = f32[8]{0} fusion(%p), kind=kCustom, calls=%first",
        compute("product", 25, line=2).replace("%c,", "%step,"),
        compute("other", 5, line=3),
        "%async-collective-done = f32[8]{0} fusion(%product), kind=kCustom, calls=%last",
        compute("after", 50),
        before=before,
    )
    found = replayed(text)
    assert (found.compute_seconds, found.comm_seconds, found.exposed_seconds) == (80, 40, 10)
    assert found.shares["g.first"].largest() == (("m.py:2", 25), ("m.py:3", 5))


def test_a_collective_of_a_wrapped_computation_is_started_and_ended():
    inside = "%wrapped (q: f32[10]) -> f32[20] {\n  %q = f32[10]{0} parameter(0)\n" + lines(
        [f"ROOT %g = f32[20]{{0}} all-gather(%q), replica_groups={X}, dimensions={{0}}, {at(9)}"]
    )
    text = program(
        "%s = ((f32[10]{0}), f32[20]{0}) async-start(%p), calls=%wrapped",
        compute("a", 30),
        "%u = ((f32[10]{0}), f32[20]{0}) async-update(%s), calls=%wrapped",
        "%d = f32[20]{0} async-done(%u), calls=%wrapped",
        before=inside + "\n}\n\n",
    )
    found = replayed(text)
    assert (found.replayed_seconds, found.exposed_seconds, found.comm_seconds) == (40, 10, 40)


def test_copies_to_the_chip_take_the_memorys_time():
    lines = [
        "  %w = f32[4]{0} parameter(1)",
        "  %c = (f32[4]{0:S(1)}, f32[4]{0}, u32[]{:S(2)}) copy-start(%w)",
        "  %s = ((f32[4]{0}), f32[2]{0:S(1)}, s32[]{:S(2)}) slice-start(%w), slice={[0:2]}",
        compute("a", 10),
        "  %cd = f32[4]{0:S(1)} copy-done(%c)",
        "  %sd = f32[2]{0:S(1)} slice-done(%s)",
        compute("b", 7),
    ]
    found = replayed(program(*lines), memory_bytes_per_second=1.0)
    # 16 bytes and then 8 on one clock: 10 of the 24 seconds are hidden, and the wait is the program's own work.
    assert (found.kernel_seconds, found.compute_seconds, found.exposed_seconds) == (17, 31, 0)
    assert found.replayed_seconds == 31 and found.comm_seconds == 0
    inside = [line.replace("S(1)", "S(3)") for line in lines]
    assert replayed(program(*inside), memory_bytes_per_second=1.0).replayed_seconds == 17


def test_moves_of_the_host_have_links_of_their_own_each_way():
    text = program(
        start("g", 40),
        "%in = (f32[8]{0}, f32[8]{0:S(5)}, u32[]) copy-start(%p)",
        "%out = (f32[16]{0:S(5)}, f32[16]{0}, u32[]) copy-start(%p)",
        compute("a", 20),
        "%in.d = f32[8]{0} copy-done(%in)",
        "%out.d = f32[16]{0:S(5)} copy-done(%out)",
        done("g"),
    )
    found = replayed(text, host_bytes_per_second=1.0)
    # In by 32, out by 64, the gather by 40.
    assert (found.transfer_seconds, found.exposed_transfer_seconds) == (96, 44)
    assert (found.exposed_seconds, found.replayed_seconds) == (44, 64)
    assert found.shares["g"].exposed_seconds == 0


def test_what_is_never_ended_is_waited_for_at_the_end():
    assert replayed(program(start("g", 40), compute("a", 10))).replayed_seconds == 40


def test_the_verdicts_figures_are_those_of_the_replay():
    text = program(start("g", 4 * 2**20), compute("a", 1500), done("g"), at_once("s", 2**20, Y))
    found = program_figures(parse_hlo(text), {"x": 2, "y": 2}, parse_target("tpu:v5e:2x2"))
    early, late = found["collectives"]
    assert found["serial_seconds"] == found["compute_seconds"] + found["comm_seconds"]
    assert found["step_seconds"] == pytest.approx(early.seconds + late.seconds)
    assert found["exposed_seconds"] == pytest.approx(found["step_seconds"] - found["compute_seconds"])
    assert early.hidden_seconds == pytest.approx(found["compute_seconds"])
    assert late.hidden_seconds == pytest.approx(0, abs=1e-12)
    assert early.behind[0][0] == "m.py:1" and late.exposed_seconds == pytest.approx(late.seconds)


def test_where_there_are_no_cycles_nothing_is_replayed():
    found = program_figures(parse_hlo(program(at_once("s", 80))), {"x": 2, "y": 2}, parse_target("gpu:a100-80:4"))
    assert "exposed_seconds" not in found and found["step_seconds"] is None
    assert found["collectives"][0].hidden_seconds is None and found["collectives"][0].exposed_seconds is None
