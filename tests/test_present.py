"""What a plan prints and says to machines; patterns for many paths."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from programs import f32
from shardwright.models import build
from shardwright.plan.arguments import SOME, matcher, pattern
from small import SMALL

OPTIMIZER = ["state.opt.m.", "state.opt.v.", "state.params."]
PATHS = [
    *(f"{o}layers.{w}" for o in OPTIMIZER for w in ("wk", "wq", "wv", "wo", "mlp_norm", "attention_norm")),
    *(f"{o}embed" for o in OPTIMIZER),
    "batch.tokens",
]


@pytest.mark.parametrize(
    ("ends", "width", "expected"),
    [
        (["tokens"], 48, "batch.tokens"),
        (["embed"], 48, "state.{opt.{m,v},params}.embed"),
        (["wk", "wq", "wv"], 48, "state.{opt.{m,v},params}.layers.{wk,wq,wv}"),
        (["wk", "wq", "wv"], 40, "state.*.layers.{wk,wq,wv}"),
        (["wk", "wq", "wv"], 20, "state.*.layers.…"),
        (["wk", "wq", "wv", "wo", "norm"], 48, "state.{opt.{m,v},params}.layers.*"),
        (["norm"], 40, "state.{opt.{m,v},params}.layers.*_norm"),
        (["embed", "wo"], 48, "state.{opt.{m,v},params}.{embed,layers.wo}"),
    ],
)
def test_patterns(ends, width, expected):
    own = [path for path in PATHS if path.endswith(tuple(ends))]
    assert pattern(own, [path for path in PATHS if path not in own], width) == expected


def test_patterns_of_numbered_layers():
    assert pattern(["p.0.w", "p.1.w", "p.2.w"], ["p.0.b"]) == "p.*.w"
    assert pattern(["p.0.w", "p.1.w"], ["p.2.w"]) == "p.{0,1}.w"
    assert pattern(["p.10", "p.9"], ["p.8"]) == "p.{9,10}"


pieces = st.sampled_from(["a", "b", "0", "1", "w_norm", "x_norm"])


@settings(max_examples=40)
@given(st.sets(st.lists(pieces, min_size=3, max_size=3).map(".".join), min_size=1), st.data())
def test_a_pattern_matches_its_paths_and_no_others(paths, data):
    own = data.draw(st.lists(st.sampled_from(sorted(paths)), min_size=1, unique=True))
    others = sorted(paths - {*own})
    text = pattern(own, others, data.draw(st.integers(5, 60)))
    matches = matcher(_parts(text))
    assert all(map(matches, own))
    assert SOME in text or not any(map(matches, others))


def _parts(text):
    """A pattern's text, taken apart again at the dots outside of braces."""
    depth, out = 0, [""]
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        if letter == "." and not depth:
            out.append("")
        else:
            out[-1] += letter
    return [(piece,) if "{" in piece else piece for piece in out]


@pytest.fixture(scope="module")
def sgd():
    fn, args, donate = SMALL["sgd"]
    mesh = {"data": 4, "model": 2, "spare": 2}
    return sw.evaluate(fn, *args, mesh=mesh, device="tpu-v5e", decisions=["fsdp:data", "megatron:model"], donate=donate)


def test_a_small_plan_in_full(sgd):
    lines = str(sgd).splitlines()
    assert lines[0] == "sgd on 16 × tpu-v5e (data 4 × model 2 × spare 2)"
    assert lines[1].startswith("Fits: ")
    assert lines[1].endswith("% of the devices' peak.")
    # 4096 × (1024 + 256) weights of 4 bytes, split in 8, and 8192 × (1024 + 256) of data, split in 4 and not in 2.
    assert lines[2].startswith("Each device holds 12.5 MiB of the 60.0 MiB of arguments and sends ")
    start = lines.index("")
    assert lines[start + 1 : lines.index("", start + 1)] == [
        "data: ZeRO-3 / FSDP",
        " 1  x[0]         8,192",
        " 2  params.a[1]  4,096",
        "model: Megatron",
        " 1  params.a[1]  4,096",
        "spare: unused",
    ]
    table = [line.split("  ") for line in lines[lines.index("", start + 1) + 1 :]]
    found = {row[0]: [cell.strip() for cell in row if cell.strip()] for row in table}
    assert found["params.a"] == ["params.a", "f32[1024,4096]", 'P(None, ("data", "model"))', "2.0 MiB"]
    assert found["params.b"] == ["params.b", "f32[4096,256]", 'P(("data", "model"))', "512.0 KiB"]
    assert found["y"] == ["y", "f32[8192,256]", 'P("data")', "2.0 MiB"]
    assert any(row[0] == "all-gather" and "small.py:" in row[-1] for row in table)


