"""The transpose study: which formats are the same from both sides, what is lost, and that the finding follows the data.

Oracle: closed forms of the ratio at which a value or a scale is lost, from the scalar twin's scales; the published
transpose figure; errors by hand. Levels of random numbers are gated at three spreads over seeds.
"""

from fractions import Fraction

import pandas as pd
import pytest
import torch

import numerics as nm
from numerics import oracle
from studies import transpose_mismatch as study
from studies import transpose_mismatch_block as small
from studies import transpose_mismatch_data as data

N = 128


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    torch.set_num_threads(1)
    parts = [
        data.measure_seed(kind, seed, N, list(data.SIZES)) for kind in ("scattered", "channels") for seed in (0, 1)
    ]
    return pd.concat(parts, ignore_index=True)


def of(rows: pd.DataFrame, kind: str, size: float, case: str) -> pd.Series:
    part = rows[(rows.kind == kind) & (rows["size"] == size) & (rows.case == case)]
    return part.mean(numeric_only=True)


def test_the_main_claim(rows: pd.DataFrame) -> None:
    """Plain NVFP4 differs in three of four entries, tiles in none, MXFP8 in next to none; errors add up."""
    plain, tile, mx = (of(rows, "scattered", 1.0, case) for case in ("NVFP4 1x16", "NVFP4 16x16", "MXFP8 1x32"))
    assert plain.differ == pytest.approx(0.768, abs=0.015) and tile.differ == 0 == tile.mismatch
    assert mx.differ < 1e-3
    # spread over seeds of 16 K values: 2 %
    assert 1e3 * plain.mismatch == pytest.approx(17.0, rel=0.06)
    assert 0.88 < plain.mismatch / (plain.error_rows + plain.error_columns) < 1
    assert (rows[rows.case.isin(["NVFP4 16x16", "FP8 128x128"])].differ == 0).all()


def test_channels_hurt_along_rows_only(rows: pd.DataFrame) -> None:
    """Along columns a channel has blocks of its own, so that others keep their values until scales are lost."""
    none, wide = (of(rows, "channels", size, "MXFP4 1x32") for size in (1.0, 64.0))
    assert wide.flush_columns == pytest.approx(none.flush_columns, abs=2e-3)
    assert wide.flush_rows > 3 * none.flush_rows


def test_comparison_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 100.0], [3.0, 4.0, 0.0]])
    ordinary = x != 100
    rows, columns = x.clone(), x.clone()
    rows[0, 0], columns[1, 1], columns[0, 2] = 0.0, 5.0, 90.0
    found = data.compare(x, ordinary, rows, columns)
    energy, small_energy = 10030.0, 30.0
    assert found == pytest.approx(
        {
            "differ": 3 / 6,
            "mismatch": (1 + 1 + 100) / energy,
            "error_rows": 1 / energy,
            "error_columns": 101 / energy,
            "error_of_ordinary_rows": 1 / small_energy,
            "error_of_ordinary_columns": 1 / small_energy,
            "flush_rows": 1 / 4,
            "flush_columns": 0.0,
        },
        rel=1e-12,
    )


def test_data() -> None:
    """Outliers have the size asked for, ordinary entries those of size 1; sizes change nothing else."""
    for kind in ("scattered", "channels"):
        none, _ = data.data(kind, 1.0, 0, N)
        x, ordinary = data.data(kind, 64.0, 0, N)
        assert torch.equal(x[ordinary], none[ordinary])
        expected = 64 * (none.sign() if kind == "scattered" else none)[~ordinary]
        assert torch.equal(x[~ordinary], expected) and 0 < int((~ordinary).sum()) < N * N / 32
    with pytest.raises(ValueError, match="kind='diagonal'"):
        data.data("diagonal", 1.0, 0, N)


