"""Which products are made from codes where the chip can, and `tl.dot_scaled` in the interpreter.

Contract: `hw.grouped` and `hw.ops` multiply stored codes where `products_native` says so, and decode elsewhere: the
same sums, bit for bit where they are exact. Without a Blackwell nothing is multiplied so. Oracles: `numerics.matmul`,
exact; for the interpreter's product `numerics.decode` and float64.
"""

import os
from typing import Any

import numpy as np
import pytest
import torch
from product_samples import exact_operand

import numerics as nm
from hw.device import INTERPRET
from numerics.ops import Wire

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

import triton
import triton.language as tl

from hw import grouped, kernel_product, kernel_product_ragged, kernel_swizzle, ops, products_native
from hw.interpret_products import block_scaled_products
from hw.launches import catching, forced, launch
from hw.packed import PackedTensor
from hw.ptx_run import interpreted as with_ptx

pytestmark = pytest.mark.skipif(
    os.environ.get(INTERPRET) != "1", reason=f"not run: {INTERPRET}=1 interprets kernels on a CPU"
)
GROUPS = (0, 5, 5, 40)


def packed(q: nm.BlockTensor) -> nm.BlockTensor:
    return PackedTensor.of(q.fmt, q.packed() if q.fmt.element.bits == 4 else q.codes, q.scales, None)


def rows(fmt: nm.BlockFormat, columns: int = 32, width: int = 64) -> tuple[nm.BlockTensor, nm.BlockTensor]:
    return exact_operand(fmt, 40, width), exact_operand(fmt, 3, columns, width, seed=1)


def tokens(groups: Any = GROUPS, columns: int = 32) -> tuple[nm.BlockTensor, nm.BlockTensor]:
    first = exact_operand(nm.MXFP8, 40, columns, axis=0, groups=groups)
    return first, exact_operand(nm.MXFP8, 40, 48, axis=0, groups=groups, seed=1)


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46, nm.MXFP8], ids=lambda fmt: fmt.name)
def test_operands_of_every_kind_of_storage(fmt: nm.BlockFormat) -> None:
    """One byte a value, packed, views of others, at addresses that 16 does not divide."""
    a, b = rows(fmt)
    expected = nm.matmul(a, b, "exact", groups=GROUPS)
    odd = torch.zeros(40 * 64 + 1, dtype=torch.uint8)[1:].view(40, 64).copy_(a.codes)
    with forced(True), block_scaled_products():
        for x, w in ((a, b), (packed(a), packed(b)), (a.derived(codes=odd), b), (a, b.derived(codes=b.codes.mT.mT))):
            found = products_native.rows_by_experts(x, w, GROUPS)
            assert found is not None and torch.equal(found, expected)
            assert torch.equal(grouped.sums_of_rows(x, w, GROUPS), expected)
    assert products_native.rows_by_experts(a, b, GROUPS) is None


