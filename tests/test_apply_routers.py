"""Which layers of a foreign model route and which are experts, by structure; and words of its own for every replica.

Contract: no router follows a recipe by default, wherever it lies; every module that owns matrices of three axes stands
in the report; a list of experts is no list of layers; replicas round independently. Oracle: models of known layouts,
built here in small; `ExpertMLP` for torchtitan's experts; 1 / R for the noise of a mean over R replicas.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import reference
from numerics import ops
from reference import apply_find, apply_layers
from reference.apply_steps import replica_seed
from reference.expert import Draw, ExpertMLP, Setting, route
from reference.presets import preset
from tests.rank_processes import ranks

pytestmark = pytest.mark.usefixtures("one_thread")

D, E = 64, 8


def linear(width: int = D) -> nn.Linear:
    return nn.Linear(D, width, bias=False)


def tree(**children: nn.Module) -> nn.Module:
    """A module with these children; a name may hold underscores for dots: a__b is a.b."""
    top = nn.Module()
    for path, child in children.items():
        at = top
        *outer, last = path.split("__")
        for part in outer:
            if not hasattr(at, part):
                at.add_module(part, nn.Module())
            at = getattr(at, part)
        at.add_module(last, child)
    return top


def mlp() -> nn.Module:
    return tree(gate_proj=linear(), up_proj=linear(), down_proj=linear())


class Stacked(nn.Module):
    """Matrices of three axes under a name that says nothing."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names or ("weight",):
            self.register_parameter(name, nn.Parameter(torch.randn(E, D, D)))


def many() -> nn.ModuleList:
    return nn.ModuleList(mlp() for _ in range(E))


def network(*layers: nn.Module, depth: int = 6) -> nn.Module:
    import copy

    return tree(layers=nn.ModuleList(copy.deepcopy(layers[0]) for _ in range(depth)))


