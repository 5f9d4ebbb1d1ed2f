"""The front of memory against time: nothing on it is beaten, and nothing that is better was missed."""

from __future__ import annotations

import json
from itertools import product
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import shardwright as sw
from benchmarks.baselines.exhaustive import _lists
from programs import f32
from shardwright.cli import main
from shardwright.devices import find_device
from shardwright.front import Point
from shardwright.models import build
from shardwright.pareto import thinned, undominated
from shardwright.price import CostModel, Places
from shardwright.report.front_page import front_plot, render_front
from shardwright.request import MeshShape
from shardwright.search import Space, find_actions, find_keepers
from shardwright.space.state import State
from small import SMALL

pytestmark = pytest.mark.usefixtures("exact_estimates")
DEVICE = "tpu-v5e"
MESH = {"data": 4, "model": 2}
TIGHT = "40MiB"


def front_of(name: str, **options) -> sw.Front:
    fn, args, donate = SMALL[name]
    return sw.pareto(fn, *args, mesh=MESH, device=DEVICE, donate=donate, **options)


@pytest.fixture(scope="module")
def front(exact_estimates) -> sw.Front:  # noqa: ARG001
    return front_of("sgd", memory=TIGHT)


def point(step_seconds: float, peak_bytes: int, complexity: int = 0) -> Point:
    return Point(step_seconds, peak_bytes, complexity, State(((),)))


def figures(plan: sw.Plan) -> tuple[float, int]:
    return plan.estimate_cost.step_seconds, plan.estimate_cost.peak_bytes


def every_cost(name: str) -> list[tuple[float, int]]:
    """Of all states that there are."""
    fn, args, donate = SMALL[name]
    analysis, mesh = sw.analyse(fn, *args, donate=donate), MeshShape.of(MESH)
    whole, keepers = find_keepers(analysis, ())
    costs = CostModel(Places(analysis), mesh, find_device(DEVICE), whole)
    space = Space(analysis, costs, find_actions(analysis, mesh), whole, keepers)
    by_axis = [_lists(space, axis, 20_000) for axis in range(len(MESH))]
    met = [costs.evaluate(State(lists, whole)) for lists in product(*by_axis)]
    return [(cost.step_seconds, cost.peak_bytes) for cost in met]


def test_undominated_by_hand():
    points = [point(3.0, 10), point(1.0, 30), point(2.0, 30), point(2.0, 20), point(4.0, 10), point(2.0, 20, -1)]
    assert [(p.step_seconds, p.peak_bytes, p.complexity) for p in undominated(points)] == [
        (1.0, 30, 0),
        (2.0, 20, -1),
        (3.0, 10, 0),
    ]


def test_points_close_in_both_are_one_and_the_ends_stay():
    assert [p.peak_bytes for p in thinned([point(1.0, 1000), point(1.001, 999)])] == [1000]
    assert [p.peak_bytes for p in thinned([point(1.0, 1000), point(1.001, 500)])] == [1000, 500]
    close = [point(1.0, 1000), point(1.001, 999), point(2.0, 600), point(2.001, 598), point(2.002, 597)]
    assert [p.peak_bytes for p in thinned(close)] == [1000, 597]
    many = [point(float(k), 2000 - k) for k in range(1, 40)]
    kept = thinned(many)
    assert len(kept) == 12
    assert (kept[0], kept[-1]) == (many[0], many[-1])


def test_no_plan_is_beaten_by_another(front):
    assert len(front) > 2
    assert list(front) == list(front.plans)
    assert [figures(plan) for plan in front] == sorted(figures(plan) for plan in front)
    for one in map(figures, front):
        assert not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in map(figures, front))


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_nothing_better_was_missed(name, front):
    found = front if name == "sgd" else front_of(name)
    for seconds, peak_bytes in every_cost(name):
        assert figures(found.within(int(peak_bytes)))[0] <= seconds * 1.001


def test_what_sw_partition_finds_is_on_it(front):
    fn, args, donate = SMALL["sgd"]
    plan = sw.partition(fn, *args, mesh=MESH, device=DEVICE, donate=donate, memory=TIGHT)
    assert figures(front.within(TIGHT))[0] <= plan.estimate_cost.step_seconds * 1.001


def test_marks_limits_and_indexing(front):
    assert front.fastest is front[0]
    assert front.smallest is front[-1]
    assert front[1:] == front.plans[1:]
    assert front.fitting is next(plan for plan in front if plan.fits)
    assert not front.fastest.fits
    assert front.marks(front.fastest) == ["fastest"]
    assert front.marks(front.fitting) == ["fastest that fits"]
    assert front.within(figures(front[1])[1]) is front[1]
    with pytest.raises(sw.PlanError, match=r"no plan of the front needs 1\.0 KiB or less; the smallest needs"):
        front.within("1KiB")


