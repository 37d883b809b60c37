"""Block tensors as kernels make and read them: along the last axis, 4-bit codes two to a byte.

A `PackedTensor` is a `BlockTensor` in every respect; codes of one byte a value come about when somebody asks for them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from numerics import E8M0, BlockFormat, BlockTensor
from numerics.blocks import made
from numerics.layout import unpack_nibbles

from .indices import require_index
from .kernel_decode import decode
from .kernel_permute import permute


class PackedTensor(BlockTensor):
    """A BlockTensor whose blocks run along the last axis, contiguous; `exact`: its values without outer scale in BF16,
    where the kernel that made it wrote them too."""

    def __new__(cls, *parts: Any, **named: Any) -> Any:
        """Of single fields, as `dataclasses.replace` has them, a checked BlockTensor: nothing is known to be packed."""
        return BlockTensor(*parts, **named) if parts or named else object.__new__(cls)

    @staticmethod
    def of(
        fmt: BlockFormat, bytes_: Tensor, scales: Tensor, outer: Tensor | None, exact: Tensor | None = None
    ) -> PackedTensor:
        """Unchecked. bytes_: uint8 (..., K / 2) of 4-bit codes, else (..., K)."""
        q = object.__new__(PackedTensor)
        parts: dict[str, Any] = {"scales": scales, "outer": outer, "fmt": fmt, "rule": fmt.rule.name}
        parts |= {"axis": bytes_.ndim - 1, "groups": None, "outer_block": None, "bytes": bytes_, "exact": exact}
        for name, part in parts.items():
            object.__setattr__(q, name, part)
        return q

    bytes: Tensor
    exact: Tensor | None

    @property
    def _narrow(self) -> bool:
        return self.fmt.element.bits == 4

    @property
    def codes(self) -> Tensor:  # type: ignore[override]
        """One byte a value, made at the first look."""
        if "_codes" not in self.__dict__:
            object.__setattr__(self, "_codes", unpack_nibbles(self.bytes) if self._narrow else self.bytes)
        return self.__dict__["_codes"]

    @property
    def shape(self) -> torch.Size:
        *lead, last = self.bytes.shape
        return torch.Size([*lead, last * 2 if self._narrow else last])

    def packed(self) -> Tensor:
        return self.bytes

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """As `BlockTensor.dequantize`, whose bits these are: FP32 in one launch, where an outer scale is a row's."""
        per_row = self.outer is None or self.outer.shape[-1] == 1
        if dtype != torch.float32 or not per_row or self.fmt.tile > 1:
            return super().dequantize(dtype)
        rows, width = self.shape[:-1].numel(), self.shape[-1]
        outer = None if self.outer is None else self.outer.expand(*self.shape[:-1], 1).reshape(-1).contiguous()
        codes, scales = self.codes.reshape(rows, width), self.scales.reshape(rows, self.scales.shape[-1]).contiguous()
        powers = self.fmt.scale is E8M0
        lines = torch.arange(rows, dtype=torch.int32, device=codes.device)
        out, _ = decode(codes, scales, lines, self.fmt.element.name, self.fmt.block, outer, powers=powers)
        return out.view(self.shape)

    def stored(self) -> tuple[list[Tensor], Any]:
        tensors = [self.bytes, self.scales] + ([] if self.outer is None else [self.outer])
        return tensors, partial(_restored, self.fmt)

    def rows(self, index: Tensor) -> BlockTensor:
        """The rows `index`, gathered as they lie, in one launch."""
        if self.bytes.ndim != 2 or (self.outer is not None and self.outer.shape[0] == 1):
            return super().rows(index)
        if isinstance(index, Tensor) and index.dtype == torch.int32:
            index = index.to(torch.int64)
        require_index(index, "index", 1, self.shape[0])
        parts = (self.bytes, self.scales) if self.outer is None else (self.bytes, self.scales, self.outer)
        codes, scales, *outer = permute(index, *parts)
        return PackedTensor.of(self.fmt, codes, scales, outer[0] if outer else None)


def _restored(fmt: BlockFormat, kept: list[Tensor]) -> PackedTensor:
    return PackedTensor.of(fmt, kept[0], kept[1], kept[2] if len(kept) > 2 else None)


def packed_bytes(q: BlockTensor) -> Tensor:
    """Codes along the last axis as kernels read them, contiguous and in words of four bytes; 4-bit ones two to a byte,
    their number even."""
    if isinstance(q, PackedTensor) or q.fmt.element.bits != 4:
        codes = (q.bytes if isinstance(q, PackedTensor) else q.codes).contiguous()
        return codes if codes.data_ptr() % 4 == 0 and codes.storage_offset() % 4 == 0 else codes.clone()
    return (q.codes[..., 0::2] | (q.codes[..., 1::2] << 4)).contiguous()


def block_tensor(
    fmt: BlockFormat, codes: Tensor, scales: Tensor, outer: Tensor | None, axis: int, groups: tuple[int, ...] | None
) -> BlockTensor:
    """A plain BlockTensor of what a kernel made, one byte a value, unchecked."""
    return made(codes, scales, outer, fmt, fmt.rule.name, axis, groups, None)
