"""XLA's final program, read from its text: loops, collectives, groups of devices, and the compiler's messages."""

import pytest

from shardwright.ir.program import Source
from shardwright.request.targets import parse_target
from shardwright.verify.device_groups import Span, permuted_pairs, permuted_span, replica_groups, span
from shardwright.verify.figures import program_figures
from shardwright.verify.hlo import bits_of, bytes_of, parse_hlo, parse_instruction
from shardwright.verify.hlo_totals import hlo_totals
from shardwright.verify.messages import Shortage, involuntary, last_words, shortage

EIGHT = "HloModule jit_f, is_scheduled=true, num_partitions=8\n\n"


def cycles(n):
    return f'backend_config={{"window_config":{{"estimated_cycles":"{n}","bounds":["1"]}}}}'


def entry(*lines, head=EIGHT, before=""):
    return head + before + "ENTRY %main (p: f32[16,128]) -> f32[] {\n  " + "\n  ".join(lines) + "\n}\n"


def totals(text):
    return hlo_totals(parse_hlo(text))


def only(text):
    (found,) = totals(text).collectives
    return found


# Instructions


def test_an_instruction_is_taken_apart():
    i = parse_instruction(
        "  ROOT %fusion.1 = (f32[2,8]{1,0:T(8,128)}, /*index=1*/bf16[4]{0:T(1024)S(1)}) fusion(%a.1, /*index=1*/%b), "
        'kind=kLoop, calls=%fused.2, metadata={op_name="jit(f)/mul (x)" stack_frame_id=3}, ' + cycles(77)
    )
    assert (i.name, i.opcode, i.operands, i.root) == ("fusion.1", "fusion", ("a.1", "b"), True)
    assert i.shape == "(f32[2,8]{1,0:T(8,128)}, /*index=1*/bf16[4]{0:T(1024)S(1)})"
    assert i.called == {"calls": ("fused.2",)}
    assert i.estimated_cycles == 77
    assert i.op_name == "jit(f)/mul (x)"
    assert i.attribute("kind") == "kLoop"


def test_the_largest_number_is_no_estimate():
    i = parse_instruction(f"  %f = f32[8]{{0}} fusion(%a), calls=%c, {cycles(2**63 - 1)}")
    assert i.estimated_cycles is None


def test_a_kernel_that_is_printed_over_several_lines_is_one_instruction():
    text = entry(
        '%k = (bf16[4,8]{1,0}, f32[4]{0}) custom-call(%p), custom_call_target="tpu_custom_call", '
        'frontend_attributes={kernel_metadata={\n"xprof_metadata":"{\\"block_q\\": 512}"\n}}, '
        'metadata={op_name="jit(call)/jit(step)/while/body/jit(flash)/pallas_call/jit(fwd_kernel)/pallas_call"}',
        f"ROOT %f = f32[8]{{0}} fusion(%p), calls=%c, {cycles(70)}",
    )
    found = totals(text)
    assert found.cycles == 70 and not found.unestimated_bytes
    (kernel,) = found.kernels
    assert kernel.called_in[:2] == ("fwd_kernel", "flash")
    assert (kernel.bytes, kernel.times) == (2 * (64 + 16), 1)


def test_kernels_take_what_is_known_of_them_and_else_move_their_results():
    line = (
        '%{0} = f32[1024,1024]{{1,0}} custom-call(%p), custom_call_target="tpu_custom_call", '
        'metadata={{op_name="jit(step)/jit({0})/pallas_call"}}'
    )
    program = parse_hlo(entry(line.format("known"), line.format("other")))
    target = parse_target("tpu:v5e:2x4")
    ragged = line.format("ragged-dot-none").replace(
        "jit(ragged-dot-none)/pallas_call", "while/ragged_dot/ragged-dot-none"
    )
    made = parse_hlo(entry(ragged))
    assert program_figures(made, {"data": 8}, target, {"other/while/ragged_dot": 1.0})["kernel_seconds"] == 0.0
    assert program_figures(made, {"data": 8}, target, {"jit(step)/while/ragged_dot": 0.5})["kernel_seconds"] == 0.5
    figures = program_figures(program, {"data": 8}, target, {"known": 0.25})
    assert figures["kernel_seconds"] == 0.25
    assert figures["compute_seconds"] == 0.25 + 2 * 2**22 / target.device.memory_bytes_per_second
    assert (
        program_figures(parse_hlo(entry("%a = f32[8]{0} add(%p, %p)")), {"data": 8}, target)["kernel_seconds"] is None
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[2,3]{1,0:T(8,128)}", 24),
        ("bf16[]", 2),
        ("(f32[4]{0}, s8[8]{0}, u32[]{:S(2)})", 16 + 8 + 4),
        ("pred[10]", 10),
        ("s4[8]", 4),
        ("f8e4m3fn[8]", 8),
        ("c64[2]", 16),
        ("token[]", 0),
        ("f32[<=4,2]", 32),
        ("f32[0,2]", 0),
    ],
)
def test_bytes_of_a_shape(shape, expected):
    assert bytes_of(shape) == expected


