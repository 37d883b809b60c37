"""Where the edges of a recipe's diagram stand: forward and backward on one grid, a half for each expert matrix."""

from __future__ import annotations

from dataclasses import dataclass

from studies import plots

from .diagram_parts import CARD, PALE, PORT, RADIUS, SLAB, Canvas, Point, Slot, draw_slot, height, ports, tint, width
from .recipe_edges import BF16, FP32, MASTERS, Kind

_HALF = plots.PAGE / 2
_FIRST, _SECOND = 0.33, 2.03  # left edges of a half's two cards
_MIDDLE = (_FIRST + CARD + _SECOND) / 2  # its products
_RAIL = 3.45  # where gradients branch
_BETWEEN = 0.13  # rows
_EDGE = 0.05  # of the page
_MIXED = Kind("", "#444444")  # of two recipes


@dataclass(frozen=True)
class Page:
    """A canvas with what flows on it: `slots` by edge, and whether two recipes are compared."""

    canvas: Canvas
    slots: dict[str, Slot]
    compared: bool

    def pale(self, *keys: str) -> bool:
        """Whether two recipes have all of these edges in common."""
        return self.compared and all(len(self.slots[key]) == 1 for key in keys)

    def high(self, *keys: str) -> float:
        """Of a row of slots."""
        return max(height(self.slots[key]) for key in keys)

    def kind(self, key: str) -> Kind:
        """Of an edge, if it has one."""
        kinds = {edge.kind for edge in self.slots[key]}
        return kinds.pop() if len(kinds) == 1 else _MIXED

    def row(self, half: int, y: float, first: str, second: str, name: str, below: bool) -> Point:
        """Two operands and their product, whose name stands below or above it; where the product is."""
        draw_slot(self.canvas, half * _HALF + _FIRST, y, self.slots[first], self.pale(first), "left")
        draw_slot(self.canvas, half * _HALF + _SECOND, y, self.slots[second], self.pale(second), "right")
        x = half * _HALF + _MIDDLE
        found = {-1: (first, ports(self.slots[first], y)), 1: (second, ports(self.slots[second], y))}
        centre = max(sum(where) / len(where) for _, where in found.values())
        for side, (key, where) in found.items():
            for edge, port in zip(self.slots[key], where, strict=True):
                bend, start = x + side * (RADIUS + 0.11), x + side * (_MIDDLE - _FIRST - CARD)
                points = [(start, port), (bend, port), (bend, centre), (x + side * RADIUS, centre)]
                points = points if abs(port - centre) > 1e-9 else [points[0], points[-1]]
                self.canvas.wire(points, edge.kind, self.pale(key), edge.stochastic)
        self.canvas.product(x, centre)
        self.canvas.text(x, centre + (0.19 if below else -0.19), name, ha="center")
        return x, centre

    def enter(self, key: str, start: float, card: float, y: float) -> None:
        """Wires from `start` into the cards at `card`, in the colour of what these are made from."""
        for edge, port in zip(self.slots[key], ports(self.slots[key], y), strict=True):
            slab = SLAB if edge.hadamard else 0.0
            end = card - slab if start < card else card + CARD + slab
            self.canvas.wire([(start, port), (end, port)], edge.source, self.pale(key))

    def rail(self, start: Point, keys: tuple[str, str], tops: tuple[float, float], half: int, kind: Kind) -> None:
        """From the bottom of a card along the right side of a half into two operands below it."""
        x = half * _HALF + _RAIL
        last = ports(self.slots[keys[1]], tops[1])[-1]
        bend = start[1] + 0.06
        points = [start, (start[0], bend), (x, bend), (x, last)]
        self.canvas.wire(points, kind, self.pale(*keys), arrow=False)
        for key, top in zip(keys, tops, strict=True):
            self.enter(key, x, half * _HALF + _SECOND, top)

    def box(self, x: float, y: float, name: str, words: str) -> None:
        """An operation that no recipe changes, its wires at `y`."""
        pale = self.compared
        self.canvas.box(x, y - 0.1, CARD, 0.33, "#ffffff", tint(plots.GREY, PALE if pale else 0.0))
        self.canvas.text(x + CARD / 2, y - 0.01, name, CARD - 0.08, pale, ha="center", weight="bold")
        self.canvas.text(x + CARD / 2, y + 0.135, words, CARD - 0.08, pale, ha="center")


