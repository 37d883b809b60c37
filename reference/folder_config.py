"""config.json of a folder of `transformers`: what sizes it names, and that it names nothing which our model lacks.

Every field is one of these, or the folder is refused:

    used          it becomes a size of ours, or says how tensors are read (tied head, biases of attention)
    fixed         our model has one value of it; the folder, or the library's default without the field, has the same
    irrelevant    no weight and no logit depends on it
    null          it says nothing

Defaults and order of precedence are those of transformers 5.24: `rope_scaling` before `rope_parameters`, `rope_type`
before `type`, what lies in them before the same field beside them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .architectures import ARCHITECTURES, ROPE_BASE, Architecture, architecture_of
from .checkpoint import read_json
from .packed import COMPRESSED_TENSORS, MODELOPT
from .sizes import ModelConfig

CONFIG, MODELOPT_CONFIG = "config.json", "hf_quant_config.json"
# fields of ModelConfig that are decided by the training, not by the weights
_TRAINING = ("sequence", "balance", "bias_speed")
# names of the number of experts: the architecture's own, and one that the library takes for it
_EXPERTS = {
    **{"mixtral": ("num_local_experts", "num_experts"), "qwen2_moe": ("num_experts",)},
    "glm4_moe": ("n_routed_experts", "num_local_experts"),
}
_EXPERT_NAMES = sorted({name for names in _EXPERTS.values() for name in names})
# the library's defaults: heads of keys and values; base of the positions and the share of a head that they turn
_KEY_HEADS = {"mixtral": 8, "qwen2_moe": 16, "glm4_moe": 8}
_POSITIONS = {"mixtral": (1e6, 1.0), "qwen2_moe": (1e4, 1.0), "glm4_moe": (1e4, 0.5)}
_USED = {
    *("model_type", "architectures", "quantization_config", "tie_word_embeddings", "vocab_size", "hidden_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "num_experts_per_tok"),
    *("intermediate_size", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", *_EXPERT_NAMES),
}
_OWN = {
    "mixtral": {"sliding_window"},
    "qwen2_moe": {
        *("moe_intermediate_size", "shared_expert_intermediate_size", "mlp_only_layers", "qkv_bias"),
        *("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
    },
    "glm4_moe": {"moe_intermediate_size", "n_shared_experts", "first_k_dense_replace"},
}
# fixed for all, whatever the library makes of them: name, our value, its default
_FIXED = {
    **{"attention_bias": (False, False), "mlp_bias": (False, False), "use_qk_norm": (False, False)},
    **{"norm_topk_prob": (True, True), "router_jitter_noise": (0.0, 0.0), "chunk_size_feed_forward": (0, 0)},
    **{"is_encoder_decoder": (False, False), "add_cross_attention": (False, False), "pruned_heads": ({}, {})},
}
_IRRELEVANT = {
    # what the folder is and how the library loads it
    *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype", "fourbit"),
    *("use_bfloat16", "torchscript", "tf_legacy_loss", "attn_implementation", "experts_implementation"),
    *("_attn_implementation", "_attn_implementation_autoset", "_experts_implementation", "tokenizer_class"),
    *("unsloth_fixed", "unsloth_version"),
    # training, and what a forward returns besides logits
    *("initializer_range", "gradient_checkpointing", "output_router_logits", "router_aux_loss_coef", "return_dict"),
    *("output_hidden_states", "output_attentions", "is_decoder", "tie_encoder_decoder", "cross_attention_hidden_size"),
    *("finetuning_task", "task_specific_params", "problem_type", "id2label", "label2id", "num_labels", "prefix"),
    # positions beyond these are refused by servers alone, where they are not scaled; layers that speculate besides
    *("max_position_embeddings", "original_max_position_embeddings", "num_nextn_predict_layers", "num_mtp_layers"),
    # tokens and generation
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "use_cache"),
    *("assistant_confidence_threshold", "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample"),
    *("early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff"),
    *("exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty"),
    *("max_length", "max_new_tokens", "min_length", "min_p", "no_repeat_ngram_size", "num_beam_groups", "num_beams"),
    *("num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty"),
    *("return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p"),
}
_ROPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


@dataclass(frozen=True)
class Described:
    """What a folder's config.json says. sizes: of the model, those of the training at their defaults. tied: whether the
    head is the embedding. biases: whether q, k and v have biases. packed: whether matrices are quantized. largest: the
    largest value of the dtype that the library loads it in."""

    sizes: ModelConfig
    tied: bool
    biases: bool
    packed: bool
    largest: float

    @property
    def decided(self) -> dict[str, Any]:
        """The sizes that the folder decides."""
        return {name: value for name, value in asdict(self.sizes).items() if name not in _TRAINING}


def sizes_of(folder: Path) -> dict[str, Any]:
    """The fields of `ModelConfig` that the folder decides. Raises ValueError as `described`."""
    return described(folder).decided


def configuration(folder: Path) -> dict[str, Any]:
    """The contents of config.json. Raises ValueError if there is none, or it is damaged."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"init_from {str(folder)!r} has no config.json; name a folder of the library transformers")
    return read_json(path, "model_type")