def test_bits_of_an_unknown_type_are_none():
    assert bits_of("opaque") == 0


TABLES = """HloModule jit_f, num_partitions=4

FileNames
1 "/home/me/model.py"
2 "/home/me/step.py"

FunctionNames
1 "layer"
2 "train.<locals>.step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=9}
2 {file_name_id=2 function_name_id=2 line=40 end_line=40 column=4 end_column=9}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=2}

"""


def test_lines_of_the_users_code_come_from_tables_or_from_metadata():
    program = parse_hlo(
        TABLES
        + entry(
            '%a = f32[8]{0} copy(%p), metadata={op_name="jit(f)/x" stack_frame_id=2}',
            '%b = f32[8]{0} copy(%p), metadata={op_name="jit(f)/y" stack_frame_id=1}',
            '%c = f32[8]{0} copy(%p), metadata={op_name="jit(f)/z" source_file="/home/me/a.py" source_line=7}',
            "%d = f32[8]{0} copy(%p)",
            head="",
        )
    )
    at = {name: program.source(i) for name, i in program.computations["main"].instructions.items()}
    assert str(at["a"]) == "model.py:12 (layer)"
    assert str(at["b"]) == "step.py:40 (step)"
    assert at["c"] == Source("/home/me/a.py", 7, "", "jit(f)/z")
    assert at["d"] == Source()
    assert at["a"].scope == "jit(f)/x"


# Loops

LOOP = """%body{n} (b: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %b = (s32[]{{:T(128)}}, f32[8]{{0}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%b), index=0
  %step = s32[]{{:T(128)}} constant({step})
  %next = s32[]{{:T(128)}} add(%i, %step)
  %x = f32[8]{{0}} get-tuple-element(%b), index=1
  %work = f32[8]{{0}} fusion(%x), kind=kLoop, calls=%fused, {cycles}
{more}  ROOT %out = (s32[]{{:T(128)}}, f32[8]{{0}}) tuple(%next, %work)
}}

%condition{n} (c: (s32[], f32[8])) -> pred[] {{
  %c = (s32[]{{:T(128)}}, f32[8]{{0}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%c), index=0
  %bound = s32[]{{:T(128)}} constant({bound})
  ROOT %less = pred[]{{:T(512)}} compare({sides}), direction={direction}
}}

"""


def loop(n="", bound=6, step=1, direction="LT", sides="%i, %bound", more=""):
    return LOOP.format(n=n, bound=bound, step=step, direction=direction, sides=sides, more=more, cycles=cycles(10))


def around(first=0, n="", attributes=""):
    return (
        "%p = f32[8]{0} parameter(0)",
        f"%first = s32[]{{:T(128)}} constant({first})",
        "%init = (s32[], f32[8]) tuple(%first, %p)",
        f"ROOT %loop = (s32[], f32[8]) while(%init), condition=%condition{n}, body=%body{n}{attributes}",
    )


@pytest.mark.parametrize(
    ("first", "options", "trips"),
    [
        (0, {}, 6),
        (2, {}, 4),
        (0, {"step": 2}, 3),
        (0, {"step": 4}, 2),
        (0, {"direction": "LE"}, 7),
        (0, {"direction": "NE"}, 6),
        (0, {"direction": "GT", "sides": "%bound, %i"}, 6),
        (9, {"step": -1, "bound": 0, "direction": "GT"}, 9),
        (9, {"step": -1, "bound": 0, "direction": "GE"}, 10),
        (7, {}, 0),
    ],
)
def test_trip_counts(first, options, trips):
    found = totals(entry(*around(first), before=loop(**options)))
    assert found.cycles == 10 * trips
    assert not found.unknown_loops


