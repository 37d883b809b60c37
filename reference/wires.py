"""Rows as bytes: how tokens, expert outputs and their gradients travel between ranks, and what that takes.

A row of `width` values is one run of bytes, so that rows can be gathered, split and sent without knowing what is in
them:

    BF16              2 width bytes, 16 bits a value
    a block format    [codes | block scales | outer scales], bits a value: element.bits + scale.bits / block + 32 / run

    nvfp4             4-bit codes two to a byte, one E4M3 scale per 16, one FP32 outer scale per token: 4.5 + 32 / width
    mxfp8, s2f6_rht   8-bit codes, one E8M0 scale per 32: 8.25

4-bit codes lie as `numerics.layout` has them; four 6-bit codes take three bytes, the first one lowest. Multi-byte
numbers are those of the machine, little-endian. Everything is exact: `unpack(pack(q), layout)` has the codes, scales
and outer scales of q. Shapes: R rows, B bytes of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import torch
from torch import Tensor

from numerics import MXFP8, MXS2F6, NVFP4_46, BlockFormat, BlockTensor
from numerics.arguments import integer, require_kind, require_tensor
from numerics.blocks import made
from numerics.ops import Cast, Operand

PIECE = 1 << 18  # codes of one byte that stay in a CPU's cache between the steps of packing them
PACKED_BITS = (4, 6, 8)

# wire -> what becomes of a row, and the size of the Hadamard transform that comes before
WIRES = MappingProxyType(
    {
        "bf16": (Cast(None), None),
        "mxfp8": (Cast(MXFP8), None),
        "nvfp4": (Cast(NVFP4_46, "row"), None),
        "s2f6_rht": (Cast(MXS2F6), 32),
    }
)


@dataclass(frozen=True)
class Layout:
    """What the bytes of a row are.

    Args:
        width: values of a row. cast: how they were made, as a recipe says it. An outer scale per tensor travels with
            each row, so that every rank that receives one has it, and is one again when the rows are unpacked.

    Raises:
        TypeError: another kind of argument. ValueError: a width or a format that rows of bytes cannot hold.
    """

    width: int
    cast: Cast

    def __post_init__(self) -> None:
        if integer(self.width, "width", "pass the values of a row") < 1:
            raise ValueError(f"width={self.width}: pass 1 or more")
        require_kind(self.cast, Cast, "cast", "pass a numerics.ops.Cast")
        fmt, outer = self.cast.fmt, self.cast.outer
        if outer not in (None, "row", "tensor") and not isinstance(outer, int):
            raise ValueError(f"cast.outer={outer!r}: rows travel with 'row', 'tensor', a run along the row, or None")
        if fmt is None:
            return
        bits = fmt.element.bits
        if fmt.tile > 1:
            raise ValueError(f"cast.fmt={fmt.name}: its scales are shared by rows, which part here; use tile=1")
        if bits not in PACKED_BITS:
            raise ValueError(f"cast.fmt={fmt.name} has codes of {bits} bits: use one of {PACKED_BITS}")
        if self.width * bits % (8 if bits == 4 else 24 if bits == 6 else 1):
            raise ValueError(f"width={self.width}: codes of {bits} bits take a multiple of {2 if bits == 4 else 4}")

    @property
    def name(self) -> str:
        """Of what travels."""
        return "BF16" if self.cast.fmt is None else self.cast.fmt.name

    @property
    def parts(self) -> tuple[int, int, int]:
        """Bytes of a row's codes, of its block scales and of its outer scales; of BF16 values, 0 and 0."""
        fmt = self.cast.fmt
        if fmt is None:
            return 2 * self.width, 0, 0
        scales = -(-self.width // fmt.block) * (4 if fmt.scale is None else 1)
        return self.width * fmt.element.bits // 8, scales, 4 * self.outers

    @property
    def outers(self) -> int:
        """Outer scales of a row."""
        outer = self.cast.outer
        if self.cast.fmt is None or outer is None:
            return 0
        return -(-self.width // outer) if isinstance(outer, int) else 1

    @property
    def row_bytes(self) -> int:
        return sum(self.parts)

    @property
    def bits_per_value(self) -> Fraction:
        """Bits on the wire per value, exactly, from the format alone: what counted bytes have to equal."""
        return bits_per_value(self.cast, self.width)


def bits_per_value(cast: Cast, width: int) -> Fraction:
    """element.bits + scale.bits / block + 32 / run, or 16: the formula, for whole blocks and runs."""
    fmt = cast.fmt
    if fmt is None:
        return Fraction(16)
    outer = 0 if cast.outer is None else Fraction(32, cast.outer if isinstance(cast.outer, int) else width)
    return fmt.element.bits + Fraction(32 if fmt.scale is None else fmt.scale.bits, fmt.block) + outer


def pack(q: Operand) -> Tensor:
    """Rows as bytes: a BlockTensor with blocks along its rows, or BF16 values, (R, width) -> uint8 (R, B), contiguous.

    BF16 rows that are contiguous are not copied. Packing T tokens and gathering the R rows that go to experts from the
    bytes moves fewer of them than gathering first.

    Raises:
        TypeError: another kind or dtype. ValueError: other axes, blocks along tokens, expert groups.
    """
    if isinstance(q, BlockTensor):
        return _pack(q)
    require_tensor(q, "q", (torch.bfloat16,))
    if q.ndim != 2:
        raise ValueError(f"q has shape {tuple(q.shape)}: pass rows (R, width)")
    return q.detach().contiguous().view(torch.uint8)


def _pack(q: BlockTensor) -> Tensor:
    if len(q.shape) != 2 or q.axis != 1 or q.groups is not None:
        raise ValueError(f"q is {q!r}, groups={q.groups}: pass rows (R, width) with blocks along them")
    rows, width = q.shape
    outer: int | str | None = None if q.outer is None else "row" if q.outer_block is None else q.outer_block
    if q.outer is not None and q.outer_block is None and q.outer.shape[1] != 1:
        raise ValueError(f"q.outer has shape {tuple(q.outer.shape)}: a row travels with one, or with one per run")
    layout = Layout(width, Cast(q.fmt, outer))
    codes, scales, outers = layout.parts
    out = torch.empty(rows, layout.row_bytes, dtype=torch.uint8, device=q.scales.device)
    _pack_codes(q, out[:, :codes])
    out[:, codes : codes + scales] = q.scales.contiguous().view(torch.uint8)
    if q.outer is not None:
        out[:, codes + scales :] = q.outer.contiguous().view(torch.uint8).expand(rows, outers)
    return out


def unpack(buffer: Tensor, layout: Layout) -> Operand:
    """Inverse of `pack`: uint8 (R, B), rows contiguous -> BlockTensor, or bfloat16, (R, width).

    The tensor shares no memory with the buffer, except for BF16 rows. With an outer scale per tensor the rows are
    those of one tensor: the first row's is taken, 1 if there are none.

    Raises: TypeError: another kind or dtype. ValueError: another shape.
    """
    require_tensor(buffer, "buffer", (torch.uint8,))
    require_kind(layout, Layout, "layout", "pass a Layout")
    if buffer.ndim != 2 or buffer.shape[1] != layout.row_bytes:
        raise ValueError(f"buffer has shape {tuple(buffer.shape)}: pass rows of {layout.row_bytes} bytes")
    fmt, run = layout.cast.fmt, layout.cast.outer
    if fmt is None:
        return buffer.contiguous().view(torch.bfloat16)
    codes, scales, outers = buffer.split(layout.parts, dim=1)
    scales = scales.clone(memory_format=torch.contiguous_format)
    scales = scales.view(torch.float32) if fmt.scale is None else scales
    outer = None
    if layout.outers:
        outer = outers.clone(memory_format=torch.contiguous_format).view(torch.float32)
    if run == "tensor":
        outer = outer[:1] if len(buffer) else scales.new_ones(1, 1, dtype=torch.float32)
    values = _unpack_codes(codes, layout.width, fmt)
    return made(values, scales, outer, fmt, fmt.rule.name, 1, None, run if isinstance(run, int) else None)


def _pieces(rows: int, width: int, device: torch.device) -> list[slice]:
    step = max(1, PIECE // width) if device.type == "cpu" else max(1, rows)
    return [slice(start, start + step) for start in range(0, rows, step)]


def _pack_codes(q: BlockTensor, out: Tensor) -> None:
    """Codes of 4, 6 or 8 bits to bytes `out` (R, bytes): neighbours are put together inside wider integers, which a
    processor does many at a time."""
    bits = q.fmt.element.bits
    if bits == 8 or (bits == 4 and type(q) is not BlockTensor):  # kernels keep 4-bit codes packed
        out.copy_(q.packed())
        return
    codes = q.codes.contiguous()
    for piece in _pieces(*codes.shape, codes.device):
        if bits == 4:
            pairs = codes[piece].view(torch.int16)
            out[piece].copy_(pairs | (pairs >> 4))  # the low byte is kept
        else:
            four = codes[piece].view(torch.int32)
            joined = sum((four >> 2 * i) & (0x3F << 6 * i) for i in range(4))
            out[piece].unflatten(1, (-1, 3)).copy_(joined.view(torch.uint8).unflatten(1, (-1, 4))[..., :3])


def _unpack_codes(packed: Tensor, width: int, fmt: BlockFormat) -> Tensor:
    """Inverse of `_pack_codes`: a new contiguous uint8 (R, width)."""
    bits = fmt.element.bits
    if bits == 8:
        return packed.clone(memory_format=torch.contiguous_format)
    codes = torch.empty(len(packed), width, dtype=torch.uint8, device=packed.device)
    for piece in _pieces(len(packed), width, packed.device):
        if bits == 4:
            pairs = codes[piece].view(torch.int16).copy_(packed[piece])
            pairs.bitwise_or_(pairs << 4).bitwise_and_(0x0F0F)
        else:
            joined = torch.zeros_like(codes[piece])
            joined.unflatten(1, (-1, 4))[..., :3] = packed[piece].unflatten(1, (-1, 3))
            four = joined.view(torch.int32)
            codes[piece].view(torch.int32).copy_(sum(((four >> 6 * i) & 0x3F) << 8 * i for i in range(4)))
    return codes
