"""A folder of the library `transformers` as the start of a run: sizes, and FP32 masters.

config.json says the architecture, see `architectures`, whose options must be those that our model has. Weights come
from model.safetensors, or from the files that model.safetensors.index.json lists: BF16, FP16 or FP32, or packed as
`fourbit export` (or compressed-tensors, or modelopt) packs them, see `packed`. Packed ones become masters that give the
same codes and scales under the recipe that made them, see `masters`. All become FP32, none is rounded.

Length of sequences, weight of the balancing loss and speed of biases are of the training, not of the folder.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from numerics.layout import unpack_nibbles

from .architectures import ARCHITECTURES, EPSILON, ROPE_BASE, Architecture, Place, architecture_of, gates, places
from .checkpoint import read_json
from .masters import masters, settle
from .packed import MXFP4, MXFP8, NVFP4, Matrix
from .sizes import ModelConfig

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_PARTS = ("weight", "weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale")
# what a file may have that this model computes without: scales of activations, and what follows from the sizes
_UNREAD = (".input_scale", ".input_global_scale", ".weight_shape", "rotary_emb.inv_freq")
# fields that are decided by the training, not by the weights
_TRAINING = ("sequence", "balance", "bias_speed")
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def sizes_of(folder: Path) -> dict[str, Any]:
    """The fields of `ModelConfig` that the folder decides.

    Raises:
        ValueError: no such folder, an architecture that is not known, or one with an option that our model lacks.
    """
    path = folder / _CONFIG
    if not path.is_file():
        raise ValueError(f"init_from {str(folder)!r} has no config.json; name a folder of the library transformers")
    config = read_json(path, "model_type")
    found = ARCHITECTURES.get(config["model_type"])
    if found is None:
        raise ValueError(
            f"{str(path)!r}: architecture {config['model_type']!r} is unknown; fourbit knows {', '.join(ARCHITECTURES)}"
        )
    try:
        sizes = _sizes(config, found)
        _require_same(config, found, sizes)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{str(path)!r} is damaged, or of another version: {_told(error)}; restore it") from None
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: {error}") from None
    return {name: value for name, value in asdict(sizes).items() if name not in _TRAINING}


def digest(folder: Path) -> str:
    """sha256, hex, of the folder's configuration and weights. Raises ValueError if they are not there."""
    found = hashlib.sha256()
    for path in (folder / _CONFIG, *sorted(set(_Files(folder).of.values()))):
        with open(path, "rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


@torch.no_grad()
def initialize(model: nn.Module, sizes: ModelConfig, folder: Path) -> None:
    """Give a model of these sizes the folder's weights.

    Raises:
        ValueError: the folder's sizes are others, or its files damaged, incomplete, or of more than our model has.
    """
    for name, value in sizes_of(folder).items():
        if getattr(sizes, name) != value:
            raise ValueError(
                f"model.{name} {getattr(sizes, name)}: init_from {str(folder)!r} has {value}; leave it out"
            )
    files = _Files(folder)
    state = model.state_dict()
    outers: dict[tuple[str, int | None], set[float]] = {}
    for place in places(sizes):
        target = state[place.ours] if place.expert is None else state[place.ours][place.expert]
        values, outer = files.matrix(place, tuple(target[place.start : place.stop].shape))
        target[place.start : place.stop].copy_(values)
        outers.setdefault((place.ours, place.expert), set()).add(outer)
    for (ours, expert), found in outers.items():
        if len(found) == 1 and (outer := found.pop()):  # 0: none
            target = state[ours] if expert is None else state[ours][expert]
            target.copy_(settle(target, torch.tensor(outer)))
    files.require_nothing_else(gates(sizes))


def _sizes(config: dict[str, Any], found: Architecture) -> ModelConfig:
    mixtral = found.kind == "mixtral"
    experts = {"mixtral": "num_local_experts", "qwen2_moe": "num_experts", "glm4_moe": "n_routed_experts"}[found.kind]
    fields: dict[str, Any] = {
        "vocab": config["vocab_size"],
        "dim": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "experts": config[experts],
        "top_k": config["num_experts_per_tok"],
        "expert_dim": config["intermediate_size" if mixtral else "moe_intermediate_size"],
        "shared_dim": 0,
    }
    kv_heads = config.get("num_key_value_heads") or fields["heads"]
    fields["kv_heads"] = None if kv_heads == fields["heads"] else kv_heads
    if mixtral and config.get("sliding_window"):
        fields |= {"window": config["sliding_window"], "full_every": fields["depth"] + 1}
    if found.kind == "qwen2_moe":
        fields["shared_dim"] = config["shared_expert_intermediate_size"]
        fields["dense_layers"] = len(config.get("mlp_only_layers") or ())
        if config.get("use_sliding_window"):
            fields |= {"window": config["sliding_window"], "full_every": _full_every(config["layer_types"])}
    if found.kind == "glm4_moe":
        fields |= {"router": "sigmoid", "dense_layers": config["first_k_dense_replace"]}
        fields["shared_dim"] = config["n_shared_experts"] * fields["expert_dim"]
    for name, value in fields.items():
        if name != "router" and value is not None and type(value) is not int:
            raise TypeError(f"{name} is {value!r}")
    sizes = ModelConfig(**fields)
    if sizes.dense_layers and sizes.dense_width != config["intermediate_size"]:
        sizes = ModelConfig(**fields, dense_dim=config["intermediate_size"])
    return sizes


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
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = rope.get("rope_theta", config.get("rope_theta", 1e6 if found.kind == "mixtral" else 1e4))
    head = config.get("head_dim") or sizes.dim // sizes.heads
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.5))
    rules: list[tuple[str, Any, Any]] = [
        ("rope_theta", base, ROPE_BASE),
        ("rope_type", rope.get("rope_type", "default"), "default"),
        ("head_dim", head * sizes.heads, sizes.dim),
        *((name, config.get(name, default), value) for name, (value, default) in found.fixed.items()),
    ]
    if found.kind == "glm4_moe":
        rules.append(("partial_rotary_factor", partial, 1.0))
    if found.kind == "qwen2_moe":
        rules.append(("mlp_only_layers", config.get("mlp_only_layers") or [], list(range(sizes.dense_layers))))
    for name, value, ours in rules:
        if value != ours:
            raise ValueError(
                f"{name} is {value!r}, and this model has {ours!r} (epsilon {EPSILON}); use another folder"
            )
    if architecture_of(sizes).kind != found.kind:
        raise ValueError(f"a {found.kind} with these options is a {architecture_of(sizes).kind}; use another folder")