def test_a_trip_count_that_the_compiler_wrote_down_comes_first():
    known = ', backend_config={"known_trip_count":{"n":"5"}}'
    assert totals(entry(*around(attributes=known), before=loop())).cycles == 50


def test_a_comparison_inside_a_fusion():
    text = entry(*around(), before=loop()).replace(
        "ROOT %less = pred[]{:T(512)} compare(%i, %bound), direction=LT",
        "ROOT %less = pred[] fusion(%bound, %i), kind=kLoop, calls=%fused_compare",
    )
    compare = (
        "%fused_compare (p0: s32[], p1: s32[]) -> pred[] {\n"
        "  %p0 = s32[] parameter(0)\n  %p1 = s32[] parameter(1)\n"
        "  ROOT %lt = pred[] compare(%p1, %p0), direction=LT\n}\n\n"
    )
    assert totals(text.replace("ENTRY", compare + "ENTRY")).cycles == 60


def test_a_bound_that_the_loop_carries():
    body, rest = loop().split("%condition", 1)
    carried = rest.replace("%bound = s32[]{:T(128)} constant(6)", "%bound = s32[] get-tuple-element(%c), index=2")
    body = body.replace("tuple(%next, %work)", "tuple(%next, %work, %limit)").replace(
        "  ROOT", "  %limit = s32[] get-tuple-element(%b), index=2\n  ROOT"
    )
    lines = [*around()]
    lines[1:3] = [
        "%first = s32[] constant(0)",
        "%end = s32[] constant(11)",
        "%init = (s32[], f32[8], s32[]) tuple(%first, %p, %end)",
    ]
    assert totals(entry(*lines, before=body + "%condition" + carried)).cycles == 110


def test_loops_inside_loops_multiply():
    inner = loop(n="2", bound=3)
    more = (
        "  %zero = s32[] constant(0)\n"
        "  %again = (s32[], f32[8]) tuple(%zero, %work)\n"
        "  %nested = (s32[], f32[8]) while(%again), condition=%condition2, body=%body2\n"
        "  %gathered = f32[64]{0} all-gather(%work), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}\n"
    )
    found = totals(entry(*around(), before=inner + loop(bound=4, more=more)))
    assert found.cycles == 4 * (10 + 3 * 10)
    assert [c.times for c in found.collectives] == [4]


def test_a_loop_of_unknown_length_counts_once_and_is_named():
    text = entry(*around(), before=loop()).replace("constant(6)", "parameter(1)")
    found = totals(text)
    assert found.cycles == 10
    assert found.unknown_loops == ("loop",)


# What is counted


def copying(name, n):
    lines = ["%p = f32[8] parameter(0)", f"ROOT %c = f32[8] copy(%p), {cycles(n)}"]
    return f"%{name} (p: f32[8]) -> f32[8] {{\n  " + "\n  ".join(lines) + "\n}\n\n"


def test_cycles_of_a_fusion_are_its_own():
    line = f"ROOT %f = f32[8] fusion(%p), kind=kLoop, calls=%fused, {cycles(100)}"
    assert totals(entry(line, before=copying("fused", 9))).cycles == 100


def test_a_call_counts_what_it_calls():
    assert totals(entry("ROOT %f = f32[8] call(%p), to_apply=%called", before=copying("called", 9))).cycles == 9


def test_of_a_conditional_the_dearest_branch_counts():
    branches = "".join(copying(f"branch{n}", n) for n in (5, 50, 20))
    several = "ROOT %f = f32[8] conditional(%k, %p, %p), branch_computations={%branch5, %branch50, %branch20}"
    two = "ROOT %f = f32[8] conditional(%k, %p, %p), true_computation=%branch20, false_computation=%branch5"
    assert totals(entry(several, before=branches)).cycles == 50
    assert totals(entry(two, before=branches)).cycles == 20


def test_work_without_an_estimate_is_counted_in_bytes():
    found = totals(
        entry(
            f"%a = f32[8]{{0}} fusion(%p), calls=%fused, {cycles(2**63 - 1)}",
            "%b = f32[4]{0} fusion(%p), calls=%fused",
            '%c = f32[2]{0} custom-call(%p), custom_call_target="tpu_custom_call"',
            '%d = f32[1024]{0} custom-call(), custom_call_target="AllocateBuffer"',
            "ROOT %e = f32[1024]{0} bitcast(%p)",
        )
    )
    assert found.cycles == 0
    assert found.unestimated_bytes == 2 * 4 * (8 + 4)
    assert [kernel.bytes for kernel in found.kernels] == [2 * 4 * 2]


