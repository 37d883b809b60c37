"""Contract: a recipe that contradicts itself is refused when it is made; one that is made can be computed.

Oracles: cases by hand, one per rule; and an expert layer's forward and backward under recipes that differ from presets
in one or two random fields: whatever is not refused has to run.
"""

import itertools
import random
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import numerics as nm
from numerics import Rounding, ops
from numerics.ops import Cast, Recast
from reference.expert import Draw, ExpertMLP, Setting, route
from reference.presets import PRESETS, preset
from reference.recipe import ExpertRecipe, OsciReset, Recipe, switched
from reference.recipe_table import roles

SR, RN = Rounding.STOCHASTIC, Rounding.NEAREST_EVEN
EDEN = preset("quartet2").experts.grad.fmt
WIDTH = 128  # every format's block divides it

CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("fourbit", {"input": Cast(nm.NVFP4_46, "row", SR)}, r"input.rounding=.*forward operands round to nearest"),
    ("fourbit", {"hidden": Cast(EDEN)}, r"hidden.fmt=NVFP4_EDEN: rule eden draws its scales"),
    ("fourbit", {"combine_fmt": EDEN}, r"combine.fmt=NVFP4_EDEN: rule eden draws"),
    ("fourbit", {"input": Cast(nm.NVFP4_2D, "tensor")}, r"input.fmt=NVFP4_2D: its tiles reach across tokens"),
    ("fourbit", {"grad": Cast(nm.FP8_128X128)}, r"grad.fmt=FP8_128X128: its tiles reach across tokens"),
    ("fourbit", {"input": Cast(nm.MXFP8, "row")}, r"input.outer='row': rule rceil of MXFP8 sets no outer scale"),
    (
        "fourbit",
        {"hidden": Cast(nm.NVFP4, 24)},
        r"hidden.outer=24: NVFP4 has no such runs; use a multiple of the .* 16",
    ),
    ("fourbit", {"hidden": Cast(nm.NVFP4, "leading")}, r"hidden.outer='leading': only weights have an axis of experts"),
    ("fourbit", {"input": Cast(nm.NVFP4, "column")}, r"input.outer='column': use None, 'tensor', 'row', 'leading' or"),
    ("fourbit", {"input": Cast(None, "row")}, r"input=.*BF16 has no outer scale"),
    ("fourbit", {"grad": Cast(None, None, SR)}, r"grad=.*BF16 .* rounds to nearest"),
    ("fourbit", {"saved_weight": Recast(None, "keep", SR)}, r"saved_weight=.*BF16 .* rounds to nearest"),
    ("fourbit", {"weight": Cast(nm.NVFP4_2D, "row")}, r"weight.outer='row': a tile of NVFP4_2D has one scale"),
    ("fourbit", {"weight": Cast(nm.NVFP4_2D, 128)}, r"weight.outer=128: NVFP4_2D has no such runs; use 'tensor'"),
    (
        "fourbit",
        {"weight": Cast(nm.NVFP4, "row")},
        r"saved_weight.outer='keep', weight.outer='row'.*dgrad's contraction",
    ),
    ("fourbit", {"weight": Cast(nm.NVFP4, 128)}, r"saved_weight.outer='keep', weight.outer=128"),
    ("fourbit", {"saved_input": Recast(nm.MXFP8)}, r"saved_input.outer='keep', input.outer='row'.*wgrad's contraction"),
    (
        "fourbit_tensor_outer",
        {"saved_input": Recast(nm.MXFP8, "keep", SR), "hidden": Cast(nm.NVFP4, 128)},
        r"saved_input.outer='keep', hidden.outer=128",
    ),
    (
        "fourbit_outer_in_gradient",
        {"hidden": Cast(nm.NVFP4, "tensor")},
        r"'gradient', hidden.outer='tensor': only a tok",
    ),
    ("fourbit_outer_in_gradient", {"wgrad_hadamard": 32}, r"saved_input.outer='gradient'.*a transform of 32 mixes"),
    ("fourbit", {"dgrad_hadamard": 32, "grad_wire": Cast(None)}, r"saved_weight.outer='keep'.*a transform of 32 mixes"),
    (
        "nvfp4_nvidia",
        {"saved_input": Recast(nm.NVFP4, "multiply", RN, "leading")},
        r"saved_input.scope='leading': only w",
    ),
    (
        "fourbit",
        {"saved_weight": Recast(nm.MXFP8, "multiply", SR, "tensor")},
        r"saved_weight.scope='tensor': rule rceil",
    ),
    *(
        ("fourbit", {"combine_hadamard": size}, r"combine_hadamard=.*: there are transforms of 16")
        for size in (0, 48, "16")
    ),
    ("quartet2", {"wgrad_hadamard": 7}, r"wgrad_hadamard=7: there are transforms of 16, 32, 64, 128"),
    ("quartet2", {"dgrad_hadamard": -16}, r"dgrad_hadamard=-16: there are transforms"),
    ("fourbit", {"input": None}, r"input is None .*pass a Cast"),
    ("fourbit", {"weight": Recast(nm.MXFP8)}, r"weight is Recast.*pass a Cast"),
    ("fourbit", {"saved_input": Cast(nm.MXFP8)}, r"saved_input is Cast.*pass a Recast"),
    ("fourbit", {"combine_fmt": "MXS2F6"}, r"combine_fmt is 'MXS2F6' .*pass a block format or None"),
    ("fourbit", {"originals": "no"}, r"originals is 'no' .*use True or False"),
    ("fourbit", {"osci_reset": 200}, r"osci_reset is 200 .*pass an OsciReset"),
]


