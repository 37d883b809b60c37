"""Kernels that a census must refuse, each with a twin that it must accept where there is one: see test_census.py.

Imported by the census's workers, where kernels are compiled and not interpreted.
"""

import os

import torch
import triton
import triton.language as tl

from hw import device
from hw.contracts import TO_E2M1, TO_S2F6, Case, Contract, at_least, exactly, meta
from hw.launches import Call, launch

SCALED = """{
    .reg .b16 d, s;
    .reg .b32 t;
    cvt.u16.u32 s, $3;
    THREAD
    cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32 d, $1, $2, s;
    cvt.u32.u16 $0, d;
}"""
UNIFORM = tl.constexpr(SCALED.replace("THREAD", ""))
# zero in every thread, and the assembler does not know; it does of %tid.x >> 16, since Triton tells the block's size
OWN = tl.constexpr(
    SCALED.replace(
        "THREAD", "{ .reg .b16 z; mov.u32 t, %tid.x; mul.hi.u32 t, t, t; cvt.u16.u32 z, t; or.b16 s, s, z; }"
    )
)
DRAWN = tl.constexpr("{ .reg .b16 d; cvt.rs.satfinite.e2m1x4.f32 d, {$1, $1, $1, $1}, $1; cvt.u32.u16 $0, d; }")
NEAR = tl.constexpr("{ .reg .b8 d; cvt.rn.satfinite.e2m1x2.f32 d, $1, $1; cvt.u32.u8 $0, d; }")


@triton.jit
def _s2f6(x, out, scale, SELF: tl.constexpr):
    i = tl.arange(0, 128)
    a = tl.load(x + i)
    s = tl.full((128,), 0, tl.int32) + scale
    ASM: tl.constexpr = OWN if SELF else UNIFORM
    tl.store(out + i, tl.inline_asm_elementwise(ASM, "=r,f,f,r", [a, a, s], dtype=tl.int32, is_pure=True, pack=1))


@triton.jit
def _convert(x, out, ASM: tl.constexpr):
    i = tl.arange(0, 128)
    code = tl.inline_asm_elementwise(ASM, "=r,f", [tl.load(x + i)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, code)


@triton.jit
def _divide(x, out, ROUNDED: tl.constexpr):
    i = tl.arange(0, 128)
    a = tl.load(x + i)
    tl.store(out + i, tl.div_rn(1.0, a) if ROUNDED else 1.0 / a)


@triton.jit
def _spill(x, out):
    """A thread has 512 values and needs all of them twice."""
    i = tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :]
    a = tl.load(x + i)
    tl.store(out + i, a - tl.sum(tl.sum(a, 1), 0))