def test_a_scatter_into_its_operand_moves_what_it_writes():
    fused = (
        "%fused (a: f32[1024], b: s32[2], c: f32[2]) -> f32[1024] {\n  %a = f32[1024]{0} parameter(0)\n"
        "  %b = s32[2]{0} parameter(1)\n  %c = f32[2]{0} parameter(2)\n"
        "  ROOT %s = f32[1024]{0} scatter(%a, %b, %c), to_apply=%add\n}\n"
    )
    lines = ["%p = f32[1024]{0} parameter(0)", "%i = s32[2]{0} parameter(1)", "%u = f32[2]{0} parameter(2)"]
    fusion = "ROOT %f = f32[1024]{0} fusion(%p, %i, %u), kind=kCustom, calls=%fused"
    own = ', backend_config={"aliasing_operands":{"lists":[{"indices":["0","3"]}]}}'
    assert totals(entry(*lines, fusion, before=fused)).unestimated_bytes == 2 * 4 * 1024
    assert totals(entry(*lines, fusion + own, before=fused)).unestimated_bytes == 2 * (8 + 8)


# Collectives: what each of 8 devices sends. The operand has 16 x 128 x 4 = 8192 bytes.

ALL = "replica_groups=[1,8]<=[8]"


@pytest.mark.parametrize(
    ("line", "kind", "sent"),
    [
        ("all-gather = f32[128,128]{1,0} all-gather(%p), dimensions={0}", "all-gather", 7 * 8192),
        ("all-reduce = f32[16,128]{1,0} all-reduce(%p), to_apply=%add", "all-reduce", 2 * 7 / 8 * 8192),
        ("reduce-scatter = f32[2,128]{1,0} reduce-scatter(%p), dimensions={0}", "reduce-scatter", 7 / 8 * 8192),
        ("all-to-all = f32[16,128]{1,0} all-to-all(%p), dimensions={0}", "all-to-all", 7 / 8 * 8192),
        ("r = f32[16,128]{1,0} ragged-all-to-all(%p, %p, %k, %k, %k, %k)", "all-to-all", 7 / 8 * 8192),
        ("both = (f32[16,128], f32[16,128]) all-reduce(%p, %q), to_apply=%add", "all-reduce", 2 * 7 / 8 * 2 * 8192),
        ("start = (f32[16,128], f32[128,128]) all-gather-start(%p), dimensions={0}", "all-gather", 7 * 8192),
        ("start = f32[16,128]{1,0} all-reduce-start(%p), to_apply=%add", "all-reduce", 2 * 7 / 8 * 8192),
    ],
)
def test_bytes_that_each_device_sends(line, kind, sent):
    found = only(
        entry(
            "%p = f32[16,128]{1,0:T(8,128)} parameter(0)",
            "%q = f32[16,128]{1,0:T(8,128)} parameter(1)",
            f"%{line}, {ALL}, use_global_device_ids=true",
        )
    )
    assert (found.kind, found.bytes, found.times) == (kind, sent, 1)
    assert found.overlapped == ("start" in line)


def test_an_operand_that_is_not_there_is_known_from_the_result():
    assert only(entry(f"%g = f32[128,128] all-gather(%gone), {ALL}")).bytes == 7 * 8192
    assert only(entry(f"%g = f32[2,128] reduce-scatter(%gone), {ALL}")).bytes == 7 / 8 * 8192


def test_a_permute_sends_everything_once():
    pairs = "source_target_pairs={{0,1},{1,0},{2,3},{3,2}}"
    found = only(
        entry(
            "%p = f32[16,128]{1,0} parameter(0)",
            f"%start = (f32[16,128], f32[16,128], u32[], u32[]) collective-permute-start(%p), channel_id=1, {pairs}",
            "%done = f32[16,128]{1,0} collective-permute-done(%start)",
        )
    )
    assert (found.kind, found.bytes, found.overlapped) == ("collective-permute", 8192, True)
    assert found.groups == ((0, 1), (1, 0), (2, 3), (3, 2))


def test_a_combined_collective_is_shown_where_its_first_operand_comes_from():
    found = only(
        entry(
            '%p = f32[16,128] copy(%q), metadata={op_name="x" source_file="/home/me/a.py" source_line=7}',
            "%flat = f32[2048] bitcast(%p)",
            f"%r = (f32[2048], f32[2048]) all-reduce(%flat, %flat), {ALL}, to_apply=%add",
        )
    )
    assert str(found.source) == "a.py:7"


