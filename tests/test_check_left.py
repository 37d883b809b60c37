"""A pass of `fourbit check` means that x can be had back: values, outer scales, contracts and random words.

Contract: values are right in the direction in which the outer is stored, and in no other; an outer under which too
little of x is left fails and is counted, a sound calibration passes; codes of stochastic rounding satisfy no contract
that rounds to nearest; random words that are shared are named. Oracle: values are code * scale * factor with the factor
written here; outers are multiples of the amax; words are drawn here and rounding is written out.
"""

import pytest
import torch
from torch import Tensor

import numerics as nm
from hw.check import check
from numerics.scales import DIALECTS

Dump = dict[str, Tensor]
RANDOM = torch.Generator().manual_seed(5)
X = torch.randn(32, 128, generator=RANDOM) * 0.02
A = X.abs().max()


def dump_of(name: str, x: Tensor = X, outer: Tensor | None = None) -> Dump:
    q = DIALECTS[name].quantize(x, outer=outer)
    return {"x": x, "codes": q.codes, "scales": q.scales} | ({} if q.outer is None else {"outer": q.outer})


def inner(d: Dump) -> Tensor:
    """Code times block scale, exact in float32."""
    s = nm.decode(d["scales"], nm.E4M3).repeat_interleave(16, -1)
    return nm.decode(d["codes"], nm.E2M1) * s


# Values. The factor to multiply by, from the tensor's amax, and what may be done wrongly with what is stored.

FACTOR = {
    "modelopt": A / 2688,
    "compressed_tensors": A / 2688,
    "te": A / 2688,
    "te_46": A / 1536,
    "fourbit_46": A / 1536,
}
WRONG = {
    "modelopt": "it is divided by",
    "fourbit_46": "it is divided by",
    "compressed_tensors": "it is multiplied in",
    "te": "amax is multiplied in, without 1/2688",
    "te_46": "amax is multiplied in, without 1/1536",
}


@pytest.mark.parametrize("name", FACTOR)
def test_values_are_right_in_one_direction(name: str):
    dtype = torch.bfloat16 if "46" in name else torch.float32
    d = dump_of(name)
    right = (inner(d).double() * FACTOR[name].double()).to(dtype)
    ours = DIALECTS[name].dequantize(DIALECTS[name].quantize(X)).to(dtype)
    assert check(d | {"values": ours}, contract=name)
    assert torch.allclose(right.float(), ours.float(), rtol=2**-7)
    stored = inner(d) / d["outer"] if "divided" in WRONG[name] else inner(d) * d["outer"]
    report = check(d | {"values": stored.to(dtype)}, contract=name)
    words = f"the outer scale is used in the wrong direction in values: {WRONG[name]}"
    assert not report and words in report.faults[0], str(report)


def test_values_of_arithmetic_in_bfloat16_pass():
    d = dump_of("compressed_tensors", X.bfloat16())
    step = (nm.decode(d["scales"], nm.E4M3) / d["outer"]).bfloat16().repeat_interleave(16, -1)
    values = nm.decode(d["codes"], nm.E2M1).bfloat16() * step
    report = check(d | {"values": values})
    assert report and "both rounded to bfloat16" in str(report)
    assert not check(d | {"values": values * d["outer"].bfloat16()})


@pytest.mark.parametrize("factor", [0.0, -1.0, 3.0])
def test_values_times_a_number_fail_and_name_it(factor: float):
    d = dump_of("fourbit")
    report = check(d | {"values": inner(d) * d["outer"] * factor})
    assert not report and f"each {factor:g} times as large" in report.faults[0], str(report)


def test_one_row_of_values_under_the_outer_of_another_fails():
    outer = X.abs().amax(-1, keepdim=True) / 2688
    d = dump_of("modelopt", outer=outer)
    right = inner(d) * outer
    assert check(d | {"values": right})
    neighbour = right.clone()
    neighbour[7] = (inner(d) * outer.roll(1, 0))[7]
    report = check(d | {"values": neighbour})
    assert not report and "the first at (7, " in report.faults[0] and "times as large" in report.faults[0], str(report)


def test_values_of_one_expert_without_its_outer_are_named():
    x = X.reshape(4, 8, 128)
    outer = x.abs().amax((-1, -2), keepdim=True) / 2688
    d = dump_of("modelopt", x, outer=outer)
    values = inner(d) * outer
    values[2] = inner(d)[2]
    report = check(d | {"values": values})
    words = "the outer scale is lost in values: they are code * scale alone; "
    assert not report and report.faults[0].startswith(words), str(report)
    assert "in 8 of 32 rows, the first at (2, 0, " in report.faults[0]


