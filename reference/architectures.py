"""How a model looks as one of the architectures of the library `transformers`: its configuration, its tensors' names.

    softmax router, no shared expert       mixtral
    softmax router and a shared expert     qwen2_moe, whose shared expert has a gate: sigmoid(0) = 1/2 times twice w_out
    sigmoid router and a shared expert     glm4_moe

Each computes what this model computes, with BF16 roundings elsewhere: rotary positions in halves (base 10,000), RMSNorm
(epsilon 1e-6), renormalized weights of the chosen experts, SwiGLU. The factor of two is exact. Read from the source of
transformers 5.24. What none of them has is refused: a convolution, attention without positions, a few combinations.

A `Place` says where rows of one of our matrices lie, for both directions. Shapes: D width, E experts, F their width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .sizes import ModelConfig

ROPE_BASE, EPSILON = 10000.0, 1e-6


@dataclass(frozen=True)
class Architecture:
    """Args: kind: the `model_type`. name: of the class. block: of a layer's experts. matrices: gate, up and down of an
    expert. shared: the shared expert in the block, or None. factor: of its w_out. own: the fields of its configuration
    beside those that all have. fixed: fields that must have one value, with the library's default."""

    kind: str
    name: str
    block: str
    matrices: tuple[str, str, str]
    shared: str | None
    factor: float
    own: Callable[[ModelConfig], dict[str, Any]]
    fixed: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Place:
    """Rows `start` to `stop` (None: all) of our parameter or buffer `ours`, of expert `expert` if it has one for each,
    are `theirs`, or `factor` times that. vector: no matrix, kept in FP32. quantized: by the recipe, if it does that."""

    ours: str
    theirs: str
    expert: int | None = None
    start: int = 0
    stop: int | None = None
    factor: float = 1.0
    vector: bool = False
    quantized: bool = False

    @property
    def module(self) -> str:
        """The module that has it as its weight."""
        return self.theirs.removesuffix(".weight")


@dataclass(frozen=True)
class Zero:
    """A tensor that must be zero. lacks: what our model has not. bias: of attention, which a folder may leave out."""

    theirs: str
    shape: tuple[int, ...]
    lacks: str
    bias: bool = False

    @property
    def module(self) -> str:
        """The module that has it."""
        return self.theirs.rpartition(".")[0]


def _mixtral(c: ModelConfig) -> dict[str, Any]:
    return {"intermediate_size": c.expert_dim, "num_local_experts": c.experts, "sliding_window": c.window}


def _qwen2_moe(c: ModelConfig) -> dict[str, Any]:
    windows = [c.window_of(layer) for layer in range(c.depth)]
    return {
        "intermediate_size": c.dense_width,
        "moe_intermediate_size": c.expert_dim,
        "shared_expert_intermediate_size": c.shared_dim,
        "num_experts": c.experts,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(range(c.dense_layers)),
        "qkv_bias": True,  # zeros: vLLM has them in any case, and reads what was in memory if a file lacks them
        "use_sliding_window": c.window is not None,
        "sliding_window": c.window,
        "max_window_layers": c.depth,
        "layer_types": ["full_attention" if w is None else "sliding_attention" for w in windows],
    }


def _glm4_moe(c: ModelConfig) -> dict[str, Any]:
    return {
        "intermediate_size": c.dense_width,
        "moe_intermediate_size": c.expert_dim,
        "n_routed_experts": c.experts,
        "n_shared_experts": c.shared_dim // c.expert_dim,
        "first_k_dense_replace": c.dense_layers,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": False,
        "attention_bias": False,
        "partial_rotary_factor": 1.0,
        "num_nextn_predict_layers": 0,
    }


_SAME = {"hidden_act": ("silu", "silu"), "attention_dropout": (0.0, 0.0)}
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
ARCHITECTURES = {
    found.kind: found
    for found in (
        Architecture(
            *("mixtral", "MixtralForCausalLM", "block_sparse_moe", ("w1", "w3", "w2"), None, 1.0),
            *(_mixtral, _SAME | {"rms_norm_eps": (EPSILON, 1e-5)}),
        ),
        Architecture(
            *("qwen2_moe", "Qwen2MoeForCausalLM", "mlp", _PROJECTIONS, "shared_expert", 2.0, _qwen2_moe),
            _SAME | {"rms_norm_eps": (EPSILON, 1e-6), "norm_topk_prob": (True, False), "decoder_sparse_step": (1, 1)},
        ),
        Architecture(
            *("glm4_moe", "Glm4MoeForCausalLM", "mlp", _PROJECTIONS, "shared_experts", 1.0, _glm4_moe),
            _SAME
            | {"rms_norm_eps": (EPSILON, 1e-5), "norm_topk_prob": (True, True), "routed_scaling_factor": (1.0, 1.0)}
            | {"n_group": (1, 1), "topk_group": (1, 1)},
        ),
    )
}


