"""Tuning: the loop with a compiler that is made up, what is learned, what is kept on disk and in plan files."""

import dataclasses
import importlib.util
import json
import math
import pickle
import random
import sys
from collections import defaultdict
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import shardwright as sw
from programs import f32
from shardwright.cli import main
from shardwright.compiler.options import EARLY_GATHERS, RECORDS, settings_of
from shardwright.errors import PlanError
from shardwright.models import build
from shardwright.plan.tuning import KeptOption, Tuning
from shardwright.plan.verdicts import CompiledCollective, CompilerVerdict, Involuntary, LineSeconds
from shardwright.price import CostModel
from shardwright.price.corrections import COMPUTE, COPIES, Corrections, Priced, priced
from shardwright.search import find_state
from shardwright.space.state import State
from shardwright.tune import tune_plan
from shardwright.tune.judge import compiled_by
from shardwright.tune.learn import estimated, largest_corrections, learn
from shardwright.tune.states import States
from shardwright.verify import compile as compiling
from shardwright.verify.compiled_before import question_of
from shardwright.verify.kept_figures import KeptFigures, cache_folder

ON = "tpu:v5e:2x4"
MESH = {"data": 4, "model": 2}
VMEM, PRODUCTS = (record.name for record in settings_of("tpu")[:2])
needs_tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed (shardwright[tpu])"
)


