"""The study `formats`: what it reads off the codes, how it ranks errors, and that its words follow the numbers.

Oracle: the value tables of OCP Microscaling and of arXiv 2509.25149, products of Python fractions, and a slow loop over
blocks. Equal unless a comment says why not.
"""

import math
import re
from fractions import Fraction

import pandas as pd
import pytest
import torch

import numerics as nm
from studies import formats as study
from studies import formats_grids
from studies.interval import stated

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.concat([study.ranks(seed, 128, 256) for seed in range(3)], ignore_index=True)


def test_the_grid_of_e2m1_with_its_steps() -> None:
    table = formats_grids.grid(nm.E2M1)
    assert table.value.tolist() == [0.5, 1, 1.5, 2, 3, 4, 6]
    assert table.spacing.tolist()[:-1] == [1, 0.5, 1 / 3, 0.5, 1 / 3, 0.5] and math.isnan(table.spacing.iloc[-1])
    assert table.normal.tolist() == [False, *[True] * 6]
    fixed = formats_grids.grid(nm.S2F6)
    assert len(fixed) == 127 and fixed.spacing.tolist()[:-1] == pytest.approx([1 / n for n in range(1, 127)], rel=1e-15)


@pytest.mark.parametrize("outer", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["NVFP4", "NVFP4_2D", "NVINT4"])
def test_magnitudes_are_all_products(name: str, outer: float) -> None:
    fmt = nm.BLOCK_FORMATS[name]
    elements = {abs(Fraction(fmt.element.value(code))) for code in range(16)}
    scales = {Fraction(nm.E4M3.value(code)) for code in range(nm.E4M3.max_code + 1)}
    products = sorted({float(e * s * Fraction(outer)) for e in elements for s in scales} - {0.0})
    assert formats_grids.magnitudes(fmt, outer).tolist() == products


def test_magnitudes_of_mx_leave_float32_without_loss() -> None:
    found = formats_grids.magnitudes(nm.MXFP8)
    assert (float(found[0]), float(found[-1])) == (2.0**-136, 448 * 2.0**127)
    with pytest.raises(ValueError, match="FP8_1X128 has float32 scales"):
        formats_grids.magnitudes(nm.FP8_1X128)


def test_nvfp4_magnitudes_fit_bfloat16_where_the_outer_is_a_power_of_two() -> None:
    found = formats_grids.magnitudes(nm.NVFP4, 2.0)
    assert torch.equal(found.to(torch.bfloat16).double(), found)
    whole = [int(v * 1024) for v in found.tolist()]
    slow = max((n // (n & -n)).bit_length() for n in whole)
    assert formats_grids.significant_bits(found) == slow == 6


def test_ranks_against_a_loop() -> None:
    """Sums of float64 in another order: 1e-12."""
    seed, lines, columns = 3, 4, 64
    found = study.ranks(seed, lines, columns).set_index(["format", "rank"])
    x = torch.randn(lines, columns, generator=torch.Generator().manual_seed(seed))
    values = nm.quantize(x, nm.NVFP4).dequantize()
    errors, energies = [0.0] * 17, [0.0] * 17
    for block, decoded in zip(x.reshape(-1, 16).tolist(), values.reshape(-1, 16).tolist(), strict=True):
        for rank, place in enumerate(sorted(range(16), key=lambda i: -abs(block[i])), 1):
            for slot in (0, rank):
                errors[slot] += (decoded[place] - block[place]) ** 2
                energies[slot] += block[place] ** 2
    for rank in range(17):
        assert found.rel_mse["NVFP4", rank] == pytest.approx(errors[rank] / energies[rank], rel=1e-12)
    rest = (errors[0] - errors[1]) / (energies[0] - energies[1])
    part = found.loc["NVFP4"].reset_index()
    assert study._without_first(part) == pytest.approx(-10 * math.log10(rest), rel=1e-12)


def test_the_largest_value_and_no_other_is_as_precise_as_in_mxfp8(rows: pd.DataFrame) -> None:
    """The claim: an eighth bit for 1 value in 16. Samples of 2048 blocks move ranks by some tenths of a dB."""
    found = study.by_rank(rows)
    assert study.share_of_first(rows) == 1 / 16
    assert abs(found["NVFP4"][1].mean - found["MXFP8"][1].mean) < 1
    assert all(other.mean < found["MXFP8"][1].mean - 9 for other in found["NVFP4"][2:])
    gains = study.gains(rows)
    assert gains[0].mean > 0.5 and gains[2].mean > 1 and gains[15].mean < -1


def test_every_published_number_is_met(rows: pd.DataFrame) -> None:
    table = study.claims(rows)
    assert set(table.frame.verdict) == {"agrees"} and len(table.frame) >= 15
    assert table.caption.endswith(f"{len(table.frame)} of {len(table.frame)} published numbers agree.")


def test_the_words_follow_the_numbers(rows: pd.DataFrame) -> None:
    table = study.claims(rows)
    told = " ".join(study.find(rows, table))
    assert "from 2^-10 to 2688, 21.4 binades" in told and "4.5 bits a value, 3.56 times fewer" in told
    assert "6.25 % of all" in told and "holds for that value alone" in told and re.search("raises ranks? 2", told)
    assert re.search(r"lowers ranks .*to 16 \(rank 1\d by 1\.", told)
    worse = rows.copy()
    worse.loc[(worse.format == "NVFP4") & (worse["rank"] == 1), "qsnr"] -= 10
    told = " ".join(study.find(worse, table))
    assert (
        "does not hold." in told and "lowers rank" in told and f"{stated(study.by_rank(worse)['NVFP4'][1])} dB" in told
    )
    better = rows.copy()
    better.loc[(better.format == "NVFP4") & (better["rank"] == 2), "qsnr"] += 20
    assert "holds for others as well" in " ".join(study.find(better, table))
    assert study._runs([1, 3, 4, 5, 9]) == "1, 3 to 5, 9"


def test_run_gives_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    result = study.run(True)
    assert [table.name for table in result.tables] == ["key", "elements", "published", "grids"]
    assert [plate.name for plate in result.plates] == ["ranges", "ranks"] and len(result.seeds) >= 5
    assert result.rows.groupby(["format", "seed"]).size().eq(17).all()
    blocks = result.tables[0].frame.set_index("format")
    assert blocks["bits per value"]["MXFP8"] == "8.25" and blocks["bits per value"]["NVFP4"].tolist() == ["4.5"] * 3