class _Files:
    """Tensors of a folder by name, and which of them have been read."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._read = folder, set[str]()
        self.of = self._listed() if (folder / _INDEX).is_file() else self._single()

    def _single(self) -> dict[str, Path]:
        path = self._folder / _WEIGHTS
        if not path.is_file():
            raise ValueError(f"init_from {str(self._folder)!r} has no {_WEIGHTS}; name a folder of transformers")
        return dict.fromkeys(self._names(path), path)

    def _listed(self) -> dict[str, Path]:
        listed = read_json(self._folder / _INDEX, "weight_map")["weight_map"]
        found = {name: self._folder / Path(str(file)).name for name, file in dict(listed).items()}
        for path in sorted(set(found.values())):
            self._names(path)
        return found

    def _names(self, path: Path) -> list[str]:
        try:
            with safe_open(path, framework="pt") as file:
                return list(file.keys())
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(path)!r} cannot be read ({error}): it is missing or damaged; restore it") from None

    def tensor(self, name: str) -> Tensor:
        if name not in self.of:
            raise ValueError(f"init_from {str(self._folder)!r} has no {name}; restore it, or name another folder")
        self._read.add(name)
        try:
            with safe_open(self.of[name], framework="pt") as file:
                return file.get_tensor(name).clone()  # not a map of the file
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(self.of[name])!r} cannot be read ({error}): it is damaged; restore it") from None

    def matrix(self, place: Place, shape: tuple[int, ...]) -> tuple[Tensor, float]:
        """FP32 values of a place, and their outer scale; 0 if they have none. Raises ValueError for another shape."""
        name = place.theirs
        tied = name == "lm_head.weight" and name not in self.of
        if f"{place.module}.weight_scale" in self.of:
            packed = self._packed(place.module)
            values, outer = masters(packed), float(packed.outer) if packed.kind is NVFP4 else 0.0
        else:
            values, outer = self.tensor("model.embed_tokens.weight" if tied else name), 0.0
            if values.dtype not in _FLOATS:
                raise ValueError(f"{name} of {str(self._folder)!r} is {values.dtype}; it needs BF16, FP16 or FP32")
        if tuple(values.shape) != shape:
            raise ValueError(f"{name} of {str(self._folder)!r} is {tuple(values.shape)}, not {shape}; restore it")
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name} of {str(self._folder)!r} has a NaN or an infinity; use another folder")
        factor = torch.full((), place.factor)
        return values.to(torch.float32) / factor, outer / place.factor

    def _packed(self, module: str) -> Matrix:
        parts = {name: self.tensor(f"{module}.{name}") for name in _PARTS if f"{module}.{name}" in self.of}
        codes, scales = parts.get("weight_packed", parts.get("weight")), parts["weight_scale"]
        outer = torch.ones(())
        if "weight_scale_2" in parts:
            outer = parts["weight_scale_2"].reshape(())
        elif "weight_global_scale" in parts:
            outer = torch.ones(()) / parts["weight_global_scale"].reshape(())
        kinds = {
            (torch.uint8, torch.float8_e4m3fn): NVFP4,
            (torch.float8_e4m3fn, torch.uint8): MXFP8,
            (torch.uint8, torch.uint8): MXFP4,
        }
        kind = None if codes is None else kinds.get((codes.dtype, scales.dtype))
        if codes is None or kind is None or codes.ndim != 2:
            raise ValueError(f"{module} of {str(self._folder)!r} is in a format that fourbit cannot read; use BF16")
        codes = codes.view(torch.uint8) if kind is MXFP8 else unpack_nibbles(codes)
        if scales.shape != (codes.shape[0], -(-codes.shape[1] // kind.block)):
            raise ValueError(f"{module} of {str(self._folder)!r} has scales of shape {tuple(scales.shape)}; restore it")
        return Matrix(kind, codes, scales.view(torch.uint8), outer.to(torch.float32))

    def require_nothing_else(self, zero: list[str]) -> None:
        """Raises ValueError for tensors that were not read, and for any of `zero` that is not."""
        for name in zero:
            if bool(self.tensor(name).any()):
                raise ValueError(f"{name} of {str(self._folder)!r} is not zero: our shared expert has no gate")
        odd = sorted(name for name in set(self.of) - self._read if not name.endswith(_UNREAD))
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise ValueError(
                f"init_from {str(self._folder)!r} has what our model has no place for: {', '.join(odd[:3])}{more}"
            )


def _told(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)