def described(folder: Path) -> Described:
    """Read config.json.

    Raises:
        ValueError: no such folder, an architecture that is not known, or a field whose value our model has not.
    """
    path, config = folder / CONFIG, configuration(folder)
    found = ARCHITECTURES.get(config["model_type"]) if isinstance(config["model_type"], str) else None
    if found is None:
        raise ValueError(
            f"{str(path)!r}: architecture {config['model_type']!r} is unknown; fourbit knows {', '.join(ARCHITECTURES)}"
        )
    if "num_key_value_heads" in config and config["num_key_value_heads"] is None:
        config["num_key_value_heads"] = config.get("num_attention_heads")
    config = {name: value for name, value in config.items() if value is not None}
    try:
        sizes = _sizes(config, found)
        _require_same(config, found, sizes)
        _require_known(config, found)
        _require_readable(config.get("quantization_config", {}))
        largest = _largest(config.get("dtype", config.get("torch_dtype", "float32")))
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        told = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{str(path)!r} is damaged, or of another version: {told}; restore it") from None
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: {error}") from None
    biases = found.kind == "qwen2_moe" and config.get("qkv_bias", True)
    packed = bool(config.get("quantization_config")) or (folder / MODELOPT_CONFIG).exists()
    return Described(sizes, bool(config.get("tie_word_embeddings", False)), bool(biases), packed, largest)


def _sizes(config: dict[str, Any], found: Architecture) -> ModelConfig:
    mixtral = found.kind == "mixtral"
    fields: dict[str, Any] = {
        "vocab": config["vocab_size"],
        "dim": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "experts": _experts(config, _EXPERTS[found.kind]),
        "top_k": config["num_experts_per_tok"],
        "expert_dim": config["intermediate_size" if mixtral else "moe_intermediate_size"],
        "shared_dim": 0,
    }
    kv_heads = config.get("num_key_value_heads", _KEY_HEADS[found.kind])
    fields["kv_heads"] = None if kv_heads == fields["heads"] else kv_heads
    if mixtral and "sliding_window" in config:
        fields |= {"window": config["sliding_window"], "full_every": fields["depth"] + 1}
    if found.kind == "qwen2_moe":
        fields["shared_dim"] = config["shared_expert_intermediate_size"]
        fields["dense_layers"] = len(config.get("mlp_only_layers", ()))
        fields |= _windows(config, fields["depth"])
    if found.kind == "glm4_moe":
        fields |= {"router": "sigmoid", "dense_layers": config.get("first_k_dense_replace", 1)}
        fields["shared_dim"] = config.get("n_shared_experts", 1) * fields["expert_dim"]
    for name, value in (*fields.items(), ("intermediate_size", config.get("intermediate_size", 0))):
        if name != "router" and value is not None and type(value) is not int:
            raise TypeError(f"{name} is {value!r}")
    if fields.get("window") is not None and fields["window"] < 1:
        raise ValueError(f"sliding_window is {fields['window']}; use 1 or more, or null")
    sizes = ModelConfig(**fields)
    if sizes.dense_layers and sizes.dense_width != config["intermediate_size"]:
        sizes = ModelConfig(**fields, dense_dim=config["intermediate_size"])
    return sizes


