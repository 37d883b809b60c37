"""Notebook 3's block of 16 x 16: its numbers, its landscape, and what its widget says to any outlier.

Oracle: the scalar twin (`numerics.oracle`) row by row, column by column and over all 256 values; blocks by hand.
"""

import math
import re

import numpy as np
import pytest
import torch

pytest.importorskip("ipywidgets")

from notebooks import tile, tile_draw, tile_panel
from notebooks.figure_data import figure_data
from notebooks.readout import paragraphs
from numerics import oracle
from studies import plots

pytestmark = pytest.mark.usefixtures("one_thread")


def decoded(lines: list[list[float]], amax: float) -> list[list[float]]:
    """Each line quantized as one block of a tensor whose largest magnitude is `amax`, and decoded."""
    outer = oracle.outer_scale(amax, 2688.0)
    found = []
    for line in lines:
        scale, codes = oracle.nvfp4_block(line, amax)
        found.append([oracle.dequantize_nvfp4(code, scale, outer) for code in codes])
    return found


@pytest.mark.parametrize("size", [1.0, 32.0, -3e4, 1e6])
def test_each_way_against_the_twin(size: float):
    x = tile.block(5, 11, size, seed=2)
    seen, amax = tile.views(x, 5, 11), float(x.abs().amax())
    assert seen[tile.ROWS].values.tolist() == decoded(x.tolist(), amax)
    assert seen[tile.COLUMNS].values.T.tolist() == decoded(x.T.tolist(), amax)
    assert seen[tile.TILE].values.flatten().tolist() == decoded([x.flatten().tolist()], amax)[0]
    assert [len(view.scales) for view in seen.values()] == [16, 16, 1]


def test_ones_beside_an_outlier_by_hand():
    """64 / 6 is the step, so 1 becomes zero in the outlier's block and stays 1, or nearly, elsewhere."""
    x = torch.ones(16, 16)
    x[2, 7] = -64.0
    seen = tile.views(x, 3, 8)
    assert [int(view.lost.sum()) for view in seen.values()] == [15, 15, 255]
    assert seen[tile.ROWS].lost[2].sum() == 15 == seen[tile.COLUMNS].lost[:, 7].sum()
    assert seen[tile.TILE].rel_mse_others == 1.0 and seen[tile.TILE].rel_mse == pytest.approx(255 / (255 + 4096))
    # the other scales are e4m3(448 / 64) = 7, exact, so all else is right but for the rounding of the outer scale
    assert seen[tile.ROWS].rel_mse_others == pytest.approx(15 / 255, rel=1e-9)
    assert tile.differ(seen[tile.ROWS].values, seen[tile.COLUMNS].values) == 30 / 256


def test_the_block():
    """The outlier is where it is asked for; all else depends on the seed alone."""
    a, b = tile.block(1, 16, 7.0), tile.block(16, 1, -1e39)
    assert a[0, 15] == 7.0 and b[15, 0] == -tile.FLT_MAX
    same = torch.ones(16, 16, dtype=torch.bool)
    same[0, 15] = same[15, 0] = False
    assert torch.equal(a[same], b[same]) and not torch.equal(a[same], tile.block(1, 16, 7.0, seed=1)[same])
    assert tile.block(1, 1, math.nan)[0, 0].isnan() and tile.block(1, 1, math.inf)[0, 0] == math.inf
    for row, column in ((0, 1), (17, 1), (1, 0), (1, 17)):
        with pytest.raises(ValueError, match="the block has 16, counted from 1"):
            tile.block(row, column, 1.0)


def test_share_that_differs():
    a = torch.tensor([1.0, 2.0, math.nan, math.nan])
    assert tile.differ(a, torch.tensor([1.0, 3.0, math.nan, 0.0])) == 0.5


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (
            "nan",
            "The outlier is NaN: the scale of its block is NaN, and so is every value that shares it, 16 along rows",
        ),
        ("-1e400", "The outlier is infinite"),
        ("nan", "16 along columns, 256 as one tile"),
        ("1e39", "The outlier 1e+39 is beyond float32: 3.40282e+38 was taken."),
        ("1e7", "scales are rounded to 0: 15 along rows, 15 along columns, 0 as one tile"),
        ("1e-60", "The outlier is below float32's least number: 0 was taken."),
        ("0.5", "not the largest value here"),
    ],
)
def test_remarks(size: str, words: str):
    x = tile.block(5, 11, float(size))
    seen = tile.views(x, 5, 11)
    said = tile.remarks(float(size), x, seen)
    assert words in " ".join(said)
    assert tile_draw.readout(x, seen, said).endswith(paragraphs(said))


def test_an_ordinary_outlier_needs_no_remark():
    x = tile.block(5, 11, 32.0)
    assert tile.remarks(32.0, x, tile.views(x, 5, 11)) == []


# ---- the landscape ---------------------------------------------------------------------------------------------------


def test_heights_are_logarithms():
    values = np.array([0.0, math.nan, 1.0, -2.0, 0.125, 1e-30, math.inf, 64.0])
    least = tile_draw.LEAST
    top = math.log2(tile.FLT_MAX) + 3
    assert tile_draw.heights(values).tolist() == pytest.approx([0, 0, 3, 4, least, least, top, 9])