def architecture_of(c: ModelConfig) -> Architecture:
    """The architecture that computes what the model does.

    Raises:
        ValueError: none does; the message names every option that stands in the way and what would do.
    """
    kind = "glm4_moe" if c.router == "sigmoid" else "qwen2_moe" if c.shared_dim else "mixtral"
    everywhere = c.window is None or all(c.window_of(layer) for layer in range(c.depth))
    rules = [
        ("convolution", c.convolution == 0, "use 0"),
        ("positions", c.positions == "rotary", "use rotary"),
    ]
    if kind == "glm4_moe":
        rules += [
            ("shared_dim", c.shared_dim > 0 == c.shared_dim % c.expert_dim, f"use a multiple of {c.expert_dim}"),
            ("window", c.window is None, "leave it out, or use the softmax router"),
            ("experts", c.experts > 1, "use 2 or more"),
        ]
    if kind == "mixtral":
        rules += [
            ("dense_layers", c.dense_layers == 0, "use 0, or give a shared_dim"),
            ("full_every", everywhere, f"use {c.depth + 1}, no full layer, or give a shared_dim"),
        ]
    faults = [f"model.{name} {getattr(c, name)} ({remedy})" for name, good, remedy in rules if not good]
    if faults:
        raise ValueError(
            f"no architecture of transformers has this model's {', '.join(faults)}; fourbit knows "
            f"{', '.join(ARCHITECTURES)}, and this one would be {kind}"
        )
    return ARCHITECTURES[kind]


def library_config(c: ModelConfig, end: int | None) -> dict[str, Any]:
    """The contents of config.json. end: the token that ends a text. Raises ValueError as `architecture_of`."""
    found = architecture_of(c)
    return {
        "architectures": [found.name],
        "model_type": found.kind,
        "dtype": "bfloat16",
        "vocab_size": c.vocab,
        "hidden_size": c.dim,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.key_heads,
        "head_dim": c.dim // c.heads,
        "num_experts_per_tok": c.top_k,
        "max_position_embeddings": c.sequence,
        "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_BASE,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE, "partial_rotary_factor": 1.0},
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "router_aux_loss_coef": c.balance,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": None,
        **found.own(c),
    }


def places(c: ModelConfig) -> Iterator[Place]:
    """Where every parameter and every bias of a router lies. Raises ValueError as `architecture_of`."""
    found = architecture_of(c)
    yield Place("embed", "model.embed_tokens.weight")
    yield Place("norm.gain", "model.norm.weight", vector=True)
    yield Place("head.weight", "lm_head.weight")
    for layer in range(c.depth):
        yield from _attention(c, f"layers.{layer}", f"model.layers.{layer}")
        if layer < c.dense_layers:
            names = f"layers.{layer}.moe.w_in.weight", f"layers.{layer}.moe.w_out.weight"
            yield from _mlp(*names, f"model.layers.{layer}.mlp", _PROJECTIONS, c.dense_width)
        else:
            yield from _moe(c, found, f"layers.{layer}.moe", f"model.layers.{layer}.{found.block}")


def zeros(c: ModelConfig) -> list[Zero]:
    """Tensors of the architecture that our model lacks: the gates of shared experts, and the biases of attention."""
    found = architecture_of(c)
    if found.kind != "qwen2_moe":
        return []
    size = c.dim // c.heads
    rows = {"q": c.heads * size, "k": c.key_heads * size, "v": c.key_heads * size}
    gates = [
        f"model.layers.{layer}.{found.block}.shared_expert_gate.weight" for layer in range(c.dense_layers, c.depth)
    ]
    return [
        *(Zero(name, (1, c.dim), "shared expert has no gate") for name in gates),
        *(
            Zero(f"model.layers.{layer}.self_attn.{name}_proj.bias", (count,), "attention has no biases", True)
            for layer in range(c.depth)
            for name, count in rows.items()
        ),
    ]


def _attention(c: ModelConfig, ours: str, theirs: str) -> Iterator[Place]:
    size = c.dim // c.heads
    q, k = c.heads * size, (c.heads + c.key_heads) * size
    yield Place(f"{ours}.attention_norm.gain", f"{theirs}.input_layernorm.weight", vector=True)
    for name, start, stop in (("q", 0, q), ("k", q, k), ("v", k, None)):
        target = f"{theirs}.self_attn.{name}_proj.weight"
        yield Place(f"{ours}.attention.qkv.weight", target, start=start, stop=stop)
    yield Place(f"{ours}.attention.out.weight", f"{theirs}.self_attn.o_proj.weight")
    yield Place(f"{ours}.moe_norm.gain", f"{theirs}.post_attention_layernorm.weight", vector=True)


def _moe(c: ModelConfig, found: Architecture, ours: str, theirs: str) -> Iterator[Place]:
    yield Place(f"{ours}.router", f"{theirs}.gate.weight")
    if c.router == "sigmoid":
        yield Place(f"{ours}.balancer.bias", f"{theirs}.gate.e_score_correction_bias", vector=True)
    for expert in range(c.experts):
        target = f"{theirs}.experts.{expert}"
        yield from _mlp(f"{ours}.w13", f"{ours}.w2", target, found.matrices, c.expert_dim, expert)
    if c.shared_dim:
        names, target = (f"{ours}.shared_in.weight", f"{ours}.shared_out.weight"), f"{theirs}.{found.shared}"
        yield from _mlp(*names, target, _PROJECTIONS, c.shared_dim, None, found.factor, True)


def _mlp(
    w_in: str,
    w_out: str,
    theirs: str,
    matrices: tuple[str, str, str],
    width: int,
    expert: int | None = None,
    factor: float = 1.0,
    shared: bool = False,
) -> Iterator[Place]:
    """Gate over up in w_in, and w_out."""
    gate, up, down = (f"{theirs}.{name}.weight" for name in matrices)
    quantized = shared or expert is not None
    yield Place(w_in, gate, expert, 0, width, quantized=quantized)
    yield Place(w_in, up, expert, width, None, quantized=quantized)
    yield Place(w_out, down, expert, factor=factor, quantized=quantized)
