"""What XLA's own auto-sharding left behind, in the figures that all others have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from shardwright.bench.cases import Case
from shardwright.bench.rows import Row
from shardwright.verify.figures import memory_figures, program_figures
from shardwright.verify.hlo import parse_hlo
from shardwright.verify.messages import shortage

_FIGURES = ("step_seconds", "compute_seconds", "comm_seconds")

_CLOCKS = ("auto_seconds", "auto_cpu_seconds", "again_seconds", "again_cpu_seconds")
_STAMP = r"^W\d{4} (\d\d):(\d\d):(\d\d\.\d+) .*"
_LOGGED = {
    "begin": re.compile(_STAMP + r"tpu_spmd_partitioner\.cc", re.MULTILINE),
    "end": re.compile(_STAMP + r"sharding_propagation\.cc", re.MULTILINE),
}
_SOLVER = re.compile(r"auto_sharding\w*\.cc:\d+\] ([^.\n]*)")
_DAY = 86400.0


def read_xla(found: Mapping[str, Any], hlo: str, log: str, case: Case, limit_bytes: int) -> Row:
    """The figures of XLA's own auto-sharding, read from its program as those of all others are.

    It says in its log when it begins and what comes next, which is how long it decided; where it does not, that is the
    time to compile less the time to compile what it chose.
    """
    said = found.get("error", "").splitlines() or [""]
    out: Row = {"limit_bytes": limit_bytes, "message": said[0][:300]}
    out |= {name: found[name] for name in _CLOCKS if name in found}
    for clock in ("seconds", "cpu_seconds"):
        if f"auto_{clock}" in found:
            out[f"search_{clock}"] = max(0.0, found[f"auto_{clock}"] - found.get(f"again_{clock}", 0.0))
    if (seconds := logged_seconds(log)) is not None:
        out["search_seconds"] = seconds
    out["compile_seconds"] = found.get("auto_seconds")
    if "memory" not in found:
        lack = shortage(found.get("error", ""))
        needed = {"peak_bytes": lack.needed_bytes} if lack else {}
        return {**out, **needed, "fits": False, "status": "does not fit" if lack else "failed"}
    target = case.target
    figures = program_figures(parse_hlo(hlo), case.mesh, target)
    peak = memory_figures(found["memory"], target)["peak_bytes"]
    kept = {name: figures[name] for name in _FIGURES}
    specs = found.get("specs", {})
    decided = {"specs": specs, "plan": "; ".join([in_brief(specs.values()), *solver_words(log)])}
    return {**out, **kept, **decided, "peak_bytes": peak, "fits": peak <= limit_bytes, "status": "compiled"}


def logged_seconds(log: str) -> float | None:
    """From the partitioner's first words to those of the propagation that follows auto-sharding."""
    times = {name: _time(found[0]) for name, pattern in _LOGGED.items() if (found := pattern.findall(log))}
    return (times["end"] - times["begin"]) % _DAY if len(times) == len(_LOGGED) else None


def solver_words(log: str) -> list[str]:
    """The first sentence of each thing that auto-sharding complains of."""
    return list(dict.fromkeys(_SOLVER.findall(log)))


def in_brief(specs: Iterable[str]) -> str:
    """How many arguments have which spec, the most common first."""
    return ", ".join(f"{count} × {spec}" for spec, count in Counter(specs).most_common(3))


def _time(parts: tuple[str, str, str]) -> float:
    hours, minutes, seconds = parts
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)
