"""The requantization study: unbiasedness, its price, the worked example, and that the finding follows the data.

Oracle: the definition of unbiasedness (independent errors average out as 1/n), published error levels of the two
operands, and the numbers of the article's worked example. Tolerances are derived where they stand.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import numerics as nm
from studies import requantization as study

SIZE = 256  # 64 K values


pytestmark = pytest.mark.usefixtures("one_thread")


def require_unbiased(operand: study.Operand, rounding: nm.Rounding, seed: int) -> None:
    """The unbiasedness test: the mean of n draws has error e(1) / n.

    Errors of 64 K values at seven values of n give slopes with a spread of .007 from seed to seed; .02 is about three
    times that, far below what any bias that matters here would change, and seeds are fixed.
    """
    q = operand.make(seed, SIZE)
    curve = dict(study.errors_of_mean(q, operand.outer, rounding, seed))
    assert q.codes.numel() >= 2**16 and tuple(curve) == study.DRAWS
    slope = study.slope(study.DRAWS, tuple(error.rel_mse for error in curve.values()))
    assert slope == pytest.approx(-1, abs=0.02)


@pytest.mark.parametrize("operand", study.OPERANDS, ids=lambda operand: operand.name)
def test_stochastic_rounding_is_unbiased(operand: study.Operand) -> None:
    for seed in range(2):
        require_unbiased(operand, nm.Rounding.STOCHASTIC, seed)


@pytest.mark.parametrize("operand", study.OPERANDS, ids=lambda operand: operand.name)
def test_nearest_rounding_fails_the_same_test(operand: study.Operand) -> None:
    with pytest.raises(AssertionError):
        require_unbiased(operand, nm.Rounding.NEAREST_EVEN, 0)


def test_nearest_rounding_has_one_value_however_often_it_is_drawn() -> None:
    q = study.weights(0, 64)
    errors = [error for _, error in study.errors_of_mean(q, "keep", nm.Rounding.NEAREST_EVEN, 0)]
    assert len(set(errors)) == 1
    once = nm.requantize(q, nm.MXFP8, axis=-2, rounding=nm.Rounding.NEAREST_EVEN).dequantize()
    assert errors[0] == nm.metrics.error(q.dequantize(), once.to(torch.float64))


def test_draws_are_independent_of_each_other_and_of_the_order() -> None:
    """Draw i is a function of (seed, i): the mean of 2 is that of the two requantizations made by hand."""
    q = study.activations(3, 64)
    errors = dict(study.errors_of_mean(q, "multiply", nm.Rounding.STOCHASTIC, 3, (1, 2)))
    draws = [
        nm.requantize(q, nm.MXFP8, axis=-2, outer="multiply", random=nm.Random((3, draw))).dequantize()
        for draw in (0, 1)
    ]
    assert not torch.equal(*draws)
    mean = sum(draw.to(torch.float64) for draw in draws) * 0.5
    assert errors[2] == nm.metrics.error(q.dequantize(), mean)


def test_the_price_of_one_draw() -> None:
    """Known levels, in thousandths: activations .709 nearest and 1.415 stochastic, weights .445 and .79 with the outer
    scale kept outside and the largest magnitude fixed at 5.33, which decides the scales. 3 %, because a seed of 256 K
    values spreads by about 1 %; mean of two seeds.
    """
    found = {}
    for seed in range(2):
        x = torch.randn(512, 512, generator=torch.Generator().manual_seed(seed)).clamp(-5.33, 5.33)
        x[0, 0] = 5.33
        a, w = study.activations(seed, 512), nm.quantize(x, nm.NVFP4)
        for name, q, outer in (("activations", a, "multiply"), ("weights", w, "keep")):
            for rounding in study.ROUNDINGS.values():
                [(_, error)] = study.errors_of_mean(q, outer, rounding, seed, (1,))
                found.setdefault((name, rounding.name), []).append(1e3 * error.rel_mse)
    known = {
        ("activations", "STOCHASTIC"): 1.415,
        ("activations", "NEAREST_EVEN"): 0.709,
        ("weights", "STOCHASTIC"): 0.79,
        ("weights", "NEAREST_EVEN"): 0.445,
    }
    assert {key: float(np.mean(values)) for key, values in found.items()} == pytest.approx(known, rel=0.03)


def test_the_worked_example() -> None:
    """5.4 -> .5 * 9 = 4.5; in NVFP4 blocks of scale 2, 2.25 -> 2 or 3, that is 4 (.75) or 6 (.25); exact in MXFP8.

    1024 copies are 15,360 draws, so a share has a standard deviation of .0035; .014 is four of them.
    """
    table = study.worked_example(1024)
    values = {stage: dict(zip(part.value, part["count"], strict=True)) for stage, part in table.groupby("stage")}
    drawn = values.pop("NVFP4, stochastic")
    assert values == {
        "original": {5.4: 15360},
        "saved, NVFP4": {4.5: 15360},
        "NVFP4, nearest": {4.0: 15360},
        "MXFP8, nearest": {4.5: 15360},
        "MXFP8, stochastic": {4.5: 15360},
    }
    assert set(drawn) == {4.0, 6.0} and sum(drawn.values()) == 15360
    assert drawn[6.0] / 15360 == pytest.approx(0.25, abs=0.014)
    assert ((table.low <= table.share) & (table.share <= table.high)).all()


@pytest.fixture(scope="module")
def result(one_thread: None) -> study.Result:
    return study.run(fast=True)


def test_the_fast_run_is_complete(result: study.Result) -> None:
    operands, seeds = len(study.OPERANDS), len(result.seeds)
    assert len(result.rows) == operands * len(study.ROUNDINGS) * seeds * len(study.DRAWS) and seeds >= 5
    assert result.rows.n.unique().tolist() == [2**16]
    assert len(result.figure.axes) == 2
    assert set(result.summary) == {*study.summarize(result.rows), "worked_example"}


def test_the_finding_states_what_was_measured(result: study.Result) -> None:
    for key, found in study.summarize(result.rows).items():
        rounding, operand = key.split(" on ")
        assert f"{found['slope'].text(4)} on {operand}" in " ".join((result.finding, *result.details))
        part = result.rows[(result.rows.operand == operand) & (result.rows.rounding == rounding)]
        curves = part.pivot(index="seed", columns="draws", values="rel_mse")
        slopes = [study.slope(study.DRAWS, tuple(curve)) for curve in curves.to_numpy()]
        assert found["slope"].mean == pytest.approx(np.mean(slopes), rel=1e-12)
        assert found["error_of_one"].mean == pytest.approx(curves[1].mean(), rel=1e-12)
        assert found["error_of_most"].mean == pytest.approx(curves[64].mean(), rel=1e-12)
        assert found["bias"].mean == pytest.approx(part[part.draws == 64].bias.mean(), rel=1e-12)
    assert "n = 1 to 64 draws" in " ".join((result.finding, *result.details)) and "65,536 normal values" in " ".join(
        (result.finding, *result.details)
    )
    inside = "inside the interval of stochastic on activations and stochastic on weights"
    assert f"The -1 of an unbiased quantizer is {inside} and outside the interval of nearest" in " ".join(
        (result.finding, *result.details)
    )


def test_other_data_give_another_finding(result: study.Result) -> None:
    """With errors that fall only as n^-1/2, and with a bias, the same words must say so."""
    rows = result.rows.copy()
    rows.rel_mse = rows.rel_mse.where(rows.rounding == "nearest", rows.rel_mse * np.sqrt(rows.draws))
    rows.bias += 1.0
    found = " ".join(study.find(rows, study.worked_example(16)))
    everything = "stochastic on activations, nearest on activations, stochastic on weights and nearest on weights"
    assert f"The -1 of an unbiased quantizer is outside the interval of {everything}." in found
    assert f"Zero bias is outside the interval of {everything}." in found
    assert "Worked example, 240 draws:" in found


def test_rows_keep_their_bits_in_a_file(result: study.Result, tmp_path: Path) -> None:
    result.rows.to_csv(tmp_path / "rows.csv", index=False)
    read = pd.read_csv(tmp_path / "rows.csv", dtype=str)
    for name, column in result.rows.items():
        assert [type(value)(text) for text, value in zip(read[name], column.tolist(), strict=True)] == column.tolist()
