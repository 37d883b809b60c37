"""The Hadamard study: what it measures, its claims on a small sample, and that the finding follows the data.

Oracles: closed forms (a lone spike becomes flat, a constant becomes one coefficient of sqrt n), a product with scipy's
Sylvester matrix in float64, a search through all 65,536 sign vectors of 16, and the crest factors published for real
tensors, which the chosen tail must give. Tolerances are derived where they stand.
"""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.linalg
import torch

import numerics as nm
from studies import hadamard as study
from studies import hadamard_data as data
from studies import hadamard_draw as drawing
from studies import hadamard_table as tables

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def measured(one_thread: None) -> tuple[pd.DataFrame, ...]:
    return study.measure(4, (0, 1, 2), 20)


def test_a_spike_becomes_flat_and_a_constant_one_coefficient() -> None:
    for size in data.SIZES[1:]:
        spike = torch.zeros(1, size)
        spike[0, 5] = -3.0
        assert data.crest(data.transformed(spike, size, nm.hadamard_signs(size, (1, 2))), size) == (1.0, 1.0)
        assert data.largest_of_constant(torch.ones(size)) == pytest.approx(math.sqrt(size), rel=1e-6)
    assert torch.equal(data.transformed(spike, 0, None), spike)


def test_signs_of_16_by_exhaustion() -> None:
    """The largest coefficient of a block of ones lies in 1 to 4 for all signs; Transformer Engine's give 2."""
    matrix = scipy.linalg.hadamard(16)
    every = 1 - 2 * ((np.arange(2**16)[:, None] >> np.arange(16)) & 1)
    largest = np.abs(every @ matrix).max(1) / 4
    assert (largest.min(), largest.max()) == (1.0, 4.0)
    assert data.largest_of_constant(torch.tensor(data.TRANSFORMER_ENGINE)) == 2.0
    for row in every[::4099]:
        assert data.largest_of_constant(torch.from_numpy(row)) == np.abs(row @ matrix).max() / 4


def test_outliers_are_one_in_128_and_spread_over_an_octave() -> None:
    x = data.with_outliers(3, 8, 100.0)
    loud = x.abs() > 60
    assert loud.unflatten(1, (-1, data.SPACING)).sum(-1).unique().tolist() == [1]
    sizes = x[loud].abs()
    assert 100 * 2**-0.5 <= float(sizes.min()) < 75 and 133 < float(sizes.max()) <= 100 * 2**0.5
    assert 0.3 < float((x[loud] > 0).double().mean()) < 0.7
    assert torch.equal(data.with_outliers(3, 8, 0.0), data.normal(3, 8, data.WIDTH))


def test_rows_are_what_a_slow_count_gives() -> None:
    """QSNR and RMS error of one case, from codes and scipy's matrix. The tolerance is the FP32 butterfly's: 1e-5 moves
    a value over a rounding boundary of MXINT8 in 1 of 1000 cases at most, by one step."""
    rows = data.outlier_part(0, 1)
    row = rows[(rows.format == "MXINT8") & (rows.outlier == 64) & (rows["size"] == 32)].iloc[0]
    x = data.with_outliers(0, 1, 64).double().numpy().reshape(-1, 32)
    y = x * nm.hadamard_signs(32, (0, 0)).numpy() @ (scipy.linalg.hadamard(32) / math.sqrt(32))
    exponent = np.ceil(np.log2(np.abs(y).max(1, keepdims=True) / (127 / 64)))
    step = 2.0 ** (exponent - 6)
    error = np.rint(y / step) * step - y
    assert row.rms_error == pytest.approx(math.sqrt((error**2).mean()), rel=1e-3)
    assert row.qsnr == pytest.approx(-10 * math.log10((error**2).sum() / (y**2).sum()), abs=5e-3)
    assert row.crest_mean == pytest.approx((np.abs(y).max(1) / np.sqrt((y**2).mean(1))).mean(), rel=1e-5)


def test_the_tail_has_the_published_crest_factor() -> None:
    """.02: the median of 4096 blocks spreads by .006 from seed to seed."""
    found = [data.crest(data.tails(seed, 32, "Student-t"), 32)[1] for seed in range(2)]
    assert np.mean(found) == pytest.approx(tables.CREST[32][0], abs=0.02)