def test_nearer_bars_are_painted_later():
    """Painting is right if no bar stands before one that comes later: nearness grows with rows and with columns."""
    ground = tile_draw.seen_at(np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0]), np.zeros(3))
    assert ground[1, 1] < ground[0, 1] and ground[2, 1] < ground[0, 1]  # lower on the page is nearer
    assert ground[1, 0] > ground[0, 0] > ground[2, 0]  # columns to the right, rows to the left
    assert tile_draw.seen_at(np.zeros(1), np.zeros(1), np.ones(1))[0, 1] > 0
    shapes = tile_draw.faces(np.arange(256.0).reshape(16, 16) / 64).reshape(16, 16, 3, 4, 2)
    lowest = shapes[..., 1].min(axis=(2, 3))
    assert (np.diff(lowest, axis=0) < 0).all() and (np.diff(lowest, axis=1) < 0).all()
    top = shapes[3, 5, 2]  # seen at the height of its bar, which is number 53
    at = tile_draw.seen_at(np.array(5.1), np.array(3.9), np.array(53 / 64))
    assert top[0] == pytest.approx(at, abs=1e-3)


def test_the_landscape_shows_the_numbers():
    """One top a bar, two sides where it is not flat; lost bars in the warning colour, and titles in words."""
    x = tile.block(5, 11, 32.0)
    seen = tile.views(x, 5, 11)
    axes = figure_data(tile_draw.landscapes(x, seen, 5, 11))["axes"]
    assert [part["title"] for part in axes] == ["before", *seen]
    for part, view in zip(axes[1:], seen.values(), strict=True):
        bars, lost = part["collections"][1], int(view.lost.sum())
        assert bars["colours"].count("#d55e00ff") == lost and len(bars["paths"]) == 3 * 256 - 2 * lost
        assert any(text.startswith(f"{lost} of 256 lost; relMSE {view.rel_mse:.3g}") for text in part["texts"])
    assert len(axes[0]["collections"][1]["paths"]) == 3 * 256


# ---- the widget ------------------------------------------------------------------------------------------------------


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are made and not turned into PNG, which takes most of the time and which `figure_data` does too."""
    monkeypatch.setattr(plots, "render", lambda figure, kind: b"")


def test_controls_change_the_picture(unseen):
    panel = tile_panel.panel()
    seen = [panel.picture.readout]
    for name, value in (("row", 9), ("column", 2), ("seed", 3), ("size", "500"), ("slide", 4.0)):
        panel.controls[name].value = value
        assert not panel._note.value and panel.picture.readout not in seen
        seen.append(panel.picture.readout)
    assert panel.controls["size"].value == "4"


def test_the_slider_follows_the_typed_size(unseen):
    panel = tile_panel.panel()
    for text, at in (("128", 128.0), ("-5", 128.0), ("nan", 128.0), ("abc", 128.0), ("1e30", 2.0**20), ("0.01", 0.25)):
        panel.controls["size"].value = text
        assert panel.controls["slide"].value == at and panel.controls["size"].value == text


def test_bad_input_is_told_and_the_picture_stays(unseen):
    panel = tile_panel.panel()
    good = panel.picture
    for text in ("abc", "", "1,5"):
        panel.controls["size"].value = text
        assert "is no number" in panel._note.value and "the last picture stays" in panel._note.value
        assert panel.picture is good
    panel.controls["slide"].value = 64.0
    assert not panel._note.value and panel.picture is not good


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", ["nan", "-1e400", "1e39", "0", "1e-50"])
def test_extremes_are_drawn_without_a_warning(size: str):
    assert len(figure_data(tile_panel.picture(1, 1, size, 0).figure)["axes"]) == 4


def test_the_readout_says_the_numbers(unseen):
    picture = tile_panel.picture(5, 11, "32", 0)
    rows = [re.findall(">([^<]*)</t[dh]>", row) for row in re.findall("<tr>(.*?)</tr>", picture.readout)]
    x = tile.block(5, 11, 32.0)
    seen = tile.views(x, 5, 11)
    for row, (name, view) in zip(rows[1:], seen.items(), strict=True):
        assert row[0] == name and int(row[1]) == len(view.scales) and row[3] == f"{int(view.lost.sum())} of 256"
        assert float(row[4]) == pytest.approx(view.rel_mse, rel=5e-4)  # four digits are shown
        assert float(row[5]) == pytest.approx(view.rel_mse_others, rel=5e-4)
    differing = int((seen[tile.ROWS].values != seen[tile.COLUMNS].values).sum())
    assert f"{differing} of 256 entries" in picture.readout


# ---- the other figures -----------------------------------------------------------------------------------------------


def test_tiles_never_differ_and_lose_most():
    found = tile.against_size(n=64)
    one, square = (found[found.way == way] for way in ("1x16", "16x16"))
    assert (square.differ == 0).all() and (one.differ > 0.6).all()
    assert (square.flush_rows.to_numpy() >= one.flush_rows.to_numpy()).all()


def test_prices():
    """Errors of normal data within three spreads over seeds (2 % of 65,536 values) of the published 9.05 and 12.39."""
    twice, once, saved = tile.prices(n=256).to_numpy(object)
    assert float(twice[1]) == pytest.approx(9.05, rel=0.03) and float(once[1]) == pytest.approx(12.39, rel=0.03)
    assert once[1] == once[2] and (once[3], once[4]) == ("0.00", "0.0")
    assert saved[1] == twice[1] and float(saved[3]) < 0.1 * float(twice[3])
