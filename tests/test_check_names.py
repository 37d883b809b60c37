"""Names in `fourbit check`: near ones are suggested, and a report says what a dialect is.

Contract: whoever writes a dialect or format almost right is told the right name; every dialect that a report names
first is described by its source; a contract that is not satisfied is compared in words.
"""

import pytest
import torch

import numerics as nm
from hw.check import check
from numerics.near import ALIASES, near
from numerics.scales import DIALECTS

X = torch.randn(64, 256, generator=torch.Generator().manual_seed(7))


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


@pytest.mark.parametrize(
    ("made", "asked", "words"),
    [
        (
            "modelopt",
            "te",
            "; you divide, te multiplies: codes are those of x / (scale * (A / 2688)) in FP32, te takes x * ",
        ),
        ("te", "modelopt", "; you multiply, modelopt divides: codes are those of x * (1 / (scale * outer)) in FP32"),
        ("ocp_floor", "rceil", "; block maxima are divided by 4, not by 6, and scales are rounded down"),
    ],
)
def test_what_a_contract_does_otherwise_is_said(made: str, asked: str, words: str):
    """Numbers of bfloat16 have quotients that are ties of E2M1, which two orders of operations round differently."""
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(3)).bfloat16()
    q, outer = DIALECTS[made].quantize(x), DIALECTS[asked].quantize(x).outer
    d = {"x": x, "codes": q.codes, "scales": q.scales} | ({} if outer is None else {"outer": outer})
    report = check(d, contract=asked)
    assert f"these are not the bytes of {asked}: " in str(report) and words in str(report), str(report)