def forward(page: Page, y: float) -> float:
    """The forward below `y`; where it ends."""
    y = _band(page, "Forward", y)
    canvas = page.canvas
    up, down = page.row(0, y, "x", "w13", "fprop", False), page.row(1, y, "h", "w2", "fprop", False)
    page.enter("x", _EDGE, _FIRST, y)
    page.enter("w13", _RAIL, _SECOND, y)
    page.enter("w2", _HALF + _RAIL, _HALF + _SECOND, y)
    below = y + page.high("x", "w13", "h", "w2") + _BETWEEN
    line = below + PORT
    pale = page.compared
    canvas.wire([(up[0], up[1] + RADIUS), (up[0], line), (_SECOND, line)], BF16, pale)
    canvas.text(up[0] - 0.1, line, "gate, up to BF16", pale=pale, ha="right")
    page.box(_SECOND, line, "SwiGLU", "to BF16")
    x = _HALF + 2 * _EDGE
    canvas.wire([(_SECOND + CARD, line), (x, line), (x, y + PORT)], BF16, page.pale("h"), arrow=False)
    page.enter("h", x, _HALF + _FIRST, y)
    return _combine(page, down, below)


def _combine(page: Page, product: Point, y: float) -> float:
    """From the last product to the layer's output; where that ends."""
    canvas, slot, pale = page.canvas, page.slots["combine"], page.pale("combine")
    left, right = _HALF + _SECOND, _HALF + _SECOND + CARD
    draw_slot(canvas, left, y, slot, pale, "left")
    where = ports(slot, y)
    canvas.wire([(product[0], product[1] + RADIUS), (product[0], where[-1])], FP32, pale, arrow=False)
    page.enter("combine", product[0], left, y)
    canvas.text(product[0] - 0.1, where[0], "y, FP32", pale=pale, ha="right")
    line = y + max(height(slot), 0.5) + 0.2
    for edge, port in zip(slot, where, strict=True):
        canvas.wire([(right, port), (_HALF + _RAIL, port)], edge.kind, pale, edge.stochastic, arrow=False)
    canvas.wire([(_HALF + _RAIL, where[0]), (_HALF + _RAIL, line), (right, line)], page.kind("combine"), pale)
    canvas.box(left, line - 0.1, CARD, 0.2, "#ffffff", tint(plots.GREY, PALE if page.compared else 0.0))
    canvas.text(left + CARD / 2, line, "weighted sum", CARD - 0.1, page.compared, ha="center", weight="bold")
    end = _inverse(page, left, line)
    canvas.wire([(end, line), (end - 0.25, line)], BF16, page.compared)
    canvas.text(end - 0.3, line, "output, BF16", pale=page.compared, ha="right")
    return line + 0.22


def _inverse(page: Page, right: float, y: float) -> float:
    """The transform that undoes the combine's, if it has one; where its box, or nothing, ends at the left."""
    names = [f"inverse {edge.hadamard}" if edge.hadamard else "no inverse" for edge in page.slots["combine"]]
    words = names[0] if len(set(names)) == 1 else f"A {names[0]}, B {names[1]}"
    if words == "no inverse":
        return right
    pale = page.compared and len(set(names)) == 1
    wide = width(words, "bold") + 0.12
    left = right - 0.18 - wide
    page.canvas.wire([(right, y), (right - 0.18, y)], FP32, pale)
    page.canvas.box(left, y - 0.1, wide, 0.2, "#ffffff", tint("#000000", PALE if pale else 0.0))
    page.canvas.text(left + wide / 2, y, words, pale=pale, ha="center", weight="bold")
    return left


