"""The same numbers through other people's emulators: gfloat in every mode, ml_dtypes over all float32 inputs.

Contract: `nm.encode` gives their codes, except where a policy of ours differs; each such difference is named here and
nothing else is allowed. gfloat by default on all bfloat16 inputs and on every breakpoint one ulp around in float32 and
float64; ml_dtypes on all 2^32 float32 inputs under the marker `exhaustive`, which writes records/sweep_ml_dtypes.json.
Bitwise.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from sweep import assert_clean, breakpoints, differences, load, record, sweep

import numerics as nm

GFLOAT = {
    "E2M1": "ocp_e2m1",
    "E2M3": "ocp_e2m3",
    "E3M2": "ocp_e3m2",
    "E4M3": "ocp_e4m3",
    "E5M2": "ocp_e5m2",
    "E8M0": "ocp_e8m0",
    "S2F6": "ocp_int8",
    "FP16": "binary16",
    "BF16": "bfloat16",
}
MODES = {
    "TiesToEven": nm.Rounding.NEAREST_EVEN,
    "TiesToAway": nm.Rounding.NEAREST_AWAY,
    "TowardZero": nm.Rounding.TOWARD_ZERO,
    "TowardPositive": nm.Rounding.TOWARD_POSITIVE,
    "TowardNegative": nm.Rounding.TOWARD_NEGATIVE,
    "StochasticFastest": nm.Rounding.STOCHASTIC,  # its other three stochastic rules count discarded bits differently
}
ML_DTYPES = {  # most wanted first
    "E2M1": ml_dtypes.float4_e2m1fn,
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E8M0": ml_dtypes.float8_e8m0fnu,
    "E2M3": ml_dtypes.float6_e2m3fn,
    "E3M2": ml_dtypes.float6_e3m2fn,
    "BF16": ml_dtypes.bfloat16,
}
SWEPT = [(name, "nearest") for name in ML_DTYPES]
RECORD = "sweep_ml_dtypes.json"
ABOUT = "All 2^32 float32 inputs: nm.encode, nearest even, against ml_dtypes; every difference is a policy, named"


# ---- gfloat ----------------------------------------------------------------------------------------------------------


def gfloat_differs(fmt: nm.Format, mode: nm.Rounding, x: torch.Tensor) -> torch.Tensor:
    """Where our policy is not gfloat's.

    NaN becomes +max in a format without NaN. E8M0: a negative number is NaN (gfloat rounds it as if there were a sign),
    zero and all below is 2^-127, infinity saturates, a tie to nearest even goes up (gfloat: to the even exponent).
    """
    if fmt.nan_code is None:
        return torch.isnan(x)
    if fmt.kind != "exponent":
        return torch.zeros_like(x, dtype=torch.bool)
    differs = (x < fmt.min) | torch.isinf(x)
    if mode is nm.Rounding.NEAREST_EVEN:
        differs |= x.double().frexp().mantissa == 0.75
    return differs


def inputs(fmt: nm.Format, which: str) -> torch.Tensor:
    if which == "bfloat16":
        return torch.arange(1 << 16).to(torch.uint16).view(torch.bfloat16).double()
    return torch.from_numpy(breakpoints(fmt, np.float32 if which == "float32" else np.float64)).double()


@pytest.mark.parametrize("name", GFLOAT)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", ["bfloat16", "float32", "float64"])
def test_gfloat(name: str, mode: str, which: str):
    gfloat = pytest.importorskip("gfloat", reason="gfloat is not installed: pip install gfloat")
    formats = pytest.importorskip("gfloat.formats")
    fmt, info = nm.FORMATS[name], getattr(formats, f"format_info_{GFLOAT[name]}")
    x = inputs(fmt, which)
    field, extra = None, {}
    if mode == "StochasticFastest":
        field = torch.randint(0, 1 << 16, x.shape, generator=torch.Generator().manual_seed(0))
        extra = {"srbits": field.numpy(), "srnumbits": 16}
    with np.errstate(all="ignore"):
        theirs = gfloat.round_ndarray(info, x.numpy(), gfloat.RoundMode[mode], sat=True, **extra)
    ours = nm.round_to(x, fmt, MODES[mode], field)
    differs = gfloat_differs(fmt, MODES[mode], x)
    ours, theirs, x = ours[~differs], torch.from_numpy(theirs)[~differs], x[~differs]
    same = (ours == theirs) & (torch.signbit(ours) == torch.signbit(theirs)) | torch.isnan(ours) & torch.isnan(theirs)
    wrong = torch.nonzero(~same).flatten()
    assert not len(wrong), f"{len(wrong)} of {len(x)}; {float(x[wrong[0]]).hex()} gives {ours[wrong[0]]}"


# ---- ml_dtypes -------------------------------------------------------------------------------------------------------


def policies(fmt: nm.Format) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Inputs that ml_dtypes treats by another policy, by a name that tells both."""
    if fmt.kind == "exponent":
        return {
            "infinity saturates, ml_dtypes: NaN": torch.isinf,
            "above 1.5 x 2^127 saturates, ml_dtypes: NaN": lambda x: x > fmt.max,
            "zero is 2^-127, ml_dtypes: NaN": lambda x: x == 0,
            "2^-127 to 2^-126: nearest, ml_dtypes: up": lambda x: (x > fmt.min) & (x < 2 * fmt.min),
        }
    if fmt.nan_code is None:
        return {"NaN: +max, ml_dtypes: zero": torch.isnan}
    beyond = "infinity" if fmt.specials == "ieee" else "NaN"
    return {
        "NaN without sign, ml_dtypes: with its sign": torch.isnan,
        f"beyond max: max, ml_dtypes: {beyond}": lambda x: x.abs() > fmt.max,
    }


