"""Quantized matrices in the files of other tools: the same codes and scales, under their names.

                compressed-tensors                              modelopt
    NVFP4       weight_packed, weight_scale,                    weight, weight_scale, weight_scale_2 = outer
                weight_global_scale = fl(1 / outer)
    MXFP8       weight, weight_scale                            weight, weight_scale
    MXFP4       weight_packed, weight_scale                     (none)

Two 4-bit codes share a byte, the even index in the low nibble; E4M3 scales and 8-bit codes are float8_e4m3fn, E8M0
scales bytes. Our value is (code x scale) x outer in FP32, modelopt's code x (scale x outer), that of compressed-tensors
code x (scale / global scale), rounded to BF16 by its own decompression: equal where outer is a power of two, and the
same bits apart from an FP32 rounding or two elsewhere. Tiles become blocks, whose scales are those of their tile.

Sources: compressed-tensors 0.20.1, compressors/; nvidia-modelopt 0.47.0, torch/export/. Shapes: N outputs, K inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from numerics import E2M1, E4M3, E8M0, BlockTensor, Format
from numerics.layout import pack_nibbles
from numerics.ops import Cast

COMPRESSED_TENSORS, MODELOPT = "compressed-tensors", "modelopt"


@dataclass(frozen=True)
class Kind:
    """A format that other tools have. Args: element, block, scale: of `BlockFormat`. compressed: what
    compressed-tensors calls it. modelopt: what modelopt does, weights alone quantized; None: nothing."""

    element: Format
    block: int
    scale: Format
    compressed: str
    modelopt: str | None


NVFP4 = Kind(E2M1, 16, E4M3, "nvfp4-pack-quantized", "W4A16_NVFP4")
MXFP8 = Kind(E4M3, 32, E8M0, "mxfp8-quantized", "MXFP8")
MXFP4 = Kind(E2M1, 32, E8M0, "mxfp4-pack-quantized", None)
KINDS = (NVFP4, MXFP8, MXFP4)


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix. codes: uint8 (N, K). scales: uint8 (N, K / block). outer: float32 (), 1 if the format has none."""

    kind: Kind
    codes: Tensor
    scales: Tensor
    outer: Tensor


def kind_of(cast: Cast, dialect: str) -> Kind | None:
    """What a weight's format is in `dialect`; None for BF16.

    Raises:
        ValueError: the dialect has no such format.
    """
    fmt = cast.fmt
    if fmt is None:
        return None
    for kind in KINDS:
        same = (kind.element, kind.block, kind.scale) == (fmt.element, fmt.block, fmt.scale)
        if same and fmt.alternative is None and (dialect == COMPRESSED_TENSORS or kind.modelopt):
            if cast.outer not in (None, "tensor", "leading"):
                raise ValueError(
                    f"weights with an outer scale per {cast.outer!r} have no place in a {dialect} export, whose "
                    "matrices have one each; export --to bf16"
                )
            return kind
    raise ValueError(f"weights in {fmt.name} have no place in a {dialect} export; export --to bf16")


def matrix(q: BlockTensor, kind: Kind, expert: int | None, start: int, stop: int | None) -> Matrix:
    """Rows of one matrix of a quantized weight (E, N, K), or (N, K) if `expert` is None."""
    scales = q.scales if q.fmt.tile == 1 else q.scales.repeat_interleave(q.fmt.tile, dim=-2)[..., : q.shape[-2], :]
    outer = torch.ones((), device=q.codes.device) if q.outer is None else q.outer
    outer = outer.expand(*q.shape[:-2], 1, 1)
    codes = q.codes
    if expert is not None:
        codes, scales, outer = codes[expert], scales[expert], outer[expert]
    rows = slice(start, stop)
    return Matrix(kind, codes[rows].contiguous(), scales[rows].contiguous(), outer.reshape(()))


def scaled(m: Matrix, factor: float, name: str) -> Matrix:
    """The same times a power of two, which its scales take. Raises ValueError if they cannot."""
    if factor == 1.0:
        return m
    if m.kind.scale is E4M3:
        return Matrix(m.kind, m.codes, m.scales, m.outer * factor)
    if int(m.scales.max()) + factor > 255:  # of E8M0 the last code, 255, is NaN
        raise ValueError(f"scales of {name} reach 2^127, and its gate takes twice that; export --to bf16")
    return Matrix(m.kind, m.codes, m.scales + 1, m.outer)