def backward(page: Page, y: float) -> float:
    """The backward below `y`; where it ends."""
    y = _band(page, "Backward", y)
    canvas, pale = page.canvas, page.compared
    rows = [("dy wire", "dx wire"), ("dgrad w2", "dgrad dy", "dgrad w13", "dgrad dz")]
    rows += [("wgrad h", "wgrad dy", "wgrad x", "wgrad dz")]
    tops = [y]
    for keys in rows:
        tops.append(tops[-1] + max(page.high(*keys), 0.55) + _BETWEEN)
    for half, (weight, dy, saved, dy_tokens) in enumerate((_GATE_UP, _DOWN)):
        first = page.row(half, tops[1], weight, dy, "dgrad", True)
        second = page.row(half, tops[2], saved, dy_tokens, "wgrad", False)
        for key, top in ((weight, tops[1]), (saved, tops[2])):
            page.enter(key, half * _HALF + _EDGE, half * _HALF + _FIRST, top)
        canvas.wire([(second[0], second[1] + RADIUS), (second[0], tops[3])], FP32, pale)
        canvas.text(second[0], tops[3] + 0.08, f"d{'w₂' if half else 'w₁₃'} to masters, FP32", pale=pale, ha="center")
        _returned(page, half, first, tops)
    return _masters(page, tops[3] + 0.2)


_GATE_UP = ("dgrad w13", "dgrad dz", "wgrad x", "wgrad dz")
_DOWN = ("dgrad w2", "dgrad dy", "wgrad h", "wgrad dy")


def _returned(page: Page, half: int, product: Point, tops: list[float]) -> None:
    """What is above the products of a half: where their gradient comes from, and where dgrad's result goes."""
    canvas, line, pale = page.canvas, tops[0] + PORT, page.compared
    x = half * _HALF + _SECOND
    if half:
        slot = page.slots["dy wire"]
        draw_slot(canvas, x, tops[0], slot, page.pale("dy wire"), "right")
        page.enter("dy wire", plots.PAGE - _EDGE, x, tops[0])
        start = (x + CARD - 0.1, tops[0] + height(slot))
        page.rail(start, ("dgrad dy", "wgrad dy"), (tops[1], tops[2]), 1, page.kind("dy wire"))
        canvas.wire([(product[0], product[1] - RADIUS), (product[0], line), (_SECOND + CARD, line)], FP32, pale)
        canvas.text(product[0] - 0.6, line - 0.09, "dh, FP32", pale=pale, ha="center")
        return
    page.box(x, line, "SwiGLU backward", "dz to BF16")
    page.rail((x + CARD - 0.1, line + 0.23), ("dgrad dz", "wgrad dz"), (tops[1], tops[2]), 0, BF16)
    slot, gone = page.slots["dx wire"], page.pale("dx wire")
    draw_slot(canvas, _FIRST, tops[0], slot, gone, "right")
    for edge, port in zip(slot, ports(slot, tops[0]), strict=True):
        canvas.wire([(product[0], product[1] - RADIUS), (product[0], port), (_FIRST + CARD, port)], FP32, gone)
        canvas.wire([(_FIRST, port), (_EDGE, port)], edge.kind, gone, edge.stochastic)


def _masters(page: Page, y: float) -> float:
    """What becomes of the masters besides the optimizer's steps; where it ends."""
    for letter, edge in zip("AB", page.slots[MASTERS], strict=False):
        if edge.lines:
            name = f"{letter}  masters: " if len(page.slots[MASTERS]) > 1 else "masters: "
            page.canvas.text(plots.PAGE / 2, y + 0.06, name + ", ".join(edge.lines), plots.PAGE - 0.2, ha="center")
            y += 0.17
    return y + 0.08


def _band(page: Page, name: str, y: float) -> float:
    """The heading of a pass; where its first row begins."""
    page.canvas.ax.plot([0.08, plots.PAGE - 0.08], [y, y], color="#cccccc", lw=0.6)
    page.canvas.text(0.08, y + 0.12, name, weight="bold")
    return y + 0.24
