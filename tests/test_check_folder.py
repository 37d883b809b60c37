"""`fourbit check FOLDER`: sound checkpoints pass, and every fault of a list is named, with the tensors that have it.

Contract: folders in the layouts of ModelOpt, compressed-tensors, gpt-oss and DeepSeek pass with and without their
original; one fault put into them is one kind of finding, named as itself, and of the tensor that has it; what cannot be
known without the original is said and not guessed. Oracles: layouts written by hand (`folder_cases`), the package
compressed-tensors, our own exports; each fault is put in by hand.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from folder_cases import MAKERS, Folder, made, write_shards

import fourbit
import numerics as nm
from hw.check_folder import check_folder
from hw.check_folder_report import FolderReport

L0, E1 = "model.layers.0", "model.layers.0.mlp.experts.1"
Edit = Callable[[Folder], None]


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """Small tensors."""


def judged(folder: Folder, path: Path, against: bool = False, shards: int = 2) -> FolderReport:
    quantized = folder.write(path / "quantized", shards)
    return check_folder(quantized, folder.against(path / "original") if against else None)


# ---- sound folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_sound_folder_passes(name: str, against: bool, tmp_path: Path) -> None:
    report = judged(made(name), tmp_path, against)
    assert report, report
    unknown = "cannot be known without --against" in str(report)
    assert unknown != against


# ---- faults ----------------------------------------------------------------------------------------------------------


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


UP, GATE, DOWN = f"{E1}.up_proj", f"{E1}.gate_proj", f"{E1}.down_proj"
Q = f"{L0}.self_attn.q_proj"
QUANT = "quantization_config"

# maker, fault, what the report says, whose it is
FAULTS: dict[str, tuple[str, Edit, str, str]] = {
    "gate and up": ("modelopt", change("up_proj.weight_scale_2", lambda t: t * 1.7), "gate_proj and up_proj have different outer scales", f"{UP}.weight_scale_2"),
    "gate and up, compressed": ("compressed", change("up_proj.weight_global_scale", lambda t: t / 3), "gate_proj and up_proj have different outer scales", f"{UP}.weight_global_scale"),
    "q and k": ("modelopt", change("k_proj.weight_scale_2", lambda t: t * 0.9, L0), "k_proj and v_proj have different outer scales", f"{L0}.self_attn.k_proj.weight_scale_2"),
    "transposed shape": ("modelopt", change("up_proj.weight_scale", lambda t: t.mT), "the scale is transposed", f"{UP}.weight_scale"),
    "transposed stack": ("gpt_oss", change("down_proj_scales", lambda t: t.mT, L0), "the scale is transposed", f"{L0}.mlp.experts.down_proj_scales"),
    "swizzled shape": ("modelopt", change("up_proj.weight_scale", lambda t: nm.layout.swizzle_scales(t)), "padded shape of the 128x4 swizzle", f"{UP}.weight_scale"),
    "stale padding": ("modelopt", change("up_proj.weight_scale", lambda t: padded(t, 0x31)), "stale padding: bytes around the scales", f"{UP}.weight_scale"),
    "lost outer": ("modelopt", drop(f"{UP}.weight_scale_2"), "weight_scale_2 is missing: the outer scale is lost", UP),
    "outer of one": ("modelopt", change("weight_scale_2", torch.ones_like, "model"), "the outer scale is lost: weight_scale_2 is 1", UP),
    "inverted outers": ("modelopt", change("weight_scale_2", lambda t: 1 / t, "model"), "weight_scale_2 is inverted", UP),
    "inverted outers, compressed": ("compressed", change("weight_global_scale", lambda t: 1 / t, "model"), "weight_global_scale is inverted", UP),
    "one inverted outer": ("modelopt", change("o_proj.weight_scale_2", lambda t: 1 / t, L0), "weight_scale_2 is inverted", f"{L0}.self_attn.o_proj"),
    "outer of NaN": ("modelopt", change("up_proj.weight_scale_2", lambda t: t * torch.nan), "the outer scale is nan", f"{UP}.weight_scale_2"),
    "outer of zero": ("compressed", change("down_proj.weight_global_scale", torch.zeros_like), "the outer scale is 0", f"{DOWN}.weight_global_scale"),
    "far outer": ("modelopt", change("down_proj.weight_scale_2", lambda t: t / 500), "more than 64 times larger or smaller than those of its siblings", DOWN),
    "no scale": ("modelopt", drop(f"{UP}.weight_scale"), "weight_scale is missing: the codes are there without it", UP),
    "no scale, gpt-oss": ("gpt_oss", drop(f"{L0}.mlp.experts.down_proj_scales"), "scales is missing: the codes are there without it", f"{L0}.mlp.experts.down_proj"),
    "no scale, DeepSeek": ("deepseek", drop(f"{UP}.weight_scale_inv"), "weight_scale_inv is missing", UP),
    "no codes": ("compressed", drop(f"{UP}.weight_packed"), "weight_packed is missing", UP),
    "no expert": ("modelopt", drop(*(f"{UP}.{s}" for s in ("weight", "weight_scale", "weight_scale_2", "input_scale"))), "it is missing, of 4 experts", UP),
    "no input scale": ("modelopt", drop(f"{UP}.input_scale"), "input_scale is missing", UP),
    "no input scales": ("modelopt", lambda f: drop(*[n for n in f.tensors if n.endswith("input_scale")])(f), "input_scale is missing", UP),
    "no input scales, compressed": ("compressed", lambda f: drop(*[n for n in f.tensors if n.endswith("input_global_scale")])(f), "input_global_scale is missing", UP),
    "input scale of zero": ("modelopt", change("up_proj.input_scale", torch.zeros_like), "the scale of activations is 0", f"{UP}.input_scale"),
    "input scale of inf": ("modelopt", change("up_proj.input_scale", lambda t: t / 0), "the scale of activations is inf", f"{UP}.input_scale"),
    "input scale of NaN": ("compressed", change("up_proj.input_global_scale", lambda t: t * torch.nan), "the scale of activations is nan", f"{UP}.input_global_scale"),
    "inverted input scale": ("modelopt", change("up_proj.input_scale", lambda t: 1 / t), "the scale of activations is inverted", f"{UP}.input_scale"),
    "NaN scale byte": ("modelopt", change("up_proj.weight_scale", lambda t: one(t, 0x7F)), "block scales are NaN", f"{UP}.weight_scale"),
    "NaN scale byte, MX": ("mxfp8", change("up_proj.weight_scale", lambda t: one(t, 0xFF, 3)), "block scales are NaN", f"{UP}.weight_scale"),
    "NaN scale in a stack": ("gpt_oss", change("down_proj_scales", lambda t: one(t, 0xFF), L0), "block scales are NaN", f"{L0}.mlp.experts.down_proj_scales"),
    "NaN codes": ("deepseek", change("up_proj.weight", lambda t: one(t, 0xFF, 5)), "F8_E4M3 values are NaN", f"{UP}.weight"),
    "NaN in a norm": ("modelopt", change("input_layernorm.weight", lambda t: t * torch.nan, L0), "BF16 values are NaN or infinite", f"{L0}.input_layernorm.weight"),
    "negative scales": ("modelopt", change("up_proj.weight_scale", lambda t: one(t, 0xB8, 9)), "block scales are negative", f"{UP}.weight_scale"),
    "constant scales": ("modelopt", change("up_proj.weight_scale", lambda t: one(t, 0x38, t.numel())), "the scales are lost", f"{UP}.weight_scale"),
    "saturated scales": ("modelopt", change("up_proj.weight_scale", lambda t: one(t, 0x7E, t.numel() * 3 // 4)), "they saturate under their outer scale", f"{UP}.weight_scale"),
    "vanished scales": ("modelopt", change("up_proj.weight_scale", lambda t: one(t, 0, t.numel() * 3 // 4)), "they vanish", f"{UP}.weight_scale"),
    "reciprocal scales": ("deepseek", change("weight_scale_inv", lambda t: 1 / t, "model"), "the scales are inverted", f"{UP}.weight_scale_inv"),
    "inverted E8M0": ("mxfp8", change("weight_scale", lambda t: 254 - t, "model"), "the scales are inverted", f"{UP}.weight_scale"),
    "E8M0 as numbers": ("mxfp8", change("up_proj.weight_scale", lambda t: torch.exp2(t.float() - 127)), "scales are F32, where MXFP8 stores", f"{UP}.weight_scale"),
    "E8M0 bytes as numbers": ("mxfp4", change("up_proj.weight_scale", lambda t: t.to(torch.bfloat16)), "scales are BF16, where MXFP4 stores", f"{UP}.weight_scale"),
    "E4M3 as bytes": ("modelopt", change("up_proj.weight_scale", lambda t: t.view(torch.uint8)), "scales are U8, where NVFP4 stores F8_E4M3", f"{UP}.weight_scale"),
    "cast back": ("modelopt", change("up_proj.weight", lambda t: torch.zeros(64, 128, dtype=torch.bfloat16)), "codes are BF16, beside a scale", f"{UP}.weight"),
    "cut scales": ("modelopt", change("up_proj.weight_scale", lambda t: t[:, :5]), "which explains no block", f"{UP}.weight_scale"),
    "zeros": ("modelopt", change("up_proj.weight", torch.zeros_like), "every decoded value is 0", UP),
    "method": ("modelopt", config(lambda c: c.update(quant_method="modelotp")), "quant_method 'modelotp' is unknown", ""),
    "algorithm": ("modelopt", config(lambda c: c.update(quant_algo="NVFP5")), "quant_algo 'NVFP5' is unknown", ""),
    "group size": ("modelopt", config(lambda c: c.update(group_size=32)), "the config says groups of 32", UP),
    "group size, compressed": ("compressed", weights_config(group_size=32), "the config says groups of 32", UP),
    "format": ("compressed", weights_config(num_bits=8), "the config says FP8, and the tensors are NVFP4", UP),
    "format of the other": ("mxfp4", weights_config(group_size=16, strategy="tensor_group"), "the config says NVFP4, and the tensors are MXFP4", UP),
    "format's name": ("compressed", config(lambda c: c.update(format="mxfp4-pack-quantized")), "has format 'mxfp4-pack-quantized', and its weights are those of NVFP4", ""),
    "FP8 instead of NVFP4": ("modelopt", lambda f: f.tensors.update({f"{UP}.weight": torch.ones(64, 128).to(torch.float8_e4m3fn)}), "scales are F8_E4M3, where FP8 stores", f"{UP}.weight_scale"),
    "tiles": ("deepseek", config(lambda c: c.update(weight_block_size=[64, 64])), "the config says tiles of [64, 64]", DOWN),
    "ignored": ("compressed", config(lambda c: c["ignore"].append(UP)), "leaves it out", UP),
    "ignored, pattern": ("modelopt", config(lambda c: c["ignore"].append("model.layers.0*")), "'model.layers.0*' of the config leaves it out", UP),
    "not ignored": ("compressed", config(lambda c: c.update(ignore=["re:.*mlp.gate$"])), "it is BF16, and the config says NVFP4", "lm_head"),
    "two configs": ("modelopt", lambda f: f.quant["quantization"].update(quant_algo="W4A16_NVFP4"), "disagree about quant_algo", ""),
    "hidden size": ("modelopt", lambda f: f.config.update(hidden_size=96), "hidden_size is 96: those beyond it do not decode to zero", UP),
    "another hidden size": ("mxfp4", lambda f: f.config.update(hidden_size=160), "128 rows, and hidden_size is 160", DOWN),
    "layers": ("modelopt", lambda f: f.config.update(num_hidden_layers=3), "1 of 3 layers of the config have no tensor", "layers.2"),
    "experts": ("modelopt", lambda f: f.config.update(num_experts=6), "it is missing, of 6 experts", f"{L0}.mlp.experts.5.up_proj"),
    "head": ("modelopt", drop("lm_head.weight"), "config.json does not tie it", "lm_head.weight"),
}  # fmt: skip


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


# ---- faults that only the original shows -----------------------------------------------------------------------------


def swapped_scales(one: str, other: str) -> Edit:
    return swap(f"{one}.weight_scale", f"{other}.weight_scale")


def swapped_matrices(one: str, other: str) -> Edit:
    def apply(folder: Folder) -> None:
        for part in ("weight", "weight_scale"):
            swap(f"{one}.{part}", f"{other}.{part}")(folder)

    return apply


def scrambled_rows(t: torch.Tensor) -> torch.Tensor:
    t = t.clone()
    t[5:8] = t[5:8].flip(-1)
    return t


def other_half(folder: Folder) -> None:
    """The halves of a stacked gate_up_proj of one expert change places."""
    for part in ("blocks", "scales"):
        name = f"{L0}.mlp.experts.gate_up_proj_{part}"
        t = folder.tensors[name].clone()
        t[2] = t[2].roll(64, 0)
        folder.tensors[name] = t


STACK = f"{L0}.mlp.experts.gate_up_proj"
DOWN_STACK = f"{L0}.mlp.experts.down_proj"
SILENT: dict[str, tuple[str, Edit, str, str]] = {
    "nibbles": ("modelopt", change(".weight", lambda t: nibbles(t) if t.dtype == torch.uint8 else t, "model.layers"), "the nibbles are swapped", UP),
    "nibbles, compressed": ("compressed", change("weight_packed", nibbles), "the nibbles are swapped", UP),
    "nibbles, MXFP4": ("mxfp4", change("weight_packed", nibbles), "the nibbles are swapped", UP),
    "nibbles, gpt-oss": ("gpt_oss", change("gate_up_proj_blocks", nibbles, L0), "the nibbles are swapped", f"{STACK}[3]"),
    "transposed content": ("modelopt", change("q_proj.weight_scale", transposed_content, L0), "the scale is transposed", Q),
    "transposed content, MX": ("mxfp8", change("q_proj.weight_scale", transposed_content, L0), "the scale is transposed", Q),
    "swizzled under a linear name": ("modelopt", change("q_proj.weight_scale", swizzled, L0), "128x4-swizzled under the name", Q),
    "swizzled and nibbles": ("modelopt", lambda f: [change("q_proj.weight_scale", swizzled, L0)(f), change("q_proj.weight", nibbles, L0)(f)], "128x4-swizzled under the name", Q),
    "inverted E8M0": ("mxfp4", change("weight_scale", lambda t: 254 - t, "model"), "the scales are inverted", UP),
    "inverted in a stack": ("gpt_oss", change("down_proj_scales", lambda t: 254 - t, L0), "the scales are inverted", f"{DOWN_STACK}[1]"),
    "another outer": ("modelopt", change("down_proj.weight_scale_2", lambda t: t * 2), "the outer scale is another one", DOWN),
    "all scales": ("mxfp8", change("down_proj.weight_scale", lambda t: t + 1), "decoded values are a multiple", DOWN),
    "scales of an expert": ("modelopt", swapped_scales(UP, f"{L0}.mlp.experts.2.up_proj"), "the scales are those of a sibling", UP),
    "scales of an expert, MX": ("mxfp4", swapped_scales(UP, f"{L0}.mlp.experts.2.up_proj"), "the scales are those of a sibling", UP),
    "experts": ("mxfp8", swapped_matrices(UP, f"{L0}.mlp.experts.2.up_proj"), "codes and scales are those of a sibling", UP),
    "gate is up": ("mxfp8", swapped_matrices(UP, GATE), "codes and scales are those of a sibling", GATE),
    "rows": ("modelopt", change("up_proj.weight", scrambled_rows), "some blocks do not decode to the original", UP),
    "rows of FP8": ("deepseek", change("up_proj.weight", scrambled_rows), "some blocks do not decode to the original", UP),
    "half of a stack": ("gpt_oss", other_half, "decoded values are not those of the original", f"{STACK}[2]"),
    "a norm": ("modelopt", change("input_layernorm.weight", torch.zeros_like, L0), "its values are not the original's", f"{L0}.input_layernorm.weight"),
    "signs": ("deepseek", change("up_proj.weight", lambda t: (t.view(torch.uint8) ^ 0x80).view(t.dtype)), "decoded values are a multiple", UP),
    "another tensor": ("modelopt", change("down_proj.weight", lambda t: t.flip(0)), "decoded values are not those of the original", DOWN),
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
def test_a_fault_is_named_beside_the_original(name: str, tmp_path: Path) -> None:
    maker, edit, said, whose = SILENT[name]
    folder = made(maker)
    edit(folder)
    report = judged(folder, tmp_path, against=True)
    found = [f for f in report.findings if said in f.text]
    assert found and any(whose in f.tensors for f in found), report
    assert len(report.faults) <= 2, report


@pytest.mark.parametrize("name", ["nibbles", "swizzled under a linear name", "scales of an expert", "another outer"])
def test_what_cannot_be_known_is_said_and_no_fault(name: str, tmp_path: Path) -> None:
    maker, edit, _, _ = SILENT[name]
    folder = made(maker)
    edit(folder)
    report = judged(folder, tmp_path)
    assert report and "cannot be known without --against" in str(report), report