@triton.jit
def _scaled(a, b, sa, sb, out, M: tl.constexpr, N: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr):
    """MANY accumulators (M, N), all in tensor memory at once, of NVFP4 products, K deep."""
    m, n, k, s = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K // 2), tl.arange(0, K // 16)
    x, y = tl.load(a + m * (K // 2) + k[None, :]), tl.load(b + n[None, :] * (K // 2) + k[:, None])
    sx = tl.load(sa + m * (K // 16) + s[None, :]).to(tl.float8e4nv, bitcast=True)
    sy = tl.load(sb + n[:, None] * (K // 16) + s[None, :]).to(tl.float8e4nv, bitcast=True)
    first = tl.zeros((M, N), tl.float32)
    second = tl.zeros((M, N), tl.float32)
    for _ in range(4):
        first = tl.dot_scaled(x, sx, "e2m1", y, sy, "e2m1", first)
        if MANY == 2:
            second = tl.dot_scaled(x, sx, "e2m1", y, sy, "e2m1", second)
    tl.store(out + m * N + n[None, :], first + second)


@triton.jit
def _mxfp8(a, b, sa, sb, out, M: tl.constexpr):
    """An MXFP8 product (M, 128), 128 deep."""
    m, n, k, s = tl.arange(0, M)[:, None], tl.arange(0, 128), tl.arange(0, 128), tl.arange(0, 4)
    x, y = tl.load(a + m * 128 + k[None, :]), tl.load(b + n[None, :] * 128 + k[:, None])
    sx, sy = tl.load(sa + m * 4 + s[None, :]), tl.load(sb + n[:, None] * 4 + s[None, :])
    tl.store(out + m * 128 + n[None, :], tl.dot_scaled(x, sx, "e4m3", y, sy, "e4m3"))


@triton.jit
def _plain(a, b, out, N: tl.constexpr):
    """A product of BF16 matrices; both wait in shared memory."""
    i = tl.arange(0, 128)[:, None] * N + tl.arange(0, N)[None, :]
    j = tl.arange(0, N)[:, None] * 128 + tl.arange(0, 128)[None, :]
    k = tl.arange(0, 128)[:, None] * 128 + tl.arange(0, 128)[None, :]
    tl.store(out + k, tl.dot(tl.load(a + i), tl.load(b + j)))


@triton.jit
def _uncovered(x):
    tl.store(x, 0)


def uncovered() -> None:
    launch(_uncovered, (1,), meta(1))


FLOATS, WORDS = (lambda: meta(128, dtype=torch.float32)), (lambda: meta(128, dtype=torch.int32))


def scaled(rows: int, columns: int, many: int = 1, depth: int = 128) -> None:
    bytes_ = [meta(rows, depth, dtype=torch.uint8) for _ in range(4)]
    out = meta(rows, columns, dtype=torch.float32)
    launch(_scaled, (1,), *bytes_, out, M=rows, N=columns, MANY=many, K=depth, num_warps=8)


def eight(rows: int) -> None:
    a, b = meta(rows, 128, dtype=torch.float8_e4m3fn), meta(128, 128, dtype=torch.float8_e4m3fn)
    sa, sb = meta(rows, 4, dtype=torch.uint8), meta(128, 4, dtype=torch.uint8)
    launch(_mxfp8, (1,), a, b, sa, sb, meta(rows, 128, dtype=torch.float32), M=rows)


def fused() -> None:
    """A launch of somebody's own, with the compiler's default."""
    constants = {"ROUNDED": True}
    device.catching[-1].append(Call(_divide, (1,), (FLOATS(), FLOATS()), {"num_warps": 4}, constants))


def plain(width: int) -> None:
    launch(_plain, (1,), meta(128, width), meta(width, 128), meta(128, 128, dtype=torch.float32), N=width)


BLACKWELL = ("sm_103a",)
BUT_PRODUCTS = ("UTCB*", "UTCA*", "UTCCP*", "LDTM*", "STTM*")
PLAIN = ("UTC*", "LDTM*", "STTM*")
CONTRACT = Contract(
    (
        Case("uniform scale", lambda: launch(_s2f6, (1,), FLOATS(), WORDS(), 127, SELF=False), architectures=BLACKWELL),
        Case(
            "own scale", lambda: launch(_s2f6, (1,), FLOATS(), WORDS(), 127, SELF=True), architectures=BLACKWELL,
            portable=(exactly(TO_S2F6, 1),), allowed=(TO_S2F6,),
        ),
        Case("drawn", lambda: launch(_convert, (1,), FLOATS(), WORDS(), ASM=DRAWN), architectures=("sm_90a",)),
        Case("not portable", lambda: launch(_convert, (1,), FLOATS(), WORDS(), ASM=NEAR), architectures=BLACKWELL),
        Case(
            "too few", lambda: launch(_convert, (1,), FLOATS(), WORDS(), ASM=NEAR), architectures=BLACKWELL,
            portable=(exactly(TO_E2M1, 2), at_least("F2FP.*", 1)), allowed=(TO_E2M1,),
        ),
        Case(
            "no branch", lambda: launch(_divide, (1,), FLOATS(), FLOATS(), ROUNDED=True), (exactly(TO_E2M1, 1),),
            architectures=BLACKWELL,
        ),
        Case("rounded", lambda: launch(_divide, (1,), FLOATS(), FLOATS(), ROUNDED=True), architectures=BLACKWELL),
        Case("not rounded", lambda: launch(_divide, (1,), FLOATS(), FLOATS(), ROUNDED=False), architectures=BLACKWELL),
        Case("fused", fused, architectures=BLACKWELL),
        Case("spills", lambda: launch(_spill, (1,), FLOATS(), FLOATS(), num_warps=1), architectures=BLACKWELL),
        Case("128 rows", lambda: scaled(128, 128), architectures=BLACKWELL, allowed=PLAIN),
        Case("64 rows", lambda: eight(64), architectures=BLACKWELL, allowed=BUT_PRODUCTS),
        Case("no such product", lambda: scaled(64, 128), architectures=BLACKWELL, allowed=BUT_PRODUCTS),
        Case("tensor memory", lambda: scaled(128, 256, many=2), architectures=BLACKWELL, allowed=PLAIN),
        Case("shared memory", lambda: plain(512), allowed=PLAIN, architectures=BLACKWELL),
        Case("dies", os.abort, architectures=BLACKWELL),
        Case("types", lambda: launch(_divide, (1,), FLOATS(), "text", ROUNDED=True), architectures=BLACKWELL),
    )
)  # fmt: skip