def test_where_a_transform_helps(measured: tuple[pd.DataFrame, ...]) -> None:
    """The study's claims, far from their margins: nothing on normal numbers, much for integers, a loss for NVFP4."""
    outliers, _, signs, _ = measured
    gains = study.gains(outliers)
    assert all(abs(each[0].mean) < 0.2 for each in gains.values())
    assert gains["MXINT8"][64].mean > 10 and gains["NVINT4"][16].mean > 4 and gains["MXFP4"][16].mean > 3
    assert gains["NVFP4"][64].mean < -3 and abs(gains["MXFP8"][8].mean) < 0.3
    ratio = {key: study.sign_ratio(each) for key, each in signs.groupby(["format", "offset"])}
    assert study.verdict(ratio["MXINT8", 8]) == -1 and study.verdict(ratio["MXFP4", 2]) == -1
    assert study.verdict(ratio["NVFP4", 32]) == 1 and ratio["MXFP4", 32].mean > 0


def test_the_integer_wins_behind_a_transform(measured: tuple[pd.DataFrame, ...]) -> None:
    table = tables.winners_table(measured[0]).set_index(["pair", "transform"])["INT ahead at"]
    assert table["MXINT8 / MXFP8", "none"] == table["MXINT8 / MXFP8", "32"] == "8 of 8"
    assert table["NVINT4 / NVFP4", "32"] == "8 of 8" and table["NVINT4 / NVFP4", "none"] != "8 of 8"


def test_the_finding_follows_the_rows(measured: tuple[pd.DataFrame, ...]) -> None:
    outliers, tails, signs, constants = measured
    found = " ".join(study.find(*measured))
    gain = study.gain(tails[(tails.data == "Student-t") & (tails.format == "MXFP4")], 32)
    assert f"MXFP4 {gain.text(2)}" in found and "3 seeds of n = 16,384 values" in found
    lower = outliers.assign(qsnr=outliers.qsnr - 30.0 * ((outliers["size"] == 32) & (outliers.outlier > 0)))
    others = " ".join(study.find(lower, tails, signs.assign(rms_error=1.0), constants))
    assert ") lose. The integer" in others
    assert ") gain" not in others and "do either" not in others
    assert "MXFP4 no other at any m" in others and "the least error of the three in 0 of 54" in others
    quiet = signs.assign(rms_error=signs.rms_error.where(signs.signs != "none", 1e-9))
    assert "the least error of the three in 54 of 54" in " ".join(study.find(outliers, tails, quiet, constants))


def test_published_numbers_stand_beside_ours(measured: tuple[pd.DataFrame, ...]) -> None:
    outliers, tails, _, _ = measured
    table = tables.published_table(tails, outliers).frame
    assert len(table) == 2 * len(tables.QSNR) + 4 and "not explained" not in set(table.explanation)
    row = table[table.quantity == "QSNR of MXFP8, no transform, dB"].iloc[0]
    assert row.published == "31.5" and row.verdict == "agrees"  # E4M3's is nearly the same for all data
    far = tables.published_table(tails.assign(qsnr=tails.qsnr + 1), outliers).frame
    assert (far.verdict[: 2 * len(tables.QSNR)] == "differs").sum() > 12


def test_verdicts_on_claims_follow_the_numbers(measured: tuple[pd.DataFrame, ...]) -> None:
    outliers, tails, signs, _ = measured
    verdicts = tables.claims_table(outliers, tails, signs)["goes with it"].tolist()
    assert verdicts[0] == verdicts[2] == verdicts[5] == "yes" and verdicts[4] == "in part"
    least = max(each.mean for size, each in study.gains(outliers)["NVFP4"].items() if size)
    assert f"to {least:+.1f} dB" in tables.claims_table(outliers, tails, signs)["measured here"][2]
    flat = tables.claims_table(outliers.assign(qsnr=30.0), tails.assign(qsnr=30.0), signs.assign(rms_error=1.0))
    assert flat["goes with it"].tolist() == ["in part", "no", "no", "yes", "no", "in part"]


def test_run_is_complete(measured: tuple[pd.DataFrame, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "measure", lambda *_: measured)
    result = study.STUDY.run(True)
    assert [plate.name for plate in result.plates] == ["block", "signs"] and len(result.tables) == 6
    assert len(result.rows) == sum(map(len, measured[:3])) and " ".join((result.finding, *result.details)).startswith(
        "On normal numbers"
    )
    assert set(drawing.SIGN_FORMATS) <= set(data.FORMATS) and len(drawing.block(0)[0].axes) == 4
