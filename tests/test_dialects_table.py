"""`fourbit dialects`: the table says what the dialects do.

Contract: a row per format and dialect; zero blocks, NaN and ties as their entries and sources have them, by hand here;
SQNR as of float64 numpy on the stated tensor; "fixed" as a comparison of blocks one by one; filters, CSV, Markdown and
words; unknown names are answered with near ones.
"""

import io
import itertools

import numpy as np
import pandas as pd
import pytest
import torch

import numerics as nm
from numerics.dialects_core import LAYOUTS
from studies import dialects_table as table

DIALECTS = nm.scales.DIALECTS


@pytest.fixture(scope="module")
def frame(one_thread: None) -> pd.DataFrame:
    """The whole table, by dialect and format; cells are those of the command."""
    return table.frame(list(LAYOUTS)).set_index(["dialect", "format"])


def test_there_is_a_row_for_all_that_every_dialect_makes(frame: pd.DataFrame) -> None:
    assert set(frame.index) == {(name, fmt) for name, d in DIALECTS.items() for fmt in d.formats}
    assert all(frame.notna().all()) and (frame.source.str.len() > 5).all()


ZEROS = {
    ("te", "NVFP4"): "0x00 (0)",
    ("torchao", "NVFP4"): "0x08 (0.015625)",
    ("compressed_tensors", "NVFP4"): "0x20 (0.125)",
    ("modelopt", "NVFP4"): "0x38 (1)",
    ("tetrajet_v2", "NVFP4"): "0x01 (0.001953125)",
    ("te", "NVFP4_2D"): "0x00 (0)",
    ("ocp_floor", "MXFP4"): "0x00 (2^-127)",
    ("deepgemm_mxfp4", "MXFP4"): "0x70 (2^-15)",
    ("quark_floor", "MXFP4"): "0x68 (2^-23)",
    ("mlx_mxfp8_cpu_before", "MXFP8"): "0x7f (1)",
    ("fourbit_fp8", "FP8_128X128"): "1",
    ("deepgemm_fp8_ue8m0", "FP8_1X128"): "2.384e-07",
}
NANS = {
    ("te", "NVFP4"): "all scales NaN, code 0x00",
    ("te_row", "NVFP4"): "its row's scales NaN, code 0x00",
    ("te_kernel", "NVFP4"): "passed over, code 0x07",
    ("compressed_tensors", "NVFP4"): "its scale NaN",
    ("fourbit", "NVFP4"): "its scale NaN, code 0x07",
    ("fourbit_46", "NVFP4_2D"): "its scale NaN, code 0x07",
    ("mlx_nvfp4_cpu", "NVFP4"): "its scale 0x7e (448), code 0x00",
    ("ggml_nvfp4", "NVFP4"): "passed over, code 0x00",
    ("triton_up", "MXFP8"): "its scale 0x00 (2^-127)",
    ("deepgemm_mxfp4", "MXFP4"): "its scale 0xfe (2^127), code 0x00",
    ("vllm_mxfp4", "MXFP4"): "not claimed",
    ("te_mxfp8", "MXFP8"): "passed over, code 0x7f",
    ("deepgemm_fp8", "FP8_1X128"): "its scale NaN",
}
OUTERS = {"te": "amax", "te_row": "amax per row", "torchao": "decode", "tetrajet_v2": "decode per 128", "qwix": "none"}


def test_zeros_nan_and_outers_by_hand(frame: pd.DataFrame) -> None:
    assert {at: frame["zero block"][at] for at in ZEROS} == ZEROS
    assert {at: frame["NaN"][at] for at in NANS} == NANS
    assert {name: frame["outer"][name, "NVFP4"] for name in OUTERS} == OUTERS
    assert frame.elements["ggml_nvfp4", "NVFP4"] == "ties toward zero"
    assert frame.source["vllm", "NVFP4"] == "vllm-project/vllm 0.32.0" and frame.source["fourbit", "NVFP4"] == "fourbit"
    assert frame.source["te_before_2_15", "NVFP4"] == "NVIDIA/TransformerEngine before 2.15 (#2555)"


def stated() -> torch.Tensor:
    return torch.randn(256, 512, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "fmt"), [("te", "NVFP4"), ("ggml_mxfp4", "MXFP4"), ("deepgemm_fp8", "FP8_1X128")])
def test_errors_and_fixed_points_by_hand(frame: pd.DataFrame, name: str, fmt: str) -> None:
    d, x = DIALECTS[name], stated()
    q = d.quantize(x, fmt)
    values = d.dequantize(q)
    gap, size = (t.numpy().astype(np.float64) for t in (values - x.double(), x))
    error = np.mean((gap**2).sum(1) / (size**2).sum(1))
    assert float(frame["SQNR, dB"][name, fmt]) == pytest.approx(-10 * np.log10(error), abs=5e-4)
    again, block, same = d.quantize(values, fmt), LAYOUTS[fmt].block, []
    for row, start in itertools.product(range(256), range(0, 512, block)):
        part, at = (row, slice(start, start + block)), (row, start // block)
        same.append(torch.equal(q.codes[part], again.codes[part]) and bool(q.scales[at] == again.scales[at]))
    told = frame.fixed[name, fmt]
    assert told == ("yes" if all(same) else f"{100 * np.mean(same):.2f} %")
    assert all(same) == (name != "te")  # whose negative zeros become positive ones


def test_one_format_as_csv_and_markdown(capsys: pytest.CaptureFixture[str], frame: pd.DataFrame) -> None:
    assert table.main(["--format", "fp8_128x128", "--csv"]) == 0
    told = pd.read_csv(io.StringIO(capsys.readouterr().out), dtype=str, keep_default_na=False)
    assert told.dialect.tolist() == ["fourbit_fp8", "deepgemm_fp8", "deepgemm_fp8_ue8m0"]
    assert told.set_index(["dialect", "format"]).equals(frame.loc[[(name, "FP8_128X128") for name in told.dialect]])
    assert table.main(["--format", "MXS2F6", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| dialect | format | zero block |") and lines[2].startswith("| ocp_floor | MXS2F6 |")
    assert table.main(["--format", "mxs2f6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["dialect", "ocp_floor", "rceil", "2"]


def test_words_and_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main(["te", "ggml_nvfp4"]) == 0
    assert capsys.readouterr().out == f"{DIALECTS['te']}\n{DIALECTS['ggml_nvfp4']}\n"
    with pytest.raises(ValueError, match="did you mean ggml_mxfp4"):
        table.main(["llama.cpp"])
    with pytest.raises(ValueError, match="--format FP4: use one of NVFP4, "):
        table.main(["--format", "FP4"])
    with pytest.raises(SystemExit) as end:
        table.main(["--help"])
    assert end.value.code == 0 and "zero block    the scale of a block of zeros" in capsys.readouterr().out
