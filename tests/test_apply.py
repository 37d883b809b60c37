"""Contract: `apply` swaps products and nothing else, `remove` gives back the same objects, and what cannot follow a
recipe is told by name before anything is changed.

Oracle: `walk`, which calls `LinearUnder` layer by layer with random words named by hand, and torch's own modules before
and after. Comparisons are bitwise.
"""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import numerics as nm
import reference
from numerics import ops
from reference.expert import Draw, Setting
from reference.linear import LinearUnder
from reference.presets import preset
from reference.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")

D, F = 64, 128
X = torch.randn(2, 20, D, generator=torch.Generator().manual_seed(1))


class Block(nn.Module):
    """x + b(relu(a(x)))."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, F), nn.Linear(F, D, bias=False)
        self.again = False

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._inner, x, use_reentrant=False) if self.again else self._inner(x)

    def _inner(self, x: Tensor) -> Tensor:
        return x + self.b(torch.relu(self.a(x)))


class Model(nn.Module):
    """Numbered layers and a head."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(D, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make(depth: int = 6) -> Model:
    torch.manual_seed(0)
    return Model(depth)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    model.zero_grad()
    model(X).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def at(model: nn.Module, step: int, call: Callable[[nn.Module], Any] = gradients) -> Any:
    with reference.step(model, step):
        return call(model)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def walk(model: Model, recipe: Recipe, step: int, call: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """Gradients of `gradients` under the recipe, layer by layer; the head stays as it is."""
    x, depth = X.flatten(0, 1), len(model.layers)
    signs = {size: nm.hadamard_signs(size, (seed, 0)) for size in (16, 32, 64, 128)}
    for i, layer in enumerate(model.layers):
        settings = [Setting(ops, recipe.layer(i, depth), signs, 2 * i + j, Draw(seed, step, call)) for j in range(2)]
        hidden = torch.relu(LinearUnder.apply(x, layer.a.weight, layer.a.bias, settings[0]))
        x = x + LinearUnder.apply(hidden, layer.b.weight, None, settings[1])
    model.zero_grad()
    nn.functional.linear(x.view(X.shape), model.head.weight, model.head.bias).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def watched(note: Callable[[str], Any]) -> Any:
    """The emulated operations, each of which tells its name first."""

    def noted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            note(name)
            return getattr(ops, name)(*args, **named)

        return call

    names = [name for name in dir(ops) if callable(getattr(ops, name)) and name[0].islower()]
    return SimpleNamespace(**{n: noted(n) for n in names}, Wire=ops.Wire, Recast=ops.Recast, Cast=ops.Cast)


@pytest.mark.parametrize("name", ["fourbit", "fourbit_first_sixth", "tetrajet2"])
def test_every_layer_computes_by_its_part_of_the_recipe_from_its_own_words(name: str) -> None:
    model = make()
    plain = copy.deepcopy(model)
    reference.apply(model, name, seed=4)
    assert equal(at(model, 9), walk(plain, preset(name), 9, seed=4))


def test_apply_then_remove_gives_the_same_objects_bits_and_hooks_back() -> None:
    model = make()
    seen: list[str] = []
    model.layers[2].a.register_forward_hook(lambda *_: seen.append("after"))
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    classes = {name: type(m) for name, m in modules.items()}
    attributes = {name: {k: v for k, v in m.__dict__.items() if k[0] != "_"} for name, m in modules.items()}
    state = {name: t.clone() for name, t in model.state_dict().items()}
    out, grads = model(X), gradients(model)
    for _ in range(2):
        reference.apply(model, "fourbit")
        assert all(p is parameters[name] for name, p in model.named_parameters())
        assert all(m is modules[name] and isinstance(m, classes[name]) for name, m in model.named_modules())
        assert equal(dict(model.state_dict()), state)
        seen.clear()
        assert not torch.equal(model(X), out)
        assert seen == ["before", "after"]
        model.load_state_dict(state, strict=True)
        reference.remove(model)
    assert {name: type(m) for name, m in model.named_modules()} == classes
    assert attributes == {n: {k: v for k, v in m.__dict__.items() if k[0] != "_"} for n, m in modules.items()}
    assert not any(key.startswith("_fourbit") for m in modules.values() for key in m.__dict__)
    assert len(model._forward_pre_hooks) == 1 and len(model.layers[2].a._forward_hooks) == 1
    assert equal(dict(model.state_dict()), state)
    assert torch.equal(model(X), out) and equal(gradients(model), grads)


def test_steps_go_up_with_calls_in_training_and_can_be_named() -> None:
    model = make()
    plain, recipe = copy.deepcopy(model), preset("fourbit")
    reference.apply(model, recipe)
    for step in range(2):
        assert equal(gradients(model), walk(plain, recipe, step))
    model.eval()
    with torch.no_grad():
        model(X)
    model.train()
    assert equal(gradients(model), walk(plain, recipe, 2))  # an evaluation is no step
    with reference.step(model, 70):  # calls within a step are counted, if they can have a backward
        with torch.no_grad():
            model(X)
        assert equal(gradients(model), walk(plain, recipe, 70, 0))
        assert equal(gradients(model), walk(plain, recipe, 70, 1))
    assert equal(gradients(model), walk(plain, recipe, 71))


def test_gradients_in_evaluation_before_the_first_step_share_no_words_with_it() -> None:
    model, plain = make().eval(), make()
    reference.apply(model, "fourbit")
    assert equal(gradients(model), walk(plain, preset("fourbit"), 0, 0))
    model.train()
    assert equal(gradients(model), walk(plain, preset("fourbit"), 0, 1))
    assert equal(gradients(model), walk(plain, preset("fourbit"), 1, 0))


def test_a_copy_counts_for_itself_and_is_removed_for_itself() -> None:
    model = make()
    reference.apply(model, "fourbit")
    gradients(model)
    other = copy.deepcopy(model)
    first, second = gradients(model), gradients(model)
    assert not equal(first, second)
    assert equal(gradients(other), first)
    reference.remove(other)
    assert equal(gradients(other), gradients(make()))
    assert equal(at(model, 1), first)


def test_where_selects_by_glob_list_and_function_and_parts_can_follow_different_recipes() -> None:
    model = make(2)
    assert [line.name for line in reference.apply(model, "mxfp8", "layers.0.*").lines] == ["layers.0.a", "layers.0.b"]
    report = reference.apply(model, "fourbit", lambda name, module: module.out_features == D and "1" in name, seed=3)
    assert [line.name for line in report.lines] == ["layers.1.b"]
    settings = [model.get_submodule(name)._fourbit for name in ("layers.0.a", "layers.0.b", "layers.1.b")]
    assert [s.number for s in settings] == [0, 1, 3]  # by all candidates: no two share their words
    assert len({id(s.steps) for s in settings}) == 1 and len(model._forward_pre_hooks) == 1
    reference.remove(model)
    report = reference.apply(model, "bf16", ["*.a", "head"])
    assert [line.name for line in report.lines] == ["layers.0.a", "layers.1.a", "head"]
    assert dict(report.left) == {"layers.0.b": "not selected", "layers.1.b": "not selected"}


def test_a_part_of_a_model_can_be_removed_first() -> None:
    model = make(2)
    reference.apply(model, "fourbit")
    reference.remove(model.layers[0])
    assert type(model.layers[0].a) is nn.Linear and type(model.layers[1].a) is not nn.Linear
    reference.remove(model)
    assert not model._forward_pre_hooks
    assert equal(gradients(model), gradients(make(2)))


def test_the_report_says_what_follows_what() -> None:
    text = str(reference.apply(make(), "fourbit"))
    lines = [line.split() for line in text.splitlines()]
    assert text.startswith("12 modules follow recipe fourbit, 1 left alone")
    assert "layers.*.a linear 128 x 64 0-4 of 6 most layers NVFP4_46 NVFP4 MXFP8".split() in lines
    assert "layers.5.b linear 64 x 128 5 of 6 the last 1/6 of the layers MXFP8 MXFP8 MXFP8".split() in lines
    assert lines[-1] == "left alone head: the output head".split()
    model = make()
    assert "osci_reset is the optimizer's" in str(reference.apply(model, "tetrajet2", "layers.*"))
    assert "recipe=tetrajet2" in repr(model.layers[3].b)
    assert "in no numbered list, so as most layers: head" in str(
        reference.apply(make(), "composer2", ["layers.*", "head"])
    )


def test_masters_in_bfloat16_train_and_keep_their_type() -> None:
    model = make().to(torch.bfloat16)
    reference.apply(model, "fourbit")
    out = model(X.to(torch.bfloat16))
    out.float().square().mean().backward()
    assert out.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.bfloat16 and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_under_autocast_products_are_those_of_its_dtype_in_both_directions() -> None:
    model, states = make(1), []
    layer = model.layers[0].a
    # operations see no autocast: kernels, unlike the emulation, do not switch it off themselves
    seam = watched(lambda _: states.append(torch.is_autocast_enabled("cpu")))
    reference.apply(model, "fourbit_all_layers", ops=seam)
    x = X.clone().requires_grad_()
    with reference.step(model, 0), torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        y.float().square().sum().backward()
    got = x.grad.clone(), layer.weight.grad.clone()
    assert y.dtype == torch.bfloat16 and len(states) == 9 and not any(states)
    x.grad = layer.weight.grad = None
    with reference.step(model, 0):
        wanted = layer(x.bfloat16())
    wanted.float().square().sum().backward()
    assert torch.equal(y, wanted) and torch.equal(got[0], x.grad) and torch.equal(got[1], layer.weight.grad)


def test_activation_checkpointing_has_the_same_bits() -> None:
    model = make()
    reference.apply(model, "fourbit")
    before = at(model, 5)
    for layer in model.layers:
        layer.again = True
    assert equal(at(model, 5), before)


def test_compiled_afterwards_the_layers_keep_their_bits() -> None:
    model = make(2)
    reference.apply(model, "fourbit")
    before = at(model, 5)
    seen: set[str] = set()

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.update(str(node.target) for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    assert equal(at(model, 5, lambda m: gradients_of(compiled, m)), before)
    assert len(seen) in (1, 2, 3), seen  # relu, the sum, the head: what lies between the layers


def gradients_of(called: nn.Module, model: nn.Module) -> dict[str, Tensor]:
    model.zero_grad()
    called(X).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_a_module_used_twice_draws_words_of_its_own_each_time() -> None:
    model = make(2)
    model.layers[1] = model.layers[0]
    report = reference.apply(model, "fourbit_all_layers")
    assert [line.name for line in report.lines] == ["layers.0.a", "layers.0.b"]
    gradients(model)
    assert model._fourbit_steps.calls == {0: 2, 1: 2}


def test_tied_weights_are_left_alone_or_told() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(32, D), "out": nn.Linear(D, 32, bias=False), "mid": nn.Linear(D, D)})
    model["out"].weight = model["embed"].weight
    report = reference.apply(model, "mxfp8")
    assert report.left == (("out", "its weight is also that of embed"),)
    report = reference.apply(model, "mxfp8", "out")
    assert "out follows the recipe; its weight is also that of embed" in report.notes
    assert model["out"].weight is model["embed"].weight


