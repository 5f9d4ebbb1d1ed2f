"""``shardwright fit``."""

from __future__ import annotations

from typing import Any

import click

from shardwright.cli.completions import complete_checks
from shardwright.cli.output import check_files, emit, note, only_results, output_option, show
from shardwright.cli.plan_command import infeasible_dict
from shardwright.cli.shared_options import asked, json_option, search_options, target_options
from shardwright.cli.target import target_file
from shardwright.cli.typed_values import mesh_devices
from shardwright.cli.verify_command import check_names
from shardwright.errors import InfeasibleError
from shardwright.fit import fit as find_fit
from shardwright.fit.found import fit_table


@click.command(short_help="Find the largest batch, and the fewest devices, that fit.")
@target_options
@search_options
@click.option(
    "--dimension",
    "dimensions",
    multiple=True,
    metavar="NAME",
    help="The dimension whose size changes, such as batch.tokens[0]; several grow together. By default the batch.",
)
@click.option(
    "--verify",
    metavar="ON",
    shell_complete=complete_checks,
    help="Give the last word to the compiler for this target, such as tpu:v5e:4x4; it is asked at most eight times.",
)
@click.option(
    "--most-devices",
    type=click.IntRange(min=0),
    default=4096,
    show_default=True,
    help="The largest number of devices to try; 0 leaves the question out.",
)
@output_option("--save", "Write the plan for the largest size as JSON; - is standard output.")
@json_option
def fit(
    dimensions: tuple[str, ...],
    verify: str | None,
    most_devices: int,
    save: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Find the largest batch that fits a mesh, and the fewest devices for the program as it is.

    Every size that is tried is traced and planned again. --dimension names another dimension than the batch.

    \b
    shardwright fit gpt --mesh data=4,model=4 --device tpu-v5e
    shardwright fit gpt --mesh data=4,model=4 --device tpu-v5e --dimension batch.tokens[1]
    with the compiler as the judge:
      shardwright fit gpt --mesh data=4,model=4 --device tpu-v5e --verify tpu:v5e:4x4

    The exit code is 0 for an answer, 2 for a mistake in the call, and 3 if nothing fits.
    """  # noqa: D301 (click wants the character)
    if given["rerank"] is not None:
        raise click.UsageError("fit does not take --rerank; --verify asks the compiler.")
    if verify is not None:
        check_names([verify], mesh_devices(given["mesh"]))
    streamed = check_files({"--save": save}, target_file(given["target"]), only_result=as_json)
    try:
        with only_results(as_json):
            target, options = asked(given)
            assert target.fn is not None
            found = find_fit(
                target.fn,
                *target.args,
                **options,
                dimension=dimensions or None,
                verify=verify,
                most_devices=most_devices,
            )
            if save is not None and found.plan is not None:
                found.plan.save(save)
                note(f"wrote {save}")
    except InfeasibleError as error:
        if as_json:
            emit(infeasible_dict(error))
        raise
    if as_json:
        emit(found.to_dict())
    else:
        with only_results(streamed):
            show(fit_table(found))
