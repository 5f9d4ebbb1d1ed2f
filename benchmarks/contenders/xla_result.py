"""What XLA's own auto-sharding left behind, in the figures that all others have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.contenders.cases import Case
from benchmarks.contenders.rows import Row
from benchmarks.contenders.xla_auto import STAGES
from shardwright.verify.figures import memory_figures, program_figures
from shardwright.verify.hlo import parse_hlo
from shardwright.verify.messages import shortage

_FIGURES = ("step_seconds", "compute_seconds", "comm_seconds", "exposed_seconds")

_CLOCKS = ("auto_seconds", "auto_cpu_seconds", "again_seconds", "again_cpu_seconds")
_STAMP = r"^W\d{4} (\d\d):(\d\d):(\d\d\.\d+) .*"
_LOGGED = tuple(re.compile(_STAMP + re.escape(stage), re.MULTILINE) for stage in STAGES)
_SOLVER = re.compile(r"auto_sharding\w*\.cc:\d+\] ([^.\n]*)")
_DAY = 86400.0


def read_xla(found: Mapping[str, Any], hlo: str, log: str, case: Case) -> Row:
    """The figures of XLA's own auto-sharding, read from its program as those of all others are.

    It says in its log when it begins and what comes next, which is how long it decided; what the processor did in that
    time was sampled. Where the log does not say, it is the time to compile less the time to compile what it chose.
    """
    said = found.get("error", "").splitlines() or [""]
    out: Row = {"message": said[0][:300]}
    out |= {name: found[name] for name in _CLOCKS if name in found}
    for clock in ("seconds", "cpu_seconds"):
        if f"auto_{clock}" in found:
            out[f"search_{clock}"] = max(0.0, found[f"auto_{clock}"] - found.get(f"again_{clock}", 0.0))
    if (stamps := logged(log)) is not None:
        out["search_seconds"] = (stamps[1] - stamps[0]) % _DAY
        out["search_cpu_seconds"] = sampled(found.get("cpu_samples", []), *stamps)
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
    return {**out, **kept, **decided, "peak_bytes": peak, "fits": peak <= case.limit_bytes, "status": "compiled"}


def logged(log: str) -> tuple[float, float] | None:
    """The times of day of the partitioner's first words, and of those of the propagation that follows auto-sharding."""
    times = [_time(found[0]) for pattern in _LOGGED if (found := pattern.findall(log))]
    return (times[0], times[1]) if len(times) == len(_LOGGED) else None


def sampled(samples: Sequence[Sequence[float]], begin: float, end: float) -> float | None:
    """The processor's seconds between two times of day, by samples of both."""
    if not samples:
        return None
    first = samples[0][0]  # midnight may come in between
    days, seconds = zip(*[((day - first) % _DAY, cpu) for day, cpu in samples], strict=True)
    until = float(np.interp((end - first) % _DAY, days, seconds))
    since = float(np.interp((begin - first + _DAY / 2) % _DAY - _DAY / 2, days, seconds))
    return until - since


def solver_words(log: str) -> list[str]:
    """The first sentence of each thing that auto-sharding complains of."""
    return list(dict.fromkeys(_SOLVER.findall(log)))


def in_brief(specs: Iterable[str]) -> str:
    """How many arguments have which spec, the most common first."""
    return ", ".join(f"{count} × {spec}" for spec, count in Counter(specs).most_common(3))


def _time(parts: tuple[str, str, str]) -> float:
    hours, minutes, seconds = parts
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)
