"""Contract: tensor cores meet block scales where their instructions take them; nothing but the library has a gradient.

Oracle: scales of 1, where all accumulators agree on small integers, and the sentences that refuse.
"""

import pytest
import torch

import numerics as nm

BLOCKED = {"blackwell_mxfp8": nm.MXFP8, "blackwell_mxfp4": nm.MXFP4, "blackwell_nvfp4": nm.NVFP4}


def _made(fmt: nm.BlockFormat, rows: int, groups: tuple[int, ...] | None, seed: int) -> nm.BlockTensor:
    x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(seed))
    return nm.quantize(x, fmt, outer=None, groups=groups)


@pytest.mark.parametrize("kind", BLOCKED)
def test_blocks_start_where_scales_are_taken(kind: str):
    """Ragged groups are ordinary where both sides know of them; elsewhere a scale would meet another block's codes."""
    fmt, cuts = BLOCKED[kind], (0, 20, 20, 90, 128)
    whole, other = (_made(fmt, 4, None, seed) for seed in (1, 2))
    ragged, also = (_made(fmt, 4, cuts, seed) for seed in (3, 4))
    even = (0, 64, 128)
    for a, b, groups in ((ragged, also, cuts), (whole, other, even), (_made(fmt, 4, even, 5), other, None)):
        got, exact = nm.matmul(a, b, kind, groups=groups), nm.matmul(a, b, groups=groups)
        assert bool(((got - exact).abs() <= 1e-4 * (1 + exact.abs())).all()), "truncation at 25 bits or more"
    for name, a, b, groups in (
        ("a", whole, other, cuts), ("a", ragged, also, None), ("a", ragged, also, (0, 36, 128)),
        ("b", whole, also, None), ("b", ragged, whole, cuts),
    ):  # fmt: skip
        for call in (nm.matmul, nm.matmul_bound):
            with pytest.raises(
                ValueError, match=rf"^{name} has its blocks from .*{kind} takes a scale every {fmt.block}"
            ):
                call(a, b, kind, groups=groups)
        assert bool(torch.isfinite(nm.matmul(a, b, groups=groups)).all())


@pytest.mark.parametrize("kind", nm.ACCUMULATORS)
def test_tensors_without_dense_values_are_refused(kind: str):
    a = torch.zeros(2, 32)
    for x, says in ((a.to("meta"), "on the meta device"), (a.to_sparse(), "of layout torch.sparse_coo")):
        with pytest.raises(TypeError, match=f"^a is {says}.*pass a dense tensor"):
            nm.matmul(x, x, kind)
    with pytest.raises(TypeError, match=r"^c is of layout torch.sparse_coo"):
        nm.matmul(a, a, c=torch.zeros(2, 2).to_sparse())


@pytest.mark.parametrize("kind", ["exact", "fp32", "blackwell_nvfp4"])
def test_an_outer_scale_gives_no_gradient(kind: str):
    q = nm.quantize(torch.randn(3, 32, generator=torch.Generator().manual_seed(1)), nm.NVFP4)
    assert q.outer is not None
    followed = q.derived(outer=q.outer.clone().requires_grad_())
    got = nm.matmul(followed, q, kind)
    assert not got.requires_grad and torch.equal(got, nm.matmul(q, q, kind))
    inside = nm.quantize(q.dequantize(), nm.NVFP4, outer=128)
    inside = inside.derived(outer=torch.ones(3, 1, requires_grad=True))
    if kind != "blackwell_nvfp4":
        assert not nm.matmul(inside, q, kind).requires_grad
    assert nm.matmul(followed, q, "library").requires_grad


@pytest.mark.parametrize("kind", [row.name for row in nm.ACCUMULATORS.values() if row.steps and row.takes_plain])
def test_every_nan_is_the_hardwares(kind: str):
    """NaN in c and infinities that meet at the end, in an epilogue too."""
    x = torch.full((1, 32), torch.inf) if nm.ACCUMULATORS[kind].operands[0] is not nm.E4M3 else torch.ones(1, 32)
    y = torch.ones(1, 32)
    for c in (torch.tensor([[torch.nan]]), torch.tensor([[-torch.nan]]), torch.tensor([[-torch.inf]])):
        for splits in (1, 2):
            got = nm.matmul(x, y, kind, c, splits=splits)
            assert not bool(got.isnan()) or int(got.view(torch.int32)) == 0x7FFFFFFF, (float(c), splits)
            assert bool(got.isnan()) or float(c) == -torch.inf


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", nm.ACCUMULATORS)
def test_torchs_default_dtype_changes_nothing(kind: str, dtype: torch.dtype):
    fmt = next((o for o in nm.ACCUMULATORS[kind].operands if isinstance(o, nm.BlockFormat)), None)
    x = torch.randint(-3, 4, (4, 64), generator=torch.Generator().manual_seed(1)).to(torch.float32) / 4
    a = x if fmt is None else nm.quantize(x, fmt, outer=None)
    before = nm.matmul(a, a, kind, x[:, :4])
    torch.set_default_dtype(dtype)
    try:
        after, bound = nm.matmul(a, a, kind, x[:, :4]), nm.matmul_bound(a, a, kind)
    finally:
        torch.set_default_dtype(torch.float32)
    assert after.dtype == torch.float32 and torch.equal(after, before) and bound.dtype == torch.float64


def test_leave_to_multiply_in_less_is_not_taken():
    k, ones = torch.full((16, 16), 1 + 2.0**-12), torch.ones(16, 16)
    expected = torch.full((16, 16), 16 + 16 * 2.0**-12)
    torch.set_float32_matmul_precision("medium")
    try:
        for device in ("cpu", *["cuda"] * torch.cuda.is_available()):
            assert torch.equal(nm.matmul(k.to(device), ones.to(device), "library").cpu(), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_an_outer_scale_of_each_value_is_each_values():
    q = nm.quantize(torch.randn(2, 40, generator=torch.Generator().manual_seed(1)), nm.NVFP4)
    outer = torch.exp2(torch.arange(40.0)).view(1, 40)
    own = nm.BlockTensor(q.codes, q.scales, outer, nm.NVFP4, "x", 1)
    for width in (40, 32):  # a last block that is short, and none
        part = own if width == 40 else nm.BlockTensor(q.codes[:, :32], q.scales[:, :2], outer[:, :32], nm.NVFP4, "x", 1)
        expected = nm.decode(part.codes, nm.E2M1) * nm.decode(part.scales_per_value(), nm.E4M3) * outer[:, :width]
        assert torch.equal(part.dequantize(), expected)
        wide = expected.to(torch.float64)
        assert torch.equal(nm.matmul(part, part), (wide @ wide.mT).to(torch.float32)), "sums of few bits"


@pytest.mark.parametrize("kind", ["exact", "fp32", "hopper_bf16"])
def test_a_nan_is_one_nan(kind: str):
    x, y = torch.ones(2, 32), torch.ones(3, 32)
    x[0, 3], x[0, 20] = torch.tensor([0x7FC10000, -1 << 16], dtype=torch.int32).view(torch.float32)
    x[1, 1], x[1, 2] = torch.inf, -torch.inf
    for a in (x, x.flip(-1)):
        assert bool((nm.matmul(a, y, kind).view(torch.int32) == 0x7FFFFFFF).all())


def test_views_with_a_negative_bit_are_ordinary():
    v = nm.round_to(torch.randn(4, 64, generator=torch.Generator().manual_seed(1)), nm.BF16)
    for kind in ("exact", "fp32", "hopper_bf16", "library"):
        assert torch.equal(nm.matmul(torch._neg_view(-v), v, kind), nm.matmul(v, v, kind))