@pytest.mark.parametrize(("name", "changes", "message"), CONTRADICTIONS)
def test_a_contradiction_is_refused_when_the_recipe_is_made(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        replace(preset(name).experts, **changes)


def test_a_late_switch_whose_halves_contradict_each_other_is_refused() -> None:
    first, second = preset("tetrajet2").experts, preset("fourbit_backward_only").experts
    with pytest.raises(ValueError, match=r"saved_weight.outer='keep', weight.outer=128"):
        switched(first, second, "backward")


def test_recipes_are_checked_too() -> None:
    fourbit = preset("fourbit")
    with pytest.raises(TypeError, match="experts is None"):
        Recipe("x", None, fourbit.last)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name is None"):
        Recipe(None, fourbit.experts, fourbit.last)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"period is 10\.5"):
        OsciReset(10.5, 5, 2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ratio=inf"):
        OsciReset(10, 5, float("inf"))


def test_a_claim_is_refused_where_the_hidden_operand_alone_breaks_it() -> None:
    base = preset("fourbit")
    experts = replace(base.experts, input=Cast(None), saved_input=Recast(None))
    with pytest.raises(ValueError, match=r"claims_unbiased, but saved_input rounds NVFP4_46 values to BF16"):
        replace(base, experts=experts)


def _run(recipe: ExpertRecipe) -> None:
    tokens, experts, k = 24, 3, 2
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, WIDTH, generator=generator).bfloat16().requires_grad_()
    chosen = torch.rand(tokens, experts, generator=generator).topk(k).indices.sort(-1).values
    weights = torch.rand(tokens, k, generator=generator).requires_grad_()
    w13 = torch.randn(experts, 2 * WIDTH, WIDTH, generator=generator).requires_grad_()
    w2 = torch.randn(experts, WIDTH, WIDTH, generator=generator).requires_grad_()
    signs = {size: nm.hadamard_signs(size, (0, 0)) for size in recipe.hadamard_sizes}
    setting = Setting(ops, recipe, signs, 0, Draw(0, 1, 0))
    ExpertMLP.apply(x, weights, w13, w2, route(chosen, experts), setting).sum().backward()
    assert all(torch.isfinite(t.grad.float()).all() for t in (x, weights, w13, w2))


def _random_changes(rnd: random.Random) -> dict[str, Any]:
    formats = (
        None,
        nm.NVFP4,
        nm.NVFP4_46,
        nm.NVFP4_2D,
        nm.MXFP8,
        nm.MXFP4,
        nm.FP8_1X128,
        nm.FP8_128X128,
        nm.MXS2F6,
        EDEN,
    )
    scopes, sizes = (None, None, "row", "tensor", "leading", 128, 32), (None, 16, 32, 64, 128)

    def cast() -> Cast:
        return Cast(rnd.choice(formats), rnd.choice(scopes), rnd.choice([RN, RN, SR]), rnd.choice([None, None, "pow2"]))

    def recast() -> Recast:
        outer = rnd.choice(["keep", "multiply", "gradient"])
        scope = rnd.choice(scopes) if outer == "multiply" else None
        return Recast(rnd.choice(formats), outer, rnd.choice([RN, SR]), scope)

    made = {
        **dict.fromkeys(("input", "hidden", "weight", "grad", "grad_wire"), cast),
        **dict.fromkeys(("saved_weight", "saved_input"), recast),
        **dict.fromkeys(("combine_hadamard", "dgrad_hadamard", "wgrad_hadamard"), lambda: rnd.choice(sizes)),
        **dict.fromkeys(("originals", "fresh_signs"), lambda: rnd.random() < 0.5),
        "combine_fmt": lambda: rnd.choice(formats),
    }
    return {name: made[name]() for name in rnd.sample(list(made), rnd.randint(1, 2))}


def test_what_is_not_refused_runs() -> None:
    rnd, ran = random.Random(0), 0
    bases = [preset(name).experts for name in PRESETS]
    while ran < 150:
        base, changes = rnd.choice(bases), _random_changes(rnd)
        try:
            recipe = replace(base, **changes)
        except ValueError:
            continue
        try:
            _run(recipe)
        except Exception as error:
            raise AssertionError(f"made, but cannot be computed: {changes}") from error
        ran += 1


def test_every_field_and_every_preset_shows_in_the_table_of_roles() -> None:
    told = {name: roles(preset(name)) for name in PRESETS}
    assert all(told[a] != told[b] for a, b in itertools.combinations(PRESETS, 2))
    base = preset("quartet2")
    other: dict[str, Any] = {
        "input": Cast(nm.NVFP4),
        "hidden": Cast(nm.NVFP4),
        "weight": Cast(nm.NVFP4),
        "grad": Cast(nm.NVFP4),
        "saved_weight": Recast(nm.NVFP4, "multiply"),
        "saved_input": Recast(nm.NVFP4, "multiply"),
        "combine_fmt": nm.MXFP8,
        "combine_hadamard": 16,
        "originals": True,
        "dgrad_hadamard": 16,
        "wgrad_hadamard": 16,
        "grad_wire": Cast(nm.NVFP4),
        "fresh_signs": False,
        "osci_reset": OsciReset(10, 5, 2.0),
    }
    assert set(other) == {field.name for field in fields(ExpertRecipe)}
    for name, value in other.items():
        changed = replace(base.experts, **{name: value})
        assert changed != base.experts
        assert roles(replace(base, experts=changed, claims_unbiased=False)) != roles(base), name
    assert roles(replace(base, shared=True)) != roles(base)
