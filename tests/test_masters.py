"""Contract of reference.masters: values that a recipe quantizes to given codes, scales and outer scale.

Oracle: the quantizer itself. Blocks span 22 powers of two, so that scales are subnormal or zero; rows are zero, experts
small; outers are powers of two or not; what is quantized is FP32 or BF16. Four-over-six chooses by an error that the
moved values change: there blocks down to 2^-8 of the largest are claimed alone.
"""

import pytest
import torch
from torch import Tensor

import numerics as nm
from numerics import BlockFormat, BlockTensor
from numerics.ops import Cast, quantize_tokens
from reference import packed
from reference.masters import masters, settle


def weight(seed: int, powers: int) -> Tensor:
    """(4, 64, 128)."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.exp2(-powers * torch.rand(4, 64, 8, 1, generator=generator))
    x = (torch.randn(4, 64, 8, 16, generator=generator) * spread).flatten(-2)
    x[1, 3], x[2] = 0, x[2] * 1e-3
    return x.to(torch.bfloat16).to(torch.float32) if seed % 2 else x


def rising(seed: int) -> Tensor:
    """(4, 64, 128) whose outer scales are powers of two that a little less would halve."""
    x = torch.randn(4, 64, 128, generator=torch.Generator().manual_seed(seed)).clamp(-1343, 1343)
    x[:, 0, 0] = 1344.5
    return x


def again(q: BlockTensor, cast: Cast, settled: bool = True) -> BlockTensor:
    """Quantize the masters."""
    kind = packed.kind_of(cast, "compressed-tensors")
    assert kind is not None
    found = torch.stack([masters(packed.matrix(q, kind, expert, 0, None)) for expert in range(4)])
    if q.outer is not None and settled:
        found = torch.stack([settle(x, outer.reshape(())) for x, outer in zip(found, q.outer, strict=True)])
    return quantize_tokens(found, cast)


def differ(q: BlockTensor, r: BlockTensor) -> list[int]:
    """Codes, scales and outers that differ."""
    pairs = [(q.codes, r.codes), (q.scales, r.scales)]
    if q.outer is not None and r.outer is not None:
        pairs.append((q.outer, r.outer))
    return [int((a != b).sum()) for a, b in pairs]


CASES = [
    *((fmt, outer, 22) for fmt in (nm.NVFP4, nm.NVFP4_2D) for outer in (None, "pow2")),
    (nm.NVFP4_46, None, 8),
    (nm.MXFP8, None, 22),
    (nm.MXFP4, None, 22),
]


@pytest.mark.parametrize("fmt, outer_rounding, powers", CASES, ids=lambda x: getattr(x, "name", x))
def test_masters_give_the_codes_again(fmt: BlockFormat, outer_rounding: str | None, powers: int) -> None:
    cast = Cast(fmt, "leading" if fmt.outer else None, outer_rounding=outer_rounding)
    for seed in range(20):
        q = quantize_tokens(weight(seed, powers), cast)
        assert not any(differ(q, again(q, cast)))


def test_without_the_moves_they_would_not() -> None:
    """What the codes stand for is not enough, or the tests above could not fail."""
    for fmt in (nm.NVFP4, nm.MXFP8, nm.MXFP4):
        cast = Cast(fmt, "leading" if fmt.outer else None)
        q = quantize_tokens(weight(0, 22), cast)
        assert differ(q, quantize_tokens(q.dequantize(), cast))[1] > 0
    cast = Cast(nm.NVFP4, "leading", outer_rounding="pow2")
    found = [quantize_tokens(rising(seed), cast) for seed in range(20)]
    assert not any(any(differ(q, again(q, cast))) for q in found)
    assert sum(differ(q, again(q, cast, settled=False))[2] for q in found) > 0


def test_values_move_within_what_their_codes_stand_for() -> None:
    """So the codes are those of the values under the old scales too: the nearest of each, or zero where all are."""
    q = quantize_tokens(weight(2, 22), cast := Cast(nm.NVFP4, "leading"))
    kind = packed.kind_of(cast, "modelopt")
    assert kind is packed.NVFP4
    for expert in range(4):
        m = packed.matrix(q, kind, expert, 0, None)
        scales = nm.decode(m.scales, nm.E4M3).repeat_interleave(16, -1)
        nearest = nm.encode(masters(m) / (scales * m.outer), nm.E2M1)
        assert torch.equal(nearest[scales > 0], m.codes[scales > 0])


def test_an_outer_of_another_rule_is_left_alone() -> None:
    values = torch.linspace(-1, 1, 64).view(4, 16)
    assert torch.equal(settle(values, torch.tensor(3.0)), values)
