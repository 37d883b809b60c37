"""Contract of reference.moments: what is stored decodes to what was rounded, without bias, and never stalls.

Oracles: `numerics.quantize`, `numerics.encode` and `numerics.decode` on the same random words; every one of the 2^16
random fields of a number; exact neighbours in the format and the binomial spread between them; a decay in float64.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import numerics as nm
from numerics import BF16, MXFP8, Random, Rounding
from reference.moments import MOMENTS, NVFP4_MOMENT, decode_moment, encode_moment, stored_shapes, words

FORMATS = [None, BF16, MXFP8, NVFP4_MOMENT]
SHAPES = [(4, 64), (3, 5, 7), (1, 33), (17,), (2, 31), (0, 4), ()]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Fields(Random):
    """Given fields in the place of random ones."""

    def fields(self, expert: object, line: Tensor, group: Tensor, element_bits: int) -> Tensor:
        return (torch.arange(len(group) * 16, dtype=torch.int32) % 65536).view(-1, 16)


# ------------------------------------------------------------------------------------------------ what is stored


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: "fp32" if f is None else f.name)
def test_it_decodes_to_what_numerics_makes_of_the_same_words(fmt: object, shape: tuple[int, ...]) -> None:
    x, random = normal(*shape) * 3, words(5, 7, 11, 0)
    stored = encode_moment(x, fmt, random)
    assert {key: (t.shape, t.dtype) for key, t in stored.items()} == stored_shapes(x.shape, fmt)
    back = decode_moment(stored, fmt, x.shape)
    assert back.shape == x.shape and back.dtype == torch.float32
    if fmt is None:
        assert stored[""] is x and torch.equal(back, x)
    elif fmt is BF16:
        groups = torch.arange(-(-x.numel() // 16))
        fields = random.fields(0, torch.zeros_like(groups), groups, 16).reshape(-1)[: x.numel()].view(x.shape)
        assert torch.equal(back, nm.round_to(x, BF16, Rounding.STOCHASTIC, fields))
    else:
        flat = torch.nn.functional.pad(x.reshape(-1), (0, x.numel() % 2))
        q = nm.quantize(flat, fmt, rounding=Rounding.STOCHASTIC, random=random)
        assert torch.equal(back.reshape(-1), q.dequantize()[: x.numel()])


def test_bf16_is_encode_on_every_kind_of_number() -> None:
    """Subnormal numbers, both zeros, the largest ones: everything finite, whose high halves are all there."""
    high = torch.arange(65536, dtype=torch.int32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0xFFFF):
        x = (high | low).view(torch.float32)
        x = x[x.isfinite()]
        fields = Fields((0, 0)).fields(0, x, torch.arange(-(-len(x) // 16)), 16).reshape(-1)[: len(x)]
        expected = nm.decode(nm.encode(x, BF16, Rounding.STOCHASTIC, fields), BF16)
        assert torch.equal(
            encode_moment(x, BF16, Fields((0, 0)))[""].float().view(torch.int32), expected.view(torch.int32)
        )


def test_a_state_takes_the_bytes_that_the_table_says() -> None:
    n = 64 * 1024
    for name, expected in {"fp32": 8, "bf16": 4, "mxfp8": 2.0625, "nvfp4": 1.59375}.items():
        moments, size = MOMENTS[name], 0
        for fmt in (moments.first, moments.second):
            stored = encode_moment(normal(64, 1024).abs(), fmt, words(0, 1, 0, 0))
            size += sum(t.numel() * t.element_size() for t in stored.values())
        assert 0 <= size / n - expected < 1e-4  # NVFP4's outer scale


def test_words_of_moments_are_nobody_elses() -> None:
    """By parameter, moment and step; and above the counters of a model's layers, 64 a layer."""
    counters = {words(0, 1, parameter, moment).counter[0] for parameter in range(1000) for moment in (0, 1)}
    assert len(counters) == 2000 and min(counters) >= 64 * 2**24 and max(counters) < 2**32
    assert words(3, 9, 0, 0).key == (3, 9)
    x = normal(4, 64)
    codes = [encode_moment(x, MXFP8, words(*name))["codes"] for name in ((0, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0))]
    assert not torch.equal(codes[0], codes[1]) and not torch.equal(codes[0], codes[2])


# ------------------------------------------------------------------------------------------------ no bias, no stall


