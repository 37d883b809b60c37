"""Products on the tensor cores, by Triton: d = a @ b.T + c with c as the accumulator's first value.

    d, instruction = product(a, b, c, nm.E4M3)        a (M, K), b (N, K): codes; c, d (M, N) float32

K is chained in registers, block after block: tl.dot(a, b, acc) passes its result on as the next accumulator, and for
FP8 on sm_90 Triton's default (max_num_imprecise_acc of 2^30) leaves it there, so that nothing but the matrix
instruction ever adds. c = None starts from zeros that the compiler knows; c of zeros is loaded like any other.

Which instruction the compiler chose is read off its PTX, since a sum says something about tensor cores only if they
made it: "wgmma m64n64k32 f32.e4m3.e4m3" on an H200. In Triton's interpreter it is "interpreted".

This module needs Triton: ask `hw.device.triton_absent` before importing it.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import numerics as nm

from .contracts import Case, Contract, at_least, meta
from .device import require_launch
from .launches import launch

TILE = 64  # rows and columns of one program: one wgmma of four warps
FORMATS = (nm.E4M3, nm.E5M2, nm.BF16, nm.FP16, nm.TF32)
_DTYPES = {
    nm.E4M3: torch.float8_e4m3fn,
    nm.E5M2: torch.float8_e5m2,
    nm.BF16: torch.bfloat16,
    nm.FP16: torch.float16,
    nm.TF32: torch.float32,
}
_POINTERS = {nm.E4M3: "*fp8e4nv", nm.E5M2: "*fp8e5", nm.BF16: "*bf16", nm.FP16: "*fp16", nm.TF32: "*fp32"}
_INSTRUCTION = re.compile(
    r"(wgmma)\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)\.([\w.]+)"
    r"|(mma\.sync)\.aligned\.(m\d+n\d+k\d+)\.(?:row\.col\.)?([\w.]+)"
    r"|(tcgen05\.mma)\.(cta_group::\d)\.(kind::\w+)"
    r"|\b((?:add|fma)(?:\.\w+)*\.f32(?:x2)?)\b"
)


@triton.jit
def _kernel(
    a, b, c, d, M, N, K, HAS_C: tl.constexpr, PRECISION: tl.constexpr, TILE: tl.constexpr, BLOCK_K: tl.constexpr
):
    """A (TILE, TILE) tile of d (M, N) = a (M, K) @ b (N, K).T + c (M, N); K is a multiple of BLOCK_K."""
    m = tl.program_id(0) * TILE + tl.arange(0, TILE)
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    k = tl.arange(0, BLOCK_K)
    inside = (m < M)[:, None] & (n < N)[None, :]
    at = m[:, None].to(tl.int64) * N + n[None, :]
    if HAS_C:
        acc = tl.load(c + at, mask=inside, other=0.0)
    else:
        acc = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        x = tl.load(a + m[:, None] * K + (start + k)[None, :], mask=(m < M)[:, None], other=0.0)
        y = tl.load(b + n[:, None] * K + (start + k)[None, :], mask=(n < N)[:, None], other=0.0)
        acc = tl.dot(x, tl.trans(y), acc, input_precision=PRECISION)
    tl.store(d + at, acc, mask=inside)


def least_k(fmt: nm.Format) -> int:
    """K is a multiple of this: what one tl.dot takes at least."""
    return 32 if fmt.bits == 8 else 16


def block_k(fmt: nm.Format, k: int) -> int:
    """K of one tl.dot: 128 bytes of a row where K allows, else the least."""
    whole = 128 * 8 // (32 if fmt is nm.TF32 else fmt.bits)
    return whole if k % whole == 0 else least_k(fmt)


def operand(codes: Tensor, fmt: nm.Format) -> Tensor:
    """Codes as the tensor that the device multiplies: one of torch's types; TF32 in float32, its low 13 bits zero."""
    if fmt is nm.TF32:
        return (codes << 13).view(torch.float32)
    return codes.view(_DTYPES[fmt])