def stored(m: Matrix, dialect: str, module: str) -> dict[str, Tensor]:
    """The tensors of a matrix, by their names in a file.

    Raises:
        ValueError: its outer scale has no reciprocal.
    """
    four = m.kind.element is E2M1
    codes = pack_nibbles(m.codes) if four else m.codes.view(torch.float8_e4m3fn)
    found = {
        "weight_packed" if four and dialect == COMPRESSED_TENSORS else "weight": codes,
        "weight_scale": m.scales.view(torch.float8_e4m3fn) if m.kind.scale is E4M3 else m.scales,
    }
    if m.kind.scale is E4M3 and dialect == MODELOPT:
        found["weight_scale_2"] = m.outer.clone()  # gate and up share it, and a file may not
    elif m.kind.scale is E4M3:
        # (1,), not (): a number would leave the scales that it divides in BF16
        found["weight_global_scale"] = torch.ones(1) / m.outer
        if not bool(found["weight_global_scale"].isfinite()):
            raise ValueError(f"outer scale {float(m.outer)} of {module} has no reciprocal; export --to modelopt")
    return {f"{module}.{name}": tensor.contiguous() for name, tensor in found.items()}


def compressed_config(kinds: dict[str, Kind], others: Collection[str]) -> dict[str, Any]:
    """The entry `quantization_config` of config.json for compressed-tensors. kinds: by module. others: modules that are
    not quantized; SGLang, and some versions of vLLM, refuse a module that is in no list."""
    groups = {}
    for i, (kind, modules) in enumerate(_by_kind(kinds)):
        weights = {
            **{"num_bits": kind.element.bits, "type": "float", "symmetric": True, "dynamic": False},
            **{"strategy": "tensor_group" if kind is NVFP4 else "group", "group_size": kind.block},
            "scale_dtype": "torch.float8_e4m3fn" if kind is NVFP4 else "torch.uint8",
        }
        targets = [f"re:^{pattern}$" for pattern in _patterns(modules)]
        groups[f"group_{i}"] = {"targets": targets, "weights": weights, "format": kind.compressed}
    formats = sorted({group["format"] for group in groups.values()})
    return {
        "quant_method": COMPRESSED_TENSORS,
        "quantization_status": "compressed",
        "format": formats[0] if len(formats) == 1 else "mixed-precision",
        "config_groups": groups,
        "ignore": [*(f"re:^{pattern}$" for pattern in _stacks(others)), *(m for m in others if _EXPERT not in m)],
    }


def modelopt_config(kinds: dict[str, Kind], others: Iterable[str], version: str) -> dict[str, Any]:
    """The contents of hf_quant_config.json. kinds: by module. others: modules that are not quantized."""
    layers = {module: {"quant_algo": kind.modelopt, "group_size": kind.block} for module, kind in kinds.items()}
    found: dict[str, Any] = {"kv_cache_quant_algo": None, "exclude_modules": list(others)}
    if len(set(kinds.values())) == 1:
        found |= next(iter(layers.values()))
    else:
        found |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    return {"producer": {"name": "fourbit", "version": version}, "quantization": found}


def modelopt_entry(config: dict[str, Any]) -> dict[str, Any]:
    """The entry `quantization_config` of config.json that says the same as hf_quant_config.json."""
    details = config["quantization"]
    entry = {"quant_method": MODELOPT, "producer": config["producer"], "ignore": details["exclude_modules"]}
    return entry | {name: value for name, value in details.items() if name != "exclude_modules"}


def _by_kind(kinds: dict[str, Kind]) -> list[tuple[Kind, list[str]]]:
    found: dict[Kind, list[str]] = {}
    for module, kind in kinds.items():
        found.setdefault(kind, []).append(module)
    return list(found.items())


_EXPERT = ".experts."


def _patterns(modules: Iterable[str]) -> list[str]:
    """Regular expressions for modules: of the experts of layers together, others one by one."""
    modules = list(modules)
    return [*_stacks(modules), *(module.replace(".", r"\.") for module in modules if _EXPERT not in module)]


def _stacks(modules: Iterable[str]) -> list[str]:
    """One regular expression for all experts among modules, if there are any. Any name of a matrix fits, because tools
    ask for those of mixtral by those of other architectures."""
    heads = [module.partition(_EXPERT)[0] for module in modules if _EXPERT in module]
    layers = dict.fromkeys(head.replace(".", r"\.") for head in heads)
    return [rf"({'|'.join(layers)})\.experts\.\d+\.\w+"] if layers else []
