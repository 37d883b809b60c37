"""Small quantized checkpoints, written by hand from the layouts' public definitions, for `test_check_folder`.

The model: two layers of hidden size 128 with q, k, v, o and four experts of 64; weights have rows and columns of
different norms, as trained ones do. Bytes come from `nm.quantize`; the gate and up, and the q, k, v, of NVFP4 share an
outer scale, the largest of both.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import numerics as nm
from hw.check_folder import check_folder
from hw.check_folder_report import FolderReport

HIDDEN, INNER, LAYERS, EXPERTS = 128, 64, 2, 4
Tensors = dict[str, Tensor]


@dataclass
class Folder:
    """What a folder holds. quant: of hf_quant_config.json."""

    tensors: Tensors
    config: dict[str, Any]
    quant: dict[str, Any] | None = None
    original: Tensors = field(default_factory=dict)

    def write(self, path: Path, shards: int = 1) -> Path:
        """Write it; with several shards, and an index."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(self.config))
        if self.quant is not None:
            (path / "hf_quant_config.json").write_text(json.dumps(self.quant))
        write_shards(self.tensors, path, shards)
        return path

    def against(self, path: Path) -> Path:
        """Write the original."""
        path.mkdir(parents=True, exist_ok=True)
        write_shards(self.original, path, 1)
        return path


