"""``shardwright compare``."""

from __future__ import annotations

from typing import Any

import click

from shardwright.cli.options import json_option, search_options, searched_plan, target_options
from shardwright.cli.output import emit, only_results, show
from shardwright.compare import Comparison, comparison_table
from shardwright.compare import compare as compare_plan
from shardwright.errors import InfeasibleError


@click.command(short_help="Show the plan beside what experts do.")
@target_options
@search_options
@json_option
def compare(as_json: bool, **given: Any) -> None:
    """Show the plan beside what experts do: data parallel, FSDP, Megatron, and combinations of these.

    All are priced by the same cost model; those that do not fit the memory are marked. A row's name is what
    --pin takes.

    \b
    shardwright compare gpt --mesh data=4,model=4 --device tpu-v5e
    shardwright compare gpt --mesh data=4,model=4 --device tpu-v5e --memory 3GiB
    shardwright compare train:step --mesh data=8 --device h100 --json
    """  # noqa: D301 (click wants the character)
    try:
        with only_results(as_json):
            comparison = compare_plan(searched_plan(given))
    except InfeasibleError as error:  # the smallest plan there is, beside tactics that are larger still
        _put(compare_plan(error.plan), as_json)
        raise
    _put(comparison, as_json)


def _put(comparison: Comparison, as_json: bool) -> None:
    if as_json:
        emit(comparison.to_dict())
    else:
        show(comparison_table(comparison))
