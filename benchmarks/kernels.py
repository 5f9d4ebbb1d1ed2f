"""How well the sharding rules of Pallas kernels are derived: of random small ones, and of those that ship with JAX.

    python -m benchmarks.kernels --count 500 --rows rows.jsonl       kernels 0 to 499; goes on where it was
    python -m benchmarks.kernels --shipped --rows rows.jsonl         the kernels of this version of JAX
    python -m benchmarks.kernels --rows rows.jsonl --write docs/benchmarks/kernels.md

A random kernel (`tests/grammar/kernels.py`) has a grid of one to four indices and up to three operands, whose index
maps permute, repeat, offset, divide, reverse or look up grid indices. Of each, plans that split every derived factor,
alone and in pairs, are run on eight CPU devices in interpret mode, and compared with the kernel as it is: anything else
is wrong. Which factors there are is found by trying (`tests/grammar/kernel_trials.py`). Kernels run in child processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

Row = dict[str, Any]
_AT_ONCE = 20
WHY = """What stays whole, in classes:

- Kernels that work with the number of a step: masks by position (flash attention along its sequence, the keys of splash
  attention's `dkv`), counters (`threefry`, `philox`). A part of the grid would have to be told where it begins.
- Results that are no sums: attention over its keys, where each step rescales what came before; and `dkv` of splash
  attention with grouped heads, whose results several heads write to.
- `dq` and `dkv` of splash attention along what they add up, on jax 0.10.2: there they do so in a result that nobody
  reads. On jax 0.12 it is scratch memory, and they can be split, with the tables of their masks: in a plan
  where these are arguments, since nothing is decided about constants. Not so the kernel that makes both, of whose
  results some are added up, and others not.
- Paged attention: each step starts to copy the pages of the next, and notes in memory which buffer they go to, so that
  no step stands alone; which is the last sequence is a constant in its code. `shard_map` around the call is the way.
- The tiles of megablox' groups: how many there are is known only when it runs.
- `all_gather` talks to other devices by itself, in a `shard_map` of its own, and stays as it is.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first kernel")
    parser.add_argument("--count", type=int, default=0, help="how many from there on")
    parser.add_argument("--shipped", action="store_true", help="look at the kernels that ship with JAX")
    parser.add_argument("--rows", type=Path, required=True, help="file of rows to go on from and to add to")
    parser.add_argument("--write", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    if os.environ.get("JAX_NUM_CPU_DEVICES") != "8" or os.environ.get("JAX_PLATFORMS") != "cpu":
        os.environ.update(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="8")
    known = read(options.rows)
    done = {row["case"] for row in known if "case" in row}
    cases = [n for n in range(options.first, options.first + options.count) if n not in done]
    if len(cases) <= _AT_ONCE:
        judge_cases(cases, options.rows)
    for at in range(0, len(cases) if len(cases) > _AT_ONCE else 0, _AT_ONCE):
        first, last = cases[at], cases[at : at + _AT_ONCE][-1]
        child = ["--first", str(first), "--count", str(last - first + 1), "--rows", str(options.rows)]
        subprocess.run([sys.executable, "-m", "benchmarks.kernels", *child], check=False)
    if options.shipped:
        look_at_shipped(options.rows)
    rows = read(options.rows)
    print(summary(rows))
    if options.write:
        options.write.write_text(page(rows))


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def judge_cases(cases: Sequence[int], path: Path) -> None:
    """Run kernels, and add a row for each."""
    if not cases:
        return
    import jax

    from grammar.kernel_trials import judge
    from grammar.kernels import draw_case

    jax.config.update("jax_disable_most_optimizations", True)
    for number in cases:
        case = draw_case(number)
        verdict = judge(case)
        row = {
            "case": number,
            "on": jax.__version__,
            "kernel": str(case),
            "right": [sorted(ways) for ways in verdict.right],
            "derived": [sorted(ways) for ways in verdict.derived],
            "ran": verdict.ran,
            "wrong": list(verdict.wrong),
            "sums": verdict.sums,
            "complete": verdict.is_complete,
        }
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def look_at_shipped(path: Path) -> None:
    """Add a row for each kernel that this version of JAX has, in place of those that are there."""
    import jax

    from benchmarks.kernels_shipped import rows

    kept = [row for row in read(path) if row.get("jax") != jax.__version__]
    kept += rows()
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """What came of the random kernels."""
    cases = [row for row in rows if "case" in row]
    found = [sum(bool(ways) for ways in row["derived"]) for row in cases]
    there = [sum(bool(ways) for ways in row["right"]) for row in cases]
    return {
        "kernels": len(cases),
        "wrong": sum(bool(row["wrong"]) for row in cases),
        "plans": sum(row["ran"] for row in cases),
        "complete": sum(row["complete"] for row in cases),
        "some": sum(n > 0 for n in there),
        "some_complete": sum(row["complete"] for row, n in zip(cases, there, strict=True) if n),
        "there": sum(there),
        "found": sum(found),
        "sums": sum(row["sums"] for row in cases),
    }


def summary(rows: Sequence[Row]) -> str:
    n = counts(rows)
    return (
        f"wrong: {n['wrong']} of {n['kernels']}; found all factors in {n['complete']} of {n['kernels']}\n"
        f"({n['plans']} plans run; {n['some']} kernels have a factor, all found in {n['some_complete']}; "
        f"{n['found']} of {n['there']} factors, {n['sums']} of them sums)"
    )


def page(rows: Sequence[Row]) -> str:
    """The page about it."""
    n = counts(rows)
    versions = " and ".join(sorted({row["on"] for row in rows if "case" in row}))
    missed = [row for row in rows if "case" in row and not row["complete"]]
    lines = [
        "# Rules of kernels",
        "",
        f"Written on {date.today().isoformat()} by `python -m benchmarks.kernels`; [Pallas kernels](../kernels.md) "
        "says how a rule is derived from a kernel's grid.",
        "",
        "## Random kernels",
        "",
        f"{n['kernels']} random small kernels on jax {versions}: grids of one to four indices; index maps that "
        "permute, repeat, offset, divide, reverse, choose or look up in prefetched scalars; blocks of one to three; "
        "results that are set, added up, or kept in scratch memory, from where sums are written rounded to bfloat16, "
        "under a mask, or in branches that begin alike; numbers of steps in the body; aliases; results that nobody "
        "reads; some under `vmap`. Each derived factor was split in a plan, alone and with each other one, "
        "and run in interpret mode on up to eight CPU devices. What can be split at all was found by trying: the "
        "kernel run on every part of the grid, with every array whole or in parts along any dimension.",
        "",
        "| | |",
        "|---|---|",
        f"| kernels with a wrong result | {n['wrong']} of {n['kernels']} |",
        f"| plans run | {n['plans']} |",
        f"| kernels with all factors found | {n['complete']} of {n['kernels']} |",
        f"| of those that have any | {n['some_complete']} of {n['some']} |",
        f"| grid indices that can be split, found | {n['found']} of {n['there']} |",
        f"| sums over a grid index among them | {n['sums']} |",
        "",
    ]
    if missed:
        lines += ["What was missed (places of blocks for each array, then what the body does):", "", "```text"]
        lines += [f"{row['kernel']}: {_missing(row)}" for row in missed]
        lines += ["```", ""]
    lines += ["## The kernels that ship with JAX", "", *shipped(rows)]
    return "\n".join([*lines, "", WHY])


def _missing(row: Row) -> str:
    pairs = enumerate(zip(row["right"], row["derived"], strict=True))
    return ", ".join(f"index {k} in {max(right)}" for k, (right, mine) in pairs if not set(right) <= set(mine))


def shipped(rows: Sequence[Row]) -> list[str]:
    """The table of JAX's own kernels: versions together where the same can be split, in the words of the last."""
    found: dict[tuple[str, str, int, str], dict[str, Row]] = {}
    numbers: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        if "shipped" in row:
            numbers[row["jax"], row["shipped"], row["kernel"]] += 1
            number = numbers[row["jax"], row["shipped"], row["kernel"]]
            key = row["shipped"], row["kernel"], number, "; ".join(row["split"])
            found.setdefault(key, {})[row["jax"]] = row
    versions = sorted({row["jax"] for row in rows if "jax" in row})
    lines = [
        f"All of `jax.experimental.pallas.ops.tpu`, on jax {' and '.join(versions)}, in the words of `sw.analyse` "
        f"(on {versions[-1] if versions else 'none'}, where versions differ in words only). An operand's number counts "
        "prefetched scalars, and the sizes of grids that are known only when they run.",
        "",
        "| program | kernel | can be split by | stays whole |",
        "|---|---|---|---|",
    ]
    order = list(dict.fromkeys(program for program, *_ in found))
    for (program, kernel, number, split), of in sorted(found.items(), key=lambda item: order.index(item[0][0])):
        name = f"`{kernel}`" if kernel else "in a `shard_map` of its own"
        name += f" ({number})" if number > 1 else ""
        only = "" if sorted(of) == versions else f", jax {' '.join(sorted(of))} only"
        whole = "; ".join(f"grid index {k} {reason}" for k, reason in of[max(of)]["whole"])
        lines.append(f"| {program}{only} | {name} | {split or '–'} | {whole or '–'} |")
    return lines


if __name__ == "__main__":
    main()
