"""Comparing outputs element by element, as integers, and where each side of a comparison runs.

Any NaN equals any NaN, since IEEE 754 leaves sign and payload to the machine; the sign of zero is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import numerics as nm

from .cases import Cut, Inputs, Operation, Outputs, Run


@dataclass(frozen=True)
class Side:
    """Where a case runs: a device, the number of CPU threads, and how: as it is, or compiled."""

    device: torch.device
    threads: int
    how: Callable[[Run], Run] = lambda run: run

    def run(self, operation: Operation, inputs: Inputs) -> Outputs:
        torch.set_num_threads(self.threads)
        there = {name: move(x, self.device) for name, x in inputs.items()}
        return {name: x.cpu() for name, x in self.how(operation.run)(there).items()}

    def run_in_pieces(self, operation: Operation, cut: Cut, inputs: Inputs) -> Outputs:
        pieces = [self.run(operation, piece) for piece in cut.pieces(inputs)]
        return {name: torch.cat([piece[name] for piece in pieces], cut.axis) for name in pieces[0]}


@dataclass(frozen=True)
class Sides:
    """The CPU that others are compared with, and where the whole and the pieces run."""

    reference: Side
    whole: Side
    pieces: Side

    @staticmethod
    def of(device: torch.device, threads: int, how: Callable[[Run], Run]) -> Sides:
        """For --device `device`, with torch's usual number of CPU threads."""
        if device.type == "cpu":
            return Sides(Side(device, 1), Side(device, max(2, threads), how), Side(device, 1))
        return Sides(Side(torch.device("cpu"), threads), Side(device, threads, how), Side(device, threads))


def move(x: Any, device: torch.device) -> Any:
    """A tensor or a block tensor on `device`; anything else as it is."""
    if isinstance(x, nm.BlockTensor):
        outer = None if x.outer is None else x.outer.to(device)
        return replace(x, codes=x.codes.to(device), scales=x.scales.to(device), outer=outer)
    return x.to(device) if isinstance(x, Tensor) else x


@dataclass
class Row:
    """A line of the table. `first`: the first difference in words, or why nothing was compared. `not_run`: what this
    machine lacks; such a case neither passes nor fails."""

    operation: str
    data: str
    dtype: str
    elements: int = 0
    differing: int = 0
    first: str | None = None
    not_run: str | None = None

    @property
    def failed(self) -> bool:
        return self.not_run is None and (self.elements == 0 or self.differing > 0 or self.first is not None)

    def __str__(self) -> str:
        first = "" if self.first is None else f"  {self.first}"
        first = first if self.not_run is None else f"  not run: {self.not_run}"
        return f"{self.operation:<30} {self.data:<10} {self.dtype:<8} {self.elements:>9} {self.differing:>9}{first}"


@dataclass
class OpsRow(Row):
    """A line of the table of `validate_ops`.

    Args:
        function: of the seam. against: what it was compared with. derivation: how the first wrong element should come
        to be. repeat: the command that repeats the case alone. other_words: whether codes are what other random
        words give.
    """

    function: str = ""
    against: str = ""
    derivation: tuple[str, ...] = ()
    repeat: str | None = None
    other_words: bool = False

    def __str__(self) -> str:
        first = f"  not run: {self.not_run}" if self.not_run is not None else f"  {self.first}" if self.first else ""
        counts = f"{self.elements:>9} {self.differing:>9}"
        lines = [f"{self.operation:<38} {self.data:<11} {self.against:<16} {counts}{first}"]
        return "\n".join([*lines, *(f"    {line}" for line in self.derivation)])


HEADER = f"{'operation':<38} {'data':<11} {'against':<16} {'elements':>9} {'differing':>9}  first difference"


Place = tuple[str, tuple[int, ...]]


def compare(row: Row, where: str, expected: Outputs, found: Outputs, x: Any) -> Place | None:
    """Count every element of `expected` in `row`, and those that `found` lacks or has otherwise.

    Args:
        where: names this comparison. x: the input; if it is a tensor, shown beside outputs of its shape.

    Returns:
        Name and index of the first element that differs, if one of the right shape and dtype does.
    """
    place: Place | None = None
    for name, e in expected.items():
        f = found.get(name)
        row.elements += e.numel()
        if f is None or f.shape != e.shape or f.dtype != e.dtype:
            row.differing += max(e.numel(), 1)
            got = "is missing" if f is None else f"has {f.dtype} {tuple(f.shape)}"
            row.first = row.first or f"{where}: {name} {got} instead of {e.dtype} {tuple(e.shape)}"
            continue
        differs = bits_of(e) != bits_of(f)
        if e.is_floating_point():
            differs &= ~(torch.isnan(e) & torch.isnan(f))
        count = int(differs.sum())
        row.differing += count
        if not count:
            continue
        at = tuple(differs.nonzero()[0].tolist())
        place = place or (name, at)
        if row.first is None:
            value = f", input {x[at].item()!r}" if isinstance(x, Tensor) and x.shape == e.shape else ""
            value += f"; all {f.numel()} of {name} are zero" * (f.numel() > 1 and _zeros(f) and not _zeros(e))
            row.first = f"{where}: {name}{list(at)} is {show(f[at])}, should be {show(e[at])}{value}"
    for name in found.keys() - expected.keys():
        row.differing += found[name].numel()
        row.first = row.first or f"{where}: {name} should not be there"
    return place


def _zeros(x: Tensor) -> bool:
    """Whether nothing but zeros of either sign is there; of bytes, their highest bit apart."""
    return bool((x == 0).all() if x.dtype != torch.uint8 else (x & 0x7F == 0).all())


def bits_of(x: Tensor) -> Tensor:
    """`x` as signed integers, for which torch has every operation."""
    if x.is_floating_point():
        return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
    return x.to(torch.int64)


def show(x: Tensor) -> str:
    """One element: its value and its bits."""
    pattern = f"0x{int(bits_of(x)) & ((1 << 8 * x.element_size()) - 1):0{2 * x.element_size()}x}"
    return f"{x.item()!r} ({pattern})" if x.is_floating_point() else pattern