def train_step(params, batch):
    def loss(params):
        return jnp.mean((jax.nn.relu(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


ARGS = {"up": f32(512, 2048), "down": f32(2048, 512)}, {"x": f32(4096, 512), "y": f32(4096, 512)}


@pytest.fixture(scope="module")
def plan():
    return sw.partition(train_step, *ARGS, mesh=MESH, device="tpu-v5e", donate=(0,), ask_compiler=False)


def verdict(plan, factor=1.0, peak=1.0, **more):
    """A compiler that has everything as it was estimated, times a factor."""
    lines = tuple(
        LineSeconds(of.what, of.line, of.backward, factor * each.all, factor * each.hidden)
        for of, each in estimated(plan).items()
    )
    cost = plan.estimate_cost
    found = {
        "compile_seconds": 1.0,
        "step_seconds": factor * cost.step_seconds,
        "peak_bytes": int(peak * cost.peak_bytes),
        "fits": peak * cost.peak_bytes <= plan.memory_bytes,
        "lines": lines,
        "counts": {"all-gather": 2},
    }
    return CompilerVerdict.of(ON, {**found, **more}, plan.estimate)


class Compiler:
    """Answers by a function of the plan and the options, and remembers what it was asked."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def __call__(self, plan, options):
        self.asked.append((plan, dict(options)))
        return self.answer(plan, options)

    @property
    def options(self):
        return [options for _, options in self.asked]


def tuned(plan, answer, **more):
    compiler = Compiler(answer)
    return tune_plan(plan, ON, judge=compiler, **more), compiler


# Choosing among plans.


def test_a_plan_that_nothing_beats_stays(plan):
    """Others take twice as long as estimated, and options change nothing."""
    best, compiler = tuned(plan, lambda p, _: verdict(p, 1.0 if p is plan else 2.0))
    assert compiler.asked[0] == (plan, {})
    assert best.decisions == plan.decisions
    assert best.tuning.options == () and best.compiler_options == {}
    assert best.tuning.default_seconds == best.tuning.step_seconds == plan.estimate_cost.step_seconds
    assert best.verdict is not None and best.fits_by == "compiler"


def test_a_plan_that_the_compiler_likes_better_is_taken(plan):
    """The plan takes twice as long as was estimated, all others as long as that."""
    best, compiler = tuned(plan, lambda p, _: verdict(p, 2.0 if p is plan else 1.0))
    assert best.decisions != plan.decisions
    others = [p.estimate_cost.step_seconds for p, _ in compiler.asked[1:]]
    assert best.tuning.step_seconds == min(others) < best.tuning.default_seconds
    assert best.tuning.saved == pytest.approx(1 - min(others) / (2 * plan.estimate_cost.step_seconds))
    assert {p.decisions for p in best.alternatives} >= {plan.decisions}
    assert [p.verdict.step_seconds for p in best.alternatives] == sorted(
        p.verdict.step_seconds for p in best.alternatives
    )


def test_no_plan_is_compiled_twice_and_no_more_than_asked_for(plan):
    for compiles in (1, 2, 5):
        best, compiler = tuned(plan, lambda p, _: verdict(p, 2.0 if p is plan else 1.0), compiles=compiles)
        assert 1 <= len(compiler.asked) <= compiles
        plain = [p.partitioned.state.lists for p, options in compiler.asked if not options]
        assert len(set(plain)) == len(plain)
        assert len(best.tuning.compiled) == len(compiler.asked)


def test_the_same_question_has_the_same_answer(plan):
    def answer(p, options):
        return verdict(p, (2.0 if p is plan else 1.0) * (0.9 if options else 1.0))

    (first, one), (second, two) = tuned(plan, answer), tuned(plan, answer)
    assert first.decisions == second.decisions and first.tuning.options == second.tuning.options
    assert [p.decisions for p, _ in one.asked] == [p.decisions for p, _ in two.asked]


def test_a_crash_of_the_compiler_is_an_answer_and_not_the_end(plan):
    crash = CompilerVerdict.of(ON, {"crash": "the compiler was ended by SIGSEGV"})
    best, compiler = tuned(plan, lambda p, o: verdict(p) if p is plan and not o else crash)
    assert best.decisions == plan.decisions and best.tuning.step_seconds == plan.estimate_cost.step_seconds
    assert len(compiler.asked) > 1
    assert any("SIGSEGV" in row.message for row in best.tuning.compiled)
    with pytest.raises(PlanError, match=r"takes none of the \d plans: the compiler was ended by SIGSEGV\."):
        tuned(plan, lambda *_: crash)


def test_an_interrupt_returns_the_best_so_far(plan):
    def answer(p, _):
        if len(compiler.asked) == 2:
            raise KeyboardInterrupt
        return verdict(p)

    compiler = Compiler(answer)
    best = tune_plan(plan, ON, judge=compiler)
    assert best.tuning.ended == "interrupted" and len(best.tuning.compiled) == 1
    assert best.decisions == plan.decisions and best.verdict is not None
    assert "until it was interrupted" in str(best.tuning)


def test_an_interrupt_of_the_first_compilation_returns_the_plan(plan):
    def answer(*_):
        raise KeyboardInterrupt

    best = tune_plan(plan, ON, judge=answer)
    assert best.decisions == plan.decisions and best.verdict is None
    assert best.tuning.ended == "interrupted" and best.tuning.step_seconds is None and best.compiler_options == {}


def test_the_bar_says_how_it_stands(plan, capsys):
    tuned(plan, lambda p, _: verdict(p), progress=True, compiles=2)
    shown = capsys.readouterr().err
    assert all(words in shown for words in ("tuning", "best ", "compiling plan 1 with options", " left"))
    tuned(plan, lambda p, _: verdict(p), progress=False, compiles=1)
    assert capsys.readouterr() == ("", "")


def test_no_time_is_time_for_one(plan):
    best, compiler = tuned(plan, lambda p, _: verdict(p, 0.5 if p is plan else 1.0), seconds=0.0)
    assert len(compiler.asked) == 1 and best.tuning.ended == "seconds"


def test_where_the_plan_does_not_fit_by_the_compiler_a_smaller_one_is_found():
    """The compiler needs half as much again for what is no argument; the limit is in between for the fastest plan."""
    free = sw.partition(train_step, *ARGS, mesh=MESH, device="tpu-v5e", donate=(0,), ask_compiler=False)
    limit = int(1.02 * free.estimate_cost.peak_bytes)
    tight = sw.partition(train_step, *ARGS, mesh=MESH, device="tpu-v5e", donate=(0,), memory=limit, ask_compiler=False)

    def answer(p, _):
        held = p.costs.held_bytes(p.partitioned.state)
        peak = int(held + 1.3 * (p.estimate_cost.peak_bytes - held))
        return verdict(p, peak_bytes=peak, fits=peak <= limit)

    best, compiler = tuned(tight, answer)
    first = compiler.asked[0][0]
    assert answer(first, {}).fits is False
    assert best.fits and best.verdict.peak_bytes <= limit
    assert best.tuning.default_seconds is None and best.tuning.step_seconds is not None


def test_where_no_plan_fits_by_the_compiler_the_smallest_is_returned_and_says_so(plan):
    sizes = iter(range(30, 10, -1))
    best, compiler = tuned(plan, lambda p, _: verdict(p, peak_bytes=next(sizes) * 2**30, fits=False), compiles=3)
    assert 1 < len(compiler.asked) <= 3
    assert best.fits is False and best.verdict.peak_bytes == (31 - len(compiler.asked)) * 2**30
    assert best.tuning.step_seconds is None and "Does not fit" in str(best)


def test_pins_are_kept():
    pinned = sw.partition(
        train_step, *ARGS, mesh=MESH, device="tpu-v5e", pin="megatron:model", replicate="data", ask_compiler=False
    )
    best, compiler = tuned(pinned, lambda p, _: verdict(p, 2.0 if p is pinned else 1.0))
    assert all(d.axis != "data" for p, _ in compiler.asked for d in p.decisions if isinstance(d, sw.Decision))
    assert best.in_specs[0]["up"] == pinned.in_specs[0]["up"]


def test_too_few_compilations(plan):
    with pytest.raises(PlanError, match="compiles at least one plan, so compiles= cannot be 0"):
        tune_plan(plan, ON, compiles=0, judge=lambda *_: None)


def test_targets_that_cannot_be_tuned_on(plan):
    with pytest.raises(PlanError, match="the plan is for tpu-v5e, and tpu:v5p:2x2x2 is tpu-v5p"):
        compiled_by(plan, "tpu:v5p:2x2x2")
    on_gpus = sw.evaluate(train_step, *ARGS, mesh=MESH, device="a100-80", decisions=["data_parallel:data"])
    with pytest.raises(PlanError, match="the compiler for gpu:a100-80:8 tells no seconds"):
        compiled_by(on_gpus, "gpu:a100-80:8")
    with pytest.raises(PlanError, match="leave rerank= out"):
        sw.partition(train_step, *ARGS, mesh=MESH, device="tpu-v5e", rerank=ON, tune=ON)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tune", ON, "--rerank", ON], "--tune excludes --pareto and --rerank."),
        (["--tune", ON, "--pareto"], "--tune excludes --pareto and --rerank."),
        (["--compiles", "3"], "--compiles is of --tune."),
        (["--tune", "tpu:v5e:4x4"], "tpu:v5e:4x4 has 16 devices"),
    ],
)
def test_what_the_command_refuses(words, said):
    call = ["plan", "mlp", "--preset", "tiny", "--mesh", "data=4,model=2", "--device", "tpu-v5e"]
    result = CliRunner().invoke(main, [*call, *words])
    assert result.exit_code == 2
    assert said in " ".join((result.stderr or result.output).split())


def test_the_command_tunes(monkeypatch):
    asked = {}

    def tune(plan, on, **given):
        asked.update(given, on=on)
        return dataclasses.replace(plan, tuning=Tuning(on, (), 0.2, 0.15))

    monkeypatch.setattr(sys.modules["shardwright.partition"], "tune_plan", tune)
    call = ["plan", "mlp", "--preset", "tiny", "--mesh", "data=4,model=2", "--device", "tpu-v5e", "--tune", ON]
    result = CliRunner().invoke(main, [*call, "--compiles", "3", "--json"])
    assert result.exit_code == 0
    assert asked["on"] == ON and asked["compiles"] == 3
    assert json.loads(result.stdout)["tuning"]["step_seconds"] == 0.15


# Options of the compiler.


def test_every_option_has_a_reason():
    assert {record.name for record in settings_of("tpu")} & {record.name for record in settings_of("gpu")} == set()
    for record in RECORDS:
        assert record.effect.options and all(isinstance(value, str) for value in record.effect.options.values())
        assert record.what.endswith(".") and record.evidence
    assert settings_of("cpu") == ()


def test_what_one_generation_does_by_itself_is_tried_on_others_alone():
    names = {name: {record.name for record in settings_of("tpu", name)} for name in ("v5e", "v5p", "v6e")}
    assert names["v5p"] == names["v6e"] == {record.name for record in settings_of("tpu")}
    assert names["v5p"] - names["v5e"] == {EARLY_GATHERS.name}


def test_options_are_tried_where_they_matter_and_kept_where_they_pay(plan):
    """One saves a twentieth, the next half a percent, and one is about collectives that the program does not have."""
    saved = {VMEM: 0.05, PRODUCTS: 0.005}
    name_of = {option: record.name for record in settings_of("tpu") for option in record.effect.options}

    def answer(p, options):
        names = {name_of[option] for option in options}
        factor = np.prod([1 - saved.get(name, 0.0) for name in names])
        return verdict(p, factor * (1.0 if p is plan else 2.0), counts=counts)

    counts = {"all-gather": 2, "collective-permute": 4}
    best, compiler = tuned(plan, answer, compiles=12)
    assert [kept.name for kept in best.tuning.options] == [VMEM]
    assert best.tuning.options[0].saved == pytest.approx(0.05)
    assert best.compiler_options == {"xla_tpu_scoped_vmem_limit_kib": "65536"}
    assert any("xla_jf_spmd_threshold_for_windowed_einsum_mib" in options for options in compiler.options)
    counts = {}
    _, compiler = tuned(plan, answer, compiles=12)
    assert not any("xla_jf_spmd_threshold_for_windowed_einsum_mib" in options for options in compiler.options)


def test_an_option_that_the_compiler_does_not_know_is_left_out_with_a_word(plan):
    unknown = CompilerVerdict.of(
        ON, {"crash": "the compiler gave up: INVALID_ARGUMENT: No such compile option: 'xla_tpu_scoped_vmem_limit_kib'"}
    )

    def answer(p, options):
        return unknown if "xla_tpu_scoped_vmem_limit_kib" in options else verdict(p, 1.0 if p is plan else 2.0)

    best, compiler = tuned(plan, answer, compiles=12)
    assert best.tuning.options == ()
    assert best.tuning.notes == (f"{VMEM} was left out: the compiler does not know xla_tpu_scoped_vmem_limit_kib",)
    assert sum("xla_tpu_scoped_vmem_limit_kib" in options for options in compiler.options) == 1
    assert "was left out" in str(best)


# What is learned.


def test_what_everything_is_off_by_is_learned(plan):
    corrections = learn([(plan, verdict(plan, 1.5), 1.0)])
    states = States(plan)
    before, after = states.costs.evaluate(states.first), states._corrected(corrections).evaluate(states.first)
    assert after.step_seconds == pytest.approx(1.5 * before.step_seconds, rel=0.03)
    assert after.peak_bytes == before.peak_bytes


def test_one_line_alone_is_corrected(plan):
    """A factor on one line's compute changes what runs there, and nothing else; none at all changes nothing."""
    of, seconds = max(
        ((of, each.all) for of, each in estimated(plan).items() if of.what == COMPUTE), key=lambda pair: pair[1]
    )
    model = plan.costs

    def cost(corrections):
        return CostModel(
            model.classes.places, model.mesh, model.device, model.whole, like=model, corrections=corrections
        ).evaluate(plan.partitioned.state)

    same, more = cost(Corrections()), cost(Corrections({of: 2.0}))
    assert same == plan.estimate_cost
    added = more.compute_seconds - same.compute_seconds
    assert 0 < added <= 1.001 * seconds
    assert cost(Corrections({Priced(COMPUTE, "elsewhere.py:1"): 9.0, Priced(COPIES): 9.0})) == same


class Hidden(Corrections):
    """Factors that nobody knows, drawn when they are first asked for."""

    def __init__(self, seed):
        super().__init__()
        drawn = random.Random(seed)
        object.__setattr__(self, "drawn", defaultdict(lambda: math.exp(drawn.gauss(0.0, 0.5))))

    def __bool__(self):
        return True

    def factor(self, what, sources=()):
        found = [self.drawn[priced(what, source)] for source in sources] or [self.drawn[Priced(what)]]
        return sum(found) / len(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_compiler_with_other_prices_is_seen_through(seed):
    """Every line takes some factor of its estimate; a search that knew them all finds nothing better."""
    sizes = {"layers": 2, "width": 1024, "heads": 8, "kv_heads": 8, "hidden": 4096, "vocabulary": 16384}
    fn, args, options = build("gpt", **sizes, batch=32, sequence=1024)
    plan = sw.partition(fn, *args, mesh={"data": 4, "model": 4}, device="tpu-v5e", ask_compiler=False, **options)
    truth, states = Hidden(seed), States(plan)
    model = states._corrected(truth)

    def answer(p, _):
        lines = tuple(
            LineSeconds(of.what, of.line, of.backward, truth.drawn[of] * each.all, truth.drawn[of] * each.hidden)
            for of, each in estimated(p).items()
        )
        step = model.evaluate(State(p.partitioned.state.lists, states.decided.state.whole)).step_seconds
        return verdict(p, lines=lines, step_seconds=step, counts={})

    best, _ = tuned(plan, answer)
    known = find_state(plan.analysis, model, states.decided.state, plan.memory_bytes, keepers=states.decided.keepers)
    assert best.tuning.step_seconds <= 1.01 * known.cost.step_seconds


def test_moves_that_are_hidden_less_than_estimated_are_waited_for(plan):
    """As long on their links, but all of it is waited for."""
    lines = tuple(LineSeconds(of.what, of.line, of.backward, each.all, 0.0) for of, each in estimated(plan).items())
    step = plan.estimate_cost.compute_seconds + plan.estimate_cost.comm_seconds
    seen = [(plan, verdict(plan, lines=lines, step_seconds=step), 1.0)]
    after = States(plan)._corrected(learn(seen)).evaluate(plan.partitioned.state)
    assert after.comm_seconds == pytest.approx(plan.estimate_cost.comm_seconds)
    assert after.step_seconds == pytest.approx(step, rel=0.01)
    assert after.hidden_seconds >= 0


def test_nothing_is_learned_from_a_compiler_that_tells_no_lines(plan):
    assert learn([(plan, verdict(plan, 3.0, lines=()), 1.0)]) == Corrections()
    assert largest_corrections(plan, verdict(plan, 3.0, lines=())) == ()


def test_the_largest_corrections_come_first_with_why(plan):
    found = estimated(plan)
    of = max((of for of in found if of.what == COMPUTE), key=lambda of: found[of].all)
    lines = tuple(
        LineSeconds(o.what, o.line, o.backward, (3.0 if o == of else 1.0) * each.all, each.hidden)
        for o, each in found.items()
    )
    lines += (LineSeconds("sums", "elsewhere.py:1", False, plan.estimate_cost.step_seconds),)
    largest = largest_corrections(plan, verdict(plan, lines=lines))
    assert {largest[0].line, largest[1].line} == {of.line, "elsewhere.py:1"}
    whys = {c.line: c.why for c in largest}
    assert whys["elsewhere.py:1"] == "the compiler moves this besides"
    best, _ = tuned(plan, lambda p, _: verdict(p, lines=lines), compiles=1)
    assert best.tuning.corrections == largest
    assert "elsewhere.py:1" in str(best)
    line = of.line.split(" ")[0]
    assert [c.line for c in best.explain(line).learned] == [of.line]


# Plan files, code, reports.


@pytest.fixture
def with_options(plan):
    best, _ = tuned(plan, lambda p, options: verdict(p, 0.9 if options else 1.0), compiles=8)
    assert best.compiler_options
    return best


def test_a_tuned_plan_is_saved_with_its_options(with_options, tmp_path):
    with_options.save(tmp_path / "plan.json")
    loaded = sw.load(tmp_path / "plan.json", train_step, *ARGS)
    assert loaded.compiler_options == with_options.compiler_options
    assert loaded.tuning.options == with_options.tuning.options
    assert loaded.tuning.saved == with_options.tuning.saved
    assert loaded.in_specs == with_options.in_specs and loaded.decisions == with_options.decisions
    assert question_of(loaded.export("tpu")[0], {}) == question_of(with_options.export("tpu")[0], {})
    assert json.loads((tmp_path / "plan.json").read_text())["shardwright_plan"] == 4
    again = pickle.loads(pickle.dumps(with_options))
    assert again.compiler_options == with_options.compiler_options


def test_a_plan_without_options_is_a_file_that_earlier_releases_read(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["shardwright_plan"] == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "dump"}, "tuning.options\\[0\\] is 'dump', and it is none of those that tuning tries"),
        ({"settings": {"xla_dump_to": "/"}}, "and its settings are others"),
        ({"saved": 2.0}, "tuning.options\\[0\\].saved is 2.0"),
        ({"more": 1}, "tuning.options\\[0\\]"),
    ],
)
def test_options_of_a_stranger_are_refused(with_options, tmp_path, change, said):
    with_options.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    content["tuning"]["options"][0].update(change)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(PlanError, match=said):
        sw.load(tmp_path / "plan.json", train_step, *ARGS)


def test_options_are_for_the_plans_own_platform(with_options, monkeypatch):
    """The CPU's compiler, which would refuse them, is not told; a TPU's is, and the user's own come after."""
    step = with_options.jit()
    values = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), ARGS)
    assert jax.tree.structure(step(*values)) == jax.tree.structure(values[0])
    told = []
    with_options.export("tpu")
    jitted = SimpleNamespace(jit=lambda *_, **options: told.append(options) or jax.jit(len))
    monkeypatch.setattr("shardwright.plan.execution.jax", jitted)
    monkeypatch.setattr("shardwright.plan.execution.lowering_platform", lambda _: "tpu")
    (name, value), *_ = with_options.compiler_options.items()
    with_options.jit()
    with_options.jit(compiler_options={name: "1", "mine": "2"})
    assert told[0]["compiler_options"] == with_options.compiler_options and value != "1"
    assert told[1]["compiler_options"] == {**with_options.compiler_options, name: "1", "mine": "2"}


