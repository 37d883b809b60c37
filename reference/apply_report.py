"""What `apply` did, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass

from .recipe import ExpertRecipe


@dataclass(frozen=True)
class Line:
    """A module that follows a recipe now.

    Attributes:
        name: as in `named_modules`. kind: "linear" or "experts". shape: (outputs, inputs), or (experts, width, expert
        width). place: (numbered list, index from 0, length) or None. part: which layers' part of the recipe it
        follows, in words. x, w, g: formats of its input, weight and gradients.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    place: tuple[str, int, int] | None
    part: str
    x: str
    w: str
    g: str

    @staticmethod
    def formats(recipe: ExpertRecipe) -> tuple[str, str, str]:
        """Names of the formats of x, w and g."""
        casts = (recipe.input, recipe.weight, recipe.grad)
        x, w, g = ("BF16" if cast.fmt is None else cast.fmt.name for cast in casts)
        return x, w, g


@dataclass(frozen=True)
class Report:
    """What `apply` did: the recipe's name, a line for every module that follows it, (name, reason) of those that were
    left alone, and notes."""

    recipe: str
    lines: tuple[Line, ...]
    left: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Modules of several layers that do the same are one line."""
        head = ("module", "kind", "shape", "layer index", "follows", "x", "w", "g")
        rows = [head]
        for group in self._groups():
            line, places = group[0], [other.place for other in group if other.place]
            name = (line.name or "(the model)") if len(group) == 1 else _starred(line)
            shape = " x ".join(map(str, line.shape))
            rows.append((name, line.kind, shape, _spans(places), line.part, line.x, line.w, line.g))
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        table = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        plural = "module follows" if len(self.lines) == 1 else "modules follow"
        total = f"{len(self.lines)} {plural} recipe {self.recipe}, {len(self.left)} left alone"
        left = [f"left alone  {name or '(the model)'}: {reason}" for name, reason in self.left]
        return "\n".join([total, *table, *left, *(f"note  {note}" for note in self.notes)])

    def _groups(self) -> list[list[Line]]:
        groups: dict[tuple[object, ...], list[Line]] = {}
        for line in self.lines:
            key = (_starred(line), *(getattr(line, f) for f in ("kind", "shape", "part", "x", "w", "g")))
            groups.setdefault(key, []).append(line)
        return list(groups.values())


def _starred(line: Line) -> str:
    """The name with a star for the index in the numbered list."""
    if line.place is None:
        return line.name
    around, index, _ = line.place
    prefix = f"{around}." if around else ""
    if not line.name.startswith(f"{prefix}{index}"):
        return line.name  # registered under another name first
    return f"{prefix}*{line.name[len(f'{prefix}{index}') :]}"


def _spans(places: list[tuple[str, int, int]]) -> str:
    """0-4, 6 of 12: indices from 0, runs joined."""
    runs: list[list[int]] = []
    for _, index, _ in places:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    told = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"{told} of {places[0][2]}" if places else ""
