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
