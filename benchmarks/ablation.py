"""What each part of the search is worth: without it, or with something simpler in its place, at equal work.

    python -m benchmarks.ablation --rows ablation.jsonl                  the hard cases that are not in the file yet
    python -m benchmarks.ablation --rows ablation.jsonl --models         the models of `benchmarks/search.py`: hours
    python -m benchmarks.ablation --rows ablation.jsonl --only towers    cases with that in their names
    python -m benchmarks.ablation --rows ablation.jsonl --no-run --write docs/benchmarks/ablation.md

The hard cases (`benchmarks/hard.py`) are small programs on which local improvement gets stuck. The whole search runs
with some seeds, until it ends by itself. Every variant then gets the same work as the whole search had with that seed:
prices worked out anew (`Scores.work`). Where all prices of a small program are known, work stands still: there a
variant ends when it has met as many states as the whole search. "No tree": tactics, local improvement, and axes
decided anew. "Restarts": local improvement from random states in place of the tree. "No draws": the tree from its two
starts alone, without the states that half of its simulations draw. "No improvement in the tree": its
simulations make a large change and nothing else. "No tactics": neither as starts nor as changes. The integer program
follows Alpa and gets half a minute; its choice is priced as all others are.

Figures are the parts by which a step is longer than the best that is known, from the best seed to the worst; "over"
means that it does not fit the memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from benchmarks import search as at_size
from benchmarks.baselines import integer_program
from benchmarks.hard import HARD
from shardwright.devices import find_device
from shardwright.mcts import Game, Result
from shardwright.mcts import search as tree_search
from shardwright.models import build
from shardwright.price import CostModel, Places
from shardwright.request import MeshShape
from shardwright.search import Keepers, Outcome, find_keepers, find_state
from shardwright.search.improve import improve
from shardwright.search.leaps import Leaps
from shardwright.search.lists import Lists
from shardwright.search.scores import Scores
from shardwright.space.state import State

FULL, NO_TREE, RESTARTS, NO_DRAWS = "full", "no tree", "restarts", "no draws"
PLAIN, NO_TACTICS = "no improvement in the tree", "no tactics"
VARIANTS = (FULL, NO_TREE, RESTARTS, NO_DRAWS, PLAIN, NO_TACTICS)
INTEGER = "integer program"
MODELS = at_size.MODELS | {f"{name} of 2 layers": (name, {"layers": 2}) for name in ("gpt", "moe")}
MESHES = at_size.MESHES | {"tpu-v5e, 3 axes": {"a": 2, "b": 2, "c": 4}}
SLACK, GAIN, TIGHT = 1e-3, 5e-3, 0.9
_STALE, _INTEGER_SECONDS = 8, 30.0

Row = dict[str, Any]


def no_tree(game: Game[Lists, Any], **_: object) -> Result[Lists]:
    """In place of the tree search: nothing."""
    return Result(game.starts[0], game.value(game.starts[0]), 0, 1, exhausted=False)


def restarts(game: Game[Lists, Any], *, seed: int, **_: object) -> Result[Lists]:
    """In place of the tree search: local improvement from random states, until nothing new is met."""
    leaps, random = owner(game), Random(seed)
    scores, actions = leaps.scores, leaps.space.actions
    stale = count = 0
    while stale < _STALE:
        met = scores.evaluations
        improve(scores, leaps.random(random), actions)
        stale, count = 0 if scores.evaluations > met else stale + 1, count + 1
    return Result(game.starts[0], game.value(game.starts[0]), count, count, exhausted=False)


def plain_tree(game: Game[Lists, Any], **options: Any) -> Result[Lists]:
    """The tree search whose simulations make a large change and improve nothing."""
    order = owner(game).space.order
    return tree_search(replace(game, play=lambda s, leap: order.normal(leap.made(s)), draw=None), **options)


def owner(game: Game[Lists, Any]) -> Leaps:
    leaps = getattr(game.play, "__self__", None)
    assert isinstance(leaps, Leaps)
    return leaps


def no_draws(game: Game[Lists, Any], **options: Any) -> Result[Lists]:
    """The tree search from its starts alone."""
    return tree_search(replace(game, draw=None), **options)


IN_PLACE: dict[str, Callable[..., Result[Lists]]] = {
    NO_TREE: no_tree,
    RESTARTS: restarts,
    NO_DRAWS: no_draws,
    PLAIN: plain_tree,
}


def run(
    problem: Any, variant: str, seed: int, most_work: float = math.inf, most_states: float = math.inf
) -> tuple[Outcome, int]:
    """A search with this variant in place of the whole, and its work. Past what it may do it ends."""

    def watch(scores: Scores) -> None:
        if scores.work > most_work or scores.evaluations > most_states:
            raise KeyboardInterrupt  # which ends a search and keeps what it has

    costs = problem.costs()
    with mock.patch("shardwright.search.search.tree_search", IN_PLACE.get(variant, tree_search)):
        found = find_state(
            *(problem.analysis, costs, problem.root, problem.limit_bytes),
            keepers=problem.keepers,
            kept=getattr(problem, "kept", None),
            seed=seed,
            use_tactics=variant != NO_TACTICS,
            watch=watch,
        )
    return found, costs.priced_units


def rows_of(
    name: str, problem: Any, seeds: Sequence[int], variants: Sequence[str], rows: Sequence[Row]
) -> Iterator[Row]:
    """What is not among the rows of a case yet. Without the tree nothing depends on the seed."""
    known = {(row["variant"], row["seed"]): row for row in rows if row["case"] == name}
    for seed in seeds:
        wanted = [v for v in VARIANTS if v in variants and (v != NO_TREE or seed == seeds[0])]
        for variant in (FULL, *(v for v in wanted if v != FULL)):
            if (variant, seed) in known or not wanted:
                continue
            most = known.get((FULL, seed), {"work": math.inf, "states": math.inf})
            found, work = run(problem, variant, seed, most["work"], most["states"])
            row: Row = {"case": name, "variant": variant, "seed": seed, "step_us": 1e6 * found.cost.step_seconds}
            row |= {"over_bytes": found.cost.over_bytes(problem.limit_bytes), "work": work}
            row |= {"peak_bytes": int(found.cost.peak_bytes), "states": found.search.evaluations}
            known[variant, seed] = row | {"simulations": found.search.simulations}
            yield known[variant, seed]
    if INTEGER in variants and (INTEGER, 0) not in known:
        chosen = integer_program(problem.costs(), problem.limit_bytes, seconds=_INTEGER_SECONDS)
        row = {"case": name, "variant": INTEGER, "seed": 0, "step_us": None, "over_bytes": None, "note": chosen.note}
        if chosen.cost is not None:
            over = max(chosen.cost.peak_bytes - problem.limit_bytes, 0)
            row |= {"step_us": 1e6 * chosen.cost.step_seconds, "over_bytes": over}
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="file of rows, one JSON object a line")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--models", action="store_true", help="the models of benchmarks/search.py instead")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", choices=(*VARIANTS, INTEGER), default=(*VARIANTS, INTEGER))
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--write", type=Path, help="Markdown file to write the table to")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows.exists() else []
    if not options.no_run:
        for name, problem in problems(options.only, options.models, rows):
            for row in rows_of(name, problem, range(options.seeds), options.variants, tuple(rows)):
                rows.append(row)
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    if options.write:
        options.write.write_text(document(rows))


def problems(only: str, models: bool, rows: Sequence[Row]) -> Iterator[tuple[str, Any]]:
    """The hard cases, or models on all their meshes with ample and with tight memory.

    Tight memory is nine tenths of what the plan for ample memory takes.
    """
    if not models:
        yield from ((name, case.problem()) for name, case in HARD.items() if only in name)
        return
    for model, device in product(MODELS, MESHES):
        ample, tight = (f"{model}, {device}, {memory}" for memory in ("ample", "tight"))
        if only in ample:
            yield ample, ModelProblem(model, device, None)
        if only in tight:
            known = [r["peak_bytes"] for r in rows if (r["case"], r["variant"], r["seed"]) == (ample, FULL, 0)]
            peak_bytes = known[0] if known else run(ModelProblem(model, device, None), FULL, 0)[0].cost.peak_bytes
            yield tight, ModelProblem(model, device, int(TIGHT * peak_bytes))


@lru_cache(maxsize=1)
def analysed(model: str) -> tuple[sw.Analysis, Places, tuple[frozenset[int], ...], Keepers]:
    """What all meshes of a model share."""
    name, sizes = MODELS[model]
    fn, args, options = build(name, **sizes)
    analysis = sw.analyse(fn, *args, **options)
    return analysis, Places(analysis), *find_keepers(analysis, ())


class ModelProblem:
    """A model on a mesh, with all the memory of the device or with less."""

    def __init__(self, model: str, device: str, limit_bytes: int | None) -> None:
        self.analysis, self.places, whole, self.keepers = analysed(model)
        self.device, self.mesh = find_device(device.partition(",")[0]), MeshShape.of(MESHES[device])
        self.root = State(((),) * len(self.mesh.sizes), whole)
        self.limit_bytes = limit_bytes or self.device.usable_bytes

    def costs(self) -> CostModel:
        """A cost model that has priced nothing yet."""
        return CostModel(self.places, self.mesh, self.device, self.root.whole)


def document(rows: Sequence[Row]) -> str:
    about = __doc__.split("\n\n")
    run_at_all = {row["variant"] for row in rows}
    columns = [v for v in (*VARIANTS, INTEGER) if v in run_at_all]
    lines = [f"| case | best, µs | work | seeds | {' | '.join(columns)} |", "|---" * (len(columns) + 4) + "|"]
    names = list(dict.fromkeys(row["case"] for row in rows))
    for name in names:
        of = {v: [r for r in rows if r["case"] == name and r["variant"] == v] for v in columns}
        best = best_of(name, rows)
        work = [r["work"] for r in of[FULL]]
        cells = [cell(of[v], best) for v in columns]
        lines.append(
            f"| {name} | {best:,.2f} | {sum(work) // max(len(work), 1):,} | {len(work)} | {' | '.join(cells)} |"
        )
    return (
        f"# {about[0]}\n\n{about[2].strip()}\n\n{about[3].strip()}\n\n{summary(rows)}\n\n"
        + "\n".join(lines)
        + f"\n\n{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores.\n"
    )


def best_of(name: str, rows: Sequence[Row]) -> float:
    fitting = [r["step_us"] for r in rows if r["case"] == name and r["over_bytes"] == 0]
    known = [HARD[name].best_us] if name in HARD else []
    return min(fitting + known)


def excess(row: Row, best: float) -> float:
    """The part by which a step is longer than the best; infinite where there is none, or it does not fit."""
    return row["step_us"] / best - 1 if row["over_bytes"] == 0 else math.inf


def cell(rows: Sequence[Row], best: float) -> str:
    parts = sorted(excess(row, best) for row in rows)
    texts = ["over" if part == math.inf else f"{max(part, 0):.2%}" for part in parts]
    return "" if not texts else texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def summary(rows: Sequence[Row]) -> str:
    """By cases and seeds: how often the whole search is worse than each variant, as good, and better."""
    of = {(r["case"], r["variant"], r["seed"]): r for r in rows}
    out = []
    for variant in (*VARIANTS[1:], INTEGER):
        worse = better = count = 0
        for name, other, seed in of:
            if other != FULL or (mate := of.get((name, variant, 0 if variant in (NO_TREE, INTEGER) else seed))) is None:
                continue
            best = best_of(name, rows)
            ours, theirs = excess(of[name, FULL, seed], best), excess(mate, best)
            count += 1
            worse += ours > theirs + SLACK
            better += theirs >= ours + GAIN
        if not count:
            continue
        out.append(
            f'Against "{variant}": better by {GAIN:.1%} or more in {better} of {count} searches, '
            f"worse by more than {SLACK:.1%} in {worse}."
        )
    return "\n".join(f"- {line}" for line in out)


if __name__ == "__main__":
    sys.exit(main())
