"""Which memory of a kernel hangs on which: what no result hangs on may be different, and nobody will know."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright._kernel import Atom, Code

_KNOWN = frozenset({"get", "swap", "addupdate"})


class Flow:
    """Which memory hangs on which, by what is read and written where."""

    def __init__(self, body: Code) -> None:
        self.sources: dict[int, frozenset[int]] = {}
        self.flows: dict[int, frozenset[int]] = {}
        while self._pass(body, frozenset()):
            pass

    def behind(self, refs: Iterable[int]) -> frozenset[int]:
        """All memory that some hangs on, itself included."""
        left = list(refs)
        found = set(left)
        while left:
            more = self.flows.get(left.pop(), frozenset()) - found
            found |= more
            left += more
        return frozenset(found)

    def _of(self, atoms: Iterable[Atom]) -> frozenset[int]:
        return frozenset().union(*(self.sources.get(atom, frozenset()) for atom in atoms if isinstance(atom, int)))

    def _add(self, known: dict[int, frozenset[int]], key: int, more: frozenset[int]) -> bool:
        before = known.get(key, frozenset())
        known[key] = before | more
        return known[key] != before

    def _pass(self, code: Code, around: frozenset[int]) -> bool:
        """Whether anything new was found; ``around`` is what it hangs on whether this code is run."""
        changed = False
        for step in code.steps:
            read = self._of(step.ins) | self._of(atom for access in step.accesses for atom in access.atoms) | around
            touched = frozenset(access.ref for access in step.accesses)
            inside = read
            for body in step.bodies:
                inside |= self._of(body.outs)
            for body in step.bodies:
                for v in body.params:
                    changed |= self._add(self.sources, v, inside)
                changed |= self._pass(body, inside if step.op != "scoped" else around)
            for v in step.outs:
                changed |= self._add(self.sources, v, inside | touched)
            if step.op != "get":
                own = frozenset() if step.op in _KNOWN else touched
                for ref in touched:
                    changed |= self._add(self.flows, ref, read | own)
        return changed