# (a layer, names of routers in it, names of layers that follow)
LAYOUTS: dict[str, tuple[Any, set[str], set[str]]] = {
    "switch": (
        lambda: tree(
            mlp__router__classifier=linear(E), mlp__experts=nn.ModuleDict({f"expert_{i}": mlp() for i in (0, 1)})
        ),
        {"mlp.router.classifier"},
        {"mlp.experts.expert_0.up_proj"},
    ),
    "dbrx": (
        lambda: tree(ffn__router__layer=linear(E), ffn__experts=many(), attn__Wqkv=linear(), attn__out_proj=linear()),
        {"ffn.router.layer"},
        {"attn.Wqkv", "attn.out_proj", "ffn.experts.3.down_proj"},
    ),
    "deepspeed": (
        lambda: tree(moe__deepspeed_moe__gate__wg=linear(E), moe__deepspeed_moe__experts__deepspeed_experts=many()),
        {"moe.deepspeed_moe.gate.wg"},
        {"moe.deepspeed_moe.experts.deepspeed_experts.0.gate_proj"},
    ),
    "jetmoe": (  # attention is a mixture too, and its projection of keys and values is as wide as there are experts
        lambda: tree(
            attn__experts__input_linear=Stacked(),
            attn__experts__output_linear=Stacked(),
            attn__experts__router__layer=linear(E),
            attn__kv_proj=linear(E * 4),
        ),
        {"attn.experts.router.layer"},
        {"attn.kv_proj"},
    ),
    "a router of two layers": (
        lambda: tree(moe__gate_net=nn.Sequential(linear(D), nn.ReLU(), linear(E)), moe__experts=many()),
        {"moe.gate_net.0", "moe.gate_net.2"},
        {"moe.experts.7.up_proj"},
    ),
    "the router beside the mixture": (
        lambda: tree(routing__router=linear(E), body__experts=Stacked("a", "b"), body__shared=mlp()),
        {"routing.router"},
        {"body.shared.down_proj"},
    ),
    "qwen's gate of a shared expert": (
        lambda: tree(
            mlp__gate=linear(E), mlp__experts=many(), mlp__shared_expert=mlp(), mlp__shared_expert_gate=linear(1)
        ),
        {"mlp.gate", "mlp.shared_expert_gate"},
        {"mlp.shared_expert.gate_proj"},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_router_follows_and_other_layers_do(name: str) -> None:
    make, routing, following = LAYOUTS[name]
    report = reference.apply(network(make()), "mxfp8")
    left = {n.removeprefix("layers.2."): reason for n, reason in report.left if n.startswith("layers.2.")}
    lines = {line.name.removeprefix("layers.2.") for line in report.lines if line.name.startswith("layers.2.")}
    assert {n for n, reason in left.items() if reason == "a router"} == routing
    assert following <= lines and not routing & lines


def test_what_looks_like_a_router_is_left_alone_and_asked_about() -> None:
    layer = tree(moe__chooser=linear(E), moe__experts=many(), moe__project=linear(2 * D))
    report = reference.apply(network(layer), "mxfp8")
    asked = f"{E} outputs beside {E} experts: it looks like a router; name it in where= if it is none"
    assert ("layers.0.moe.chooser", asked) in report.left
    assert "layers.0.moe.project" in {line.name for line in report.lines}
    model = tree(moe__chooser=linear(D), moe__experts=nn.ModuleList(linear() for _ in range(D)))
    assert ("moe.chooser", asked.replace(str(E), str(D))) in reference.apply(model, "mxfp8").left
    reference.remove(model)
    assert [line.name for line in reference.apply(model, "mxfp8", "moe.chooser").lines] == ["moe.chooser"]


def wide(count: int = 32) -> nn.ModuleList:
    """Experts as many as blocks divide, so that no width saves a router."""
    return nn.ModuleList(mlp() for _ in range(count))


def glu() -> nn.Module:
    return tree(gate=linear(), up=linear(), down=linear())


# (a layer, layers in it that are asked about, layers that follow)
ASKED: dict[str, tuple[Any, set[str], set[str]]] = {
    "experts that are attributes": (
        lambda: tree(moe__gate=linear(32), **{f"moe__expert{i}": glu() for i in range(32)}),
        {"moe.gate"},
        {"moe.expert7.gate"},
    ),
    "experts that do nothing": (
        lambda: tree(gate=nn.Linear(D, 96), experts=nn.ModuleList([mlp(), mlp(), nn.Identity()])),
        {"gate"},
        {"experts.1.up_proj"},
    ),
    "stacks of four axes": (
        lambda: tree(moe__gate=linear(32), moe__w=nn.ParameterList([torch.zeros(32, 2, D, D)]), q_proj=linear()),
        {"moe.gate"},
        {"q_proj"},
    ),
    "a list that is not called experts": (
        lambda: tree(moe__picker=linear(32), moe__ffns=wide()),
        {"moe.picker"},
        {"moe.ffns.31.up_proj"},
    ),
    "a hidden layer of a router that is not called so": (
        lambda: tree(moe__route_net=nn.Sequential(linear(), nn.ReLU(), linear(32)), moe__experts=wide()),
        {"moe.route_net.0", "moe.route_net.2"},
        {"moe.experts.0.up_proj"},
    ),
    "a gate in a shared expert": (
        lambda: tree(moe__pick=linear(), moe__experts=wide(D), moe__shared=glu(), dense=glu()),
        {"moe.pick"},
        {"moe.shared.gate", "moe.shared.up", "moe.shared.down", "dense.gate"},
    ),
    "gates that scale": (
        lambda: tree(
            gate=linear(), low_gate=linear(32), lift=nn.Linear(32, D), side__gate=linear(32), side__v=linear(32)
        ),
        set(),
        {"gate", "low_gate", "side.gate"},
    ),
    "an attention of three axes, as wide as the output": (
        lambda: tree(
            rel_attn=nn.ParameterDict({"q": torch.zeros(D, 2, 32)}), ff__a=linear(128), ff__b=nn.Linear(128, D)
        ),
        set(),
        {"ff.a", "ff.b"},
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_structure_tells_routers_from_gates_that_multiply(name: str) -> None:
    make, asked, following = ASKED[name]
    report = reference.apply(network(make()), "mxfp8")
    left = {n.removeprefix("layers.2."): reason for n, reason in report.left if n.startswith("layers.2.")}
    lines = {line.name.removeprefix("layers.2.") for line in report.lines if line.name.startswith("layers.2.")}
    assert {n for n, reason in left.items() if "name it in where= if it is none" in reason} == asked
    assert following <= lines and not asked & lines


def test_a_list_of_many_experts_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = apply_find.is_expert_list
    monkeypatch.setattr(apply_find, "is_expert_list", lambda *a: calls.append(a[0]) or real(*a))  # type: ignore[func-returns-value]
    reference.apply(network(tree(moe__gate=linear(E), moe__experts=many())), "mxfp8")
    assert len(calls) == 7  # the layers, and the experts of each


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Conv2d(4, 4, 3), "a convolution, which no recipe has"),
        (nn.ParameterDict({"bias": nn.Parameter(torch.zeros(2, 3, 4, 5))}), "bias: no experts, which no recipe has"),
        (Stacked(), "stacked experts of an unknown form (weight)"),
        (Stacked("a", "b"), "stacked experts of an unknown form (a, b)"),
        (nn.Conv1d(4, 4, 3), "a convolution, which no recipe has"),
        (
            nn.ParameterDict({"pos_embed": nn.Parameter(torch.zeros(1, 10, D))}),
            "pos_embed: no experts, which no recipe has",
        ),
    ],
    ids=["conv2d", "four axes", "one matrix", "two", "convolution", "positions"],
)
def test_every_module_with_matrices_of_three_axes_stands_in_the_report(module: nn.Module, reason: str) -> None:
    model = tree(body=linear(), odd=module)
    assert ("odd", reason) in reference.apply(model, "mxfp8").left


def test_experts_of_a_known_form_follow_under_any_name_of_class() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": D, "intermediate_size": D, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 32, "num_local_experts": 2}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))
    experts = model.model.layers[0].mlp.experts
    experts.__class__ = type("NaiveMoe", (type(experts),), {})
    report = reference.apply(model, "mxfp8")
    assert ("model.layers.0.mlp.experts", "experts") in {(line.name, line.kind) for line in report.lines}


@pytest.mark.parametrize("name", ["experts", "ffns"])
def test_a_list_of_experts_is_no_list_of_layers(name: str) -> None:
    """`fourbit` gives the last sixth of the layers MXFP8: of a list of experts none is the last layer."""
    alone = tree(**{name: nn.ModuleList(linear() for _ in range(E)), "gate": linear(E)})
    with pytest.raises(ValueError, match="none of the chosen modules is in a numbered list"):
        reference.apply(alone, "fourbit")
    report = reference.apply(
        network(tree(**{name: nn.ModuleList(linear() for _ in range(E)), "gate": linear(E)})), "fourbit"
    )
    assert {line.place[:2] for line in report.lines if line.name == f"layers.5.{name}.0"} == {("layers", 5)}
    assert {line.x for line in report.lines if line.name.startswith("layers.0.")} == {"NVFP4_46"}
    assert {line.x for line in report.lines if line.name.startswith("layers.5.")} == {"MXFP8"}


def test_a_list_beside_a_head_of_as_many_classes_is_one_of_layers() -> None:
    model = tree(blocks=nn.ModuleList(linear() for _ in range(E)), head=linear(E))
    report = reference.apply(model, "fourbit")
    assert [line.x for line in report.lines] == ["NVFP4_46"] * 6 + ["MXFP8"] * 2


def test_layers_in_a_numbered_dictionary_are_numbered() -> None:
    model = tree(layers=nn.ModuleDict({str(i): linear() for i in range(6)}))
    assert [line.x for line in reference.apply(model, "fourbit").lines] == ["NVFP4_46"] * 5 + ["MXFP8"]


# ---- torchtitan's experts --------------------------------------------------------------------------------------------


class GroupedExperts(nn.Module):
    """w2 (silu(w1 x) * w3 x), rows sorted by expert."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("w1", "w2", "w3"):
            self.register_parameter(name, nn.Parameter(0.2 * torch.randn(E, D, D)))

    def forward(self, x: Tensor, num_tokens_per_expert: Tensor) -> Tensor:
        parts, start = [], 0
        for e, count in enumerate(num_tokens_per_expert.tolist()):
            rows = x[start : start + count]
            parts.append((F.silu(rows @ self.w1[e].mT) * (rows @ self.w3[e].mT)) @ self.w2[e].mT)
            start += count
        return torch.cat([*parts, x.new_zeros(len(x) - start, D)])


def test_torchtitan_s_experts_compute_as_expert_mlp_and_padding_rows_are_zero() -> None:
    torch.manual_seed(0)
    module, counts = GroupedExperts(), torch.tensor([3, 0, 5, 1, 0, 7, 2, 4])
    x = torch.randn(int(counts.sum()) + 6, D)
    plain = module(x, counts)
    report = reference.apply(module, "fourbit_all_layers", seed=5)
    assert [(line.kind, line.shape) for line in report.lines] == [("experts", (E, D, D))]
    with reference.step(module, 7):
        out = module(x, counts)
    out.square().sum().backward()
    assert bool((out[-6:] == 0).all()) and 0 < float((out - plain).norm() / plain.norm()) < 0.35
    module_grads = {name: p.grad for name, p in module.named_parameters()}
    reference.remove(module)

    recipe = preset("fourbit_all_layers").experts
    signs = {size: apply_layers._signs(size, 5, torch.device("cpu")) for size in recipe.hadamard_sizes}
    w13 = torch.cat([module.w1, module.w3], 1).detach().requires_grad_()
    w2 = module.w2.detach().requires_grad_()
    chosen = torch.arange(E).repeat_interleave(counts).unsqueeze(-1)
    setting = Setting(ops, recipe, signs, 0, Draw(5, 7, 0))
    mine = ExpertMLP.apply(x[:-6], torch.ones(len(chosen), 1), w13, w2, route(chosen, E), setting)
    mine.to(x.dtype).square().sum().backward()
    assert torch.equal(out[:-6], mine.to(x.dtype))
    assert torch.equal(module_grads["w2"], w2.grad)
    assert torch.equal(torch.cat([module_grads["w1"], module_grads["w3"]], 1), w13.grad)


def test_experts_of_that_form_with_other_arguments_are_left_alone() -> None:
    class Other(GroupedExperts):
        def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
            return x

    report = reference.apply(tree(body=linear(), experts=Other()), "mxfp8")
    assert ("experts", "stacked experts of an unknown form (w1, w2, w3)") in report.left


# ---- replicas --------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(linear() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def gradient(model: nn.Module, x: Tensor, n: int) -> Tensor:
    with reference.step(model, n):
        model(x).square().mean().backward()
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return grads


def replica(number: int | None) -> nn.Module:
    model = Net()
    reference.apply(model, "fourbit_all_layers", replica=number)
    return model


def test_replicas_round_independently_and_the_first_as_one_process() -> None:
    x = torch.randn(64, D, generator=torch.Generator().manual_seed(1))
    models = [replica(r) for r in range(8)]
    assert torch.equal(gradient(models[0], x, 0), gradient(replica(None), x, 0))
    assert all(torch.equal(m(x), models[0](x)) for m in models)  # the forward has no words
    draws = torch.stack([torch.stack([gradient(m, x, n) for m in models]) for n in range(6)])
    noise = draws - draws.mean((0, 1))
    share = float(noise.mean(1).square().sum() / noise.square().sum(-1).mean(1).sum())
    expected = (1 - 1 / len(draws)) / 8 / (1 - 1 / draws[:, :, 0].numel())  # the mean was taken from the draws
    assert 0.95 * expected < share < 1.05 * expected  # the same words everywhere would give about 1


def test_seeds_of_replicas() -> None:
    seeds = [replica_seed(7, r) for r in range(1000)]
    assert seeds[0] == 7 and len(set(seeds)) == 1000 and replica_seed(8, 1) not in seeds
    for wrong in (-1, 2**32):
        with pytest.raises(ValueError, match="replica="):
            replica(wrong)
    with pytest.raises(TypeError, match="replica"):
        replica("0")  # type: ignore[arg-type]


def rank_gradients(kind: str) -> list[bool]:
    """In a rank, on equal data: whether the averaged gradient is this rank's own, and the mean of all ranks'."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    x, model = torch.randn(32, D), replica(None)
    own = gradient(model, x, 0)
    if kind == "averaged":  # as DistributedDataParallel does
        mean = own.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    else:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
        with reference.step(model, 0):
            model(x).square().mean().backward()
        mean = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    dist.barrier()
    dist.destroy_process_group()
    return [torch.equal(mean, own), torch.allclose(mean, torch.stack(every).mean(0), rtol=1e-5, atol=1e-9)]


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["averaged", "fsdp"])
def test_ranks_draw_words_of_their_own_without_being_told(kind: str) -> None:
    for ended in ranks(__file__, "rank_gradients", 2, kind):
        assert ended.found == [False, True]