@pytest.mark.parametrize("name", ["compressed_tensors", "te_46"])
def test_an_outer_that_the_dump_lacks_is_no_licence(name: str):
    d = dump_of(name)
    del d["outer"]
    right = DIALECTS[name].dequantize(DIALECTS[name].quantize(X))
    assert check(d | {"values": right}, contract=name)
    report = check(d | {"values": inner(d)}, contract=name)
    assert not report and "the outer scale is lost in values" in report.faults[0], str(report)
    assert not check(d | {"values": 2 * right}, contract=name)


@pytest.mark.parametrize(("size", "words"), [(1e6, "2 are infinite"), (1e-9, "0 are infinite")])
def test_values_that_their_dtype_cannot_hold_fail(size: float, words: str):
    x = torch.where(torch.arange(4096).reshape(32, 128) % 2048 == 5, 1.0, 0.01) * size
    d = dump_of("fourbit", x)
    report = check(d | {"values": (inner(d) * d["outer"]).half()})
    assert not report and "values overflow or vanish in float16" in report.faults[0] and words in report.faults[0]


def test_a_stored_direction_that_the_contract_does_not_have_fails():
    d = dump_of("modelopt")
    other = d | {"outer": 1 / d["outer"]}
    assert check(other)
    report = check(other, contract="modelopt")
    assert not report and "the outer scale is stored in another direction" in report.faults[0], str(report)


# Outers. 256 blocks.


@pytest.mark.parametrize(("name", "times"), [("te", 0.5), ("compressed_tensors", 0.5), ("modelopt", 4.0), ("te", 1e3)])
def test_a_calibrated_outer_passes(name: str, times: float):
    own = DIALECTS[name].quantize(X).outer
    stored = own / times if DIALECTS[name].direction == "encode" else own * times
    report = check(dump_of(name, outer=stored), contract=name)
    assert report, str(report)
    clipped = int((X.view(32, 8, 16).abs().amax(-1) > 9 / 8 * times * A).sum())
    assert (f"of 256 blocks {clipped} saturate, 0 vanish" in str(report)) == (clipped > 0) == (times < 1)


@pytest.mark.parametrize(
    ("name", "times"), [("te", 1 / 8), ("compressed_tensors", 1 / 4), ("modelopt", 1e-30), ("compressed_tensors", 1e7)]
)
def test_an_outer_that_leaves_nothing_fails(name: str, times: float):
    own = DIALECTS[name].quantize(X).outer
    stored = own / times if DIALECTS[name].direction == "encode" else own * times
    report = check(dump_of(name, outer=stored), contract=name)
    assert not report and "the outer scale is" in report.faults[0] and "of 256 blocks" in report.faults[0], str(report)


@pytest.mark.parametrize(
    ("name", "value"), [("te", 0.0), ("te", -1.0), ("modelopt", torch.nan), ("flashinfer", torch.inf)]
)
def test_an_outer_that_is_no_scale_fails(name: str, value: float):
    outer = torch.full((1, 1), value)
    d = dump_of(name, outer=outer)
    for dump in (d, dump_of(name) | {"outer": outer}):  # bytes that follow from it, and bytes of a sound one
        report = check(dump, contract=name)
        assert not report and f"the outer scale is {value:g}" in report.faults[0], str(report)


@pytest.mark.parametrize(("times", "row"), [(1e-3, 0), (1e8, 31), (0.0, 5)])
def test_one_bad_outer_among_rows_fails(times: float, row: int):
    outer = X.abs().amax(-1, keepdim=True) / 2688
    assert check(dump_of("modelopt", outer=outer))
    outer[row] *= times
    report = check(dump_of("modelopt", outer=outer))
    assert not report and f"at block ({row}, 0): of 8 blocks" in report.faults[0], str(report)


def test_one_expert_without_its_outer_fails():
    x = X.reshape(4, 8, 128)
    outer = x.abs().amax((-1, -2), keepdim=True) / 2688 * 1.5
    assert check(dump_of("modelopt", x, outer=outer))
    outer[2] = 1e5  # under 1 the scales of its blocks would be small, and hold it
    report = check(dump_of("modelopt", x, outer=outer))
    assert (
        not report
        and "the outer scale is 100000 at block (2, 0, 0): of 64 blocks 0 saturate, 64 vanish" in report.faults[0]
    ), str(report)


@pytest.mark.parametrize("name", ["modelopt", "te"])
def test_a_nan_that_reaches_the_outer_is_the_dialects_own(name: str):
    x = X.clone()
    x[3, 5] = torch.nan
    report = check(dump_of(name, x), contract=name)
    assert report and "of 255 blocks 0 saturate, 0 vanish, 255 decode to NaN or infinity" in str(report)


def test_zeros_whose_scales_are_nan_pass_and_are_counted():
    report = check(dump_of("torchao", torch.zeros(4, 32)), contract="torchao")
    assert report and "of 8 blocks 0 saturate, 0 vanish, 8 decode to NaN or infinity, as torchao has it" in str(report)


# Contracts and random words.