def test_transpose_figure() -> None:
    """64 -> 66, 16 -> 16.5, 4 -> 5.5, 1 -> 0 at scale 11; and the block's losses, counted from its maxima."""
    most = small.becomes().set_index("block maximum").loc[64.0]
    assert most["scale"] == 11.0
    assert [most[f"{v} becomes"] for v in (0, 1, 4, 16, 64)] == ["0", "0", "5.5", "16.5", "66"]
    x = small.block()
    assert set(x.flatten().tolist()) == set(small.VALUES) and float(x[small.PEAK]) == 64 and int((x == 64).sum()) == 1
    lost = [int(((v == 0) & (x != 0)).sum()) for v in small.views(x).values()]
    ones = x == 1  # only ones are lost, and only beside the 64
    assert lost == [0, int(ones[small.PEAK[0]].sum()), int(ones[:, small.PEAK[1]].sum()), int(ones.sum())]


def test_reach_follows_the_scales() -> None:
    """A value is lost at or below half the least element: s / 4 in E2M1, s / 1024 in E4M3 (the tie is even, zero)."""
    found = small.reaches().set_index("format")
    maxima = [1 + i / 256 for i in range(256)]
    sixth = [oracle.mul32(m, oracle.div32(1.0, 6.0)) for m in maxima]
    steps = {
        "NVFP4 1x16": [Fraction(nm.E4M3.value(oracle.nearest(v, nm.E4M3))) / 4 for v in sixth],
        "MXFP4 1x32": [Fraction(nm.E8M0.value(oracle.rceil(m, nm.E2M1))) / 4 for m in maxima],
        "MXFP8 1x32": [Fraction(nm.E8M0.value(oracle.rceil(m, nm.E4M3))) / 1024 for m in maxima],
        "FP8 1x128": [Fraction(m) / 448 / 1024 for m in maxima],
    }
    for name, lost in steps.items():
        ratios = [float(Fraction(m) / step) for m, step in zip(maxima, lost, strict=True)]
        # the least survivor is one float32 above the tie, and FP32 quotients round: 2^-22
        assert found.least[name] == pytest.approx(min(ratios), rel=2**-22)
        assert found.largest[name] == pytest.approx(max(ratios), rel=2**-22)


def test_where_scales_are_lost() -> None:
    """s = bmax F / amax rounds to zero at 2^-10 and below: amax / bmax = 1024 F, and 1.5 times that for candidate 4."""
    assert small.losses() == {"plain": 1024 * 448.0, "candidate 6": 1024 * 256.0, "four-over-six": 1536 * 256.0}


def test_published_numbers_agree_or_say_why(rows: pd.DataFrame) -> None:
    frame = study.published(rows, small.becomes(), small.losses()).frame
    differs = frame[frame.verdict == "differs"]
    assert set(differs.quantity) <= {"the same, 4/6", "entries that differ in %, MXFP8"}
    explained = frame[frame.quantity.isin(["the same, 4/6", "entries that differ in %, MXFP8"])].explanation
    assert len(explained) == 2 and not explained.isin(["", "not explained"]).any() and (frame.source != "").all()


def test_words_follow_the_numbers(rows: pd.DataFrame) -> None:
    text = " ".join(study.find(rows, small.reaches(), small.losses()))
    plain = study.summarize(rows)["scattered", 1.0, "NVFP4 1x16"]
    assert f"differ in {plain['differ'].text(1, 100)} % of entries" in text
    assert "A tile of 16x16 never differs" in text and "nearly as two independent roundings" in text
    assert "A power-of-two scale moves the grid onto itself" in text and "1.5 times the ratio" in text
    other = rows.copy()
    other.differ = 0.25
    other.mismatch /= 2
    losses = {"plain": 1.0, "candidate 6": 2.0, "four-over-six": 2.0}
    text = " ".join(study.find(other, small.reaches(), losses))
    assert "A tile of 16x16 differs in up to 25.0%" in text and "not as independent ones" in text
    assert "power-of-two" not in text and "no source we know" not in text


def test_saved_rows_are_requantized_along_columns() -> None:
    """Half of each row is too small for a scale that it shared with the other half, but not for its columns' own."""
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    x[:, 16:] *= 2.0**-17
    rows, columns = data.CASES["NVFP4 saved, MXFP8"].decode(x, 0)
    assert (rows[:, 16:] != 0).any() and bool(((columns - rows).abs() <= rows.abs() / 8).all())
