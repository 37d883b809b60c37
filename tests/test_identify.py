"""`nm.scales.identify`: which dialects make given bytes, and where another one differs first.

Contract: the bytes of every dialect are named as its own; a match with another outer, or with the outer that was
passed, is told apart from one without; counts of differing bytes are those of a comparison by hand; a first difference
leads from the block's maximum to the byte; bad input is refused with the argument and the remedy. Oracle: the dialects'
own bytes, and bytes changed by hand.
"""

import numpy as np
import pytest
import torch

import numerics as nm
from numerics.dialects_core import LAYOUTS

DIALECTS = nm.scales.DIALECTS
identify = nm.scales.identify


def sample() -> torch.Tensor:
    """bfloat16, with ties, a zero block, a negative zero, and blocks whose scales are subnormal or underflow."""
    x = torch.randn(128, 256, generator=torch.Generator().manual_seed(5))
    x[0, 16:48], x[1, 5] = 0, -0.0
    x[2] *= 3e-6
    x[3] *= 2e-7
    x = x.clamp(-4, 4)
    x[127, 255] = 4.0625  # the tensor's amax: 448 b / A is a tie of E4M3 for some b, where formulas part
    return x.bfloat16()


X = sample()
ALL = [(name, fmt) for name, d in DIALECTS.items() for fmt in d.formats]


@pytest.mark.parametrize(("name", "fmt"), ALL)
def test_every_dialect_is_named_from_its_own_bytes(name: str, fmt: str):
    q = DIALECTS[name].quantize(X, fmt)
    found = identify(X, q.codes, q.scales, q.outer, fmt)
    assert name in found.matches
    for other in found.matches:
        rows = DIALECTS[name].rows and other != name  # with the stored outer of each row, where its own is the tensor's
        made = DIALECTS[other].quantize(X, fmt, outer=q.outer if rows else None)
        assert torch.equal(made.codes, q.codes) and torch.equal(made.scales, q.scales)
    verdict = found[name]
    assert verdict.same and verdict.outer == "own" and verdict.first is None
    assert f"made by: {', '.join(found.matches)}" in str(found)


def test_few_dialects_share_bytes():
    """On this tensor only these; test_dialects.py says on which others they differ, and which never do."""
    groups = set()
    for name, d in DIALECTS.items():
        if "NVFP4" in d.formats:
            q = d.quantize(X)
            found = identify(X, q.codes, q.scales).matches
            groups.add(frozenset(found))
            assert name in found
    assert {group for group in groups if len(group) > 1} == {
        frozenset({"te_kernel", "flashinfer_exact", "fourbit"}),
        frozenset({"te_before_2_15_transpose", "app_b"}),
        frozenset({"flashinfer", "fouroversix_static_6"}),
        frozenset({"exact", "mlx_nvfp4_two_level"}),
        frozenset({"mlx_nvfp4", "triton_nvfp4"}),
    }


def test_counts_are_those_of_a_comparison_by_hand():
    q, other = DIALECTS["te"].quantize(X), DIALECTS["torchao"].quantize(X)
    verdict = identify(X, q.codes, q.scales, q.outer)["torchao"]
    assert verdict.scales == int((q.scales != other.scales).sum()) > 0
    assert verdict.codes == int((q.codes != other.codes).sum()) > 0
    assert str(verdict).startswith(f"torchao: {verdict.scales} scales and {verdict.codes} codes differ")


def test_the_first_difference_with_its_derivation():
    """The published example: b = 0.76171875, A = 1.015625; the real quotient 336 is a tie."""
    x = torch.zeros(1, 32)
    x[0, 3], x[0, 16] = 0.76171875, -1.015625
    q = DIALECTS["te"].quantize(x)
    found = identify(x, q.codes, q.scales)
    first = found["exact"].first
    assert first is not None and (first.kind, first.index, first.theirs, first.ours) == ("scale", (0, 0), 0x7B, 0x7A)
    text = str(first)
    assert "first difference: scale at (0, 0), given 0x7b, dialect 0x7a" in text
    for line in (
        "block amax b = 0.76171875 (0x1.8600000000000p-1)",
        "outer amax A = 1.015625 (",
        "stored outer = 1.015625 (",
        "scale before rounding = 336 (0x1.5000000000000p+8)    e4m3(448 b / A)",
        "scale by the dialect 0x7a = 320, given 0x7b = 352",
        "x = 0.76171875 (0x1.8600000000000p-1), place 3 of the block",
        "element before rounding = 6.3 (",
        "code by the dialect 0x07 = 6, given 0x07 = 6",
    ):
        assert line in text
    assert "exact: 1 scales and 0 codes differ" in str(found)


