"""Contract: presets say what the sources say, and a claim of unbiasedness is checked."""

import copy
from dataclasses import replace

import pytest

import numerics as nm
from numerics.ops import Cast, Recast
from reference.presets import PRESETS, preset
from reference.recipe import Recipe


def test_presets():
    assert all(preset(name).name == name for name in PRESETS)
    with pytest.raises(ValueError, match=f"preset='nvfp4' is unknown: use one of {', '.join(PRESETS)}"):
        preset("nvfp4")


def test_fourbit_is_the_article_role_by_role():
    r = preset("fourbit").experts
    assert (r.input.fmt, r.input.outer) == (r.hidden.fmt, r.hidden.outer) == (nm.NVFP4_46, "row")
    assert (r.weight.fmt, r.weight.outer) == (nm.NVFP4, "leading")
    assert r.grad.fmt is nm.MXFP8 and r.grad.rounding is nm.Rounding.NEAREST_EVEN
    assert r.saved_weight == Recast(nm.MXFP8, "keep", nm.Rounding.STOCHASTIC)
    assert r.saved_input == Recast(nm.MXFP8, "multiply", nm.Rounding.STOCHASTIC)
    assert (r.combine_fmt, r.combine_hadamard) == (nm.MXS2F6, 32)
    last = preset("fourbit").last
    assert {last.input.fmt, last.hidden.fmt, last.weight.fmt, last.grad.fmt} == {nm.MXFP8}
    assert last.saved_weight.rounding is last.saved_input.rounding is nm.Rounding.NEAREST_EVEN
    assert (last.combine_fmt, last.combine_hadamard) == (nm.MXS2F6, 32)


def test_the_baselines_role_by_role():
    r = preset("mxfp8").experts
    casts = (r.input, r.hidden, r.weight, r.grad)
    assert {(c.fmt, c.outer, c.rounding) for c in casts} == {(nm.MXFP8, None, nm.Rounding.NEAREST_EVEN)}
    assert {(c.fmt, c.rounding) for c in (r.saved_weight, r.saved_input)} == {(nm.MXFP8, nm.Rounding.NEAREST_EVEN)}
    assert r.combine_fmt is None and r.combine_hadamard is None and preset("mxfp8").last == r
    r = preset("bf16").experts
    assert {c.fmt for c in (r.input, r.hidden, r.weight, r.grad, r.saved_weight, r.saved_input)} == {None}
    assert r.combine_fmt is None and r.combine_hadamard is None and preset("bf16").last == r
    assert not any(preset(name).shared for name in PRESETS)


@pytest.mark.parametrize(("depth", "last"), [(6, 1), (12, 2), (18, 3), (42, 7), (66, 11), (5, 1), (7, 2)])
def test_last_sixth(depth: int, last: int):
    r = preset("fourbit")
    layers = [r.layer(i, depth) for i in range(depth)]
    assert layers == [r.experts] * (depth - last) + [r.last] * last
    assert all(preset("bf16").layer(i, depth) is preset("bf16").experts for i in range(depth))


def test_nearest_differs_from_fourbit_in_the_recasts_only():
    sr, rn = preset("fourbit"), preset("fourbit_rn")
    changed = replace(rn.experts, saved_weight=sr.experts.saved_weight, saved_input=sr.experts.saved_input)
    assert changed == sr.experts and rn.last == sr.last
    assert rn.experts.saved_input.rounding is rn.experts.saved_weight.rounding is nm.Rounding.NEAREST_EVEN


def test_claims_are_refused_with_the_reason():
    base = preset("fourbit")
    with pytest.raises(ValueError, match=r"saved_weight rounds nearest.*use STOCHASTIC"):
        replace(preset("fourbit_rn"), claims_unbiased=True)
    nvfp4 = replace(base.experts, saved_input=Recast(nm.NVFP4, "multiply", nm.Rounding.STOCHASTIC))
    with pytest.raises(ValueError, match=r"saved_input uses rule nvfp4.*saturate.*rceil"):
        replace(base, experts=nvfp4)
    with pytest.raises(ValueError, match=r"saved_weight rounds NVFP4 values to BF16, nearest"):
        replace(base, experts=replace(base.experts, saved_weight=Recast(None)))
    with pytest.raises(ValueError, match=r"saved_weight.outer='gradient': only a token's scale"):
        replace(base.experts, saved_weight=Recast(nm.MXFP8, "gradient"))
    with pytest.raises(ValueError, match=r"saved_input.outer='keep'.*varies along wgrad's contraction"):
        replace(base.experts, saved_input=Recast(nm.MXFP8, "keep"))
    with pytest.raises(ValueError, match=r"dgrad_hadamard=32: gradients travel unrotated; say how by grad_wire"):
        replace(base.experts, dgrad_hadamard=32)
    with pytest.raises(ValueError, match=r"wgrad_hadamard=16 with a BF16 operand"):
        replace(preset("bf16").experts, wgrad_hadamard=16)
    with pytest.raises(ValueError, match=r"grad_wire.rounding=.*random words serve one rounding"):
        replace(base.experts, grad_wire=Cast(nm.MXFP8, None, nm.Rounding.STOCHASTIC))
    with pytest.raises(ValueError, match=r"last_share=1.5"):
        Recipe("x", base.experts, base.last, last_share=1.5)


def test_row_block_is_what_widths_must_be_a_multiple_of():
    blocks = {name: preset(name).experts.row_block for name in PRESETS}
    assert (blocks.pop("bf16"), blocks.pop("fp8_deepseek"), blocks.pop("quartet2")) == (1, 128, 128)
    names = ("nvfp4_all", "nvfp4_nvidia", "nvfp4_46", "nvfp4_46_forward", "nvfp4_forward", "nvfp4_2d_forward")
    nvfp4 = dict.fromkeys((*names, "tetrajet2", "composer2"), 16)
    assert blocks == dict.fromkeys(blocks, 32) | nvfp4 | {"mxfp4": 64}


def test_a_copied_model_follows_the_same_recipes() -> None:
    """Operations choose kernels by a format's equality, which a copied one would not have."""
    for name in PRESETS:
        recipe = preset(name)
        for own in (recipe, recipe.experts):
            assert copy.deepcopy([own])[0] == own, name
