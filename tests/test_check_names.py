"""Names in `fourbit check`: near ones are suggested, and a report says what a dialect is; rotations in x's dtype.

Contract: whoever writes a dialect or format almost right is told the right name; every dialect that a report names
first is described by its source; a Hadamard transform whose result has the dtype of x is sound, and is stated.
"""

import pytest
import torch

import numerics as nm
from hw.check import check
from numerics.near import ALIASES, near
from numerics.scales import DIALECTS

X = torch.randn(64, 256, generator=torch.Generator().manual_seed(7))
SIGNS = nm.hadamard_signs(128, (5, 0))


def dump_of(y: torch.Tensor, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    q = DIALECTS["te"].quantize(y)
    return {"x": X, "codes": q.codes, "scales": q.scales, "outer": q.outer} | more


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("TE", "te"),
        ("transformer_engine", "te"),
        ("Transformer-Engine", "te"),
        ("App.B", "app_b"),
        ("ModelOpt", "modelopt"),
        ("llm-compressor", "compressed_tensors"),
        ("thunder_kittens", "thunderkittens"),
        ("fouroversics", "fouroversix"),
        ("rceill", "rceil"),
        ("zzz", None),
        ("", None),
    ],
)
def test_a_near_name_is_suggested(written: str, meant: str | None):
    assert near(written, DIALECTS) == meant
    with pytest.raises(ValueError, match="use one of te, ") as error:
        check(dump_of(X), contract=written)
    assert str(error.value).endswith("" if meant is None else f"; did you mean {meant}?")


def test_formats_and_identify_suggest_too():
    with pytest.raises(ValueError, match=r"; did you mean nvfp4\?$"):
        check(dump_of(X), "NV-FP4")
    q = DIALECTS["te"].quantize(X)
    with pytest.raises(ValueError, match=r"; did you mean torchao\?$"):
        nm.scales.identify(X, q.codes, q.scales, dialects=["ao"])


def test_aliases_stand_for_dialects():
    assert set(ALIASES.values()) <= set(DIALECTS)
    assert not {name.replace("_", "") for name in DIALECTS} & set(ALIASES), "an alias hides a dialect"


def test_a_report_says_what_its_names_are():
    q = DIALECTS["app_b"].quantize(X)
    text = str(check(dump_of(X, outer=q.outer, codes=q.codes, scales=q.scales)))
    assert (
        "\n        app_b: arXiv 2509.25149, appendix B\n" in text and "\n        torchao: pytorch/ao 0.18.0, " in text
    )
    codes = dump_of(X)["codes"]
    codes[3, 3] ^= 1
    assert "beside te (NVIDIA/TransformerEngine d0067d0, " in str(check(dump_of(X, codes=codes)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [16, 64])
def test_a_rotation_in_the_dtype_of_x_is_sound_and_stated(size: int, dtype: torch.dtype):
    """Oracle: the matrix of the transform, in float64, and one rounding."""
    x, signs = X.to(dtype), SIGNS[:size]
    i = torch.arange(size)
    bits = sum((i[:, None] >> b & 1) * (i[None] >> b & 1) for b in range(7))
    matrix = (1 - 2 * (bits % 2)).double() * signs.double() / size**0.5  # columns are multiplied by signs: H S
    y = (x.double().unflatten(-1, (-1, size)) @ matrix.mT).flatten(-2).to(dtype)
    report = check(dump_of(y, x=x, signs=signs), contract="te")
    assert report and "te" in report.contracts, str(report)
    assert f"the signs, rounded to {str(dtype)[6:]}, the dtype of x" in str(report)


def test_a_wrong_rotation_in_the_dtype_of_x_is_named_alone():
    x = X.bfloat16()
    y = nm.hadamard(x.float(), 16).bfloat16()
    report = check(dump_of(y, x=x, signs=SIGNS[:16]))
    assert report.faults == ("the Hadamard transform is applied without its signs",), str(report)


def test_bfloat16_between_a_float32_tensor_and_its_bytes_is_a_fault():
    y = nm.hadamard(X, 16, SIGNS[:16]).bfloat16()
    report = check(dump_of(y, signs=SIGNS[:16]))
    assert not report and "x is rounded to bfloat16" in str(report)
