"""Contract: `notebooks.recipe_edges` says of every edge of an expert layer what the trainer makes of a recipe, and
which layers follow which of its fields. Oracle: the operands that `reference.expert` really multiplies, caught on their
way into the products; layers counted by hand.
"""

from dataclasses import replace
from types import ModuleType

import pytest
import torch

pytest.importorskip("ipywidgets")


import numerics as nm
from notebooks.recipe_edges import BF16 as PLAIN
from notebooks.recipe_edges import FP32, Kind, Run, edges, kind, strip
from numerics import ops
from reference.expert import Draw, ExpertMLP, Setting, route
from reference.presets import PRESETS, preset
from reference.recipe import ExpertRecipe

NAMES = list(PRESETS)


SIGNS = {size: nm.hadamard_signs(size, (1, 0)) for size in (16, 32, 64, 128)}


def told_signs(signs: torch.Tensor | None) -> str:
    """A transform as a card calls it, by its signs: the run's own or others."""
    if signs is None:
        return ""
    return f"RHT-{len(signs)}" + ("" if torch.equal(signs, SIGNS[len(signs)]) else " fresh")


def source_kind(source) -> Kind:
    """What an operand is made from."""
    return kind(source.fmt) if isinstance(source, nm.BlockTensor) else FP32 if source.dtype == torch.float32 else PLAIN


def multiplied(recipe: ExpertRecipe) -> dict[str, tuple[object, str, Kind | None]]:
    """Edge -> (the operand that a layer under `recipe` multiplies or sends, the transform that it passed, what it was
    made from, where an operation of the seam made it alone)."""
    seen, rotated, sources, calls = {}, {}, {}, []
    spy = ModuleType("spy")
    spy.__dict__.update(vars(ops))

    def caught(name):
        def call(*args, **kwargs):
            result = getattr(ops, name)(*args, **kwargs)
            signs = args[5] if len(args) > 5 else None
            if result is args[0]:  # BF16 from BF16: a tensor of its own identity
                result = result.view_as(result)
            rotated[id(result)], sources[id(result)] = told_signs(signs), source_kind(args[0])
            calls.append(result)  # also keeps it, so that no identity is used twice
            return result

        return call

    def gate_up_glu(x, w, *args):
        seen["x"], seen["w13"] = x, w
        return ops.gate_up_glu(x, w, *args)

    def down_to_wire(h, w, groups, wire, accumulator):
        seen["h"], seen["w2"] = h, w
        seen["combine"] = result = ops.down_to_wire(h, w, groups, wire, accumulator)
        rotated[id(result)] = told_signs(wire.signs)
        return result

    def grad_to_wire(*args):
        seen["dy wire"] = result = ops.grad_to_wire(*args)
        return result

    def grad_products(g, g_tokens, w, x, *args):
        matrix = ("dy", "w2", "h") if "dgrad dy" not in seen else ("dz", "w13", "x")
        names = f"dgrad {matrix[0]}", f"wgrad {matrix[0]}", f"dgrad {matrix[1]}", f"wgrad {matrix[2]}"
        seen.update(zip(names, (g, g_tokens, w, x), strict=True))
        return ops.grad_products(g, g_tokens, w, x, *args)

    spy.__dict__.update(
        quantize_tokens=caught("quantize_tokens"),
        requantize_transpose=caught("requantize_transpose"),
        gate_up_glu=gate_up_glu,
        down_to_wire=down_to_wire,
        grad_to_wire=grad_to_wire,
        grad_products=grad_products,
    )
    generator = torch.Generator().manual_seed(0)
    x, weights = torch.randn(128, 128, generator=generator), torch.rand(128, 1, generator=generator)
    w13, w2 = torch.randn(2, 256, 128, generator=generator), torch.randn(2, 128, 128, generator=generator)
    setting = Setting(spy, recipe, SIGNS, 0, Draw(0, 1, 0))
    tensors = [t.requires_grad_() for t in (x.bfloat16(), weights, w13, w2)]
    out = ExpertMLP.apply(*tensors, route(torch.arange(128).view(-1, 1) % 2, 2), setting)
    out.backward(torch.randn(out.shape, generator=generator).to(out.dtype))
    seen["dx wire"] = calls[-1]  # the last thing that a layer quantizes
    return {name: (q, rotated.get(id(q), ""), sources.get(id(q))) for name, q in seen.items()}


