"""What `identify` found: a verdict per dialect, and the derivation of the first byte that differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .dialects_core import Dialect, Layout


@dataclass(frozen=True)
class Difference:
    """The first byte that a dialect makes otherwise, and how it comes to its own.

    Args:
        kind: "scale" or "code". index: of the block's scale in `scales`, or of the code in `codes`.
        theirs, ours: the byte passed and the dialect's; the number where scales are float32.
        derivation: lines that lead from the block's largest magnitude to the dialect's byte.
    """

    kind: str
    index: tuple[int, ...]
    theirs: int | float
    ours: int | float
    derivation: tuple[str, ...]

    def __str__(self) -> str:
        theirs, ours = (f"{n:#04x}" if isinstance(n, int) else f"{n:.9g}" for n in (self.theirs, self.ours))
        head = f"first difference: {self.kind} at {self.index}, given {theirs}, dialect {ours}"
        return "\n".join([head, *(f"    {line}" for line in self.derivation)])


@dataclass(frozen=True)
class Verdict:
    """How one dialect compares with the bytes.

    Args:
        dialect: which. outer: "own" where the outer that was passed is what it stores (or none was passed), "given"
            where it was run with the passed outer, which is another one, "none" for one level of scales.
        scales, codes: bytes that differ. unjudged: codes without a rule. first: the first difference, None if none.
    """

    dialect: Dialect
    outer: str
    scales: int
    codes: int
    unjudged: int
    first: Difference | None

    @property
    def same(self) -> bool:
        """Whether every byte is the same."""
        return self.scales == 0 and self.codes == 0

    def __str__(self) -> str:
        tail = f", {self.unjudged} codes not judged" if self.unjudged else ""
        given = {"given": ", with the outer that was passed", "other": ", with an outer of its own"}.get(self.outer, "")
        if self.same:
            return f"{self.dialect.name}: the same bytes{given}{tail}"
        return f"{self.dialect.name}: {self.scales} scales and {self.codes} codes differ{given}{tail}"


@dataclass(frozen=True)
class Identification:
    """The verdicts on a tensor, the nearest dialect first.

    Args:
        layout: the block format. scales, codes: how many bytes were compared. verdicts: one per dialect.
    """

    layout: Layout
    scales: int
    codes: int
    verdicts: tuple[Verdict, ...]

    @property
    def matches(self) -> tuple[str, ...]:
        """Names of the dialects that make these bytes from x alone, the outer too if one was passed."""
        return self._same("own")

    @property
    def matches_other_outer(self) -> tuple[str, ...]:
        """Names of those that make these codes and scales from x alone, but store another outer than was passed."""
        return self._same("other")

    @property
    def matches_given_outer(self) -> tuple[str, ...]:
        """Names of those that make these codes and scales with the outer that was passed, but not from x alone."""
        return self._same("given")

    def _same(self, outer: str) -> tuple[str, ...]:
        return tuple(v.dialect.name for v in self.verdicts if v.same and v.outer == outer)

    def __getitem__(self, name: str) -> Verdict:
        for verdict in self.verdicts:
            if verdict.dialect.name == name:
                return verdict
        tried = ", ".join(verdict.dialect.name for verdict in self)
        raise KeyError(f"{name!r} makes no {self.layout.name} or was not tried: there are {tried}")

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def __str__(self) -> str:
        lines = [f"{self.layout.name}, {self.scales} scales, {self.codes} codes"]
        groups = (
            (self.matches, "made by"),
            (self.matches_other_outer, "the same codes and scales, but another stored outer"),
            (self.matches_given_outer, "the same codes and scales from the outer that was passed, not from x alone"),
        )
        lines += [f"{text}: {', '.join(names)}" for names, text in groups if names]
        others = [verdict for verdict in self.verdicts if not verdict.same]
        if len(others) == len(self.verdicts):
            lines.append("no dialect makes these bytes; the nearest ones:")
            for verdict in others[:3]:
                lines += [str(verdict), *(f"    {line}" for line in str(verdict.first).splitlines())]
            others = others[3:]
        return "\n".join([*lines, *(str(verdict) for verdict in others)])
