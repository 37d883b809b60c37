"""Faults of a checkpoint that its own bytes and config show: each is named, and the tensors that have it.

Contract: a fault put by hand into a folder of `folder_cases` is a finding that says it, of that tensor, and at most
one other finding comes with it. Oracle: the folder without the fault, which `test_check_folder` sees pass.
"""

from pathlib import Path

import pytest
import torch
from folder_cases import DOWN, L0, UP, Edit, change, config, drop, judged, made, one, padded, weights_config

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
        change("down_proj.weight_scale_2", lambda t: t / 500),
        "more than 64 times larger or smaller than those of its siblings",
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
        change("up_proj.weight_scale", lambda t: one(t, 0x7E, t.numel() * 3 // 4)),
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
    "method": (
        "modelopt",
        config(lambda c: c.update(quant_method="modelotp")),
        "quant_method 'modelotp' is unknown",
        "",
    ),
    "algorithm": ("modelopt", config(lambda c: c.update(quant_algo="NVFP5")), "quant_algo 'NVFP5' is unknown", ""),
    "group size": ("modelopt", config(lambda c: c.update(group_size=32)), "the config says groups of 32", UP),
    "group size, compressed": ("compressed", weights_config(group_size=32), "the config says groups of 32", UP),
    "format": ("compressed", weights_config(num_bits=8), "the config says FP8, and the tensors are NVFP4", UP),
    "format of the other": (
        "mxfp4",
        weights_config(group_size=16, strategy="tensor_group"),
        "the config says NVFP4, and the tensors are MXFP4",
        UP,
    ),
    "format's name": (
        "compressed",
        config(lambda c: c.update(format="mxfp4-pack-quantized")),
        "has format 'mxfp4-pack-quantized', and its weights are those of NVFP4",
        "",
    ),
    "FP8 instead of NVFP4": (
        "modelopt",
        lambda f: f.tensors.update({f"{UP}.weight": torch.ones(64, 128).to(torch.float8_e4m3fn)}),
        "scales are F8_E4M3, where FP8 stores",
        f"{UP}.weight_scale",
    ),
    "tiles": (
        "deepseek",
        config(lambda c: c.update(weight_block_size=[64, 64])),
        "the config says tiles of [64, 64]",
        DOWN,
    ),
    "ignored": ("compressed", config(lambda c: c["ignore"].append(UP)), "leaves it out", UP),
    "ignored, pattern": (
        "modelopt",
        config(lambda c: c["ignore"].append("model.layers.0*")),
        "'model.layers.0*' of the config leaves it out",
        UP,
    ),
    "not ignored": (
        "compressed",
        config(lambda c: c.update(ignore=["re:.*mlp.gate$"])),
        "it is BF16, and the config says NVFP4",
        "lm_head",
    ),
    "two configs": (
        "modelopt",
        lambda f: f.quant["quantization"].update(quant_algo="W4A16_NVFP4"),
        "disagree about quant_algo",
        "",
    ),
    "hidden size": (
        "modelopt",
        lambda f: f.config.update(hidden_size=96),
        "hidden_size is 96: those beyond it do not decode to zero",
        UP,
    ),
    "another hidden size": (
        "mxfp4",
        lambda f: f.config.update(hidden_size=160),
        "its width is not hidden_size, 160",
        DOWN,
    ),
    "layers": (
        "modelopt",
        lambda f: f.config.update(num_hidden_layers=3),
        "1 of 3 layers of the config have no tensor",
        "layers.2",
    ),
    "experts": (
        "modelopt",
        lambda f: f.config.update(num_experts=6),
        "it is missing, of 6 experts",
        f"{L0}.mlp.experts.5.up_proj",
    ),
    "head": ("modelopt", drop("lm_head.weight"), "config.json does not tie it", "lm_head.weight"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_without_the_original(name: str, tmp_path: Path) -> None:
    maker, edit, said, whose = FAULTS[name]
    folder = made(maker)
    edit(folder)
    report = judged(folder, tmp_path)
    assert not report
    found = [f for f in report.findings if said in f.text]
    assert found, report
    assert not whose or any(whose in f.tensors for f in found), report
    assert len(report.faults) <= 2, report