def write_shards(tensors: Tensors, path: Path, shards: int) -> None:
    """As the library transformers does."""
    names = list(tensors)
    tensors = {name: t.contiguous().clone() for name, t in tensors.items()}
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
        return
    step, index = -(-len(names) // shards), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[i * step : i * step + step]
        save_file({n: tensors[n] for n in part}, path / file)
        index |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def weight(n: int, k: int, seed: int, scale: float = 0.03) -> Tensor:
    """BF16 (n, k) with rows and columns of different norms."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.exp(0.4 * torch.randn(s, generator=generator)) for s in ((n, 1), (1, k)))
    return (scale * torch.randn(n, k, generator=generator) * rows * columns).to(torch.bfloat16)


def model() -> Tensors:
    """The original, BF16."""
    found = {"model.embed_tokens.weight": weight(96, HIDDEN, 1), "lm_head.weight": weight(96, HIDDEN, 2)}
    found["model.norm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    for layer in range(LAYERS):
        head = f"model.layers.{layer}"
        for i, name in enumerate("qkvo"):
            found[f"{head}.self_attn.{name}_proj.weight"] = weight(HIDDEN, HIDDEN, 10 * layer + i + 3)
        found[f"{head}.input_layernorm.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        found[f"{head}.mlp.gate.weight"] = weight(EXPERTS, HIDDEN, 40 + layer)
        for e in range(EXPERTS):
            for i, (name, n, k) in enumerate((("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER))):
                found[f"{head}.mlp.experts.{e}.{name}_proj.weight"] = weight(n, k, 100 + 20 * layer + 4 * e + i)
    return found


def sizes(**more: Any) -> dict[str, Any]:
    """config.json."""
    return {
        **{"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": LAYERS},
        **{"num_experts": EXPERTS, "moe_intermediate_size": INNER, "tie_word_embeddings": False},
        **more,
    }


def quantized(name: str) -> bool:
    """Whether a tensor is, in these folders."""
    return name.endswith("_proj.weight")


def shared_outer(name: str, original: Tensors) -> Tensor:
    """amax / 2688 of what a server fuses with a matrix."""
    head, _, tail = name.removesuffix(".weight").rpartition(".")
    groups = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
    group = next((g for g in groups if tail in g), (tail,))
    return torch.stack([original[f"{head}.{g}.weight"].float().abs().max() for g in group]).max() / 2688


def nvfp4(x: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """(packed codes, E4M3 scales) of x under an outer scale, by TE's formula."""
    blocks = x.float().view(len(x), -1, 16)
    scales = nm.encode(blocks.abs().amax(-1) / 6 / outer, nm.E4M3)
    step = nm.decode(scales, nm.E4M3).unsqueeze(-1) * outer
    codes = nm.encode(torch.where(step > 0, blocks / step, 0.0), nm.E2M1).view(x.shape)
    return nm.layout.pack_nibbles(codes), scales.view(torch.float8_e4m3fn)


def modelopt() -> Folder:
    """NVFP4 of ModelOpt, with scales of activations."""
    original = model()
    tensors: Tensors = {}
    for i, (name, x) in enumerate(original.items()):
        if not quantized(name):
            tensors[name] = x
            continue
        module, outer = name.removesuffix(".weight"), shared_outer(name, original)
        tensors[name], tensors[f"{module}.weight_scale"] = nvfp4(x, outer)
        tensors[f"{module}.weight_scale_2"] = outer
        tensors[f"{module}.input_scale"] = torch.tensor(0.002 + 1e-5 * i)
    left = ["lm_head", *(f"model.layers.{n}.mlp.gate" for n in range(LAYERS))]
    details = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": left}
    group = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    entry = {
        **{"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": left},
        "config_groups": {"group_0": {"weights": group, "input_activations": group, "targets": ["Linear"]}},
    }
    quant = {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": details}
    return Folder(tensors, sizes(quantization_config=entry), quant, original)


def compressed() -> Folder:
    """NVFP4 of compressed-tensors, with scales of activations."""
    folder, tensors = modelopt(), {}
    for name, t in folder.tensors.items():
        if name.endswith("weight_scale_2"):
            tensors[name.replace("weight_scale_2", "weight_global_scale")] = 1 / t.reshape(1)
        elif name.endswith("input_scale"):
            tensors[name.replace("input_scale", "input_global_scale")] = 1 / t.reshape(1)
        else:
            packed = t.dtype == torch.uint8
            tensors[name.replace(".weight", ".weight_packed") if packed else name] = t
    args = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "symmetric": True}
    entry = {
        **{"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
        "config_groups": {
            "group_0": {
                **{"targets": ["Linear"], "weights": {**args, "dynamic": False}},
                "input_activations": {**args, "dynamic": "local"},
            }
        },
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }
    return Folder(tensors, sizes(quantization_config=entry), None, folder.original)


def mx(bits: int) -> Folder:
    """MXFP4 or MXFP8 of compressed-tensors, weights alone."""
    original, tensors = model(), {}
    for name, x in original.items():
        if not quantized(name):
            tensors[name] = x
            continue
        module = name.removesuffix(".weight")
        q = nm.quantize(x.float(), nm.MXFP4 if bits == 4 else nm.MXFP8)
        if bits == 4:
            tensors[f"{module}.weight_packed"] = nm.layout.pack_nibbles(q.codes)
        else:
            tensors[name] = q.codes.view(torch.float8_e4m3fn)
        tensors[f"{module}.weight_scale"] = q.scales
    args = {"num_bits": bits, "type": "float", "group_size": 32, "strategy": "group", "scale_dtype": "torch.uint8"}
    entry = {
        **{"quant_method": "compressed-tensors", "format": f"mxfp{bits}-{'pack-' if bits == 4 else ''}quantized"},
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": args, "input_activations": None}},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }
    return Folder(tensors, sizes(quantization_config=entry), None, original)


def gpt_oss() -> Folder:
    """MXFP4 of gpt-oss: experts stacked, (E, rows, blocks, 16) bytes; the original has (E, in, out)."""
    plain = model()
    original = {n: t for n, t in plain.items() if ".experts." not in n}
    tensors: Tensors = dict(original)
    for layer in range(LAYERS):
        head = f"model.layers.{layer}.mlp.experts"
        parts = {
            "gate_up_proj": [
                torch.cat([plain[f"{head}.{e}.{n}_proj.weight"] for n in ("gate", "up")]) for e in range(EXPERTS)
            ],
            "down_proj": [plain[f"{head}.{e}.down_proj.weight"] for e in range(EXPERTS)],
        }
        for name, matrices in parts.items():
            x = torch.stack(matrices)
            original[f"{head}.{name}"] = x.mT.contiguous()
            q = nm.quantize(x.float(), nm.MXFP4)
            tensors[f"{head}.{name}_blocks"] = nm.layout.pack_nibbles(q.codes).unflatten(-1, (-1, 16))
            tensors[f"{head}.{name}_scales"] = q.scales
            tensors[f"{head}.{name}_bias"] = torch.zeros(x.shape[:2], dtype=torch.bfloat16)
            original[f"{head}.{name}_bias"] = tensors[f"{head}.{name}_bias"]
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    entry = {"quant_method": "mxfp4", "modules_to_not_convert": left}
    return Folder(tensors, sizes(quantization_config=entry), None, original)


def deepseek() -> Folder:
    """FP8 in tiles of 128 x 128, values = code * weight_scale_inv."""
    original, tensors = model(), {}
    for name, x in original.items():
        if not quantized(name):
            tensors[name] = x
            continue
        scale = x.float().abs().max().reshape(1, 1) / 448  # one tile
        tensors[name] = (x.float() / scale).to(torch.float8_e4m3fn)
        tensors[name.removesuffix("weight") + "weight_scale_inv"] = scale
    entry = {
        **{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"},
        "weight_block_size": [128, 128],
    }
    return Folder(tensors, sizes(quantization_config=entry), None, original)


_MAKERS: dict[str, Callable[[], Folder]] = {
    **{"modelopt": modelopt, "compressed": compressed, "gpt_oss": gpt_oss, "deepseek": deepseek},
    **{"mxfp4": lambda: mx(4), "mxfp8": lambda: mx(8)},
}


@functools.cache
def _made(name: str) -> Folder:
    return _MAKERS[name]()


def made(name: str) -> Folder:
    """A folder of a layout, for a test's own use: tensors are shared, and replaced, not written to."""
    found = _made(name)
    return Folder(dict(found.tensors), *copy.deepcopy((found.config, found.quant)), dict(found.original))


MAKERS = tuple(_MAKERS)


Edit = Callable[[Folder], object]
L0, E1 = "model.layers.0", "model.layers.0.mlp.experts.1"
UP, GATE, DOWN = f"{E1}.up_proj", f"{E1}.gate_proj", f"{E1}.down_proj"
Q = f"{L0}.self_attn.q_proj"


def change(suffix: str, edit: Callable[[torch.Tensor], torch.Tensor], where: str = E1) -> Edit:
    """Edit the tensors `where.*suffix`."""

    def apply(folder: Folder) -> None:
        names = [n for n in folder.tensors if n.startswith(where) and n.endswith(suffix)]
        assert names, suffix
        for name in names:
            folder.tensors[name] = edit(folder.tensors[name])

    return apply


def drop(*names: str) -> Edit:
    def apply(folder: Folder) -> None:
        for name in names:
            del folder.tensors[name]

    return apply


def swap(one: str, other: str) -> Edit:
    def apply(folder: Folder) -> None:
        folder.tensors[one], folder.tensors[other] = folder.tensors[other], folder.tensors[one]

    return apply


def config(edit: Callable[[dict[str, Any]], object]) -> Edit:
    """Edit quantization_config, and leave hf_quant_config.json out."""

    def apply(folder: Folder) -> None:
        folder.quant = None
        edit(folder.config["quantization_config"])

    return apply


def weights_config(**change: Any) -> Edit:
    return config(lambda c: c["config_groups"]["group_0"]["weights"].update(change))


def nibbles(t: torch.Tensor) -> torch.Tensor:
    return (t >> 4) | (t << 4)


def transposed_content(t: torch.Tensor) -> torch.Tensor:
    return t.mT.contiguous().view(t.shape)


def swizzled(t: torch.Tensor) -> torch.Tensor:
    return nm.layout.swizzle_scales(t.view(torch.uint8)).view(t.dtype).view(t.shape)


def one(t: torch.Tensor, value: int, count: int = 1) -> torch.Tensor:
    """The first bytes of a tensor set."""
    t = t.clone()
    t.view(torch.uint8).view(-1)[:count] = value
    return t


def padded(t: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """Row-major in the padded shape of the 128x4 layout, or swizzled."""
    grid = torch.full(nm.layout.padded_scales(*t.shape), fill, dtype=torch.uint8)
    grid[: t.shape[0], : t.shape[1]] = t.view(torch.uint8)
    return grid.view(t.dtype)


def judged(folder: Folder, path: Path, against: bool = False, shards: int = 2) -> FolderReport:
    quantized = folder.write(path / "quantized", shards)
    return check_folder(quantized, folder.against(path / "original") if against else None)


def require_named(maker: str, edit: Edit, said: str, whose: str, path: Path) -> None:
    """That a fault put into a folder is named without the original, as its tensor's, and with at most one other."""
    folder = made(maker)
    edit(folder)
    report = judged(folder, path)
    assert not report
    found = [f for f in report.findings if said in f.text]
    assert found, report
    assert not whose or any(whose in f.tensors for f in found), report
    assert len(report.faults) <= 2, report