@pytest.mark.parametrize("name", NAMES)
def test_cards_say_what_the_trainer_multiplies(name):
    recipe = preset(name).experts
    told, seen = edges(recipe), multiplied(recipe)
    assert set(told) == {*seen, "masters"}
    for key, (operand, transform, source) in seen.items():
        edge = told[key]
        assert edge.hadamard == transform, key
        if source is not None and key != "dgrad dy":  # which is decoded in between
            assert edge.source == source, key
        if not isinstance(operand, nm.BlockTensor):
            assert (edge.name, edge.lines, operand.dtype) == ("BF16", (), torch.bfloat16), key
            continue
        fmt = operand.fmt
        along = "tokens" if key.startswith("wgrad") else {"w": "in-features"}.get(key[0], "features")
        along = "out-features" if key.startswith("dgrad w") else along
        assert edge.name == fmt.name and edge.kind == kind(fmt), key
        assert edge.lines[0] == f"{fmt.tile}x{fmt.block} {along}", key
        assert operand.axis == operand.codes.ndim - (2 if "tokens" in along or "out" in along else 1), key
        assert edge.lines[2] == f"by {operand.rule}", key
        outer = any(line.startswith(("outer per", "own outer", "outer kept")) for line in edge.lines)
        # a rule without scopes may have a factor of its own, such as 4/3
        factor = fmt.rule.scale_max is None and operand.outer is not None and operand.outer.numel() == 1
        assert outer == (operand.outer is not None and not factor), key


@pytest.mark.parametrize(
    ("name", "received"), [("fourbit", "MXFP8"), ("nvfp4_nvidia", "BF16"), ("fp8_deepseek", "FP8")]
)
def test_wires_are_where_gradients_come_from(name, received):
    told = edges(preset(name).experts)
    assert told["dgrad dy"].source == told["wgrad dy"].source == told["dy wire"].kind == told["dx wire"].kind
    assert told["dgrad dy"].source.label.startswith(received)
    assert {key: told[key].source for key in ("x", "h", "combine", "dy wire", "dx wire")} == {
        "x": PLAIN, "h": PLAIN, "combine": FP32, "dy wire": PLAIN, "dx wire": FP32
    }  # fmt: skip


def test_kinds_are_told_apart_by_what_a_format_is_and_not_by_its_name():
    mine = replace(nm.NVFP4_46, name="mine")
    assert kind(mine) == kind(nm.NVFP4_46) != kind(nm.NVFP4) != kind(nm.NVFP4_2D)
    assert len({kind(f) for f in (None, nm.NVFP4, nm.NVFP4_46, nm.NVFP4_2D, nm.MXFP8, nm.MXS2F6, nm.MXFP4)}) == 7


@pytest.mark.parametrize(("name", "depth", "runs"), [
    ("fourbit", 24, [("experts", 0, 20), ("last", 20, 4)]),
    ("fourbit", 5, [("experts", 0, 4), ("last", 4, 1)]),
    ("fourbit_first_sixth", 12, [("last", 0, 2), ("experts", 2, 10)]),
    ("nvfp4_nvidia", 20, [("experts", 0, 17), ("last", 17, 3)]),
    ("mxfp8", 24, [("experts", 0, 24)]),
])  # fmt: skip
def test_the_strip_says_which_layers(name, depth, runs):
    """ceil(24 / 6) = 4, ceil(5 / 6) = 1, ceil(12 / 6) = 2, ceil(20 * 0.15) = 3."""
    assert strip(preset(name), depth) == tuple(Run(*run) for run in runs)
