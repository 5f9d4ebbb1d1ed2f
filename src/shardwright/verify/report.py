"""What a verification found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """``ok``, one sentence that says why, and the figures behind it."""

    on: str
    ok: bool
    message: str
    figures: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return f"{self.on}: {'ok' if self.ok else 'FAILED'}: {self.message}"