def test_bf16_is_unbiased_exactly() -> None:
    """Over all 2^16 fields a number goes up as often as its discarded bits say."""
    for pattern in (0x3F800001, 0x3F80FFFF, 0x3F808000, 0x00000003, 0x0012ABCD, 0x7F7E1234):
        x = torch.full((65536,), pattern, dtype=torch.int32)
        for sign in (0, -0x80000000):
            back = encode_moment((x | sign).view(torch.float32), BF16, Fields((0, 0)))[""].float().view(torch.int32)
            down = pattern & ~0xFFFF
            assert set(back.tolist()) == {down | sign, (down + 0x10000) | sign}
            assert int((back != down | sign).sum()) == pattern & 0xFFFF


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["bf16", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("which", ["first", "second"])
def test_the_mean_of_many_draws_is_the_value(name: str, which: str) -> None:
    """Of a fixed tensor, n = 1024 steps: each mean within 5.5 standard errors of at most half the distance g of the two
    neighbours (a chance of 4e-8 for each of 192 values), and the 2^-16 of g that 16 random bits cannot tell."""
    fmt = getattr(MOMENTS[name], which)
    x = normal(3, 64, seed=1) * torch.tensor([1.0, 1e-3, 30.0])[:, None]
    x = x if which == "first" else x.square() + 1e-3  # within the range of its block
    draws = []
    for step in range(1024):
        stored = encode_moment(x, fmt, words(2, step, 4, 0), positive=which == "second")
        draws.append(decode_moment(stored, fmt, x.shape).double())
    all_draws = torch.stack(draws)
    gap = all_draws.amax(0) - all_draws.amin(0)
    error = (all_draws.mean(0) - x.double()).abs()
    # a value beside a representable number may never have been drawn on its other side: then it is that close
    assert (error <= 5.5 * gap / 2 / 1024**0.5 + gap * 2.0**-16 + x.abs() * 2.0**-6 * (gap == 0)).all()
    assert (gap > 0).float().mean() > 0.9
    mean = all_draws.mean((0, 1, 2)) - x.double().mean()
    assert mean.abs() <= 5.5 * gap.square().sum().sqrt() / x.numel() / 2 / 1024**0.5 + gap.mean() * 2.0**-16


@pytest.mark.parametrize("fmt", [BF16, MXFP8], ids=lambda f: f.name)
def test_a_second_moment_decays_where_nearest_rounding_stands_still(fmt: object) -> None:
    """beta2 = 0.999 without gradients, 700 steps from 1: nearest BF16 never moves; the mean of 4096 values falls to
    0.999^700 within the spread that random walks of this many steps have. In each block one value is fed, so that the
    scale stays. A step's spread is at most half a unit u = 2^-3 (2^-7 in BF16) of the value; the sum of 700
    of them, independent, decaying, over 4096 values: 5.5 * 0.5 u sqrt(700 / 4096)."""
    v = torch.ones(32, 128)
    start = v[:, ::32].clone()
    nearest = v.clone()
    for step in range(700):
        v = decode_moment(encode_moment(v * 0.999, fmt, words(0, step, 0, 1), positive=True), fmt, v.shape)
        v[:, ::32] = start
        nearest = nm.round_to(nearest * 0.999, BF16)
    assert torch.equal(nearest, torch.ones(32, 128))
    fed = torch.zeros(128, dtype=torch.bool)
    fed[::32] = True
    unit = 2.0**-3 if fmt is MXFP8 else 2.0**-7
    assert abs(v[:, ~fed].mean() - 0.999**700) < 5.5 * 0.5 * unit * (700 / 4096) ** 0.5


def test_nothing_saturates() -> None:
    """A block's largest value stays on average, whatever its mantissa: a clipped one would fall."""
    x = torch.zeros(64, 32)
    x[:, 0] = 1 + torch.arange(64) / 64
    for fmt in (MXFP8, NVFP4_MOMENT):
        draws = [decode_moment(encode_moment(x, fmt, words(0, s, 0, 0)), fmt, x.shape)[:, 0] for s in range(512)]
        worst = (torch.stack(draws).mean(0) / x[:, 0] - 1).abs().max()
        assert worst < 5.5 / 2 / 512**0.5 * (1 / 8 if fmt is MXFP8 else 1 / 2)  # a unit relative to its number


# ------------------------------------------------------------------------------------------------ zeros


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_a_second_moment_is_zero_only_where_it_is(name: str) -> None:
    fmt = MOMENTS[name].second
    v = torch.full((2, 64), 2.0**-60)
    v[:, ::32], v[0, 5], v[1] = 1.0, 0.0, v[1] * 2.0**-80  # a block of its own size at the lower end of float32
    v[1, ::32] = 2.0**-126
    for step in range(20):
        kept = encode_moment(v, fmt, words(0, step, 0, 1), positive=True)
        back = decode_moment(kept, fmt, v.shape)
        assert torch.equal(back == 0, v == 0)
        assert back[0, 1] == 2.0**-9 * 2.0**-8  # the smallest code under the block's scale
        free = decode_moment(encode_moment(v, fmt, words(0, step, 0, 1)), fmt, v.shape)
        assert free[0, 1] == 0  # it is the rule for positive moments that keeps it
    assert torch.equal(decode_moment(encode_moment(v * 0, fmt, words(0, 1, 0, 1), True), fmt, v.shape), v * 0)


def test_formats_of_moments_have_scales_without_saturation() -> None:
    for moments in MOMENTS.values():
        for fmt in (moments.first, moments.second):
            assert fmt in (None, BF16) or fmt.rule.name in ("rceil", "unbiased")
    assert replace(NVFP4_MOMENT, name="NVFP4", rule=nm.NVFP4.rule) == nm.NVFP4
