"""What a checkpoint's config says against its tensors: each contradiction is named, and the tensors that have it.

Contract and oracle as those of `test_check_folder_faults`.
"""

from pathlib import Path

import pytest
import torch
from folder_cases import DOWN, L0, UP, Edit, Folder, change, config, drop, require_named, weights_config

MX = ("weight_packed", "weight_scale")


def plainly(module: str) -> Edit:
    """A matrix in BF16, left out by the config."""

    def apply(folder: Folder) -> None:
        del folder.tensors[f"{module}.weight_scale"]
        folder.tensors[f"{module}.weight"] = folder.original[f"{module}.weight"]
        folder.config["quantization_config"]["ignore"].append(module)

    return apply


# maker, fault, what the report says, whose it is
FAULTS: dict[str, tuple[str, Edit, str, str]] = {
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
    "no config": ("mxfp8", lambda f: f.config.pop("quantization_config"), "config.json has no quantization_config", ""),
    "copied expert": (
        "mxfp4",
        lambda f: f.tensors.update({f"{UP}.{p}": f.tensors[f"{L0}.mlp.experts.3.up_proj.{p}"] for p in MX}),
        "the same, byte for byte",
        UP,
    ),
    "E5M2 codes": (
        "mxfp8",
        change("up_proj.weight", lambda t: t.float().to(torch.float8_e5m2)),
        "codes of F8_E5M2",
        f"{UP}.weight",
    ),
    "BF16 outer": (
        "modelopt",
        change("down_proj.weight_scale_2", lambda t: t.bfloat16()),
        "is BF16, not F32",
        f"{DOWN}.weight_scale_2",
    ),
    "some of q, k, v": (
        "mxfp8",
        plainly(f"{L0}.self_attn.k_proj"),
        "q_proj and k_proj and v_proj have different formats",
        f"{L0}.self_attn.k_proj",
    ),
    "another axis": (
        "modelopt",
        change("up_proj.weight_scale", lambda t: t[None]),
        "the scale has another shape: [1, 64, 8]",
        f"{UP}.weight_scale",
    ),
    "flat codes": ("modelopt", change("up_proj.weight", lambda t: t.flatten()), "which is no matrix", f"{UP}.weight"),
    "empty scale": ("compressed", change("up_proj.weight_scale", lambda t: t[:0]), "weight_scale is missing", UP),
    "vocabulary": (
        "modelopt",
        lambda f: f.config.update(vocab_size=97),
        "fewer rows than vocab_size, 97",
        "lm_head.weight",
    ),
    "width of experts": ("modelopt", lambda f: f.config.update(moe_intermediate_size=80), "experts are 64 wide", DOWN),
    "stacked experts": (
        "gpt_oss",
        lambda f: f.config.update(num_experts=5),
        "4 matrices are stacked, and the config has 5",
        f"{L0}.mlp.experts.down_proj",
    ),
    "tied": (
        "mxfp4",
        lambda f: f.config.update(tie_word_embeddings=True),
        "to which the config ties it",
        "lm_head.weight",
    ),
    "dtype": ("mxfp4", lambda f: f.config.update(torch_dtype="float16"), "the config says F16", ""),
    "bias": (
        "gpt_oss",
        change("down_proj_bias", lambda t: t[:, :-1], L0),
        "a bias of [4, 127]",
        f"{L0}.mlp.experts.down_proj_bias",
    ),
    "head": ("modelopt", drop("lm_head.weight"), "config.json does not tie it", "lm_head.weight"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_contradiction_is_named(name: str, tmp_path: Path) -> None:
    require_named(*FAULTS[name], tmp_path)