def compare(name: str) -> Callable[[torch.Tensor], Counter[str]]:
    fmt = nm.FORMATS[name]

    def chunk(x: torch.Tensor) -> Counter[str]:
        with np.errstate(all="ignore"):
            theirs = x.numpy().astype(ML_DTYPES[name])
        codes = torch.from_numpy(theirs.view(np.uint8 if fmt.bits <= 8 else np.uint16))
        return differences(x, nm.encode(x, fmt), codes, policies(fmt))

    return chunk


@pytest.mark.parametrize("name", ML_DTYPES)
def test_ml_dtypes_on_breakpoints(name: str):
    """The comparison of the sweep, on few numbers: float32 breakpoints one ulp around, and every bfloat16."""
    fmt = nm.FORMATS[name]
    x = torch.cat((inputs(fmt, "float32"), inputs(fmt, "bfloat16"))).float()
    counts = compare(name)(x)
    assert not counts["unexplained"], counts
    assert counts["differing"] == sum(n for policy, n in counts.items() if policy != "differing")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ML_DTYPES)
def test_ml_dtypes_on_all_float32(name: str):
    found = sweep(compare(name), f"{name} nearest, ml_dtypes")
    row = {"format": name, "mode": "nearest", "ours": "nm.encode"}
    record(RECORD, ABOUT, SWEPT, row, found, ml_dtypes=ml_dtypes.__version__)
    assert not found[0]["unexplained"], found[0]


def test_a_sweep_and_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On the first 2^20 patterns, with one wrong code put in: counted, first seen by its value, kept in one row."""
    monkeypatch.setattr("sweep.RECORDS", tmp_path)

    def broken(x: torch.Tensor) -> Counter[str]:
        codes = nm.encode(x, nm.E4M3)
        return differences(x, codes ^ (x.view(torch.int32) == 0x54321).to(torch.uint8), codes, {})

    found = sweep(broken, "2^20 patterns", 1 << 20)
    value = float(torch.tensor(0x54321, dtype=torch.int32).view(torch.float32)).hex()
    assert found[0] == {"compared": 1 << 20, "differing": 1, "unexplained": 1, f"unexplained at {value}": 1}
    for _ in range(2):
        record("r.json", "a test", SWEPT, {"format": "E4M3", "mode": "nearest"}, found, oracle="none")
    kept = load("r.json")
    assert len(kept["rows"]) == 1 and len(kept["not run"]) == len(SWEPT) - 1
    assert kept["rows"][0]["unexplained"] == 1 and kept["rows"][0]["versions"]["oracle"] == "none"
    with pytest.raises(AssertionError):
        assert_clean("r.json", SWEPT)


def test_kept_record():
    assert_clean(RECORD, SWEPT)