def test_options_are_shown_wherever_a_plan_is(with_options, tmp_path):
    (kept, *_) = with_options.tuning.options
    (option, value), *_ = kept.settings.items()
    code = with_options.to_python(constraints=False)
    assert f'"{option}": "{value}",  # {kept.name}: 10.0% less' in code
    compile(code, "specs.py", "exec")
    with_options.report(tmp_path / "plan.html")
    assert f"{option}={value}" in (tmp_path / "plan.html").read_text()
    assert f"{option}={value}" in str(with_options)
    assert f"{option}={value}" in str(with_options.explain("params.up")).replace("\n", "")
    told = with_options.to_dict()
    assert told["compiler_options"] == with_options.compiler_options
    assert json.loads(json.dumps(told))["tuning"]["options"][0]["name"] == kept.name


def test_a_plan_that_was_not_tuned_says_nothing_of_it(plan):
    assert plan.tuning is None and plan.to_dict()["tuning"] is None and "compiler_options" not in plan.to_python()


# What is kept on disk.


FOUND = {
    "compile_seconds": 2.0,
    "step_seconds": 0.5,
    "peak_bytes": 10,
    "fits": True,
    "collectives": (
        CompiledCollective("all-gather", ("data",), 1.0, 2, 0.1, "a.py:1", True, 0.05, (("b.py:2", 0.1),)),
    ),
    "involuntary": (),
    "lines": (LineSeconds("compute", "a.py:1", False, 0.4),),
}


