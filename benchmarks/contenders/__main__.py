"""Our plans against expert tactics, XLA's auto-sharding and others, all judged by one TPU compiler.

python -m benchmarks.contenders --quick                                     two small cases, in minutes
python -m benchmarks.contenders --rows bench.jsonl --write contenders.md    all; resumes; hours on two cores
python -m benchmarks.contenders --list
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.contenders import CASES, CONTENDERS, choose_cases, choose_contenders
from benchmarks.contenders.environments import default_folder
from benchmarks.contenders.match import matches
from benchmarks.contenders.page import losses, summary, tables, write_page
from benchmarks.contenders.rows import Rows, read_rows
from benchmarks.contenders.run import run
from shardwright._files import check_outputs
from shardwright.errors import ShardwrightError


@click.command
@click.option("--list", "listed", is_flag=True, help="Show cases and contenders, and run nothing.")
@click.option("--quick", is_flag=True, help="Two small cases, in minutes instead of hours.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only cases with this in their names; may be repeated.")
@click.option("--contenders", default="", metavar="NAME,…", help="Only these, and ours; separated by commas.")
@click.option(
    "--rows",
    "rows_file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("bench.jsonl"),
    show_default=True,
    help="The file of results: what is in there already is not run again.",
)
@click.option("--retry", is_flag=True, help="Run those again that crashed or took too long.")
@click.option("--no-run", is_flag=True, help="Take the rows that are there.")
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Write a page of tables, and a plot.")
@click.option(
    "--environments",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the virtual environments of the benchmark are; by default in the user's cache.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="Seconds that a contender gets for a case, with compiling.",
)
def main(
    listed: bool,
    quick: bool,
    only: tuple[str, ...],
    contenders: str,
    rows_file: Path,
    retry: bool,
    no_run: bool,
    write: Path | None,
    environments: Path | None,
    timeout: float,
) -> None:
    """Measure plans against expert tactics, XLA's auto-sharding and others, all judged by one TPU compiler.

    Needs no TPU: everything is compiled ahead of time, in virtual environments that the benchmark makes. Every result
    is written when it is known; a run that was interrupted goes on where it was.

    \b
    python -m benchmarks.contenders --quick
    python -m benchmarks.contenders --rows bench.jsonl --write contenders.md
    python -m benchmarks.contenders --only gemma --contenders experts
    """  # noqa: D301 (click wants the character)
    if listed:
        _list()
        return
    try:
        if write is not None:
            check_outputs({"--write": write, "its plot": write.with_suffix(".svg")}, {"--rows": rows_file})
        cases = choose_cases(only, quick=quick)
        chosen = choose_contenders([name.strip() for name in contenders.split(",") if name.strip()])
        if not no_run:
            folder = (environments or default_folder()).resolve()
            run(cases, chosen, Rows(rows_file), folder, timeout=timeout, say=_note, retry=retry)
        _show(rows_file, write)
    except ShardwrightError as error:
        raise click.UsageError(str(error)) from error


def _show(rows_file: Path, write: Path | None) -> None:
    found = matches(read_rows(rows_file), tuple(CASES.values()))
    if not found:
        raise click.UsageError(f"{rows_file} has no rows yet.")
    click.echo(
        "\n".join([*tables(found), "## Summary", "", *summary(found), "Where ours is worse:", "", *losses(found)])
    )
    if write is not None:
        write_page(found, write)
        _note(f"wrote {write} and {write.with_suffix('.svg')}")


def _list() -> None:
    for case in CASES.values():
        mesh = ",".join(f"{name}={size}" for name, size in case.mesh.items())
        sizes = " ".join(f"{name}={value}" for name, value in case.sizes.items())
        marks = ", ".join([*(["quick"] if case.quick else []), *(["tight"] if case.tight_gib else [])])
        click.echo(
            f"{case.name:<22} {case.target_name:<15} {mesh:<17} {case.model} {sizes} {marks and f'({marks})'}".rstrip()
        )
    click.echo()
    for contender in CONTENDERS.values():
        click.echo(f"{contender.name:<30} {contender.summary}")


def _note(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.contenders")