def product(a: Tensor, b: Tensor, c: Tensor | None, fmt: nm.Format) -> tuple[Tensor, str]:
    """a @ b.T + c on the tensor cores.

    Args:
        a: (M, K), b: (N, K): codes of `fmt`, of its `code_dtype`, on a CUDA device; M, N, K at least 1, K a multiple
            of 32 (FP8) or 16. c: float32 (M, N), or None.
        fmt: one of FORMATS.

    Returns:
        d, float32 (M, N), and the matrix instruction that made it.

    Raises:
        ValueError: another format, shapes that do not fit, a CPU tensor where the kernel is compiled. TypeError:
        operands that are no codes of `fmt`.
    """
    _check(a, b, c, fmt)
    (m, k), n = a.shape, b.shape[0]
    d = torch.empty(m, n, dtype=torch.float32, device=a.device)
    x, y = (operand(t.contiguous(), fmt) for t in (a, b))
    start = d if c is None else c.contiguous()
    grid = (triton.cdiv(m, TILE), triton.cdiv(n, TILE))
    made = launch(_kernel, grid, x, y, start, d, m, n, k, **_constants(fmt, k, c is not None))
    return d, "interpreted" if made is None else instruction(made.asm["ptx"])


def _check(a: Tensor, b: Tensor, c: Tensor | None, fmt: nm.Format) -> None:
    if fmt not in FORMATS:
        raise ValueError(f"fmt={fmt}: tl.dot takes {', '.join(f.name for f in FORMATS)}")
    for name, x in (("a", a), ("b", b)):
        if x.dtype != fmt.code_dtype:
            raise TypeError(f"{name} has dtype {x.dtype}: pass codes of {fmt.name}, {fmt.code_dtype}")
        if x.ndim != 2 or x.shape[-1] != a.shape[-1] or not x.numel() or x.shape[-1] % least_k(fmt):
            raise ValueError(
                f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}: pass (M, K) and (N, K), K a multiple of "
                f"{least_k(fmt)} for {fmt.name}"
            )
    if c is not None and (c.dtype != torch.float32 or tuple(c.shape) != (a.shape[0], b.shape[0])):
        raise ValueError(
            f"c is {c.dtype} {tuple(c.shape)}: pass float32 {(a.shape[0], b.shape[0])}, or None for no accumulator"
        )
    require_launch(_kernel, a, "a")


def _constants(fmt: nm.Format, k: int, has_c: bool) -> dict[str, Any]:
    # "ieee" for every format but TF32, where it would mean FP32 arithmetic outside of the tensor cores
    precision = "tf32" if fmt is nm.TF32 else "ieee"
    return {"HAS_C": has_c, "PRECISION": precision, "TILE": TILE, "BLOCK_K": block_k(fmt, k)}


@functools.lru_cache(maxsize=64)
def instruction(ptx: str) -> str:
    """The matrix instructions in a kernel's PTX, each once, in words, and any FP32 addition beside them, which would be
    part of the sum; "none" if there is no matrix instruction."""
    found = (" ".join(part for part in match if part) for match in _INSTRUCTION.findall(ptx))
    words = list(dict.fromkeys(found))
    return ", ".join(words) if any(" " in word for word in words) else "none"


def build(fmt: nm.Format, k: int, has_c: bool, capability: tuple[int, int]) -> Any:
    """The kernel compiled ahead of time for a compute capability, (9, 0), without a GPU; its `asm` has "ptx"."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = _constants(fmt, k, has_c)
    types = {"a": _POINTERS[fmt], "b": _POINTERS[fmt], "c": "*fp32", "d": "*fp32", "M": "i32", "N": "i32", "K": "i32"}
    # what a launch would find: pointers and sizes that are multiples of 16, without which copies stay narrow
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(7)}
    source = ASTSource(_kernel, {**types, **dict.fromkeys(constants, "constexpr")}, constants, aligned)
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    return triton.compile(source, target=target, options={"num_warps": 4})


def _meta(fmt: nm.Format, k: int) -> Any:
    return product(meta(128, k, dtype=fmt.code_dtype), meta(128, k, dtype=fmt.code_dtype), None, fmt)


_TENSOR_MEMORY = ("UTC*", "LDTM*", "STTM*", "HMMA*")  # plain products are what this kernel is for

CONTRACT = Contract(
    (
        Case("E4M3", lambda: _meta(nm.E4M3, 256), portable=(at_least("*MMA*", 1),), allowed=_TENSOR_MEMORY),
        Case("BF16", lambda: _meta(nm.BF16, 256), portable=(at_least("*MMA*", 1),), allowed=_TENSOR_MEMORY),
    ),
    ran="h200_products.json",
    interpreted="test_hw_tensor_core.py",
)