def test_a_changed_code():
    q = DIALECTS["modelopt"].quantize(X)
    codes = q.codes.clone()
    codes[7, 37] ^= 1
    found = identify(X, codes, q.scales, q.outer)
    assert not found.matches
    nearest = found.verdicts[0]
    assert nearest.dialect.name == "modelopt" and (nearest.scales, nearest.codes) == (0, 1)
    first = nearest.first
    assert first is not None and (first.kind, first.index) == ("code", (7, 37))
    assert first.theirs == int(codes[7, 37]) and first.ours == int(q.codes[7, 37])
    assert "place 5 of the block" in str(first)
    text = str(found)
    assert "no dialect makes these bytes; the nearest ones:\nmodelopt: 0 scales and 1 codes differ" in text
    assert "first difference: code at (7, 37)" in text


# ---- the outer -------------------------------------------------------------------------------------------------------


def test_an_outer_in_another_direction_or_calibrated():
    q = DIALECTS["te"].quantize(X)
    amax = X.abs().max().float()
    assert "te" in identify(X, q.codes, q.scales, amax).matches
    found = identify(X, q.codes, q.scales, amax / torch.tensor(2688.0))
    assert "te" not in found.matches and "te" in found.matches_other_outer
    assert "te" in str(found).split("the same codes and scales, but another stored outer: ")[1].splitlines()[0]
    calibrated = amax * 1.25
    q = DIALECTS["te"].quantize(X, outer=calibrated)
    found = identify(X, q.codes, q.scales, calibrated)
    assert not found.matches and "te" in found.matches_given_outer
    assert "from the outer that was passed, not from x alone: te" in str(found)
    assert not identify(X, q.codes, q.scales).matches
    assert identify(X, q.codes, q.scales)["te"].outer == "own"


def test_an_outer_per_row_and_per_run():
    q = nm.quantize(X, nm.NVFP4, outer="row")
    assert "fourbit" in identify(X, q.codes, q.scales, q.outer).matches
    assert not identify(X, q.codes, q.scales).matches
    rows = X.abs().amax(-1, keepdim=True).float()
    te = DIALECTS["te"].quantize(X, outer=rows)
    assert "te" in identify(X, te.codes, te.scales, rows).matches
    q = DIALECTS["tetrajet_v2"].quantize(X)
    assert q.outer is not None and q.outer.shape == (128, 2)
    found = identify(X, q.codes, q.scales, q.outer)
    assert found.matches == ("tetrajet_v2",)


# ---- formats, axes, kinds of arrays ----------------------------------------------------------------------------------


def test_formats_are_inferred():
    for fmt in (nm.NVFP4, nm.MXFP4, nm.MXFP8):
        q = nm.quantize(X, fmt)
        found = identify(X, q.codes, q.scales, q.outer)
        assert found.layout == LAYOUTS[fmt.name] and found.matches
        assert identify(X, q.codes, q.scales, q.outer, fmt).matches == found.matches
    q = nm.quantize(X, nm.MXFP8_E5M2)
    assert "rceil" in identify(X, q.codes, q.scales, fmt=nm.MXFP8_E5M2).matches


