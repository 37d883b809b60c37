"""Contract: the study of accumulators measures gaps from exact sums, and its words follow its numbers.

Oracles: gaps worked by hand; rational sums of a few products; frames made for the purpose.
"""

import math
from fractions import Fraction

import pandas as pd
import pytest
import torch

import numerics as nm
from studies import accumulation, accumulation_draw, accumulation_find
from studies.accumulation import DATA, ROWS, Gap, data, operand
from studies.interval import Interval

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_gap_worked_by_hand() -> None:
    gap = Gap.of(torch.tensor([[2.5, 4.0]]), torch.tensor([[3.0, 4.0]]))
    assert gap.error == 0.1  # sqrt(0.25 / 25)
    assert gap.bias == -0.06  # -0.5 * 3 / 25
    assert gap.largest == pytest.approx(1 / 6, rel=1e-15)


@pytest.mark.parametrize("kind", DATA)
def test_operands_hold_what_the_accumulator_takes(kind: str) -> None:
    a, b = data(kind, 3, 4, 64)
    assert a.shape == b.shape == (4, 64)
    for name, fmt in ROWS.items():
        p, q = operand(a, fmt), operand(b, fmt)
        exact = nm.matmul(p, q)
        if isinstance(p, torch.Tensor):  # the oracle: a rational sum
            total = sum(Fraction(x) * Fraction(y) for x, y in zip(p[1].tolist(), q[2].tolist(), strict=True))
            assert float(total) == pytest.approx(float(exact[1, 2]), rel=2**-23)
        assert Gap.of(nm.matmul(p, q, name), exact).error < 0.01


def test_data_are_what_they_are_called() -> None:
    a, b = data("one sign", 0, 4, 64)
    assert bool((a >= 0).all()) and bool((b >= 0).all())
    a, b = data("cancelling", 0, 4, 64)
    pairs = (a * b).view(4, 32, 2)
    assert float(pairs.sum(-1).abs().mean()) < 0.1 * float(pairs.abs().mean())
    with pytest.raises(ValueError, match="kind='even': use one of random, one sign, cancelling"):
        data("even", 0, 4, 64)


def test_splits_are_promotions_and_promotion_helps() -> None:
    rows = accumulation.options(1, 6)
    for kind in accumulation.OPTION_DATA:
        part = rows[rows.data == kind]
        promoted = part[part.option == "promote"].set_index("value").error
        split = part[part.option == "splits"].set_index("value").error
        assert all(split[s] == promoted[accumulation.LONG // s] for s in accumulation.SPLITS)
        assert promoted[128] < 0.3 * promoted[accumulation.LONG]
    one_sign = rows[(rows.data == "one sign") & (rows.value == accumulation.LONG)]
    assert bool((one_sign.bias < -0.03).all())  # cut toward zero, chained 128 times


def test_scaled_blocks_are_the_products_of_what_is_stored() -> None:
    a, b = (nm.quantize(x, nm.MXFP8) for x in data("random", 5, 6, 96))
    exact = nm.matmul(a, b)
    found = accumulation.scaled_blocks(a, b)
    assert 0 < Gap.of(found, exact).error < 1e-3
    assert not torch.equal(found, exact)


def test_the_recipes_error_is_that_of_quantization() -> None:
    rows = accumulation.shares(2, 32, 512)
    assert set(rows["product"]) == {"fprop, NVFP4", "wgrad, MXFP8"}
    assert bool((rows.accumulation < 1e-6 * rows.quantization).all())
    by_name = rows.set_index("accumulator").accumulation
    assert by_name["hopper_fp8, scaled every 32"] > 0
    assert bool(rows.quantization.between(0.005, 0.03).all())


def _frames(error: float, promoted: float) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Two seeds of two accumulators, hopper_fp8 with this error."""
    wobble = (1.0, 1.01)
    length = pd.DataFrame(
        {"accumulator": name, "data": kind, "k": k, "seed": s, "error": e * k * wobble[s], "bias": -e * wobble[s]}
        for name, e in (("hopper_fp8", error), ("blackwell_nvfp4", 0.0))
        for kind in DATA
        for k in (64, 128)
        for s in (0, 1)
    )
    option = pd.DataFrame(
        {"option": "promote", "value": n, "data": kind, "seed": s, "error": e * wobble[s], "largest": e * wobble[s]}
        for n, e in ((32, promoted / 2), (128, promoted), (4096, error))
        for kind in accumulation.OPTION_DATA
        for s in (0, 1)
    )
    share = pd.DataFrame(
        {"product": "fprop", "accumulator": "library", "seed": s, "quantization": 0.01, "accumulation": 1e-4,
         "total": 0.01 * wobble[s]}
        for s in (0, 1)
    )  # fmt: skip
    return length, option, share


def test_the_finding_follows_the_numbers() -> None:
    told = accumulation_find.summary(*_frames(0.002, 0.0002))
    words = accumulation_find.find(told)
    assert "At K = 128" in words and "0.26 ± 0.02 (hopper_fp8)" in words
    assert "without error: blackwell_nvfp4" in words
    assert "growing as K to the 1.00" in words
    assert "Sums shrink, beyond the interval, under hopper_fp8." in words
    assert "10 times" in words and "accumulation is at most 0.01 ± 0.0006 of the whole (fprop by library)" in words
    other = accumulation_find.find(accumulation_find.summary(*_frames(0.004, 0.001)))
    assert "4 times" in other and "0.51 ± 0.03 (hopper_fp8)" in other


def test_published_numbers_are_judged() -> None:
    frame = accumulation_find.published(_frames(0.02, 0.001)[1]).frame
    assert list(frame.verdict) == ["agrees", "agrees"]
    assert list(accumulation_find.published(_frames(0.2, 0.001)[1]).frame.verdict) == ["differs", "differs"]


def test_figures_show_every_accumulator_and_interval() -> None:
    length, option, share = _frames(0.002, 0.0002)
    figure = accumulation_draw.draw(length)
    assert [ax.get_title() or ax.get_title(loc="left") for ax in figure.axes] == list(DATA)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(lines["hopper_fp8"].get_ydata()) == pytest.approx([0.002 * 64 * 1.005, 0.002 * 128 * 1.005])
    assert min(lines["blackwell_nvfp4"].get_ydata()) == accumulation_draw.FLOOR
    assert set(ROWS) == set(accumulation_draw.LOOKS)
    assert len(accumulation_draw.draw_options(option, share).axes) == 2


def test_growth_is_left_out_where_a_sum_was_exact() -> None:
    told = accumulation_find.summary(*_frames(0.002, 0.0002))
    assert set(told["growth"]) == {"hopper_fp8"}
    assert isinstance(told["growth"]["hopper_fp8"], Interval) and math.isclose(told["growth"]["hopper_fp8"].mean, 1.0)
