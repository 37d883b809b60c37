"""What `apply` did, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass

from .recipe import ExpertRecipe


@dataclass(frozen=True)
class Line:
    """A module that follows a recipe now.

    Attributes:
        name: as in `named_modules`. kind: "linear" or "experts". shape: (outputs, inputs), or (experts, width, expert
        width). place: "3 of 6", counted from 1, or "". part: which layers' part of the recipe it follows, in words.
        x, w, g: formats of its input, weight and gradients.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    place: str
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
        head = ("module", "kind", "shape", "layer", "follows", "x", "w", "g")
        rows = [head]
        for line in self.lines:
            shape = " x ".join(map(str, line.shape))
            rows.append((line.name, line.kind, shape, line.place, line.part, line.x, line.w, line.g))
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        table = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        total = f"{len(self.lines)} modules follow recipe {self.recipe}, {len(self.left)} are left alone"
        left = [f"left alone  {name or '(the model)'}: {reason}" for name, reason in self.left]
        return "\n".join([total, *table, *left, *(f"note  {note}" for note in self.notes)])
