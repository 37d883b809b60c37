"""`fourbit check FOLDER` on what the tools' own packages write.

Contract: folders of compressed-tensors, of every floating-point preset, and of ModelOpt's exporter pass, alone and
against their original. Oracle: the packages themselves; skipped where they are not installed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from folder_cases import Folder, model, quantized, sizes
from torch import Tensor

from hw.check_folder import check_folder

FEW = ["NVFP4", "MXFP8", "FP8_BLOCK"]
MORE = ["NVFP4A16", "MXFP4", "MXFP4A16", "MXFP8A16", "FP8", "FP8_DYNAMIC"]
PRESETS = [*FEW, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE)]


def extremes(x: Tensor, args: Any) -> tuple[Tensor, Tensor]:
    """Least and largest value of what shares a scale."""
    if args.strategy in ("group", "tensor_group"):
        blocks = x.view(len(x), -1, args.group_size)
        return blocks.amin(-1), blocks.amax(-1)
    if args.strategy == "channel":
        return x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    shape = (1,) if args.strategy == "tensor" else (1, 1)  # all of these matrices are one tile
    return x.min().view(shape), x.max().view(shape)


def compress(name: str, tensors: dict[str, Tensor], scheme: Any, shared: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one module as compressed-tensors writes them."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    module, x = name.removesuffix(".weight"), tensors[name]
    outer = None
    if scheme.weights.strategy == "tensor_group":
        outer = generate_gparam(-shared[module].view(1), shared[module].view(1))
    scale, _ = calculate_qparams(*extremes(x.float(), scheme.weights), scheme.weights, global_scale=outer)
    state = {"weight": x, "weight_scale": scale.to(torch.bfloat16 if scheme.weights.strategy != "group" else x.dtype)}
    if outer is not None:
        state |= {"weight_scale": scale, "weight_global_scale": outer.clone()}
    compressor = BaseCompressor.get_value_from_registry(infer_module_format(torch.nn.Linear, scheme).value)
    found = compressor.compress(state, scheme)
    inputs = scheme.input_activations
    if inputs is not None and inputs.dynamic in (False, "local"):
        found["input_scale" if outer is None else "input_global_scale"] = torch.full(
            (1,), 0.02 if outer is None else 300.0
        )
    return {f"{module}.{part}": t.clone() for part, t in found.items()}


@pytest.mark.parametrize("preset", PRESETS)
def test_compressed_tensors_writes_sound_folders(preset: str, tmp_path: Path) -> None:
    package = pytest.importorskip("compressed_tensors.quantization", reason="pip install compressed-tensors")
    scheme = package.preset_name_to_scheme(preset, ["Linear"])
    original, tensors = model(), {}
    fused = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
    shared = {}
    for name in filter(quantized, original):
        head, _, tail = name.removesuffix(".weight").rpartition(".")
        group = next((g for g in fused if tail in g), (tail,))
        shared[f"{head}.{tail}"] = max(original[f"{head}.{t}.weight"].float().abs().max() for t in group)
    with torch.compiler.set_stance("force_eager"):  # the package compiles its cast, for seconds
        for name, x in original.items():
            tensors |= compress(name, original, scheme, shared) if quantized(name) else {name: x}
    config = package.QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head", "re:.*mlp.gate$"])
    entry = json.loads(config.model_dump_json()) | {"quant_method": "compressed-tensors"}
    folder = Folder(tensors, sizes(quantization_config=entry), None, original)
    path, other = folder.write(tmp_path / "q"), folder.against(tmp_path / "o")
    for against in (None, other):
        report = check_folder(path, against)
        assert report, report


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["NVFP4_DEFAULT_CFG", "MXFP8_DEFAULT_CFG", "FP8_DEFAULT_CFG", "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"]
)
def test_modelopt_exports_sound_folders(name: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("modelopt.torch.quantization", reason="pip install nvidia-modelopt")
    export = pytest.importorskip("modelopt.torch.export", reason="pip install nvidia-modelopt")
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        **{"vocab_size": 128, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32},
        **{"num_key_value_heads": 2, "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2},
    )
    net = transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    net.save_pretrained(tmp_path / "o")
    tokens = torch.arange(64).view(2, 32)
    net = quantization.quantize(net, getattr(quantization, name), lambda m: m(tokens))
    export.export_hf_checkpoint(net, dtype=torch.bfloat16, export_dir=tmp_path / "q")
    for against in (None, tmp_path / "o"):
        report = check_folder(tmp_path / "q", against)
        assert report, report