def test_a_collective_that_is_started_and_waited_for_at_once_is_not_overlapped():
    sync = 'backend_config={"collective_backend_config":{"is_sync":true}}'
    lines = ["%p = f32[16,128] parameter(0)", f"%r = f32[16,128] all-reduce-start(%p), {ALL}, to_apply=%add, {sync}"]
    assert not only(entry(*lines)).overlapped


def test_groups_of_one_device_send_nothing():
    lines = ["%p = f32[16,128] parameter(0)", "%r = f32[16,128] all-reduce(%p), replica_groups=[8,1]<=[8]"]
    still = "%s = f32[16,128] collective-permute(%p), source_target_pairs={{0,0},{1,1}}"
    assert totals(entry(*lines, still)).collectives == ()


def test_a_collective_wrapped_into_an_asynchronous_call():
    wrapped = (
        "%wrapped (p: f32[16,128]) -> f32[2,128] {\n  %p = f32[16,128] parameter(0)\n"
        f"  ROOT %s = f32[2,128] reduce-scatter(%p), {ALL}, dimensions={{0}}\n}}\n\n"
    )
    found = only(
        entry(
            "%a = ((f32[16,128]), f32[2,128], u32[]) async-start(%p), calls=%wrapped",
            "%b = ((f32[16,128]), f32[2,128], u32[]) async-update(%a)",
            "%c = f32[2,128] async-done(%b)",
            before=wrapped,
        )
    )
    assert (found.kind, found.bytes, found.overlapped) == ("reduce-scatter", 7 / 8 * 8192, True)


def test_a_reduction_fused_with_its_slice_is_a_reduce_scatter():
    fused = (
        "%all-reduce-scatter (p: f32[16,128]) -> f32[2,128] {\n  %p = f32[16,128] parameter(0)\n"
        f"  %r = f32[16,128] all-reduce(%p), {ALL}, to_apply=%add\n"
        "  ROOT %s = f32[2,128] dynamic-slice(%r, %k, %k), dynamic_slice_sizes={2,128}\n}\n\n"
    )
    found = totals(entry("%f = f32[2,128] fusion(%p), kind=kCustom, calls=%all-reduce-scatter", before=fused))
    assert [(c.kind, c.bytes) for c in found.collectives] == [("reduce-scatter", 7 / 8 * 8192)]
    assert found.unestimated_bytes == 0


def test_an_all_gather_taken_apart_over_fusions_counts_once():
    gather = "  %g = f32[128,128] all-gather(%p), channel_id=7, " + ALL + ', frontend_attributes={chain_id="0"}\n'
    head = "%{} (p: f32[16,128]) -> f32[128,128] {{\n  %p = f32[16,128] parameter(0)\n"
    parts = (
        head.format("begin") + gather + "  ROOT %c = f32[128,128] custom-call(%g), "
        'custom_call_target="AsyncCollectiveStart"\n}\n\n'
        + head.format("step")
        + gather
        + "  ROOT %c = (f32[128,128]) tuple(%g)\n}\n\n"
        + head.format("end")
        + gather
        + "  ROOT %c = f32[128,128] custom-call(%p, %g), "
        'custom_call_target="AsyncCollectiveDone"\n}\n\n'
    )
    found = totals(
        entry(
            "%async-collective-start = f32[128,128] fusion(%p), kind=kCustom, calls=%begin",
            f"%fusion.1 = (f32[128,128]) fusion(%p), kind=kOutput, calls=%step, {cycles(30)}",
            "%async-collective-done = f32[128,128] fusion(%p), kind=kCustom, calls=%end",
            before=parts,
        )
    )
    assert [(c.kind, c.bytes, c.overlapped) for c in found.collectives] == [("all-gather", 7 * 8192, True)]
    assert (found.cycles, found.unestimated_bytes) == (30, 0)