def test_figures_come_back_as_they_were(tmp_path):
    kept = KeptFigures(tmp_path / "cache")
    assert kept.recall("a") is None
    source = sw.analyse(lambda x: x * 2, f32(4)).program.ops[0].source
    found = {**FOUND, "involuntary": (Involuntary("x", "y", "z", "f32[1]", 4.0, source),)}
    kept.remember("a", found)
    assert kept.recall("a") == found
    kept.remember("b", {"error": "it does not fit", "fits": False, "peak_bytes": 3})
    assert kept.recall("b")["fits"] is False


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"form": 1}', '{"form": 2, "compile_seconds": 1.0}'])
def test_damaged_figures_are_as_good_as_none(tmp_path, text):
    kept = KeptFigures(tmp_path)
    kept.remember("a", FOUND)
    (tmp_path / "a.json").write_text(text)
    assert kept.recall("a") is None
    whole = {**FOUND, "collectives": [{"kind": "all-gather"}]}
    (tmp_path / "a.json").write_text(json.dumps({"form": 1, **whole, "lines": [], "involuntary": []}))
    assert kept.recall("a") is None
    kept.remember("a", FOUND)
    assert kept.recall("a") == FOUND


def test_the_folder_is_bounded_and_trouble_with_it_is_nobodys(tmp_path):
    kept = KeptFigures(tmp_path / "cache", most_bytes=1)
    kept.remember("a", FOUND)
    kept.remember("b", FOUND)
    assert len(list((tmp_path / "cache").glob("*.json"))) == 1
    (tmp_path / "file").write_text("")
    KeptFigures(tmp_path / "file" / "cache").remember("a", FOUND)