def test_the_seam_multiplies_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three products, of which none is decoded; outer scales come after the sums."""
    a, b = rows(nm.NVFP4)
    outer = torch.full((40, 1), 3.0), torch.full((3, 1, 1), 0.5)
    g, (g_tokens, x) = exact_operand(nm.MXFP8, 40, 32), tokens()
    w = exact_operand(nm.MXFP8, 3, 32, 48, axis=1, seed=1).derived(outer=outer[1])
    expected = nm.matmul(a, b, "exact", groups=GROUPS)
    dx = nm.matmul(g, w.mT, "exact", groups=GROUPS)
    dw = nm.matmul(g_tokens.mT, x.mT, "exact", groups=GROUPS)
    monkeypatch.setattr(grouped, "_of_either", lambda *_: pytest.fail("operands are decoded"))
    with forced(True), block_scaled_products():
        found = ops.down_to_wire(a.derived(outer=outer[0]), b.derived(outer=outer[1]), GROUPS, Wire(None))
        assert torch.equal(found, (expected * 1.5).to(torch.bfloat16))
        both = ops.grad_products(g, g_tokens, w, x, GROUPS)
    assert torch.equal(both[0], dx) and torch.equal(both[1], dw)


def test_what_is_decoded_instead() -> None:
    """The same exact sums, whatever the operands."""
    a, b = rows(nm.NVFP4)
    m, n = rows(nm.MXFP8)
    plain = b.values()
    tiles = nm.quantize(torch.randint(-6, 7, (3, 32, 64)).float(), nm.NVFP4_2D, outer=None)
    cases = [
        *((a, n), (a, plain), (a.values(), b), (a, tiles)),
        *(rows(nm.NVFP4, width=16), rows(nm.MXFP8, width=40), rows(nm.MXFP4)),
        (exact_operand(nm.MXFP8, 40, 64, axis=0), n),
    ]
    with forced(True), block_scaled_products(), with_ptx():
        for x, w in cases:
            assert products_native.rows_by_experts(x, w, GROUPS) is None
            values = [q if isinstance(q, torch.Tensor) else q.values() for q in (x, w)]
            assert torch.equal(grouped.sums_of_rows(x, w, GROUPS), nm.matmul(*values, "exact", groups=GROUPS))
        for g, w in (
            (a, exact_operand(nm.NVFP4, 3, 64, 48, axis=1)),
            (m, exact_operand(nm.MXFP8, 3, 64, 40, axis=1)),
            (m, exact_operand(nm.MXFP8, 3, 64, 48, axis=2)),
        ):
            assert products_native.rows_by_experts(g, w, GROUPS, axis=1) is None
            expected = nm.matmul(g.values(), w.values().mT, "exact", groups=GROUPS)
            assert torch.equal(grouped.sums_of_rows(g, w, GROUPS, axis=1), expected)
        other = tokens((0, 32, 40, 40))
        for g, x in (tokens(columns=24), (tokens()[0], other[1]), tokens(None), (m, tokens()[1])):
            assert products_native.columns_by_experts(g, x, GROUPS) is None
            expected = nm.matmul(g.values().mT, x.values().mT, "exact", groups=GROUPS)
            assert torch.equal(grouped.sums_of_columns(g, x, GROUPS), expected)
        whole = tokens(None)
        assert products_native.columns_by_experts(*whole, (0, 40)) is not None


@pytest.mark.parametrize("module", [kernel_product, kernel_product_ragged, kernel_swizzle], ids=lambda m: m.__name__)
def test_every_variant_is_caught_for_a_compiler(module: Any) -> None:
    """A launch each, of a kernel of this file, with NATIVE as it is told; without any storage."""
    for f in module.samples().values():
        for native in (True, False):
            with forced(native), catching() as calls:
                assert f().is_meta
            last = calls[-1]
            assert last.kernel.fn.__module__ == module.__name__ and last.grid[0] > 0
            assert last.constants.get("NATIVE", native) is native


# The interpreter's product.


@triton.jit
def _dot(out, a, sa, b, sb, FMT: tl.constexpr, PACKED: tl.constexpr, BLOCK: tl.constexpr, NATIVE: tl.constexpr):
    """(16, 16) of (16, 64) each; b is stored (16, 64)."""
    n, k, s = tl.arange(0, 16), tl.arange(0, 64 // PACKED), tl.arange(0, 64 // BLOCK)
    x = tl.load(a + n[:, None] * (64 // PACKED) + k[None, :])
    y = tl.load(b + n[:, None] * (64 // PACKED) + k[None, :])
    sx = tl.load(sa + n[:, None] * (64 // BLOCK) + s[None, :])
    sy = tl.load(sb + n[:, None] * (64 // BLOCK) + s[None, :])
    acc = tl.full((16, 16), 1.0, tl.float32)
    tl.store(out + n[:, None] * 16 + n[None, :], tl.dot_scaled(x, sx, FMT, y.T, sy, FMT, acc))


def interpreted(a: nm.BlockTensor, b: nm.BlockTensor, kind: str) -> torch.Tensor:
    narrow = kind == "e2m1"
    parts = []
    for q in (a, b):
        codes = q.packed() if narrow else q.codes.view(torch.float8_e4m3fn)
        parts += [codes, q.scales.view(torch.float8_e4m3fn) if narrow else q.scales]
    out = torch.empty(16, 16)
    launch(_dot, (1,), out, *parts, FMT=tl.constexpr(kind), PACKED=2 if narrow else 1, BLOCK=q.fmt.block)
    return out


@pytest.mark.parametrize("kind", ["e2m1", "e4m3"])
def test_every_code_and_scale_byte_is_read(kind: str) -> None:
    """Each code beside each scale byte of its format; an accumulator of 1."""
    fmt = nm.NVFP4 if kind == "e2m1" else nm.MXFP8
    rng = np.random.default_rng(0)
    for scale in range(256):
        codes = torch.from_numpy(rng.integers(0, 1 << fmt.element.bits, (2, 16, 64), np.uint8))
        scales = torch.from_numpy(rng.integers(100, 120, (2, 16, 64 // fmt.block), np.uint8))
        scales[0] = scale
        a, b = (nm.BlockTensor(c, s, None, fmt, fmt.rule.name, 1) for c, s in zip(codes, scales, strict=True))
        exact = [nm.decode(q.codes, fmt.element).double() for q in (a, b)]
        exact = [
            x * nm.decode(q.scales, fmt.scale).double().repeat_interleave(fmt.block, 1)
            for x, q in zip(exact, (a, b), strict=True)
        ]
        with block_scaled_products(), np.errstate(all="ignore"):
            found = interpreted(a, b, kind)
        assert torch.equal(found.nan_to_num(7), (exact[0] @ exact[1].T + 1).float().nan_to_num(7)), scale


def test_the_interpreter_is_left_as_it_was() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    before = getattr(InterpreterBuilder, "create_dot_scaled", None)
    with block_scaled_products():
        assert InterpreterBuilder.create_dot_scaled is not before
    assert getattr(InterpreterBuilder, "create_dot_scaled", None) is before


def test_other_formats_are_refused() -> None:
    """E2M1 codes under powers of two: no kernel here has them."""
    a, b = (exact_operand(nm.MXFP4, 16, 64, seed=i) for i in range(2))
    out, parts = torch.empty(16, 16), (a.packed(), a.scales, b.packed(), b.scales)
    with block_scaled_products(), pytest.raises(Exception, match=r"E2M1 under scales .*: interpreted are E2M1 under"):
        launch(_dot, (1,), out, *parts, FMT=tl.constexpr("e2m1"), PACKED=2, BLOCK=32)