def drawn(words: Tensor, x: Tensor = X) -> Dump:
    """Magnitudes go to the next code where their share of the way exceeds the word, uniform in [0, 1)."""
    d = dump_of("fourbit", x)
    step = nm.decode(d["scales"], nm.E4M3).repeat_interleave(16, -1).double() * d["outer"].double()
    y, grid = (x.double() / step).abs().clamp(max=6), torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    low = torch.searchsorted(grid, y, right=True).sub(1).clamp(max=6)
    share = (y - grid[low]) / (grid[low + 1] - grid[low])
    return d | {"codes": (low + (words < share) + 8 * (x < 0)).to(torch.uint8)}


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(6))


def test_stochastic_codes_satisfy_no_contract_that_rounds_to_nearest():
    d = drawn(uniform(32, 128))
    assert check(d)
    for name in ("modelopt", "te"):
        report = check(d, contract=name)
        assert not report and f"codes are stochastic; {name} rounds to nearest" in report.faults[0], str(report)


HALVES = uniform(32, 64)
SHARED = {
    "a block": (uniform(32, 8).repeat_interleave(16, -1), "one random word serves each run of 16 values"),
    "a lane of four": (uniform(32, 32).repeat_interleave(4, -1), "one random word serves each run of 4 values"),
    "every row": (uniform(1, 128).expand(32, 128), "every row has the same random words"),
    "a seed twice": (uniform(16, 128).repeat(2, 1), "the random words repeat every 16 rows"),
    "a tile": (uniform(32, 32).repeat(1, 4), "the random words repeat every 32 values"),
    "a row": (uniform(32, 1).expand(32, 128), "one random word serves each run of 128 values"),
    "antithetic": (
        torch.stack([HALVES, 1 - HALVES], -1).flatten(-2),
        "the random words of values 1 apart are correlated",
    ),
    "some of a column": (
        uniform(2, 128).repeat_interleave(16, 0),
        "the random words of values 128 apart are correlated",
    ),
    "one": (torch.full((32, 128), 0.4), "codes go to the farther neighbour from 0.400 of the way on"),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_random_words_are_named(name: str):
    words, text = SHARED[name]
    report = check(drawn(words))
    assert not report and text in report.faults[0], str(report)


def test_words_of_their_own_are_not_called_shared():
    """Of x whose rows are alike, too."""
    g = torch.Generator().manual_seed(7)
    for x in (torch.randn(32, 128, generator=g), torch.randn(1, 128, generator=g).expand(32, 128).contiguous()):
        for _ in range(3):
            report = check(drawn(torch.rand(32, 128, generator=g), x))
            assert report, str(report)


# Products: NaN is no excuse, and codes that include NaN have no advantage.

WIDE = torch.randn(24, 64, generator=RANDOM)


def product(fmt: nm.BlockFormat, x: Tensor = WIDE, **changes: Tensor) -> Dump:
    a, b = nm.quantize(x, fmt), nm.quantize(WIDE[:8], fmt)
    d = {"a_codes": a.codes, "a_scales": a.scales, "b_codes": b.codes, "b_scales": b.scales}
    if fmt.element.bits == 4:
        d |= {name: nm.layout.pack_nibbles(d[name]) for name in ("a_codes", "b_codes")}
    d |= {} if a.outer is None else {"a_outer": a.outer, "b_outer": b.outer}
    return d | {"output": a.dequantize() @ b.dequantize().T} | changes


@pytest.mark.parametrize("rest", [torch.nan, torch.inf, 0.0])
@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP4, nm.MXFP8], ids=lambda fmt: fmt.name)
def test_an_output_of_nan_is_the_formats_own_fault(fmt: nm.BlockFormat, rest: float):
    assert check(product(fmt))
    y = torch.full((24, 8), torch.nan)
    assert check(product(fmt, output=y)).faults[0].startswith("every element is NaN; 192 of 192")
    y[::2] = rest
    report = check(product(fmt, output=y))
    assert not report and report.facts[0].startswith(f"{fmt.name};") and "outside the bound" in report.faults[0]


@pytest.mark.parametrize("value", [0.0, torch.inf, torch.nan, -1.0])
def test_an_outer_that_is_no_scale_fails_a_product_that_follows_from_it(value: float):
    d = product(nm.NVFP4)
    report = check(d | {"a_outer": torch.tensor([value]), "output": d["output"] / d["a_outer"] * value})
    assert not report and f"the outer scale of a is {value:g}: nothing of a is left" in report.faults[0], str(report)


def test_nan_rows_of_an_operand_are_no_fault_but_nan_throughout_is():
    x = WIDE.clone()
    x[3, 40] = torch.nan
    report = check(product(nm.MXFP8, x))
    assert report and "8 elements are NaN or infinite, as the operands or overflow make them" in str(report)
    x[:, 40] = torch.nan
    report = check(product(nm.MXFP8, x))
    assert not report and "every element is NaN, as the operands make it" in report.faults[0], str(report)
