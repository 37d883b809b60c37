"""Which blocks of a program run how often: its loops, and the shortest way through a graph of basic blocks.

A graph is a list: the set of successors of block 0 (the entry), of block 1, ... END stands for the program's end. A
loop is a natural one: all blocks from which its header, the only way in, can be reached again without leaving it. Given
how often each loop turns, a way leads from the entry to the end, passes the headers of the loops that turn and avoids
those that do not; each of its blocks runs once for each turn of the loops around it. Of all ways one is the shortest,
every turn of a loop alike.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

END = -1


@dataclass(frozen=True)
class Loop:
    """A natural loop: the block where it begins, and all of its blocks."""

    header: int
    blocks: frozenset[int]


@dataclass(frozen=True)
class Runs:
    """How often blocks run: those of the shortest way, and those that only other ways have."""

    shortest: dict[int, int]
    others: dict[int, int]


def reachable(graph: Sequence[set[int]]) -> set[int]:
    """The blocks that the entry leads to."""
    found, waiting = {0}, [0]
    while waiting:
        new = {block for block in graph[waiting.pop()] if block != END} - found
        found |= new
        waiting += new
    return found


def loops(graph: Sequence[set[int]]) -> list[Loop]:
    """The loops in the order of their headers, an outer one before those inside.

    Raises: ValueError for a loop with two ways in.
    """
    before = _predecessors(graph)
    bodies: dict[int, set[int]] = {}
    for latch, header in _retreating(graph):
        body, waiting = {header}, [latch]
        while waiting:
            block = waiting.pop()
            if block not in body:
                body.add(block)
                waiting += before[block]
        if 0 in body and header != 0:
            raise ValueError(f"a loop through block {header} has a second way in: its turns cannot be told apart")
        bodies[header] = bodies.get(header, set()) | body
    return [Loop(header, frozenset(bodies[header])) for header in sorted(bodies)]


def runs(graph: Sequence[set[int]], turns: Sequence[int], lengths: Sequence[int]) -> Runs:
    """How often each block runs if the loops, in the order of `loops`, turn so often each time that they are entered.

    Args: lengths: of the blocks, in instructions.

    Raises: ValueError for another number of loops, a negative number of turns, none for a loop that every way enters,
    and loops that no way enters one after the other.
    """
    found = loops(graph)
    if len(found) != len(turns):
        raise ValueError(f"turns={tuple(turns)}: there are {len(found)} loops, give one number for each")
    if any(turn < 0 for turn in turns):
        raise ValueError(f"turns={tuple(turns)}: a loop turns 0 times or more")
    skipped = {block for loop, turn in zip(found, turns, strict=True) if not turn for block in loop.blocks}
    straight = _straight(graph, found, skipped)
    order = list(graphlib.TopologicalSorter(straight).static_order())[::-1]
    headers = {loop.header for loop in found}
    times = {END: 0} | {
        block: math.prod(turn for loop, turn in zip(found, turns, strict=True) if block in loop.blocks)
        for block in straight
        if block != END
    }
    costs = {block: 0 if block == END else times[block] * lengths[block] for block in straight}
    shortest: set[int] = set()
    possible: set[int] = set()
    for start, stop in pairwise([0, *(block for block in order if block in headers and block != 0), END]):
        way, others = _ways(order, straight, costs, start, stop)
        if not way:
            raise ValueError(
                f"turns={tuple(turns)}: no way leads from block {start} to {'the end' if stop == END else stop} with "
                "these; loops on two sides of a branch cannot both turn, and one that is always entered cannot turn 0 "
                "times"
            )
        shortest |= way
        possible |= others
    return Runs(
        {block: times[block] for block in sorted(shortest - {END})},
        {block: times[block] for block in sorted(possible - shortest)},
    )


def _retreating(graph: Sequence[set[int]]) -> list[tuple[int, int]]:
    """Edges back to a block through which a depth-first walk from the entry has come."""
    edges: list[tuple[int, int]] = []
    walk, through, seen = [(0, iter(sorted(graph[0])))], {0}, {0}
    while walk:
        block, after = walk[-1]
        following = next(after, None)
        if following is None:
            walk.pop()
            through.discard(block)
        elif following in through:
            edges.append((block, following))
        elif following not in seen and following != END:
            seen.add(following)
            through.add(following)
            walk.append((following, iter(sorted(graph[following]))))
    return edges


def _straight(graph: Sequence[set[int]], found: list[Loop], skipped: set[int]) -> dict[int, set[int]]:
    """The graph without edges back, which lead to where their loop is left instead, and without `skipped` blocks."""
    bodies = {loop.header: loop.blocks for loop in found}

    def backwards(block: int, after: int) -> bool:
        return after in bodies and block in bodies[after]

    def left(header: int) -> set[int]:
        targets = {(b, after) for b in bodies[header] for after in graph[b] if after not in bodies[header]}
        return set().union(*(left(after) if backwards(b, after) else {after} for b, after in targets))

    straight: dict[int, set[int]] = {END: set()}
    for block in reachable(graph) - skipped:
        after = set().union(*(left(a) if backwards(block, a) else {a} for a in graph[block]))
        straight[block] = after - skipped
    return straight


def _ways(
    order: list[int], after: dict[int, set[int]], costs: dict[int, int], start: int, stop: int
) -> tuple[set[int], set[int]]:
    """The blocks of the cheapest way from `start` to `stop`, and those of all ways, blocks in topological order; none
    if there is no way."""
    cheapest = {stop: (costs[stop], stop)}  # from a block to stop, and the next block there
    for block in reversed(order):
        if block != stop and (on := [(cheapest[b][0] + costs[block], b) for b in after[block] if b in cheapest]):
            cheapest[block] = min(on)
    if start not in cheapest:
        return set(), set()
    way = [start]
    while way[-1] != stop:
        way.append(cheapest[way[-1]][1])
    ahead = {start}
    for block in order:
        if block in ahead:
            ahead |= after[block]
    return set(way), ahead & set(cheapest)


def _predecessors(graph: Sequence[set[int]]) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in graph]
    for block in reachable(graph):
        for following in graph[block] - {END}:
            before[following].append(block)
    return before
