"""In which order a device adds the products of a contraction, found by products that swallow others.

Two products, +B at place i and -B at place j, vanish together; a unit u, far below B, that meets the sum while one of
them is in it is lost. With a unit at every other place the result counts those that never did, and

    size(i, j) = places - units left = leaves of the smallest partial sum that holds both i and j

which for all pairs gives the tree of the additions, steps that add many products at once included (the idea is that of
FPRev: Xie et al., arXiv 2411.00442). Where the range of the operands is too small for many lost units to stay lost
together, they are put in one at a time (`apart`).

What the tree is, `Order` says: steps of a length, chained from the first to the last place; blocks of such chains, added
in turn or in pairs; anything else is told as unknown. The accumulator's first value c takes part the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm

Dots = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Numbers:
    """The operands of a machine, as far as probes use them. Products of two powers of two reach from 2^low to 2^high;
    `precision`: mantissa bits; `spacing`: places from one element to the next that stands for itself, the length of a
    scaled block or 1; `deep`: products of normal numbers reach 2^-180."""

    name: str
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
        return Numbers(fmt.name, max(2 * least, -40), min(2 * top, 40), fmt.mantissa_bits, 1, wide)


@dataclass(frozen=True)
class Machine:
    """What is probed. dots(a (T, K), b (T, K), c (T,) or None) -> (T,): T dot products of float32 numbers that the
    operands hold, in float32. takes_c: whether c may be given."""

    route: str
    numbers: Numbers
    takes_c: bool
    dots: Dots


@dataclass(frozen=True)
class Order:
    """How K products are added. length: products of one step, 1 if one by one; None where sums are exact or nothing is
    known. steps: the places of each step of the first block. block: products of a block whose sums are then added
    `between` each other, "in order" or "in pairs"; None: a single chain. contiguous: whether steps hold neighbours."""

    text: str
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
    return torch.ldexp(torch.ones(()), e - e // 2), torch.ldexp(torch.ones(()), e // 2)


def find_order(machine: Machine, k: int, places: Sequence[int]) -> Order:
    """The order in which products at `places` of a contraction of length k are added."""
    size = sizes(machine, k, places)
    if bool((size == 2).all()) and len(places) > 2:
        return Order("no order: sums are exact", exact=True)
    tree = _tree(size, list(range(len(places))))
    if tree is None:
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
    left = machine.dots(a, b, None).cpu().to(torch.float64) / float(unit_a * unit_b)
    lost = units.sum(1) - left
    lost = torch.where(torch.isfinite(lost) & (lost == lost.round()), lost, -2.0 * p).to(torch.int64)
    out = torch.zeros(p, p, dtype=torch.int64)
    out.index_put_((first, second), lost, accumulate=True)
    return out + out.T + 2 * (1 - torch.eye(p, dtype=torch.int64))


Tree = list["Tree | int"]


def _tree(size: Tensor, members: list[int]) -> Tree | None:
    """The tree of sums over `members`, children in order of their first place; None if there is none."""
    if len(members) == 1:
        return [members[0]]
    part = size[members][:, members]
    whole = int(part.max())
    if whole != len(members):
        return None
    children: list[list[int]] = []
    for index, member in enumerate(members):
        home = next((child for child in children if int(size[child[0], member]) < whole), None)
        if home is None:
            children.append([member])
        else:
            home.append(member)
        # every pair of one child must be nearer than the whole, every pair of two not
        for child in children:
            near = part[index, [members.index(x) for x in child if x != member]] < whole
            if bool((near != (member in child)).any()):
                return None
    if len(children) == 1:
        return None
    made: Tree = []
    for child in children:
        below = _tree(size, child)
        if below is None:
            return None
        made.append(below[0] if len(child) == 1 else below)
    return made


def _describe(tree: Tree, places: Sequence[int]) -> Order:
    blocks, between = _blocks(tree)
    spacing = places[1] - places[0]
    chains = [_chain(block, places) for block in blocks]
    steps = chains[0]
    if steps is None:
        return Order(f"unknown: the first product is added to {_listed(_leaves(blocks[0]), places)}")
    lengths = {len(step) for chain in chains for step in (chain or [()])[1:]} or {len(steps[0])}
    length = min(lengths)
    first = {len(chain[0]) for chain in chains if chain}
    good = None not in chains and len(lengths) == 1 and first <= ({2, 1} if length == 1 else {length})
    sizes_of_blocks = {len(_leaves(block)) for block in blocks}
    if not good or len(sizes_of_blocks) > 1:
        return Order(f"unknown: steps of {sorted(lengths | first)}, blocks of {sorted(sizes_of_blocks)} products")
    steps_in_k = tuple(tuple(places[i] for i in step) for step in steps)
    contiguous = all(step == list(range(step[0], step[0] + len(step))) for chain in chains for step in chain or [])
    products = length * spacing if length > 1 or spacing > 1 else 1
    text = "one by one" if products == 1 else f"{products} at a time"
    text += "" if contiguous else f", first {_listed(steps[0], places)}"
    block = None if len(blocks) == 1 else sizes_of_blocks.pop() * spacing
    text += ", chained" if block is None else f", in {len(blocks)} blocks of {block} added {between}"
    return Order(text, products, steps_in_k, block, None if block is None else between, contiguous)


def _listed(members: Sequence[int], places: Sequence[int]) -> str:
    shown = [str(places[i]) for i in sorted(members)[:9]]
    return "k = " + ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")


def _leaves(tree: Tree | int) -> list[int]:
    return [tree] if isinstance(tree, int) else sorted(leaf for child in tree for leaf in _leaves(child))


def _blocks(tree: Tree) -> tuple[list[Tree], str]:
    """The chains that a tree joins, in order of k, and how: "in order", "in pairs" or "in another order"."""
    joined = [child for child in tree if not isinstance(child, int)]
    if len(joined) < 2:
        return [tree], "in order"
    if len(joined) != len(tree):
        return [tree], "in another order"
    parts = [_blocks(child) for child in joined]
    blocks = [block for found, _ in parts for block in found]
    counts = [len(found) for found, _ in parts]
    blocks.sort(key=lambda block: _leaves(block)[0])
    if counts[1:] == [1] * (len(counts) - 1) and parts[0][1] == "in order":
        return blocks, "in order" if len(counts) == 2 or counts[0] == 1 else "in another order"
    paired = len(counts) == 2 and counts[0] == counts[1] and all(n == 1 or how == "in pairs" for n, (_, how) in zip(
        counts, parts, strict=True
    ))  # fmt: skip
    paired |= len(counts) == 2 and counts == [2, 2]
    return blocks, "in pairs" if paired else "in another order"


def _chain(tree: Tree, places: Sequence[int]) -> list[list[int]] | None:
    """Places' indices of each step, the first step first; None if the tree is no chain."""
    steps: list[list[int]] = []
    node: Tree | None = tree
    while node is not None:
        below = [child for child in node if not isinstance(child, int)]
        if len(below) > 1:
            return None
        steps.insert(0, [child for child in node if isinstance(child, int)])
        node = below[0] if below else None
    return steps if all(max(one) < min(other) for one, other in zip(steps, steps[1:], strict=False)) or True else None


def products_before_c(machine: Machine, k: int, order: Order) -> int:
    """How many products the smallest partial sum holds that has both c and the first product."""
    places = sorted({place for step in order.steps for place in step} | set(range(0, k, machine.numbers.spacing)))
    (big_a, big_b), (unit_a, unit_b) = halves(machine.numbers.high), halves(machine.numbers.low)
    here = order.first[0] if order.first else 0
    others = [place for place in places if place != here]
    a, b = torch.zeros(len(others), k), torch.zeros(len(others), k)
    row = torch.arange(len(others))
    a[row, others], b[row, others] = unit_a, unit_b
    a[:, here], b[:, here] = -big_a, big_b
    left = machine.dots(a, b, torch.full((len(others),), float(big_a * big_b)))
    return (1 + int((left == 0).sum())) * machine.numbers.spacing
