"""The original of a quantized matrix in another folder: under its own name, stacked or apart, or quantized itself.

    layers.0.mlp.experts.3.gate_proj    the rows of gate in layers.0.mlp.experts.gate_up_proj[3], (E, 2I, H) or its
                                        transposes (E, H, 2I); down_proj of experts.down_proj[3]
    layers.0.mlp.experts.gate_up_proj   itself, perhaps transposed, or the experts' own matrices

Rows are read as float32, exactly, a few at a time; a transposed matrix is read as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .check_folder_decode import decoded
from .check_folder_files import FLOATS, Entry
from .check_folder_kin import EXPERT
from .check_folder_parts import Matrix

STACKED = {  # matrix of an expert -> (stacked name, which half of its rows)
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "down_proj": ("down_proj", None),
    "w1": ("gate_up_proj", 0),
    "w3": ("gate_up_proj", 1),
    "w2": ("down_proj", None),
}
PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.", "transformer.", "")


@dataclass(frozen=True)
class Original:
    """Rows of an original. shape: rows and columns of one matrix."""

    shape: tuple[int, int]
    entry: Entry | None = None
    matrix: Matrix | None = None
    lead: int = 1
    first: int = 0  # row or column that it begins at
    only: int | None = None  # of the stacked matrices, this one
    transposed: bool = False
    apart: tuple[Original, ...] = ()  # of each matrix

    def rows(self, of: int, first: int, last: int) -> Tensor:
        """Rows `first` to `last` of matrix `of`, float32 (rows, K)."""
        of, last = (of if self.only is None else self.only), min(last, self.shape[0])
        if self.apart:
            return self.apart[of].rows(0, first, last)
        if self.matrix is not None:
            return decoded(self.matrix, of, first, last)
        assert self.entry is not None
        n, k = self.entry.shape[-2:]
        if self.transposed:
            whole = self.entry.read(of * n, of * n + n, self.lead * n).view(n, k)
            return whole[:, self.first + first : self.first + last].mT.to(torch.float32)
        start = of * n + self.first
        return self.entry.read(start + first, start + last, self.lead * n).view(last - first, k).to(torch.float32)


class Originals:
    """The originals of a folder: its plain tensors, and its quantized matrices by module."""

    def __init__(self, plain: list[Entry], matrices: list[Matrix]) -> None:
        self.plain = {e.name: e for e in plain}
        self._matrices = {m.module.name: m for m in matrices}

    def of(self, m: Matrix) -> Original | None:
        """The original of a matrix; None if the folder has none."""
        for name in _spellings(m.module.name):
            found = self._itself(name, m) or self._stacked(name, m) or self._apart(name, m)
            if found is not None:
                return found
        return None

    def named(self, name: str) -> Entry | None:
        """The plain tensor of that name, under any spelling."""
        return next((self.plain[n] for n in _spellings(name) if n in self.plain), None)

    def _itself(self, name: str, m: Matrix) -> Original | None:
        if name in self._matrices:
            other = self._matrices[name]
            return Original((other.rows, other.columns), matrix=other) if other.lead == m.lead else None
        entry = self.plain.get(name + ".weight") or self.plain.get(name)
        return None if entry is None else _plain(entry, m)

    def _stacked(self, name: str, m: Matrix) -> Original | None:
        found = EXPERT.match(name)
        if found is None or found[3] not in STACKED or m.lead != 1:
            return None
        stacked, half = STACKED[found[3]]
        entry = self.plain.get(f"{found[1]}.{stacked}") or self.plain.get(f"{found[1]}.{stacked}.weight")
        if entry is None or len(entry.shape) != 3 or int(found[2]) >= entry.shape[0]:
            return None
        n, k = entry.shape[1:]
        start, factor = (half or 0) * m.rows, 1 if half is None else 2
        shape, lead, expert = (m.rows, m.columns), entry.shape[0], int(found[2])
        if (n, k) == (m.rows * factor, m.columns):
            return Original(shape, entry, lead=lead, first=start, only=expert)
        if (k, n) == (m.rows * factor, m.columns):
            return Original(shape, entry, lead=lead, first=start, only=expert, transposed=True)
        return None

    def _apart(self, name: str, m: Matrix) -> Original | None:
        head, _, tail = name.rpartition(".")
        if m.lead == 1 or not head.endswith("experts"):
            return None
        entries = [self.plain.get(f"{head}.{e}.{tail}.weight") for e in range(m.lead)]
        if None in entries:
            return None
        parts = tuple(Original((e.shape[0], e.shape[1]), e) for e in entries if e is not None)
        return Original(parts[0].shape, apart=parts)


def _plain(entry: Entry, m: Matrix) -> Original | None:
    """A tensor of floats as the original of a matrix, as it is or transposed."""
    if entry.dtype not in FLOATS or len(entry.shape) < 2:
        return None
    *lead, n, k = entry.shape
    count = 1
    for size in lead:
        count *= size
    if count != m.lead:
        return None
    turned = count > 1 and (n, k) != (m.rows, m.columns) and (k, n) == (m.rows, m.columns)
    return Original((k, n) if turned else (n, k), entry, lead=count, transposed=turned)


def _spellings(name: str) -> list[str]:
    """A name, and the same under the prefixes that tools add and take away."""
    bare = next(name.removeprefix(p) for p in PREFIXES if name.startswith(p))
    return list(dict.fromkeys([name, *(p + bare for p in PREFIXES)]))