def test_caches_are_where_the_platform_wants_them(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "shardwright" / "compiled"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "shardwright" / "compiled"
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == tmp_path / ".cache" / "shardwright" / "compiled"


def test_the_same_is_compiled_once(monkeypatch, tmp_path):
    """By XLA's compiler for CPUs, which is always there."""
    monkeypatch.delenv("SHARDWRIGHT_COMPILED", raising=False)
    runs, run = [], compiling.run_child
    monkeypatch.setattr(compiling, "run_child", lambda *args, **more: runs.append(1) or run(*args, **more))
    on_cpus = sw.evaluate(train_step, *ARGS, mesh={"data": 2}, device="tpu-v5e", decisions=["data_parallel:data"])
    known = KeptFigures(tmp_path)
    first = compiling.verify_compiled(on_cpus, "cpu", known=known)
    second = compiling.verify_compiled(on_cpus, "cpu", known=known)
    assert runs == [1] and first.figures == second.figures
    compiling.verify_compiled(on_cpus, "cpu", compiler_options={"xla_cpu_enable_fast_math": "true"}, known=known)
    assert runs == [1, 1]


# The real compiler.


@needs_tpu
@pytest.mark.slow
def test_tuned_by_the_compiler_of_tpus(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SHARDWRIGHT_COMPILED", raising=False)
    given = {"mesh": MESH, "device": "tpu-v5e", "donate": (0,)}
    best = sw.partition(train_step, *ARGS, **given, tune=ON, compiles=3)
    tuning = best.tuning
    assert 1 <= len(tuning.compiled) <= 3 and tuning.step_seconds <= tuning.default_seconds
    assert tuning.compiled[0].step_seconds == tuning.default_seconds
    assert best.fits and best.verdict.lines

    def refuse(*_, **__):
        raise AssertionError("nothing is compiled again")

    monkeypatch.setattr(compiling, "run_child", refuse)
    again = sw.partition(train_step, *ARGS, **given, tune=ON, compiles=3)
    assert again.decisions == best.decisions
    assert dataclasses.replace(again.tuning, seconds=tuning.seconds) == tuning


def test_what_tuning_says_of_itself():
    kept = KeptOption("64 MiB", {"a": "1"}, 0.05)
    tuning = Tuning(ON, (kept,), 0.2, 0.15)
    assert (
        str(tuning)
        == f"Tuned by the compiler for {ON}: 150 ms in place of 200 ms, 25.0% less.\nWith 64 MiB (a=1): 5.0% less."
    )
    assert Tuning(ON).saved is None