def test_routers_are_left_alone_and_experts_that_are_modules_follow_as_linear_layers() -> None:
    experts = nn.ModuleList(nn.Linear(D, D) for _ in range(2))
    model = other(experts=experts, gate=nn.Linear(D, 2), up=nn.Linear(D, D))
    report = reference.apply(model, "mxfp8")
    assert [line.name for line in report.lines] == ["layers.0.experts.0", "layers.0.experts.1", "layers.0.up"]
    assert report.left == (("layers.0.gate", "a router"),)


class Quantized(nn.Linear):
    """As other libraries' layers: an nn.Linear by class, with a product of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Subclass(nn.Linear):
    """Only by name another class."""


def test_a_subclass_that_multiplies_as_nn_linear_does_follows() -> None:
    model = nn.Sequential(Subclass(D, D))
    out = model(X)
    reference.apply(model, "mxfp8")
    assert isinstance(model[0], Subclass) and not torch.equal(model(X), out)
    reference.remove(model)
    assert type(model[0]) is Subclass and torch.equal(model(X), out)


def test_attention_that_multiplies_by_its_weights_itself_is_left_alone() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, F, batch_first=True), 2)
    with pytest.raises(ValueError, match="set_fastpath_enabled"):
        reference.apply(model, "mxfp8")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        report = reference.apply(model, "mxfp8")
        assert [line.name for line in report.lines] == [f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)]
        assert {name: reason for name, reason in report.left if "self_attn.out_proj" in name}.keys() == {
            "layers.0.self_attn.out_proj",
            "layers.1.self_attn.out_proj",
        }
        reference.remove(model)
        with pytest.raises(ValueError, match=r"layers.0.self_attn.out_proj: nn.MultiheadAttention multiplies"):
            reference.apply(model, "mxfp8", "*out_proj")
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def other(**parts: nn.Module) -> nn.Module:
    return nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict(parts)])})


def half() -> nn.Module:
    return other(fc=nn.Linear(D, D).half())


def replaced() -> nn.Module:
    model = other(fc=nn.Linear(D, D))
    layer = model["layers"][0]["fc"]
    layer.forward = lambda x: x
    return model


def compiled_in_place() -> nn.Module:
    model = make(1)
    model.layers[0].compile(backend="eager")
    return model


BAD: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "no module": (lambda: X, ("bf16",), {}, TypeError, "model is a torch.float32 tensor"),
    "unknown recipe": (make, ("fuorbit",), {}, ValueError, "preset='fuorbit' is unknown"),
    "no recipe": (make, (4,), {}, TypeError, "recipe is 4"),
    "no ops": (make, ("bf16",), {"ops": SimpleNamespace()}, TypeError, "ops lacks quantize_tokens"),
    "no seed": (make, ("bf16",), {"seed": 0.5}, TypeError, "seed is 0.5"),
    "negative seed": (make, ("bf16",), {"seed": -1}, ValueError, "seed=-1"),
    "unknown sums": (make, ("bf16",), {"accumulator": "fast"}, ValueError, "accumulator='fast'"),
    "where of a kind": (make, ("bf16", 3), {}, TypeError, "where is 3"),
    "where in a list": (make, ("bf16", ["*.a", 3]), {}, TypeError, "a pattern of where is 3"),
    "empty where": (make, ("bf16", []), {}, ValueError, r"where=\[\] selects nothing"),
    "near names": (make, ("bf16", "layers.1.c"), {}, ValueError, r"where='layers.1.c' matches no .*'layers.1.[ab]'"),
    "a container": (make, ("bf16", "layers.1"), {}, ValueError, "near: 'layers.1.a', 'layers.1.b'"),
    "one of two": (make, ("bf16", ["*.a", "*.zzz"]), {}, ValueError, r"where='\*.zzz' matches no"),
    "function": (make, ("bf16", lambda name, module: False), {}, ValueError, "selects none of 'layers.0.a'"),
    "nothing there": (lambda: nn.ReLU(), ("bf16",), {}, ValueError, "no nn.Linear or experts.*it has none"),
    "only a head": (lambda: other(head=nn.Linear(D, D)), ("bf16",), {}, ValueError, "layers.0.head: the output head"),
    "width": (make, ("mxfp8", "head"), {}, ValueError, "head: out_features=10 is no multiple of 32"),
    "inputs": (
        lambda: other(fc=nn.Linear(40, D)),
        ("mxfp8",),
        {},
        ValueError,
        "fc: in_features=40 is no multiple of 32",
    ),
    "outputs": (lambda: other(fc=nn.Linear(D, 40)), ("mxfp8",), {}, ValueError, "fc: out_features=40 .* of 32"),
    "layers it lacks": (
        *(lambda: nn.Sequential(nn.Linear(D, D)), ("fourbit",), {}, ValueError),
        "another part for the last 1/6 of the layers, and none .* fourbit_all_layers",
    ),
    "quantized": (
        lambda: other(fc=Quantized(D, D)),
        ("bf16",),
        {},
        ValueError,
        "fc: .*Quantized multiplies in its own",
    ),
    "half": (half, ("bf16",), {}, ValueError, "its weight is torch.float16: use float32 or bfloat16"),
    "lazy": (lambda: other(fc=nn.LazyLinear(D)), ("bf16",), {}, ValueError, "no shape yet: run one forward"),
    "replaced": (replaced, ("bf16",), {}, ValueError, "somebody replaced its forward"),
    "compiled": (lambda: torch.compile(make(1)), ("bf16",), {}, ValueError, "model is compiled: apply .* first"),
    "compiled within": (compiled_in_place, ("bf16",), {}, ValueError, "model.layers.0 is compiled"),
    "scripted": (lambda: torch.jit.script(nn.Linear(D, D)), ("bf16",), {}, ValueError, "model is scripted"),
    "data parallel": (lambda: nn.DataParallel(make(1)), ("bf16",), {}, ValueError, "apply to model.module"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_done_is_told_and_nothing_is_changed(case: str) -> None:
    build, arguments, named, error, words = BAD[case]
    model = build()
    with pytest.raises(error, match=words):
        reference.apply(model, *arguments, **named)
    if isinstance(model, nn.Module):
        assert not any(key.startswith("_fourbit") for m in model.modules() for key in m.__dict__)


def test_one_unfit_layer_leaves_the_others_unchanged_and_can_be_left_out() -> None:
    model = make(2)
    model.layers[1].b = nn.Linear(F, 40)
    with pytest.raises(ValueError, match=r"1 of 4 modules cannot follow; leave them out by where=:\n  layers.1.b"):
        reference.apply(model, "fourbit")
    assert type(model.layers[0].a) is nn.Linear
    assert len(reference.apply(model, "fourbit", lambda name, _: name not in ("layers.1.b", "head")).lines) == 3


def test_twice_and_not_at_all_are_refused() -> None:
    model = make(1)
    with pytest.raises(ValueError, match="no module of this Model follows a recipe"):
        reference.remove(model)
    with pytest.raises(ValueError, match="no part of this Model was given to apply"), reference.step(model, 0):
        pass
    reference.apply(model, "mxfp8")
    with pytest.raises(ValueError, match=r"layers.0.a follows mxfp8 already: call remove first"):
        reference.apply(model, "fourbit")
    for n, error in ((-1, ValueError), (2**32, ValueError), (1.0, TypeError)):
        with pytest.raises(error, match="n"), reference.step(model, n):
            pass
    model.layers[0].a.__class__ = type("Other", (type(model.layers[0].a),), {})
    with pytest.raises(ValueError, match=r"layers.0.a became a Other since apply: undo that first"):
        reference.remove(model)
    assert "_fourbit" in model.layers[0].b.__dict__
    model.layers[0].a.__class__ = type(model.layers[0].a).__bases__[0]
    reference.remove(model)
    with pytest.raises(ValueError, match="nothing to remove"):
        reference.remove(model)


class Final(nn.Linear):
    """Refuses to be derived from."""

    def __init_subclass__(cls, **named: Any) -> None:
        raise TypeError("final")


class Strict(nn.Linear):
    """Takes no attribute that it does not know."""

    def __setattr__(self, name: str, value: Any) -> None:
        if "fourbit" in name:
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_class_that_refuses_leaves_every_layer_unchanged() -> None:
    model = make(2)
    model.layers[1].a.__class__ = Final
    with pytest.raises(ValueError, match=r"layers.1.a: .*Final cannot be derived from \(final\); leave it out"):
        reference.apply(model, "fourbit")
    assert type(model.layers[0].a) is nn.Linear
    assert not any(key.startswith("_fourbit") for m in model.modules() for key in m.__dict__)
    model.layers[1].a.__class__ = Strict
    assert len(reference.apply(model, "fourbit").lines) == 4
    reference.remove(model)
    assert type(model.layers[1].a) is Strict


def test_a_list_given_to_apply_is_the_numbered_one() -> None:
    model, whole = make(), make()
    report = reference.apply(model.layers, "fourbit", seed=4)
    assert [line.place for line in report.lines] == [("", i, 6) for i in range(6) for _ in "ab"]
    assert [line.part for line in report.lines[-3:]] == ["most layers", *["the last 1/6 of the layers"] * 2]
    assert [line.split()[0] for line in str(report).splitlines()[2:]] == ["*.a", "*.b", "5.a", "5.b"]
    reference.apply(whole, "fourbit", seed=4)
    assert equal(at(model, 3), at(whole, 3))
    model.layers.add_module("named", nn.Linear(D, D))  # not a number
    assert reference.apply(model.layers, "mxfp8", "named").lines[0].place is None


def test_a_module_registered_twice_is_found_by_either_name() -> None:
    model = nn.ModuleDict({"last": nn.Linear(D, D), "layers": nn.ModuleList(nn.Linear(D, D) for _ in range(5))})
    model["layers"].append(model["last"])
    report = reference.apply(model, "fourbit", "layers.*")
    assert [line.name for line in report.lines] == ["last", *(f"layers.{i}" for i in range(5))]
    assert report.lines[0].place == ("layers", 5, 6) and report.lines[0].x == "MXFP8"
    assert "\nlast " in str(report)


def test_remove_reaches_what_was_applied_below() -> None:
    model = make()
    wrapped = (nn.Sequential(model), torch.compile(model, backend="eager"))
    for outer in wrapped:
        reference.apply(model, "fourbit")
        reference.remove(outer)
        assert not any(key.startswith("_fourbit") for m in model.modules() for key in m.__dict__)
        assert not model._forward_pre_hooks


def test_a_forward_that_was_replaced_since_is_put_back_first() -> None:
    model = make(1)
    reference.apply(model, "mxfp8")
    layer = model.layers[0].a
    followed = layer.forward
    layer.forward = lambda x: followed(x)
    with pytest.raises(ValueError, match=r"somebody replaced the forward of layers.0.a since apply: undo that first"):
        reference.remove(model)
    assert "_fourbit" in model.layers[0].b.__dict__
    del layer.forward
    reference.remove(model)
    assert equal(gradients(model), gradients(make(1)))


def test_an_input_that_does_not_fit_names_the_layer() -> None:
    model = make(1)
    reference.apply(model, "mxfp8")
    with pytest.raises(ValueError, match=r"the input of layers.0.a has shape \(2, 3\): pass \(.., 64\)"):
        model.layers[0].a(torch.zeros(2, 3))
    with pytest.raises(TypeError, match=r"the input of layers.0.a has dtype torch.int64"):
        model.layers[0].a(torch.zeros(2, D, dtype=torch.int64))
    assert model.layers[0].a(torch.zeros(D)).shape == (F,)
    assert model.layers[0].a(torch.zeros(0, 3, D)).shape == (0, 3, F)


def test_masters_that_became_half_precision_are_told() -> None:
    """float16 masters are refused by `apply`; so are those that become float16 afterwards."""
    model = make(1)
    reference.apply(model, "mxfp8")
    with pytest.raises(TypeError, match=r"the weights of layers.0.a became torch.float16 since apply: use float32"):
        model.half()(torch.zeros(2, D, dtype=torch.float16))


def test_other_operations_and_sums_are_used() -> None:
    seen: list[str] = []
    model = make(1)
    reference.apply(model, "fourbit_all_layers", "layers.0.b", ops=watched(seen.append), accumulator="exact")
    before = gradients(model)
    wanted = ["quantize_tokens"] * 2 + ["down_to_wire", "quantize_tokens", "row_scale"]
    assert seen == [*wanted, *["requantize_transpose"] * 3, "grad_products"]
    reference.remove(model)
    reference.apply(model, "fourbit_all_layers", "layers.0.b", accumulator="exact")
    assert equal(gradients(model), before)


def test_importing_reference_imports_nothing() -> None:
    code = (
        "import reference, sys; assert 'torch' not in sys.modules and {'apply', 'remove', 'step'} <= {*dir(reference)}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'aply'"):
        reference.aply  # noqa: B018


def test_the_model_itself_may_be_a_linear_layer() -> None:
    model = nn.Linear(D, D)
    out = model(X)
    report = str(reference.apply(model, "mxfp8"))
    assert report.startswith("1 module follows recipe mxfp8, 0 left alone") and "(the model)  linear" in report
    assert not torch.equal(model(X), out)
    reference.remove(model)
    assert type(model) is nn.Linear and torch.equal(model(X), out)


def test_a_recipe_of_one_s_own() -> None:
    mine = replace(preset("fourbit"), name="mine", last_share=0.5)
    report = reference.apply(make(4), mine)
    assert [line.x for line in report.lines] == ["NVFP4_46"] * 4 + ["MXFP8"] * 4


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    dist = pytest.importorskip("torch.distributed")
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_sharded_and_replicated_afterwards_the_layers_keep_their_bits(one_rank: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = make(2)
    reference.apply(model, "fourbit")
    before = at(model, 5)
    replicated = nn.parallel.DistributedDataParallel(model)
    assert equal(at(replicated, 5, lambda m: gradients_of(m, model)), before)
    for layer in model.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    sharded = at(model, 5, lambda m: gradients_of(m, m))
    assert equal({name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in sharded.items()}, before)
    reference.remove(model)
    with pytest.raises(ValueError, match=r"model\.layers\.0 is sharded: apply the recipe first, then fully_shard"):
        reference.apply(model, "fourbit")
