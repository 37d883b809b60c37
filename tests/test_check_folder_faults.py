"""Faults of a checkpoint that its own bytes show: each is named, and the tensors that have it.

Contract: a fault put by hand into a folder of `folder_cases` is a finding that says it, of that tensor, and at most
one other finding comes with it. Oracle: the folder without the fault, which `test_check_folder` sees pass.
"""

from pathlib import Path

import pytest
import torch
from folder_cases import DOWN, L0, UP, Edit, change, drop, one, padded, require_named

import numerics as nm

# maker, fault, what the report says, whose it is
FAULTS: dict[str, tuple[str, Edit, str, str]] = {
    "gate and up": (
        "modelopt",
        change("up_proj.weight_scale_2", lambda t: t * 1.7),
        "gate_proj and up_proj have different outer scales",
        f"{UP}.weight_scale_2",
    ),
    "gate and up, compressed": (
        "compressed",
        change("up_proj.weight_global_scale", lambda t: t / 3),
        "gate_proj and up_proj have different outer scales",
        f"{UP}.weight_global_scale",
    ),
    "q and k": (
        "modelopt",
        change("k_proj.weight_scale_2", lambda t: t * 0.9, L0),
        "k_proj and v_proj have different outer scales",
        f"{L0}.self_attn.k_proj.weight_scale_2",
    ),
    "transposed shape": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: t.mT),
        "the scale is transposed",
        f"{UP}.weight_scale",
    ),
    "transposed stack": (
        "gpt_oss",
        change("down_proj_scales", lambda t: t.mT, L0),
        "the scale is transposed",
        f"{L0}.mlp.experts.down_proj_scales",
    ),
    "swizzled shape": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: nm.layout.swizzle_scales(t)),
        "padded shape of the 128x4 swizzle",
        f"{UP}.weight_scale",
    ),
    "stale padding": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: padded(t, 0x31)),
        "stale padding: bytes around the scales",
        f"{UP}.weight_scale",
    ),
    "lost outer": ("modelopt", drop(f"{UP}.weight_scale_2"), "weight_scale_2 is missing: the outer scale is lost", UP),
    "outer of one": (
        "modelopt",
        change("weight_scale_2", torch.ones_like, "model"),
        "the outer scale is lost: weight_scale_2 is 1",
        UP,
    ),
    "inverted outers": (
        "modelopt",
        change("weight_scale_2", lambda t: 1 / t, "model"),
        "weight_scale_2 is inverted",
        UP,
    ),
    "inverted outers, compressed": (
        "compressed",
        change("weight_global_scale", lambda t: 1 / t, "model"),
        "weight_global_scale is inverted",
        UP,
    ),
    "one inverted outer": (
        "modelopt",
        change("o_proj.weight_scale_2", lambda t: 1 / t, L0),
        "weight_scale_2 is inverted",
        f"{L0}.self_attn.o_proj",
    ),
    "outer of NaN": (
        "modelopt",
        change("up_proj.weight_scale_2", lambda t: t * torch.nan),
        "the outer scale is nan",
        f"{UP}.weight_scale_2",
    ),
    "outer of zero": (
        "compressed",
        change("down_proj.weight_global_scale", torch.zeros_like),
        "the outer scale is 0",
        f"{DOWN}.weight_global_scale",
    ),
    "far outer": (
        "modelopt",
        change("down_proj.weight_scale_2", lambda t: t / 5000),
        "times smaller, than those of its siblings",
        DOWN,
    ),
    "no scale": ("modelopt", drop(f"{UP}.weight_scale"), "weight_scale is missing: the codes are there without it", UP),
    "no scale, gpt-oss": (
        "gpt_oss",
        drop(f"{L0}.mlp.experts.down_proj_scales"),
        "scales is missing: the codes are there without it",
        f"{L0}.mlp.experts.down_proj",
    ),
    "no scale, DeepSeek": ("deepseek", drop(f"{UP}.weight_scale_inv"), "weight_scale_inv is missing", UP),
    "no codes": ("compressed", drop(f"{UP}.weight_packed"), "weight_packed is missing", UP),
    "no expert": (
        "modelopt",
        drop(*(f"{UP}.{s}" for s in ("weight", "weight_scale", "weight_scale_2", "input_scale"))),
        "it is missing, of 4 experts",
        UP,
    ),
    "no input scale": ("modelopt", drop(f"{UP}.input_scale"), "input_scale is missing", UP),
    "no input scales": (
        "modelopt",
        lambda f: drop(*[n for n in f.tensors if n.endswith("input_scale")])(f),
        "input_scale is missing",
        UP,
    ),
    "no input scales, compressed": (
        "compressed",
        lambda f: drop(*[n for n in f.tensors if n.endswith("input_global_scale")])(f),
        "input_global_scale is missing",
        UP,
    ),
    "input scale of zero": (
        "modelopt",
        change("up_proj.input_scale", torch.zeros_like),
        "the scale of activations is 0",
        f"{UP}.input_scale",
    ),
    "input scale of inf": (
        "modelopt",
        change("up_proj.input_scale", lambda t: t / 0),
        "the scale of activations is inf",
        f"{UP}.input_scale",
    ),
    "input scale of NaN": (
        "compressed",
        change("up_proj.input_global_scale", lambda t: t * torch.nan),
        "the scale of activations is nan",
        f"{UP}.input_global_scale",
    ),
    "inverted input scale": (
        "modelopt",
        change("up_proj.input_scale", lambda t: 1 / t),
        "the scale of activations is inverted",
        f"{UP}.input_scale",
    ),
    "NaN scale byte": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: one(t, 0x7F)),
        "block scales are NaN",
        f"{UP}.weight_scale",
    ),
    "NaN scale byte, MX": (
        "mxfp8",
        change("up_proj.weight_scale", lambda t: one(t, 0xFF, 3)),
        "block scales are NaN",
        f"{UP}.weight_scale",
    ),
    "NaN scale in a stack": (
        "gpt_oss",
        change("down_proj_scales", lambda t: one(t, 0xFF), L0),
        "block scales are NaN",
        f"{L0}.mlp.experts.down_proj_scales",
    ),
    "NaN codes": (
        "deepseek",
        change("up_proj.weight", lambda t: one(t, 0xFF, 5)),
        "F8_E4M3 values are NaN",
        f"{UP}.weight",
    ),
    "NaN in a norm": (
        "modelopt",
        change("input_layernorm.weight", lambda t: t * torch.nan, L0),
        "BF16 values are NaN or infinite",
        f"{L0}.input_layernorm.weight",
    ),
    "negative scales": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: one(t, 0xB8, 9)),
        "block scales are negative",
        f"{UP}.weight_scale",
    ),
    "constant scales": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: one(t, 0x38, t.numel())),
        "the scales are lost",
        f"{UP}.weight_scale",
    ),
    "saturated scales": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: one(t, 0x7E, t.numel() - 9)),
        "they saturate under their outer scale",
        f"{UP}.weight_scale",
    ),
    "vanished scales": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: one(t, 0, t.numel() * 3 // 4)),
        "they vanish",
        f"{UP}.weight_scale",
    ),
    "reciprocal scales": (
        "deepseek",
        change("weight_scale_inv", lambda t: 1 / t, "model"),
        "the scales are inverted",
        f"{UP}.weight_scale_inv",
    ),
    "inverted E8M0": (
        "mxfp8",
        change("weight_scale", lambda t: 254 - t, "model"),
        "the scales are inverted",
        f"{UP}.weight_scale",
    ),
    "E8M0 as numbers": (
        "mxfp8",
        change("up_proj.weight_scale", lambda t: torch.exp2(t.float() - 127)),
        "scales are F32, where MXFP8 stores",
        f"{UP}.weight_scale",
    ),
    "E8M0 bytes as numbers": (
        "mxfp4",
        change("up_proj.weight_scale", lambda t: t.to(torch.bfloat16)),
        "scales are BF16, where MXFP4 stores",
        f"{UP}.weight_scale",
    ),
    "E4M3 as bytes": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: t.view(torch.uint8)),
        "scales are U8, where NVFP4 stores F8_E4M3",
        f"{UP}.weight_scale",
    ),
    "cast back": (
        "modelopt",
        change("up_proj.weight", lambda t: torch.zeros(64, 128, dtype=torch.bfloat16)),
        "codes are BF16, beside a scale",
        f"{UP}.weight",
    ),
    "cut scales": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: t[:, :5]),
        "which explains no block",
        f"{UP}.weight_scale",
    ),
    "zeros": ("modelopt", change("up_proj.weight", torch.zeros_like), "every decoded value is 0", UP),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_without_the_original(name: str, tmp_path: Path) -> None:
    require_named(*FAULTS[name], tmp_path)