# Groups of devices


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}, dimensions={0}", ((0, 1), (2, 3))),
        ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups={}, to_apply=%add", ((0, 1, 2, 3),)),
        ("to_apply=%add", ((0, 1, 2, 3),)),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_1'}, use_global_device_ids=true", ((0, 1), (2, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", ((0, 1, 2, 3),)),
        ("replica_groups=mesh[a=4,b=1] {a}", ((0, 1, 2, 3),)),
        ("replica_groups=mesh['a'=4] {'a':(1)2}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=4] {'a':(2)2}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'b'}", ((3, 2), (1, 0))),
    ],
)
def test_replica_groups(text, groups):
    assert replica_groups(text, 4) == groups


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (((0, 1, 2, 3), (4, 5, 6, 7)), Span((1,), (4,), 4)),
        (((0, 4), (1, 5), (2, 6), (3, 7)), Span((0,), (2,), 2)),
        (((0, 1, 2, 3, 4, 5, 6, 7),), Span((0, 1), (2, 4), 8)),
        (((0, 1), (2, 3), (4, 5), (6, 7)), Span((1,), (2,), 2)),
        (((0, 5), (1, 4), (2, 7), (3, 6)), Span((0, 1), (2, 2), 2)),
        ((), Span((), (), 1)),
    ],
)
def test_the_axes_that_groups_lie_along(groups, expected):
    assert span(groups, (2, 4)) == expected


def test_the_axes_that_a_permute_changes():
    assert permuted_span(((0, 1), (1, 2), (2, 3), (3, 0)), (2, 4)).axes == (1,)
    assert permuted_span(((0, 4), (4, 0), (1, 1)), (2, 4)).axes == (0,)
    assert permuted_span(((0, 5),), (2, 4)).axes == (0, 1)
    assert permuted_span(((0, 0),), (2, 4)) == Span((), (), 1)
    assert permuted_pairs("source_target_pairs={{0,1},{1,0}}, x=1") == ((0, 1), (1, 0))


# Messages

WARNING = (
    "W1116 00:27:40.654561    4003 spmd_partitioner.cc:654] [SPMD] Involuntary full rematerialization. The compiler "
    "cannot go from sharding {devices=[2,1,4]<=[4,2]T(1,0)} to {devices=[1,8,1]<=[8]} efficiently for HLO operation "
    "%add.2 = f32[64,256,64]{2,1,0} add(%param, %param), sharding={devices=[2,1,4]<=[4,2]T(1,0)}, metadata={op_name="
    '"jit(f)/add" stack_frame_id=2}. As the last resort, SPMD will replicate the tensor and then partition it to '
    "obtain the target sharding, which is inefficient. This issue will be fixed by Shardy partitioner in the future.\n"
)
OLDER = (
    "E external/xla/xla/service/spmd/spmd_partitioner.cc:613] [spmd] Involuntary full rematerialization. The compiler "
    "was not able to go from sharding {maximal device=0} to {devices=[4,1]<=[4]} without doing a full "
    "rematerialization of the tensor for HLO operation: %p = bf16[4,2]{1,0} parameter(0), metadata={op_name="
    '"x" source_file="/home/me/a.py" source_line=3}. You probably want to enrich the sharding annotations to prevent '
    "this from happening.\n"
)


def test_involuntary_rematerialisations_are_read_from_the_log():
    found = involuntary("noise\n" + OLDER + WARNING + WARNING + "noise", {2: Source("/home/me/b.py", 9, "f")})
    assert [(w.shape, w.bytes, str(w.source)) for w in found] == [
        ("f32[128,256,256]", 4 * 128 * 256 * 256, "b.py:9 (f)"),
        ("bf16[4,2]", 16, "a.py:3"),
    ]
    assert found[0].have == "{devices=[2,1,4]<=[4,2]T(1,0)}"
    assert found[0].want == "{devices=[1,8,1]<=[8]}"
    assert involuntary("nothing", {}) == ()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (20.50G) "
            "exceeds available HBM (15.75G).",
            Shortage(round(20.5 * 2**30), round(15.75 * 2**30)),
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 17.21G "
            "of 15.75G hbm. Exceeded hbm capacity by 1.46G.\n\nTotal hbm usage >= 17.46G:\n    reserved        258.00M",
            Shortage(round(17.21 * 2**30), round(15.75 * 2**30)),
        ),
        ("RESOURCE_EXHAUSTED: out of something", Shortage(None, None)),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 130.00M of 128.00M vmem.", None),
        ("INTERNAL: a bug", None),
    ],
)
def test_a_shortage_is_read_from_the_error(message, expected):
    assert shortage(message) == expected