@pytest.mark.parametrize("model", ["gpt", "itx"])
def test_it_is_never_too_wide_nor_too_long(model):
    fn, args, options = build(model, preset="tiny")
    tactics = ["fsdp:data", "fsdp:model"]
    plan = sw.evaluate(fn, *args, mesh={"data": 2, "model": 2}, device="tpu-v5e", decisions=tactics, **options)
    lines = str(plan).splitlines()
    assert max(map(len, lines)) <= 120
    assert len(lines) < 50
    assert sum(line.startswith("data, model: ZeRO-3 / FSDP") for line in lines) == 1
    # No spec is broken: what opens in a line closes there.
    specs = [line for line in lines if "P(" in line]
    assert specs
    assert all(line.count("(") == line.count(")") for line in specs)


def test_axes_with_the_same_list_stand_together_and_say_what_stays_whole():
    fn, _, _ = SMALL["momentum"]
    args = {"w": f32(1024, 512), "m": f32(1024, 512)}, f32(65536, 1024), f32(65536, 512)
    plan = sw.evaluate(fn, *args, mesh={"a": 2, "b": 2}, device="tpu-v5e", decisions=["zero1:a", "zero1:b"])
    lines = str(plan).splitlines()
    title = lines.index("a, b: ZeRO-1")
    (path, _) = [decision.path for decision in plan.decisions if isinstance(decision, sw.Whole)]
    assert lines[title + 3] == f"    {path} stays whole"


def test_which_side_is_sharded_is_said_by_its_line():
    fn, args, _ = SMALL["self-attention"]
    for side, operand in enumerate(("left", "right")):
        plan = sw.evaluate(fn, *args, mesh={"x": 2}, device="tpu-v5e", decisions=[("x", "x[0]", (side,))])
        assert f" 1  x[0], of the {operand} operand at small.py:" in str(plan)


def test_what_does_not_fit_says_by_how_much():
    fn, args, _ = SMALL["sgd"]
    plan = sw.evaluate(fn, *args, mesh={"x": 2}, device="tpu-v5e", memory="60MiB", decisions=["data_parallel:x"])
    over = plan.estimate.peak_bytes / 2**20 - 60
    assert str(plan).splitlines()[1].startswith(f"Does not fit by {over:.1f} MiB: ")
    assert " of 60 MiB; step " in str(plan)


def test_how_it_was_found():
    options = {"mesh": {"x": 2}, "device": "tpu-v5e", "progress": False}
    texts = [str(sw.partition(lambda x: x @ x, f32(64, 64), **options, **more)) for more in ({}, {"seconds": 1e-9})]
    assert "\nFound in " in texts[0]
    assert "states met, until its time was over.\n" not in texts[0]
    assert "Found in " not in texts[1]  # one state alone is no search


def test_to_dict(sgd):
    found = json.loads(json.dumps(sgd.to_dict()))
    assert found["mesh"] == {"data": 4, "model": 2, "spare": 2}
    assert found["device"] == "tpu-v5e"
    assert found["fits"] is True
    assert found["step_seconds"] == found["compute_seconds"] + found["exposed_seconds"] == sgd.estimate.step_seconds
    assert found["exposed_seconds"] == found["comm_seconds"] - found["hidden_seconds"] < found["comm_seconds"]
    assert found["names"] == {"data": ["ZeRO-3 / FSDP"], "model": ["Megatron"], "spare": []}
    assert found["decisions"][0] == {"axis": "data", "dimension": "x[0]", "size": 8192, "sides": [], "unless": None}
    specs = {"params.a": [None, ["data", "model"]], "params.b": [["data", "model"]], "x": ["data"], "y": ["data"]}
    assert found["in_specs"] == specs
    assert found["out_specs"] == {"result.a": specs["params.a"], "result.b": specs["params.b"]}
    assert sum(c["seconds"] for c in found["collectives"]) == pytest.approx(found["comm_seconds"])
    assert found["search"] is None


def test_to_dict_has_unused_arguments_and_the_search():
    def square(x, unused):  # noqa: ARG001
        return x @ x

    plan = sw.partition(square, f32(64, 64), f32(3), mesh={"x": 2}, device="tpu-v5e", progress=False)
    found = plan.to_dict()
    assert found["in_specs"]["unused"] == []
    assert found["search"]["evaluations"] == plan.search.evaluations
    assert found["search"]["history"][-1]["fits"] is True
