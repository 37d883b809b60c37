"""Contract: models of `transformers` train a step under every preset, are saved under their own names, and after
`remove` have their own bits; their stacked experts are computed by `ExpertMLP`.

Oracle: the same model without a recipe, and `ExpertMLP` called by hand. Tiny random Llama and Mixtral, and, where the
extra `real` is installed, all-MiniLM-L6-v2. Skips without `transformers`.
"""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import numerics as nm
import reference
from numerics import ops
from reference.expert import Draw, ExpertMLP, Setting, route
from reference.presets import PRESETS, preset
from studies import real_data

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
real = pytest.mark.skipif(bool(real_data.missing()), reason=real_data.missing())

D, DEPTH, VOCAB = 128, 2, 96
TOKENS = torch.randint(VOCAB, (2, 24), generator=torch.Generator().manual_seed(0))
SIZES = {
    "hidden_size": D,
    "intermediate_size": D,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "attn_implementation": "eager",
}


def llama(**sizes: Any) -> nn.Module:
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **sizes})).train()


def mixtral(**sizes: Any) -> nn.Module:
    torch.manual_seed(1)
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**{**SIZES, **experts, **sizes})).train()


class Own:
    """A model, and what it computes without a recipe."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.state = {name: t.clone() for name, t in model.state_dict().items()}
        self.logits = self.step()
        self.gradient = self.gathered()

    def step(self) -> Tensor:
        """Loss and gradients of a step; returns the logits."""
        self.model.zero_grad()
        out = self.model(input_ids=TOKENS, labels=TOKENS)
        self.loss = out.loss.item()
        out.loss.backward()
        return out.logits.detach()

    def gathered(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.model.parameters()])


@pytest.fixture(scope="module", params=[llama, mixtral], ids=["llama", "mixtral"])
def own(request: pytest.FixtureRequest) -> Own:
    return Own(request.param())


@pytest.mark.every(5)
@pytest.mark.parametrize("name", PRESETS)
def test_a_step_under_every_preset_and_the_model_s_own_bits_after_remove(own: Own, name: str) -> None:
    model, before = own.model, own.loss
    if any("_fourbit" in module.__dict__ for module in model.modules()):
        reference.remove(model)  # of another preset, whose test failed
        model.load_state_dict(own.state)
    report = reference.apply(model, name)
    assert len(report.lines) == DEPTH * (5 if "Mixtral" in type(model).__name__ else 7)
    assert report.left == (("lm_head", "the output head"),)
    own.step()
    gradient = own.gathered()
    assert bool(gradient.isfinite().all())
    # the noisiest product, stochastic NVFP4 by NVFP4, has relMSE 2 x 0.0235; at most 2 x 4 lie one after the other
    # each way, and cos^2 = 1 / (1 + noise); without formats some 64 roundings to BF16, 2^-18 each, are left. Of
    # Mixtral's 96 choices of experts two may be near a tie and fall otherwise
    noise = 64 * 2**-18 if name == "bf16" else 16 * 0.047
    ties = 2 / 96 if "Mixtral" in type(model).__name__ else 0.0
    assert nm.metrics.cosine(gradient, own.gradient) > (1 + noise + ties) ** -0.5
    first = own.loss
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.05 * p.grad
        assert model(input_ids=TOKENS, labels=TOKENS).loss.item() < first
    model.load_state_dict(own.state, strict=True)
    reference.remove(model)
    own.loss = before
    with torch.no_grad():
        assert torch.equal(model(input_ids=TOKENS).logits, own.logits)
    state = model.state_dict()
    assert list(state) == list(own.state) and all(torch.equal(state[key], own.state[key]) for key in state)


def test_experts_are_those_of_expert_mlp_with_rows_sorted_by_expert() -> None:
    model = mixtral()
    experts = model.model.layers[0].mlp.experts
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(40, D, generator=generator)
    chosen = torch.rand(40, 4, generator=generator).topk(3).indices  # in the order of probability, not of experts
    weights = torch.rand(40, 3, generator=generator)

    def gradients(call: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in (x, weights)]
        out = call(*leaves)
        parameters = [experts.gate_up_proj, experts.down_proj]
        return [out, *torch.autograd.grad(out.float().square().sum(), [*leaves, *parameters])]

    plain = gradients(lambda x, w: experts(x, chosen, w))
    reference.apply(model, "bf16")
    for got, exact in zip(gradients(lambda x, w: experts(x, chosen, w)), plain, strict=True):
        # some ten roundings to BF16 in a chain, 2^-9 / sqrt(3) rms each; those that feed a product add up
        assert nm.metrics.error(exact.detach(), got.detach().float()).rel_mse < 30 * 2.0**-18
    reference.remove(model)
    reference.apply(model, "fourbit", seed=6)
    with reference.step(model, 3):
        got = gradients(lambda x, w: experts(x, chosen, w))
    ascending, order = chosen.sort(-1)
    number = experts._fourbit.number
    recipe = preset("fourbit").layer(0, DEPTH)
    setting = Setting(ops, recipe, {32: nm.hadamard_signs(32, (6, 0))}, number, Draw(6, 3, 0))
    operands = experts.gate_up_proj, experts.down_proj, route(ascending, 4), setting
    wanted = gradients(lambda x, w: ExpertMLP.apply(x, w.gather(-1, order), *operands).to(x.dtype))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_a_flipped_bit_of_one_layer_s_saved_codes_changes_that_layer_s_weight_gradient_alone() -> None:
    model = llama()
    reference.apply(model, "fourbit", "model.layers.0.*")
    module = model.model.layers[0].mlp.up_proj
    kept: list[Any] = []
    handle = module.register_forward_hook(lambda module, args, out: kept.append(out.grad_fn.next_functions[0][0]))

    def gradients(flip: bool) -> dict[str, Tensor]:
        model.zero_grad()
        with reference.step(model, 0):
            loss = model(input_ids=TOKENS, labels=TOKENS).loss
        codes = kept.pop().saved_tensors[0]  # those of x, two to a byte
        if flip:
            codes.data.view(-1)[5 * D // 2 + 7] ^= 0b0010_0000  # the odd one: row 5, column 15
        loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    before, after = gradients(False), gradients(True)
    handle.remove()
    differs = {name: before[name] != after[name] for name in before if not torch.equal(before[name], after[name])}
    assert list(differs) == ["model.layers.0.mlp.up_proj.weight"]
    assert differs.popitem()[1].any(0).nonzero().flatten().tolist() == [15]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_bfloat16_models_and_gradient_checkpointing_train() -> None:
    model = mixtral().to(torch.bfloat16)
    reference.apply(model, "fourbit")

    def step() -> list[Tensor]:
        model.zero_grad()
        with reference.step(model, 1):
            model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    before = step()
    assert all(g.dtype == torch.bfloat16 and bool(g.isfinite().all()) for g in before)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert all(torch.equal(a, b) for a, b in zip(before, step(), strict=True))


def test_experts_see_no_autocast_in_either_direction_and_rows_in_the_order_of_experts() -> None:
    model, states = mixtral(), []

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            states.append(torch.is_autocast_enabled("cpu"))
            # the seam adds a token's rows in their order, which has to be that of experts
            assert call is not ops.aggregate or bool((args[1].diff(dim=-1) > 0).all())
            return call(*args)

        return noting

    names = ("gate_up_glu", "aggregate", "router_gradient", "glu_backward", "grad_products")
    seam = SimpleNamespace(**{**vars(ops), **{name: noted(getattr(ops, name)) for name in names}})
    reference.apply(model, "fourbit", "*experts", ops=seam)
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert len(states) == 7 * DEPTH and not any(states)


def test_a_second_derivative_through_experts_is_refused() -> None:
    model = mixtral()
    reference.apply(model, "fourbit")
    experts = model.model.layers[0].mlp.experts
    weights = torch.full((4, 2), 0.5, requires_grad=True)
    out = experts(torch.randn(4, experts.hidden_dim), torch.tensor([[0, 1]] * 4), weights)
    (d_weights,) = torch.autograd.grad(out.square().sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match=r"twice|once_differentiable"):
        d_weights.sum().backward()


def test_generation_and_a_saved_model_need_nothing_of_ours(tmp_path: Any) -> None:
    model = mixtral().eval()
    wanted = {name: t.clone() for name, t in model.state_dict().items()}
    reference.apply(model, "fourbit")
    assert model.generate(TOKENS[:, :4], max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 7)
    model.save_pretrained(tmp_path)
    loaded = transformers.MixtralForCausalLM.from_pretrained(tmp_path).state_dict()
    assert loaded.keys() == wanted.keys() and all(torch.equal(loaded[key], wanted[key]) for key in wanted)


def test_tied_heads_are_left_alone() -> None:
    model = llama(tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert reference.apply(model, "mxfp8").left == (("lm_head", "the output head"),)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "gelu"}, "whose activation is not silu"),
        ({"is_transposed": True}, r"unknown form \(is_transposed\)"),
        ({"has_bias": True}, r"unknown form \(has_bias\)"),
        ({"_is_expert_parallel": True}, r"unknown form \(_is_expert_parallel\)"),
    ],
)
def test_experts_of_another_form_are_left_alone_and_refused_where_they_are_asked_for(
    change: dict[str, Any], words: str
) -> None:
    model = mixtral(**{key: value for key, value in change.items() if key == "hidden_act"})
    for layer in model.model.layers:
        for key, value in change.items():
            setattr(layer.mlp.experts, key, value)
    report = reference.apply(model, "mxfp8")
    assert [name for name, _ in report.left if "experts" in name] == [f"model.layers.{i}.mlp.experts" for i in (0, 1)]
    reference.remove(model)
    with pytest.raises(ValueError, match=f"experts: .*{words}"):
        reference.apply(model, "mxfp8", "*experts")


def test_experts_with_a_gate_of_their_own_are_refused() -> None:
    model = mixtral()
    experts = model.model.layers[1].mlp.experts
    experts.__class__ = type("ClampedExperts", (type(experts),), {"_apply_gate": lambda self, gate_up: gate_up})
    with pytest.raises(
        ValueError, match=r"1 of 2 modules cannot follow.*\n  model.layers.1.mlp.experts: experts with a gate"
    ):
        reference.apply(model, "mxfp8", "*experts")


def test_experts_whose_width_blocks_do_not_divide_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"model.layers.0.mlp.experts: expert width=48 is no multiple of 32"):
        reference.apply(mixtral(intermediate_size=48), "fourbit")


@pytest.mark.parametrize("family", ["Qwen3Moe", "DeepseekV3", "Olmoe"])
def test_other_families_have_the_same_experts(family: str) -> None:
    config = getattr(transformers, f"{family}Config")
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    sizes = {**SIZES, "moe_intermediate_size": 64, "num_experts_per_tok": 2, **dict.fromkeys(names, 8)}
    if family == "DeepseekV3":
        sizes |= {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 64, "kv_lora_rank": 64}
        sizes |= {"qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
    model = getattr(transformers, f"{family}ForCausalLM")(config(**sizes)).train()
    report = reference.apply(model, "fourbit")
    assert "experts" in {line.kind for line in report.lines}
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_a_model_without_linear_layers_says_so() -> None:
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=VOCAB))
    with pytest.raises(ValueError, match=r"no nn.Linear or experts .*lm_head: the output head"):
        reference.apply(model, "mxfp8")


@real
@pytest.mark.parametrize("name", ["bf16", "mxfp8", "fourbit"])
def test_minilm_trains_a_step_and_has_its_own_bits_again(minilm: tuple[nn.Module, Tensor], name: str) -> None:
    model, tokens = minilm

    def gradient() -> tuple[Tensor, Tensor]:
        model.zero_grad()
        out = model(input_ids=tokens).last_hidden_state
        (1 - torch.cosine_similarity(out[0].mean(0), out[1].mean(0), 0)).backward()
        return out.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    state = copy.deepcopy(model.state_dict())
    out, exact = gradient()
    report = reference.apply(model, name, "encoder.*")
    assert len(report.lines) == 36
    got, approximate = gradient()
    assert bool(approximate.isfinite().all())
    # a product's relMSE as in test_expert.py, for BF16 four roundings; 6 x 4 products lie one after the other each way,
    # and cos^2 = 1 / (1 + noise). Measured 0.9999, 0.991 and 0.907
    noise = {"bf16": 4 * 2**-18, "mxfp8": 0.0014, "fourbit": 0.0166}[name]
    assert nm.metrics.cosine(approximate, exact) > (1 + 48 * noise) ** -0.5
    assert not torch.equal(got, out)
    reference.remove(model)
    assert torch.equal(gradient()[0], out)
    assert all(torch.equal(t, state[key]) for key, t in model.state_dict().items())


@pytest.fixture(scope="module")
def minilm() -> tuple[nn.Module, Tensor]:
    """The model, without dropout, and two sentences of its own description as tokens (2, S)."""
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    place = real_data.folder()
    config = transformers.BertConfig.from_json_file(place / "config.json")
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model = transformers.BertModel(config, add_pooling_layer=False)
    model.load_state_dict(load_file(place / "model.safetensors"), strict=False)
    tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [tokenizer.encode(sentence).ids for sentence in real_data.sentences()[:2]]
    return model.train(), torch.tensor([i[: min(map(len, ids))] for i in ids])
