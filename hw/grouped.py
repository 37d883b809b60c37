"""Products of decoded operands: codes once to BF16, which holds them exactly, then the library's BF16 product in FP32.

On a CUDA device each expert's product is one of cuBLAS, whose sums are those of the tensor cores; products are exact,
so that only their order differs from the emulation's. Where BF16 does not hold a value (E4M3 under E8M0 scales at the
ends of float32's range), and in Triton's interpreter, operands are decoded to FP32 and multiplied in FP32.

A Blackwell multiplies many operands as they are stored (`products_native`); those are not decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

from numerics import E8M0, BlockTensor
from numerics.ops import Operand

from . import products_native
from .casts import refuse, require_blocks
from .kernel_decode import decode
from .kernel_decode_nvfp4 import decode_nvfp4
from .packed import PackedTensor, packed_bytes
from .sources import lines, numbered


def decoded(
    q: BlockTensor, narrow: bool = False, outer: Tensor | None = None, factor: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Values of a BlockTensor, FP32 or BF16, times float32 (R,) or nothing, and `decode`'s flag if it may be set."""
    require_blocks(q)
    e = q.fmt.element.name
    plain_rows = q.axis == len(q.shape) - 1
    whole = q.shape[-1] % 16 == 0 and q.fmt.tile == 1
    if e == "E2M1" and q.fmt.block == 16 and narrow and plain_rows and whole and outer is None and factor is None:
        if isinstance(q, PackedTensor) and q.exact is not None:
            return q.exact.view(q.shape), None
        rows = q.shape[:-1].numel()
        flat, scales = packed_bytes(q).reshape(rows, q.shape[-1] // 2), q.scales.reshape(rows, q.scales.shape[-1])
        return decode_nvfp4(flat, scales.contiguous()).view(q.shape), None
    rows, columns = q.shape[:-1].numel(), q.scales.shape[-1]
    along = q.axis == len(q.shape) - 2
    matrices, length = q.shape[:-2].numel(), q.shape[-2] if len(q.shape) > 1 else 1
    step, groups = (q.fmt.block, q.groups) if along else (q.fmt.tile, None)
    table = lines(matrices, length, step, groups, str(q.scales.device))
    across = q.fmt.block if q.axis == len(q.shape) - 1 else q.fmt.tile
    codes = q.codes.reshape(rows, q.shape[-1]).contiguous()
    scales, powers = q.scales.reshape(q.scales.shape[:-1].numel(), columns).contiguous(), q.fmt.scale is E8M0
    out, flag = decode(codes, scales, table, e, across, outer, factor, powers=powers, narrow=narrow)
    return out.view(q.shape), flag if powers and narrow else None


def per_row(q: BlockTensor) -> Tensor:
    """float32 (rows,): the outer scale of each row of codes."""
    assert q.outer is not None
    if q.outer.shape[-1] != 1 or q.outer_block is not None:
        raise refuse("outer scales that vary along a row")
    return q.outer.expand(*q.shape[:-1], 1).reshape(-1).contiguous()


def pair(a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Both operands' values without outer scales, both BF16 or, where that would not be exact, both FP32."""
    found = _narrow(a, b)
    return found[:2] if found is not None and not found[2]() else _wide(a, b)


def _narrow(a: Operand, b: Operand) -> tuple[Tensor, Tensor, Callable[[], bool]] | None:
    """Both in BF16, and what waits to tell whether BF16 does not hold one of the values; None off a GPU, or of FP32."""
    device = a.device if isinstance(a, Tensor) else a.scales.device
    if device.type != "cuda" or not all(isinstance(x, BlockTensor) or x.dtype == torch.bfloat16 for x in (a, b)):
        return None
    found = [(x, None) if isinstance(x, Tensor) else decoded(x, narrow=True) for x in (a, b)]
    flags = [flag for _, flag in found if flag is not None]
    return found[0][0], found[1][0], _asked(flags)


def _asked(flags: list[Tensor]) -> Callable[[], bool]:
    """Sends flags to the host; what is returned waits for them and says whether one is set."""
    if not flags:
        return lambda: False
    host = torch.empty(len(flags), dtype=torch.int32, pin_memory=True)
    host.copy_(torch.cat(flags), non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(flags[0].device))  # where the copy is, whatever the current device

    def wait() -> bool:
        arrived.synchronize()
        return bool(host.any())

    return wait


def _wide(a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    first, second = (x.to(torch.float32) if isinstance(x, Tensor) else decoded(x)[0] for x in (a, b))
    return first, second


@contextmanager
def _full_sums() -> Iterator[None]:
    """FP32 products in FP32, sums of BF16 products in FP32 throughout, and no gradients: products write into `out`."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("highest")
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.allow_bf16_reduced_precision_reduction = before[1]


def _product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """a @ b into a matrix."""
    if a.shape[1] == 0:
        out.zero_()
    elif out.numel():
        if a.dtype == torch.bfloat16 and out.dtype == torch.float32:
            torch.mm(a, b, out_dtype=torch.float32, out=out)
        else:
            torch.mm(a, b, out=out)


def rows_by_experts(a: Tensor, b: Tensor, groups: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """(R, N): rows (R, K) of each group times their expert's b (E, N, K), transposed; b may be a view. dtype: float32,
    or bfloat16 of BF16 operands on a GPU, whose FP32 sums are then rounded once."""
    out = torch.empty(len(a), b.shape[1], dtype=dtype, device=a.device)
    with _full_sums():
        for e, (i, j) in enumerate(pairwise(groups)):
            _product(a[i:j], b[e].T, out[i:j])
    return out


def columns_by_experts(a: Tensor, b: Tensor, groups: tuple[int, ...]) -> Tensor:
    """float32 (E, N, K): of each group a[i:j].T @ b[i:j], a (R, N), b (R, K); zeros of an empty group."""
    out = torch.empty(len(groups) - 1, a.shape[1], b.shape[1], dtype=torch.float32, device=a.device)
    with _full_sums():
        for e, (i, j) in enumerate(pairwise(groups)):
            _product(a[i:j].T, b[i:j], out[e])
    return out


def sums_of_rows(a: Operand, b: Operand, groups: tuple[int, ...], axis: int = 2, rounded: bool = False) -> Tensor:
    """float32 (R, N): rows (R, K) of each group times their expert's b (E, N, K), transposed, or with `axis` 1 times
    its b (E, K, N); without outer scales. rounded: bfloat16 where the library's product can round its sums itself."""
    found = products_native.rows_by_experts(a, b, groups, axis)
    if found is not None:
        return found

    def product(first: Tensor, second: Tensor) -> Tensor:
        dtype = first.dtype if rounded else torch.float32
        return rows_by_experts(first, second if axis == 2 else second.mT, groups, dtype)

    return _of_either(product, a, b)


def sums_of_columns(a: Operand, b: Operand, groups: tuple[int, ...]) -> Tensor:
    """float32 (E, N, K): of each group a[i:j].T @ b[i:j], a (R, N), b (R, K), without outer scales."""
    found = products_native.columns_by_experts(a, b, groups)
    if found is not None:
        return found
    return _of_either(lambda first, second: columns_by_experts(first, second, groups), a, b)


def _of_either(product: Callable[[Tensor, Tensor], Tensor], a: Operand, b: Operand) -> Tensor:
    """A product of BF16 values, or of FP32 ones where BF16 does not hold them. The device need not wait until that is
    known: it is asked for before the product and heard after it, which is done again if need be."""
    narrow = _narrow(a, b)
    if narrow is None:
        return product(*_wide(a, b))
    first, second, inexact = narrow
    sums = product(first, second)
    return product(*_wide(a, b)) if inexact() else sums


def row_factors(a: Operand, b: Operand, groups: tuple[int, ...]) -> Tensor | None:
    """float32 (R,): fl(outer of the row * outer of its expert), or what there is of them."""
    first = a.outer if isinstance(a, BlockTensor) else None
    second = b.outer if isinstance(b, BlockTensor) else None
    rows = groups[-1]
    if first is not None:
        if first.shape[-1] != 1:
            raise refuse("products of outer scales that vary along the contraction")
        first = first.expand(rows, 1).flatten()
    if second is not None:
        if second.shape[-2:] != (1, 1):
            raise refuse("products of a weight's outer scales by rows")
        second = second.flatten()
        experts, _ = numbered(rows, groups, str(second.device))
        second = second.expand(len(groups) - 1).index_select(0, experts)
    if first is None or second is None:
        return first if second is None else second
    return first * second
