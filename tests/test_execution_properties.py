"""Plans of random programs and of their gradients, really run on eight CPU devices, give the unpartitioned result."""

import os
from pathlib import Path

import pytest

from grammar import KINDS, program
from grammar.batches import read_rows, run

EXAMPLES = int(os.environ.get("SHARDWRIGHT_EXAMPLES", "32"))
"""Cases, of up to three plans each; ``benchmarks/random_programs.py`` runs thousands."""
ROWS = os.environ.get("SHARDWRIGHT_ROWS")
"""A file of rows to go on from: what is done there is not run again."""
PARTS = 4
"""Several processes share the cases."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_plans_compute_the_same(part):
    path = Path(ROWS) if ROWS else None
    known, done = read_rows(path)
    cases = range(part, EXAMPLES, PARTS)
    rows = [row for row in known if row["case"] in cases] + run([k for k in cases if k not in done], path)
    assert [row for row in rows if row["verdict"] not in ("ok", "rounding")] == []
    assert sum(row["verdict"] == "ok" for row in rows) >= len(cases)


def test_a_number_is_always_the_same_program():
    assert [str(program(k)) for k in range(20)] == [str(program(k)) for k in range(20)]
    assert len({str(program(k)) for k in range(20)}) == 20


def test_every_kind_of_step_is_drawn_and_many_gradients():
    """Some of the functions that draw make several kinds, so that there are more; a third at least are gradients."""
    programs = [program(k) for k in range(120)]
    assert sum(p.gradient for p in programs) >= len(programs) / 3
    drawn = {kind for p in programs for kind in p.kinds}
    assert len(drawn) > len(KINDS), drawn
    assert {"convolution", "reduce_window", "pad", "slice", "scatter", "sort", "complex", "scan", "cond"} <= drawn
