"""In which order a device adds the products of a contraction, found by products that swallow others.

Two products, +B at place i and -B at place j, vanish together; a unit u, far below B, that meets the sum while one of
them is in it is lost. With a unit at every other place the result counts those that never did, and

    size(i, j) = places - units left = leaves of the smallest partial sum that holds both i and j

which for all pairs gives the tree of the additions, steps that add many products at once included (the idea is that of
FPRev: Xie et al., arXiv 2411.00442). Where the range of the operands is too small for many lost units to stay lost
together, they are put in one at a time (`apart`).

What the tree is, `Order` says: steps of a length, chained from the first to the last place; blocks of such chains,
added in turn or in pairs; anything else is told as unknown. The accumulator's first value c takes part the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

import numerics as nm

Dots = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Numbers:
    """The operands of a machine, as far as probes use them. Products of two powers of two reach from 2^low to 2^high;
    `precision`: mantissa bits; `spacing`: places from one element to the next that stands for itself, the length of a
    scaled block or 1; `deep`: products of normal numbers reach 2^-180."""

    low: int
    high: int
    precision: int
    spacing: int = 1
    deep: bool = False

    @staticmethod
    def of(fmt: nm.Format) -> Numbers:
        """Those of a float format."""
        top = (fmt.max_code >> fmt.mantissa_bits) - fmt.bias
        least = fmt.min_exponent - fmt.mantissa_bits
        wide = fmt.exponent_bits == 8
        return Numbers(max(2 * least, -40), min(2 * top, 40), fmt.mantissa_bits, 1, wide)


@dataclass(frozen=True)
class Machine:
    """What is probed. dots(a (T, K), b (T, K), c (T,) or None) -> (T,): T dot products of float32 numbers that the
    operands hold, in float32, given and returned on the CPU. takes_c: whether c may be given."""

    fmt: nm.Format | nm.BlockFormat
    numbers: Numbers
    takes_c: bool
    dots: Dots


@dataclass(frozen=True)
class Order:
    """How K products are added. text, cut: in words, the steps and the blocks. length: products of one step, 1 if one
    by one; None where sums are exact or nothing is known. steps: the places of each step of the first block. block:
    products of the first block, where there are several, whose sums are then added `between` each other: "in order",
    "in pairs" or otherwise; None: a single chain. contiguous: whether steps and blocks hold neighbours."""

    text: str
    cut: str = "none: one chain"
    length: int | None = None
    steps: tuple[tuple[int, ...], ...] = ()
    block: int | None = None
    between: str | None = None
    contiguous: bool = True
    exact: bool = False

    @property
    def first(self) -> tuple[int, ...]:
        """Places of the first step."""
        return self.steps[0] if self.steps else ()


def halves(exponent: int | Tensor) -> tuple[Tensor, Tensor]:
    """Two powers of two, float32, with the product 2^exponent."""
    e = torch.as_tensor(exponent)
    return torch.ldexp(torch.ones(e.shape), e - e // 2), torch.ldexp(torch.ones(e.shape), e // 2)


def find_order(machine: Machine, k: int, places: Sequence[int]) -> Order:
    """The order in which products at `places` of a contraction of length k are added."""
    size = sizes(machine, k, places)
    if bool((size[0, 1:] == 2).all() & (size[1, 2:] == 2).all()) and len(places) > 2:
        return Order("no order: sums are exact", exact=True)
    tree = _tree(size.tolist(), list(range(len(places))))
    meant = torch.zeros_like(size)
    if tree is not None:
        _sizes_of(tree, meant)
    if tree is None or not torch.equal(meant, size):
        return Order("unknown: no tree of sums gives these results")
    return _describe(tree, places)


def sizes(machine: Machine, k: int, places: Sequence[int], apart: int = 16) -> Tensor:
    """size(i, j) of the module's docstring for all pairs of `places`, int64 (P, P), symmetric, 0 on the diagonal. Up to
    `apart` places units are put in one at a time."""
    p, at = len(places), torch.tensor(places)
    first, second = torch.triu_indices(p, p, 1)
    if p <= apart:
        units = torch.eye(p, dtype=torch.bool).repeat(len(first), 1)
        first, second = (t.repeat_interleave(p) for t in (first, second))
    else:
        units = torch.ones(len(first), p, dtype=torch.bool)
    row = torch.arange(len(first))
    units[row, first] = units[row, second] = False
    a, b = torch.zeros(len(first), k), torch.zeros(len(first), k)
    (big_a, big_b), (unit_a, unit_b) = halves(machine.numbers.high), halves(machine.numbers.low)
    a[:, at], b[:, at] = units * unit_a, units * unit_b
    a[row, at[first]], a[row, at[second]] = big_a, -big_a
    b[row, at[first]] = b[row, at[second]] = big_b
    left = machine.dots(a, b, None).to(torch.float64) / float(unit_a * unit_b)
    lost = units.sum(1) - left
    lost = torch.where(torch.isfinite(lost) & (lost == lost.round()), lost, -2.0 * p).to(torch.int64)
    out = torch.zeros(p, p, dtype=torch.int64)
    out.index_put_((first, second), lost, accumulate=True)
    return out + out.T + 2 * (1 - torch.eye(p, dtype=torch.int64))


Tree = list["Tree | int"]


def _tree(size: list[list[int]], members: list[int]) -> Tree | None:
    """A tree of sums over `members` by the sizes of pairs; None if the largest sum does not hold all of them."""
    whole = max(size[i][j] for i in members for j in members)
    if whole != len(members):
        return None
    children: list[list[int]] = []
    for member in members:
        home = next((child for child in children if size[child[0]][member] < whole), None)
        if home is None:
            children.append([member])
        else:
            home.append(member)
    made: Tree = []
    for child in children:
        below = child[0] if len(child) == 1 else _tree(size, child)
        if below is None:
            return None
        made.append(below)
    return made if len(made) > 1 else None


def _leaves(tree: Tree | int) -> list[int]:
    return [tree] if isinstance(tree, int) else sorted(leaf for child in tree for leaf in _leaves(child))


def _sizes_of(tree: Tree | int, out: Tensor) -> None:
    """Writes the sizes of pairs that a tree means into `out` (P, P)."""
    if isinstance(tree, int):
        return
    members = torch.tensor(_leaves(tree))
    out[members[:, None], members] = len(members)
    for child in tree:
        _sizes_of(child, out)
    out[members, members] = 0


def _describe(tree: Tree, places: Sequence[int]) -> Order:
    """What a tree over indices of `places`, which are equally far apart, is in words."""
    blocks, between = _blocks(tree)
    chains = [_chain(block) for block in blocks]
    # all steps have one length, but that one by one the first two products are one sum
    lengths = {len(step) for chain in chains for step in chain[1:]} or {len(chains[0][0])}
    length, first = min(lengths), {len(chain[0]) for chain in chains if chain}
    spacing = places[1] - places[0]
    whole = [len(_leaves(block)) * spacing for block in blocks]
    cut = "none: one chain" if len(blocks) == 1 else f"{len(blocks)} blocks of {_counted(whole)}, added {between}"
    if len(lengths) > 1 or [] in chains or not first <= ({1, 2} if length == 1 else {length}):
        return Order(f"unknown: steps of {_counted([len(s) for chain in chains for s in chain])}", f"unknown: {cut}")
    steps = tuple(tuple(places[i] for i in step) for step in chains[0])
    text = "one by one" if length * spacing == 1 else f"{length * spacing} at a time"
    ordered = [place for step in chains[0] for place in step]
    contiguous = ordered == _leaves(blocks[0])
    text += "" if contiguous else f", first {_listed([places[i] for i in ordered])}"
    if any(_leaves(one)[-1] > _leaves(other)[0] for one, other in pairwise(blocks)):
        contiguous = False
        cut += f", the first {_listed([places[i] for i in _leaves(blocks[0])])}"
    if len(blocks) == 1:
        return Order(text, cut, length * spacing, steps, contiguous=contiguous)
    return Order(text, cut, length * spacing, steps, whole[0], between, contiguous)


def _counted(sizes_found: Sequence[int]) -> str:
    """Sizes in words: "32", or "21 x 192 and 1 x 64" products."""
    counts = Counter(sizes_found)
    if len(counts) == 1:
        return str(sizes_found[0])
    return " and ".join(f"{count} x {size}" for size, count in counts.most_common(4)) + ", ..." * (len(counts) > 4)


def _listed(found: Sequence[int]) -> str:
    return "k = " + ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 else "")


def _blocks(tree: Tree) -> tuple[list[Tree], str]:
    """The chains that a tree joins, in order of k, and how: "in order", "in pairs", "at once" or "in another order"."""
    joined = [child for child in tree if not isinstance(child, int)]
    if len(joined) < 2:
        return [tree], "in order"
    if len(joined) != len(tree):
        return [tree], "in another order"
    parts = [_blocks(child) for child in joined]
    blocks = sorted((block for found, _ in parts for block in found), key=_leaves)
    counts = [len(found) for found, _ in parts]
    if len(counts) > 2:
        return blocks, "at once" if set(counts) == {1} else "in another order"
    if counts[1] == 1 and parts[0][1] == "in order":
        return blocks, "in order"
    paired = counts[0] == counts[1] and all(n == 2 or how == "in pairs" for n, (_, how) in zip(
        counts, parts, strict=True
    ))  # fmt: skip
    return blocks, "in pairs" if paired else "in another order"


def _chain(tree: Tree) -> list[list[int]]:
    """The leaves that each step adds to what the one before it left, the first step first; [] if it is no chain."""
    steps: list[list[int]] = []
    node: Tree | None = tree
    while node is not None:
        below = [child for child in node if not isinstance(child, int)]
        if len(below) > 1:
            return []
        steps.insert(0, [child for child in node if isinstance(child, int)])
        node = below[0] if below else None
    return steps


def products_with_c(machine: Machine, k: int, order: Order) -> int:
    """How many products the smallest partial sum holds that has both c and the first product."""
    here, (big_a, big_b), (unit_a, unit_b) = order.first[0], halves(machine.numbers.high), halves(machine.numbers.low)
    others = torch.tensor([place for place in range(0, k, machine.numbers.spacing) if place != here])
    a, b, row = torch.zeros(len(others), k), torch.zeros(len(others), k), torch.arange(len(others))
    a[row, others], b[row, others] = unit_a, unit_b
    a[:, here], b[:, here] = -big_a, big_b
    left = machine.dots(a, b, torch.full((len(others),), float(big_a * big_b)))
    return (1 + int((left == 0).sum())) * machine.numbers.spacing