def test_the_last_words_of_a_process():
    log = "INFO start\nF1116 12:00 a.cc:3] Check failed: x == y (1 vs. 2)\n*** trace ***\n    @ 0x7f  f()\n\n"
    assert last_words(log, -6) == (
        "the compiler's process was ended by SIGABRT: Check failed: x == y (1 vs. 2), in a.cc:3"
    )
    assert last_words("", 3) == "the compiler's process ended with exit code 3: it printed nothing"
    assert "signal 77" in last_words("hello", -77)


CHECK_FAILED = """\
W1117 22:25:53.100000    7080 cpu_client.cc:12] something else, an error of no account
F1117 22:25:53.600134    7080 spmd_partitioner.cc:1115] Check failed: offset(0) == swd->padding_low() (1 vs. -1) 
*** Check failure stack trace: ***
    @     0x7f63a4240634  absl::lts_20260107::log_internal::LogMessage::SendToLog()
    @     0x7f63a46ad556  xla::spmd::PartitionedHlo::ReshardAsWindowedInput()
@     0x7f63a46ce2d0  xla::spmd::SpmdPartitioningVisitor::HandleError()
    @     0x7f63ab6a71f5  (unknown)
Fatal Python error: Aborted

Thread 0x00007f17 (most recent call first):
  File "compiler.py", line 12 in compile
SIGABRT received by PID 7080 (TID 7080) on cpu 1
"""  # noqa: W291


def test_the_check_that_failed_is_told_and_no_stack_frame():
    assert last_words(CHECK_FAILED, -6, "the process") == (
        "the process was ended by SIGABRT: Check failed: offset(0) == swd->padding_low() (1 vs. -1), in "
        "spmd_partitioner.cc:1115"
    )
    python = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\njax.errors.JaxRuntimeError: INTERNAL: no\n'
    )
    assert last_words(python, 1, "the process") == (
        "the process ended with exit code 1: jax.errors.JaxRuntimeError: INTERNAL: no"
    )


def test_a_warning_in_the_form_of_newer_compilers():
    log = (
        "W1116 partitioner.cc:66] [SPMD] Involuntary full rematerialization. The compiler cannot go from sharding "
        "{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]} to {mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]} efficiently for HLO "
        "operation %add.4 = f32[16,64,16]{2,1,0} add(%p, %p), sharding={mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}, "
        'metadata={op_name="jit(f)/add"}. As the last resort, SPMD will replicate the tensor.'
    )
    (found,) = involuntary(log, {})
    assert (found.shape, found.bytes) == ("f32[32,64,64]", 32 * 64 * 64 * 4)


RING = "channel_id={c}, source_target_pairs={{{{{pairs}}}}}"


def ring(*pairs, channel):
    return RING.format(c=channel, pairs="},{".join(f"{a},{b}" for a, b in pairs))


FORTH = ((0, 1), (1, 2), (2, 3), (3, 0))
BACK = tuple((b, a) for a, b in FORTH)
SENT = "(f32[8]{0}, f32[8]{0}, u32[]{:S(2)}, u32[]{:S(2)})"


def permutes(*lines):
    found = totals(entry("%x = f32[8]{0} parameter(0)", "%y = f32[4]{0} parameter(1)", *lines)).collectives
    return [c.opposite for c in found]


def test_two_that_go_round_in_opposite_directions_at_once_take_the_time_of_one():
    one = f"%a = {SENT} collective-permute-start(%x), {ring(*FORTH, channel=1)}"
    other = f"%b = {SENT} collective-permute-start(%x), {ring(*BACK, channel=2)}"
    done = "%ad = f32[8]{0} collective-permute-done(%a)", "%bd = f32[8]{0} collective-permute-done(%b)"
    assert permutes(one, other, *done) == [False, True]
    assert permutes(one, done[0], other, done[1]) == [False, False]  # one after the other
    same = f"%b = {SENT} collective-permute-start(%x), {ring(*FORTH, channel=2)}"
    assert permutes(one, same, *done) == [False, False]  # on the same links
    smaller = f"%b = {SENT.replace('8', '4')} collective-permute-start(%y), {ring(*BACK, channel=2)}"
    assert permutes(one, smaller, *done) == [False, False]  # not as large: the time of both is not that of one


def test_each_of_a_pair_pays_for_one_other_only():
    start = [
        f"%{name} = {SENT} collective-permute-start(%x), {ring(*pairs, channel=k)}"
        for k, (name, pairs) in enumerate([("a", FORTH), ("b", BACK), ("c", BACK)])
    ]
    assert permutes(*start) == [False, True, False]