def _experts(config: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Their number. Raises ValueError if two of its names say different ones."""
    there = {name: config[name] for name in _EXPERT_NAMES if name in config}
    if len(set(there.values())) > 1:
        told = " and ".join(f"{name} is {value!r}" for name, value in there.items())
        raise ValueError(f"{told}; keep {names[0]} alone")
    return next((there[name] for name in names if name in there), None) or config[names[0]]


def _windows(config: dict[str, Any], depth: int) -> dict[str, int]:
    """The window of a qwen2_moe, and every how many layers one is full; empty if all are."""
    kinds = config.get("layer_types")
    if not config.get("use_sliding_window", False):
        if kinds is not None and set(kinds) != {"full_attention"}:
            raise ValueError(f"layer_types is {kinds!r} and use_sliding_window is false; take one of the two out")
        return {}
    if kinds is None:  # as the library makes them: every second one, from the first
        most = config.get("max_window_layers", 28)
        kinds = ["full_attention" if i % 2 or i >= most else "sliding_attention" for i in range(depth)]
    if len(kinds) != depth or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types is {kinds!r}; use full_attention and sliding_attention, {depth} of them")
    if "sliding_attention" not in kinds:
        return {}
    return {"window": config.get("sliding_window", 4096), "full_every": _full_every(kinds)}


def _full_every(kinds: list[str]) -> int:
    """Every how many layers one is full; more than there are if none is."""
    full = [i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"]
    every = full[0] if full else len(kinds) + 1
    if full != list(range(every, len(kinds) + 1, every)):
        raise ValueError(
            f"layer_types has full attention in layers {full}, counted from 1, not every so many; ours has"
        )
    return every


def _require_same(config: dict[str, Any], found: Architecture, sizes: ModelConfig) -> None:
    """Raises ValueError for an option that our model has not."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta, partial = _POSITIONS[found.kind]
    theta = rope.get("rope_theta", config.get("rope_theta", theta))
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", partial))
    head = config.get("head_dim", sizes.dim // sizes.heads)
    rules: list[tuple[str, Any, Any]] = [
        ("architectures", config.get("architectures", [found.name]), [found.name]),
        ("rope_theta", theta, ROPE_BASE),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), "default"),
        ("partial_rotary_factor", partial, 1.0),
        ("head_dim", head * sizes.heads, sizes.dim),
        *((name, config.get(name, default), value) for name, (value, default) in (_FIXED | found.fixed).items()),
    ]
    if found.kind == "qwen2_moe":
        rules.append(("mlp_only_layers", config.get("mlp_only_layers", []), list(range(sizes.dense_layers))))
    for name, value, ours in rules:
        if value != ours:
            raise ValueError(f"{name} is {value!r}, and this model has {ours!r}; use another folder")
    if odd := sorted(set(rope) - _ROPE):
        told = ", ".join(f"{name} {rope[name]!r}" for name in odd)
        raise ValueError(
            f"rope_parameters has {told}, and this model's positions are not scaled, and the same in all layers; use "
            "another folder"
        )
    if architecture_of(sizes).kind != found.kind:
        raise ValueError(f"a {found.kind} with these options is a {architecture_of(sizes).kind}; use another folder")


def _require_known(config: dict[str, Any], found: Architecture) -> None:
    """Raises ValueError for fields that are not known: what they change is not known either."""
    known = _USED | _OWN[found.kind] | set(_FIXED) | set(found.fixed) | _IRRELEVANT
    odd = [f"{name} {str(value)[:60]}" for name, value in config.items() if name not in known]
    if odd:
        raise ValueError(
            f"fourbit does not know what {', '.join(odd)} of a {found.kind} changes; take out of config.json what "
            "changes no logit, or use another folder"
        )


def _require_readable(quantization: dict[str, Any]) -> None:
    """Raises ValueError for packed weights that compute otherwise than their codes and scales say."""
    method = quantization.get("quant_method", COMPRESSED_TENSORS)
    rules = [
        ("quant_method", method, method in (COMPRESSED_TENSORS, MODELOPT), f"{COMPRESSED_TENSORS} and {MODELOPT}"),
        *((name, quantization.get(name), not quantization.get(name), "no such") for name in _COMPUTED),
    ]
    for name, value, good, known in rules:
        if not good:
            raise ValueError(
                f"quantization_config.{name} is {value!r}, and fourbit reads {known}; use a folder of BF16 weights"
            )


def _largest(dtype: Any) -> float:
    """Of a dtype by its name. Raises ValueError for one that weights are not loaded in."""
    names = {str(kind).removeprefix("torch."): kind for kind in (torch.bfloat16, torch.float16, torch.float32)}
    if dtype not in names:
        raise ValueError(f"dtype is {dtype!r}; use {', '.join(names)}")
    return torch.finfo(names[dtype]).max


# rotations of weights and activations; matrices of which zeros are left out
_COMPUTED = "transform_config", "sparsity_config"
