"""Which products a Blackwell makes from codes as they are stored, and how operands come to the kernels that do.

    rows x matrices     NVFP4 x NVFP4 (blocks along the contraction, K a multiple of 32), MXFP8 x MXFP8 (rows of codes a
                        multiple of 16 bytes); matrices with their blocks along axis 1, as dgrad has them, in MXFP8
    rows x rows         MXFP8 x MXFP8 in blocks along tokens that start anew at each expert; N, K multiples of 16

Everything else, NVFP4 in tiles, two formats in one product, plain operands, rows that TMA cannot step over, is None
here, and `grouped` decodes it: slower, and no other sum but in its order. Outer scales are never part of these sums.
"""

from __future__ import annotations

from torch import Tensor

from numerics import E2M1, E4M3, E8M0, BlockTensor
from numerics.ops import Operand

from .casts import straddle
from .kernel_product import rows_by_matrices
from .kernel_product_ragged import columns_by_columns
from .launches import native
from .packed import packed_bytes


def rows_by_experts(a: Operand, b: Operand, groups: tuple[int, ...], axis: int = 2) -> Tensor | None:
    """float32 (R, N): rows (R, K) of each group times their expert's b (E, N, K), or with `axis` 1 b (E, K, N), without
    outer scales; None where no kernel does it."""
    element = _element(a, b)
    if element is None:
        return None
    assert isinstance(a, BlockTensor) and isinstance(b, BlockTensor)
    if straddle(a) or b.groups is not None:  # `grouped` refuses them
        return None
    if (a.axis, b.axis) != (1, axis) or a.shape[1] % (32 if element == "E2M1" else 16):
        return None
    if axis == 1 and (element == "E2M1" or b.shape[2] % 16):
        return None
    return rows_by_matrices(_bytes(a), _scales(a), _bytes(b), _scales(b), groups, element, axis)


def columns_by_experts(a: Operand, b: Operand, groups: tuple[int, ...]) -> Tensor | None:
    """float32 (E, N, K): a[i:j].T @ b[i:j] of each group, a (S, N), b (S, K), without outer scales; None where no
    kernel does it."""
    if _element(a, b) != "E4M3":
        return None
    assert isinstance(a, BlockTensor) and isinstance(b, BlockTensor)
    whole = len(groups) == 2
    own = all(q.axis == 0 and (q.groups == groups or (q.groups is None and whole)) for q in (a, b))
    if not own or a.shape[1] % 16 or b.shape[1] % 16:
        return None
    return columns_by_columns(_bytes(a), _scales(a), _bytes(b), _scales(b), groups)


def _element(a: Operand, b: Operand) -> str | None:
    """The element that both have, in a format that tensor cores take, where there are such."""
    kinds = [_kind(q) for q in (a, b)]
    return kinds[0] if kinds[0] == kinds[1] else None


def _kind(q: Operand) -> str | None:
    if not isinstance(q, BlockTensor) or not native(q.scales) or q.fmt.tile > 1 or q.fmt.alternative is not None:
        return None
    found = (q.fmt.element, q.fmt.scale, q.fmt.block)
    return {(E2M1, E4M3, 16): "E2M1", (E4M3, E8M0, 32): "E4M3"}.get(found)


def _bytes(q: BlockTensor) -> Tensor:
    return _placed(packed_bytes(q) if q.fmt.element is E2M1 else q.codes)


def _scales(q: BlockTensor) -> Tensor:
    return _placed(q.scales)


def _placed(x: Tensor) -> Tensor:
    """Contiguous, at an address that 16 divides, as TMA reads."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x