def test_axes_ragged_blocks_and_numpy():
    x = torch.randn(3, 70, 5, generator=torch.Generator().manual_seed(2))
    q = nm.quantize(x, nm.NVFP4, axis=1)
    found = identify(x, q.codes, q.scales, q.outer, axis=1)
    assert "fourbit" in found.matches
    codes = q.codes.clone()
    codes[2, 69, 4] ^= 1
    first = identify(x, codes, q.scales, q.outer, axis=1)["fourbit"].first
    assert first is not None and first.index == (2, 69, 4)
    scales = q.scales.clone()
    scales[1, 4, 2] ^= 1
    first = identify(x, q.codes, scales, q.outer, axis=1)["fourbit"].first
    assert first is not None and (first.kind, first.index) == ("scale", (1, 4, 2))
    arrays = (x.numpy(), q.codes.numpy().astype(np.int64), q.scales.numpy(), q.outer.numpy())
    assert identify(*arrays, axis=1).matches == found.matches
    float8 = q.scales.view(torch.float8_e4m3fn)
    assert identify(x, q.codes, float8, q.outer, axis=1).matches == found.matches
    empty = torch.zeros(0, 32)
    assert identify(empty, torch.zeros(0, 32, dtype=torch.uint8), torch.zeros(0, 2, dtype=torch.uint8)).matches


def test_nan_bytes_and_codes_without_a_rule():
    x = X.float()
    x[5, 5] = float("nan")
    q = DIALECTS["torchao"].quantize(x)
    negative, codes = torch.full_like(q.scales, 0xFF), torch.full_like(q.codes, 12)
    found = identify(x, codes, negative)
    assert "torchao" in found.matches and found["torchao"].unjudged == x.numel()
    assert "codes not judged" in str(found["torchao"])
    assert found["te"].codes == x.numel()  # its NaN have code 0


def test_only_some_dialects():
    q = DIALECTS["te"].quantize(X)
    found = identify(X, q.codes, q.scales, dialects=("te", "torchao"))
    assert [verdict.dialect.name for verdict in found] == ["te", "torchao"]
    with pytest.raises(KeyError, match="'modelopt' makes no NVFP4 or was not tried: there are te, torchao"):
        found["modelopt"]


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input():
    q = DIALECTS["te"].quantize(X)
    packed, swizzled = nm.layout.pack_nibbles(q.codes), nm.layout.swizzle_scales(q.scales)
    with pytest.raises(ValueError, match=r"codes have shape \(128, 128\): x has \(128, 256\); unpack nibbles first"):
        identify(X, packed, q.scales)
    with pytest.raises(ValueError, match="unswizzle and unpad"):
        identify(X, q.codes, swizzled.reshape(-1))
    with pytest.raises(ValueError, match="scales have 12 entries along axis -1, where x has 256 values"):
        identify(X, q.codes, q.scales[:, :12])
    with pytest.raises(ValueError, match=r"scales have shape \(128, 16\): MXFP8 of \(128, 256\).*has \(128, 8\)"):
        identify(X, q.codes, q.scales, fmt="MXFP8")
    with pytest.raises(ValueError, match="16 values with 1 scales may be NVFP4 or MX; pass fmt"):
        identify(X[:, :16], q.codes[:, :16], q.scales[:, :1])
    with pytest.raises(ValueError, match="codes reach up to 255: E2M1 has codes 0 to 15"):
        identify(X, q.codes | 0xFF, q.scales)
    with pytest.raises(ValueError, match="codes reach from -1 to"):
        identify(X, q.codes.long() - 1, q.scales)
    with pytest.raises(TypeError, match=r"codes have dtype torch\.float32"):
        identify(X, q.codes.float(), q.scales)
    with pytest.raises(TypeError, match=r"x has dtype torch\.int64"):
        identify(X.long(), q.codes, q.scales)
    with pytest.raises(TypeError, match=r"outer has dtype torch\.float64: pass float32"):
        identify(X, q.codes, q.scales, torch.ones(1).double())
    with pytest.raises(ValueError, match=r"outer has shape \(2,\)"):
        identify(X, q.codes, q.scales, torch.ones(2))
    with pytest.raises(ValueError, match="fmt='FP4': dialects make NVFP4"):
        identify(X, q.codes, q.scales, fmt="FP4")
    with pytest.raises(ValueError, match="dialect 'rceil' makes no NVFP4"):
        identify(X, q.codes, q.scales, dialects="rceil")
    with pytest.raises(ValueError, match="axis=2"):
        identify(X, q.codes, q.scales, axis=2)
