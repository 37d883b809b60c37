"""Contract: operands that broadcast are not copied for every batch; bits are those of the batch written out.

Oracle: the same product of operands expanded beforehand.
"""

import pytest
import torch

import numerics as nm
from numerics import sequential, tensor_core


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", ["fp32", *(row.name for row in nm.ACCUMULATORS.values() if row.steps)])
@pytest.mark.parametrize("shared", ["a", "b"])
def test_a_shared_matrix_is_held_once(monkeypatch: pytest.MonkeyPatch, kind: str, shared: str):
    row, g = nm.ACCUMULATORS[kind], torch.Generator().manual_seed(1)
    fmt = row.operands[0] if row.operands else nm.BF16
    shapes = ((5, 64), (50, 3, 64)) if shared == "a" else ((50, 3, 64), (5, 64))
    plain = [torch.randn(s, generator=g) for s in shapes]
    plain[0][..., 0, 3] = plain[1][..., 0, 40] = torch.nan if row.operands else 1.0

    def made(x: torch.Tensor) -> object:
        return nm.round_to(x, fmt) if isinstance(fmt, nm.Format) else nm.quantize(x, fmt, outer=None)

    apart = [nm.matmul(*(made(x if x.ndim == 2 else x[e]) for x in plain), kind) for e in range(50)]
    held, k_first = [], tensor_core.k_first
    for module in (tensor_core, sequential):
        monkeypatch.setattr(module, "k_first", lambda plane: held.append(plane.numel()) or k_first(plane))
    got = nm.matmul(*map(made, plain), kind)
    assert torch.equal(got.view(torch.int32), torch.stack(apart).view(torch.int32))
    assert min(held) <= 5 * 64, "the shared operand's planes have one batch"


def test_fp8_enters_mma_sync_as_fp16():
    """E4M3's 2^-9 has the exponent -9 in FP16, where it is normal: beside E5M2 operands that decides what is cut."""
    # 112 - 112 + 2^-19, emax = -9 + 15: in one step of k % 4 in {0, 1}, 2^(emax - 25) = 2^-19 stays
    a = torch.tensor([[2.0**-9, -(2.0**-9), 0.0, 0.0, 2.0**-3]])
    b = torch.tensor([[1.75 * 2.0**15, 1.75 * 2.0**15, 0.0, 0.0, 2.0**-16]])
    x = nm.encode(a, nm.E4M3).view(torch.float8_e4m3fn), nm.encode(b, nm.E5M2).view(torch.float8_e5m2)
    for first, second in (x, x[::-1]):
        assert float(nm.matmul(first, second, "mma_sync_fp8_as_fp16")) == 2.0**-19
