"""Is a plan obeyed, and does it compute the same? Every built-in model, every tactic that applies, three meshes.

    python benchmarks/obeyed.py                                    print the table
    python benchmarks/obeyed.py --write docs/benchmarks/obeyed.md
    python benchmarks/obeyed.py --models gpt,mlp --rows rows.jsonl     a part; what is in the file is not run again

For each row the plan of the tiny preset runs on 8 CPU devices in a process of its own, on random inputs, against the
plain function ("largest difference": a part of the result's largest entry, or of the most that is added to an argument
where a result carries one, as a step does its parameters; whichever is closer to what is "allowed"). "Not seen" are
arguments to which no more than rounding is added, such as a bias before a normalization. The constraints that had to be
written into the module are counted ("constraints", of all its values); and the bytes that the plan implies are held
against those in Shardy's explicit program ("bytes, ours/Shardy's").
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from datetime import date
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import shardwright as sw
from shardwright.models import MODELS, build
from shardwright.space import TACTICS

MESHES = {
    "8": ({"x": 8}, lambda t: [f"{t}:x"]),
    "4x2": ({"a": 4, "b": 2}, lambda t: ["data_parallel:a", f"{t}:b"]),
    "2x2x2": ({"a": 2, "b": 2, "c": 2}, lambda t: ["data_parallel:a", "fsdp:b", f"{t}:c"]),
}
HEADER = (
    "| model | mesh | tactics | runs equal | largest difference | allowed | not seen | constraints "
    "| bytes, ours/Shardy's |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def row(model: str, mesh_name: str, tactic: str) -> dict[str, object] | None:
    mesh, combine = MESHES[mesh_name]
    fn, args, options = build(model, preset="tiny")
    try:
        plan = sw.evaluate(fn, *args, mesh=mesh, decisions=combine(tactic), **options)
    except sw.PinError:
        return None
    run, shardy = plan.verify("run"), plan.verify("shardy")
    annotation = plan.export("cpu")[1]
    worst = run.figures.get("worst") or {}
    return {
        "model": model,
        "mesh": mesh_name,
        "tactics": ", ".join(combine(tactic)),
        "ok": run.ok,
        "error": worst.get("error"),
        "allowed": worst.get("tolerance"),
        "leaves": run.figures.get("leaves"),
        "unseen": len(run.figures.get("unseen", ())),
        "message": run.message,
        "constraints": annotation.on_definitions + annotation.on_uses,
        "values": annotation.values,
        "ratio": shardy.figures["ratio"],
    }


def line(r: dict[str, object]) -> str:
    error = f"{r['error']:.1e} | {r['allowed']:.1e}" if r["error"] is not None else f"{r['message']} |"
    verdict = "yes" if r["ok"] else "**no**"
    return (
        f"| {r['model']} | {r['mesh']} | {r['tactics']} | {verdict} | {error} "
        f"| {r['unseen']} of {r['leaves']} | {r['constraints']} of {r['values']:,} | {r['ratio']:.3f} |"
    )


def summary(rows: list[dict[str, object]]) -> str:
    equal = sum(bool(r["ok"]) for r in rows)
    agree = sum(abs(float(r["ratio"]) - 1) <= 0.1 for r in rows)  # type: ignore[arg-type]
    part = sum(int(r["constraints"]) for r in rows) / sum(int(r["values"]) for r in rows)  # type: ignore[call-overload]
    return (
        f"{equal} of {len(rows)} run equal to the plain function; {agree} of {len(rows)} agree with Shardy's bytes "
        f"within 10%; constraints are {100 * part:.1f}% of the values.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(m for m in MODELS if m != "decode"))
    parser.add_argument("--meshes", default=",".join(MESHES))
    parser.add_argument("--write", type=Path, help="Markdown file to write the results to")
    parser.add_argument("--rows", type=Path, help="file of rows, one JSON object a line, to go on from and to add to")
    options = parser.parse_args()
    known = read_rows(options.rows)
    done = {(r["model"], r["mesh"], r["tactics"]) for r in known}
    print(HEADER, flush=True)
    for model in options.models.split(","):
        for mesh in options.meshes.split(","):
            for tactic in TACTICS:
                if (model, mesh, ", ".join(MESHES[mesh][1](tactic))) in done:
                    continue
                found = row(model, mesh, tactic)
                if found is not None:
                    known.append(found)
                    print(line(found), flush=True)
                    if options.rows:
                        with options.rows.open("a") as file:
                            file.write(json.dumps(found) + "\n")
    print("\n" + summary(known))
    if options.write:
        options.write.write_text(document(known))


def read_rows(path: Path | None) -> list[dict[str, object]]:
    """Rows of an earlier run, in the order of the table."""
    if path is None or not path.exists():
        return []
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    order = [list(MODELS), list(MESHES)]
    return sorted(rows, key=lambda r: (order[0].index(r["model"]), order[1].index(r["mesh"])))


def document(rows: list[dict[str, object]]) -> str:
    about = __doc__.split("For each row", 1)[1].strip()
    return (
        f"# Obeyed, and equal\n\nFor each row {about}\n\n{summary(rows)}\n{HEADER}\n"
        + "\n".join(map(line, rows))
        + f"\n\n{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}, "
        f"Python {platform.python_version()}. "
        "Made by `python benchmarks/obeyed.py --write docs/benchmarks/obeyed.md`.\n"
    )


if __name__ == "__main__":
    main()