def test_each_is_a_plan(front, tmp_path):
    front[1].save(tmp_path / "plan.json")
    fn, args, _ = SMALL["sgd"]
    again = sw.load(tmp_path / "plan.json", fn, *args)
    assert again.in_specs == front[1].in_specs
    assert "params.a" in str(front[1].explain("params.a"))
    assert front[1].memory_bytes == 40 * 2**20


def test_pins_hold_for_all():
    front = front_of("sgd", pin="data_parallel:data", simulations=1)
    assert all(str(plan.decisions[0]) == "data: x[0]" for plan in front)


def test_pins_alone_are_one_plan():
    front = front_of("sgd", pin="data_parallel:data", seconds=0)
    assert [list(map(str, plan.decisions)) for plan in front] == [["data: x[0]"]]
    assert front.verdict.startswith("One plan is both the fastest and the smallest.")


def test_plans_that_are_called_the_same_are_told_apart():
    front = front_of("sgd", simulations=1)
    assert len(set(front.names)) == len(front)
    assert any(" (with " in name for name in front.names)


def test_it_is_printed(front):
    lines = str(front).splitlines()
    assert lines[0] == "sgd on 8 × tpu-v5e (data 4 × model 2), 40 MiB each"
    assert lines[1].startswith("The fastest does not fit; the smallest takes ")
    assert lines[3].split() == ["step", "memory", "of", "it", "what", "it", "is"]
    assert len([line for line in lines[4:] if "fit" in line]) == len(front)
    assert "does not fit" in lines[4]
    assert lines[4].endswith("fastest")
    rows = [k for k, line in enumerate(lines) if "fit" in line and k > 3]
    assert any(line.endswith("smallest") for line in lines[rows[-1] :])  # a long name goes on in the next line


def test_for_machines(front):
    found = json.loads(json.dumps(front.to_dict()))
    assert (found["program"], found["mesh"], found["limit_bytes"]) == ("sgd", MESH, 40 * 2**20)
    assert [row["peak_bytes"] for row in found["plans"]] == [figures(plan)[1] for plan in front]
    assert found["plans"][0]["marks"] == ["fastest"]
    assert found["plans"][0]["decisions"] == list(map(str, front.fastest.decisions))


def test_the_page(front, tmp_path):
    front.plot(tmp_path / "front.html")
    page = (tmp_path / "front.html").read_text()
    assert page == render_front(front)
    assert "Memory against time" in page
    assert 'data-plot="front-plot"' in page
    line, *marks = front_plot(front).spec["data"]
    assert len(line["x"]) == len(front) == sum(len(mark["x"]) for mark in marks)
    hover = marks[0]["hovertext"][0]
    assert all(str(decision) in hover for decision in front.fitting.decisions)
    with pytest.raises(sw.PlanError, match="there is no folder"):
        front.plot(tmp_path / "none" / "front.html")


def test_a_page_of_one_plan():
    front = sw.pareto(lambda x: x * 2, f32(64), mesh={"x": 2}, device=DEVICE, simulations=1)
    assert len(front_plot(front).spec["data"][0]["x"]) == len(front)


def run(*arguments: str) -> SimpleNamespace:
    given = ["plan", "mlp", "--preset", "tiny", "--mesh", "x=4", "--device", DEVICE, "--simulations", "1", *arguments]
    done = CliRunner().invoke(main, given)
    return SimpleNamespace(code=done.exit_code, out=done.stdout, err=done.stderr)


def test_on_the_command_line(tmp_path):
    page, saved = tmp_path / "front.html", tmp_path / "plan.json"
    done = run("--pareto", str(page), "--save", str(saved), "--memory", "150KiB")
    assert done.code == 0
    assert "150 KiB each" in done.out
    assert page.exists()
    assert f"wrote {saved}" in done.err
    rows = json.loads(run("--memory", "150KiB", "--json", "--pareto").out)["plans"]
    fitting = next(row for row in rows if row["fits"])
    fn, args, _ = build("mlp", preset="tiny")
    assert figures(sw.load(saved, fn, *args))[1] == fitting["peak_bytes"]


def test_on_the_command_line_where_nothing_fits_or_something_is_wrong(tmp_path):
    nothing = run("--pareto", "--memory", "1KiB")
    assert nothing.code == 3
    assert "Nothing fits" in nothing.out
    assert run("--pareto", "front.png").code == 2
    assert run("--pareto", "--python").code == 2
    assert run("--pareto", str(tmp_path / "none" / "front.html")).code == 2


def test_a_mesh_whose_shape_is_open():
    fn, args, donate = SMALL["momentum"]
    front = sw.pareto(fn, *args, mesh=4, device=DEVICE, donate=donate, simulations=1)
    assert {plan.partitioned.mesh.devices for plan in front} == {4}
    assert len({tuple(plan.mesh.items()) for plan in front}) == 1
