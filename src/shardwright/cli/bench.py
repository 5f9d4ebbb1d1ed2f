"""``shardwright bench``."""

from __future__ import annotations

from pathlib import Path

import click

from shardwright._files import check_outputs
from shardwright.bench import CASES, CONTENDERS, choose_cases, choose_contenders
from shardwright.bench.environments import default_folder
from shardwright.bench.match import matches
from shardwright.bench.rows import Rows, read_rows
from shardwright.cli.output import note, put


@click.command(short_help="Measure plans against others', judged by the TPU compiler.")
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
def bench(
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
    shardwright bench --quick
    shardwright bench --rows bench.jsonl --write contenders.md
    shardwright bench --only gemma --contenders experts
    """  # noqa: D301 (click wants the character)
    if listed:
        _list()
        return
    if write is not None:
        check_outputs({"--write": write, "its plot": write.with_suffix(".svg")}, {"--rows": rows_file})
    cases = choose_cases(only, quick=quick)
    chosen = choose_contenders([name.strip() for name in contenders.split(",") if name.strip()])
    if not no_run:
        from shardwright.bench.run import run

        folder = (environments or default_folder()).resolve()
        run(cases, chosen, Rows(rows_file), folder, timeout=timeout, say=note, retry=retry)
    _show(rows_file, write)


def _show(rows_file: Path, write: Path | None) -> None:
    from shardwright.bench.page import write_page
    from shardwright.bench.table import losses, summary, tables

    found = matches(read_rows(rows_file), tuple(CASES.values()))
    if not found:
        raise click.UsageError(f"{rows_file} has no rows yet.")
    put("\n".join([*tables(found), "## Summary", "", *summary(found), "Where ours is worse:", "", *losses(found)]))
    if write is not None:
        write_page(found, write)
        note(f"wrote {write} and {write.with_suffix('.svg')}")


def _list() -> None:
    for case in CASES.values():
        mesh = ",".join(f"{name}={size}" for name, size in case.mesh.items())
        sizes = " ".join(f"{name}={value}" for name, value in case.sizes.items())
        marks = ", ".join([*(["quick"] if case.quick else []), *(["tight"] if case.tight_gib else [])])
        put(f"{case.name:<22} {case.target_name:<15} {mesh:<17} {case.model} {sizes} {marks and f'({marks})'}".rstrip())
    put()
    for contender in CONTENDERS.values():
        put(f"{contender.name:<30} {contender.summary}")
