"""Contract of reference.folder_config and reference.folder_files: a config.json and the files beside it mean what they
mean to the library transformers, or are refused with the field or tensor and a remedy.

Oracle: the library itself, which loads the folder in FP32. Ours rounds to BF16: the distance of the logits is up to
0.033 of their norm for these models, and 0.2 or more where positions, a window or biases are read otherwise.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import MODELS, loaded
from safetensors.torch import load_file, save_file

from numerics import ops
from reference.expert import Draw
from reference.export import export, write
from reference.model import ModelConfig, Transformer
from reference.presets import preset
from reference.pretrained import initialize, sizes_of

ABSENT = object()
ALIKE = 0.04


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BF16 export of each architecture, by its name."""
    place = tmp_path_factory.mktemp("folders")
    for kind, sizes in MODELS.items():
        run = loaded("bf16", sizes)
        write(export(run, "bf16"), run, place / kind)
    return place


def changed(folders: Path, kind: str, fields: dict[str, Any], folder: Path) -> Path:
    """The folder of a kind, with other fields in its config.json; ABSENT takes one out."""
    folder.mkdir()
    for path in (folders / kind).iterdir():
        (folder / path.name).hardlink_to(path)
    (folder / "config.json").unlink()
    config = json.loads((folders / kind / "config.json").read_bytes()) | fields
    found = {name: value for name, value in config.items() if value is not ABSENT}
    (folder / "config.json").write_text(json.dumps(found))
    return folder


def apart(folder: Path) -> float:
    """How far our logits of a folder are from the library's, relative to theirs."""
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    ids_BS = torch.randint(0, 256, (2, 20), generator=torch.Generator().manual_seed(3))
    sizes = ModelConfig(**sizes_of(folder), sequence=24)
    model = Transformer(sizes, preset("bf16"), ops, 0)
    initialize(model, sizes, folder)
    library, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(told.values()), told
    with torch.no_grad():
        ours = model.eval().logits(ids_BS, Draw(0, -1, 0))[0].to(torch.float32)
        theirs = library.eval()(input_ids=ids_BS).logits
    return ((ours - theirs).norm() / theirs.norm()).item()


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
ALIKES: list[tuple[str, dict[str, Any]]] = [
    ("mixtral", {"rope_parameters": ABSENT}),
    ("mixtral", {"rope_scaling": {"type": "yarn", "rope_type": "default"}}),  # the library looks at rope_type first
    ("mixtral", {"rope_scaling": ROPE, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}}),
    ("mixtral", {"sliding_window": ABSENT}),
    ("mixtral", {"num_experts": 4, "num_local_experts": ABSENT}),
    ("mixtral", {"torch_dtype": "float16", "dtype": ABSENT, "temperature": 0.3, "do_sample": True, "use_cache": False}),
    ("mixtral", {"logit_scale": None}),
    ("qwen2_moe", {"layer_types": ABSENT}),  # every second layer, from the first
    ("qwen2_moe", {"layer_types": ABSENT, "use_sliding_window": False}),
    ("qwen2_moe", {"qkv_bias": ABSENT, "decoder_sparse_step": ABSENT}),
    ("glm4_moe", {"num_local_experts": 4, "n_routed_experts": ABSENT}),
    ("glm4_moe", {"partial_rotary_factor": 0.5}),  # what rope_parameters says counts
    ("glm4_moe", {"num_nextn_predict_layers": 1}),
]


@pytest.mark.parametrize("kind, fields", ALIKES, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_a_folder_means_what_it_means_to_the_library(
    kind: str, fields: dict[str, Any], folders: Path, tmp_path: Path
) -> None:
    assert apart(changed(folders, kind, fields, tmp_path / "f")) < ALIKE


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral", {"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_type is 'linear', and this model has 'def"),
    ("mixtral", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
    ("mixtral", {"rope_scaling": LLAMA3}, "rope_type is 'llama3'"),  # before rope_parameters
    ("mixtral", {"rope_parameters": {}, "rope_theta": ABSENT}, "rope_theta is 1000000.0, and this model has 10000.0"),
    ("mixtral", {"rope_parameters": ROPE | {"mrope_section": [8, 8]}}, "rope_parameters has mrope_section [8, 8]"),
    ("mixtral", {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ("qwen2_moe", {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}}, "has full_attention {"),
    ("glm4_moe", {"rope_parameters": ROPE, "partial_rotary_factor": ABSENT}, "partial_rotary_factor is 0.5, and this"),
    ("mixtral", {"attention_bias": True}, "attention_bias is True, and this model has False"),
    ("qwen2_moe", {"use_qk_norm": True}, "use_qk_norm is True, and this model has False"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1"),
    ("mixtral", {"sliding_window": 0}, "sliding_window is 0; use 1 or more, or null"),
    ("mixtral", {"num_experts": 8}, "num_experts is 8 and num_local_experts is 4; keep num_local_experts alone"),
    ("mixtral", {"num_local_experts": ABSENT, "n_routed_experts": 4}, "it lacks 'num_local_experts'"),
    ("mixtral", {"architectures": ["MixtralForSequenceClassification"]}, "architectures is ['MixtralForSequenceClass"),
    ("mixtral", {"auto_map": {"AutoModelForCausalLM": "m.M"}}, "does not know what auto_map {'AutoModelForCausalLM':"),
    (
        "mixtral",
        {"final_logit_softcapping": 30.0},
        "does not know what final_logit_softcapping 30.0 of a mixtral chang",
    ),
    ("mixtral", {"per_layer_config": {"0": {"top_k": 1}}}, "does not know what per_layer_config"),
    ("mixtral", {"layer_types": ["full_attention"] * 6}, "does not know what layer_types"),
    ("qwen2_moe", {"use_sliding_window": False}, "and use_sliding_window is false; take one of the two out"),
    ("qwen2_moe", {"layer_types": ["full_attention"] * 5}, "use full_attention and sliding_attention, 6 of them"),
    ("qwen2_moe", {"layer_types": ["chunked_attention"] * 6}, "use full_attention and sliding_attention, 6 of them"),
    ("qwen2_moe", {"layer_types": ABSENT, "max_window_layers": 3}, "has full attention in layers [2, 4, 5, 6]"),
    ("qwen2_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    ("glm4_moe", {"routed_scaling_factor": 2.5}, "routed_scaling_factor is 2.5, and this model has 1.0"),
    ("glm4_moe", {"topk_group": 2}, "topk_group is 2, and this model has 1"),
    ("glm4_moe", {"scoring_func": "softmax"}, "does not know what scoring_func softmax of a glm4_moe changes"),
    ("mixtral", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config.quant_method is 'gptq', and"),
    (
        "mixtral",
        {"quantization_config": {"transform_config": {"R1": {}}}},
        "quantization_config.transform_config is {'R1",
    ),
    ("mixtral", {"dtype": "float8_e4m3fn"}, "dtype is 'float8_e4m3fn'; use bfloat16, float16, float32"),
    ("mixtral", {"model_type": ["mixtral"]}, "architecture ['mixtral'] is unknown"),
]


@pytest.mark.parametrize("kind, fields, told", REFUSED, ids=[told for _, _, told in REFUSED])
def test_what_our_model_has_not_is_refused(
    kind: str, fields: dict[str, Any], told: str, folders: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        sizes_of(changed(folders, kind, fields, tmp_path / "f"))


def test_the_librarys_defaults_count(folders: Path, tmp_path: Path) -> None:
    """Fields that a folder leaves out: 8 heads of keys in mixtral, a shared expert and a dense layer in glm4_moe."""
    assert sizes_of(changed(folders, "mixtral", {"num_key_value_heads": ABSENT}, tmp_path / "a"))["kv_heads"] == 8
    assert sizes_of(changed(folders, "mixtral", {"num_key_value_heads": None}, tmp_path / "b"))["kv_heads"] is None
    absent = {"first_k_dense_replace": ABSENT, "n_shared_experts": ABSENT}
    found = sizes_of(changed(folders, "glm4_moe", absent, tmp_path / "c"))
    assert (found["dense_layers"], found["shared_dim"]) == (1, 32)


# ---- files -----------------------------------------------------------------------------------------------------------

Tensors = dict[str, torch.Tensor]


def stored(tensors: Tensors, path: Path) -> None:
    path.unlink(missing_ok=True)  # it may be linked
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def indexed(folder: Path, parts: dict[str, Tensors], listed: dict[str, str] | None = None) -> None:
    """Write shards, and the index that lists them, or lists something else."""
    for file, own in parts.items():
        stored(own, folder / file)
    names = {name: file for file, own in parts.items() for name in own}
    index = {"metadata": {}, "weight_map": names if listed is None else listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def halves(tensors: Tensors) -> dict[str, Tensors]:
    names = sorted(tensors)
    return {f"{i}.safetensors": {name: tensors[name] for name in names[i::2]} for i in range(2)}


def stack(folder: Path, tensors: Tensors) -> None:
    """Experts as the library has them in memory, in a block that it calls mlp."""
    names = (
        ("w1", "w3", "w2")
        if any("block_sparse_moe" in name for name in tensors)
        else ("gate_proj", "up_proj", "down_proj")
    )
    found = {name.replace("block_sparse_moe", "mlp"): tensor for name, tensor in tensors.items()}
    for head in sorted({name.partition(".experts.")[0] for name in found if ".experts." in name}):
        gate, up, down = ([found.pop(f"{head}.experts.{e}.{name}.weight") for e in range(4)] for name in names)
        found[f"{head}.experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(gate, up, strict=True)])
        found[f"{head}.experts.down_proj"] = torch.stack(down)
    stored(found, folder / "model.safetensors")


def prefixless(folder: Path, tensors: Tensors) -> None:
    stored({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


def tied(folder: Path, tensors: Tensors) -> None:
    stored(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    describe(folder, tie_word_embeddings=True)


def stale_index(folder: Path, tensors: Tensors) -> None:
    """Of shards that are gone."""
    indexed(folder, {}, {"model.norm.weight": "gone.safetensors"})


def short_index(folder: Path, tensors: Tensors) -> None:
    """It leaves tensors of its files out, and says of one that another file has it."""
    (folder / "model.safetensors").unlink()
    parts = halves(tensors)
    swapped = {next(iter(parts["0.safetensors"])): "1.safetensors", next(iter(parts["1.safetensors"])): "0.safetensors"}
    indexed(folder, parts, swapped)


@pytest.mark.parametrize("how", [stack, prefixless, tied, stale_index, short_index], ids=lambda how: how.__name__)
@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe"])
def test_files_mean_what_they_mean_to_the_library(
    how: Callable[[Path, Tensors], None], kind: str, folders: Path, tmp_path: Path
) -> None:
    folder = changed(folders, kind, {}, tmp_path / "f")
    how(folder, load_file(folder / "model.safetensors"))
    assert apart(folder) < ALIKE


def two_kinds(folder: Path, tensors: Tensors) -> None:
    indexed(folder, halves(tensors))


def twice(folder: Path, tensors: Tensors) -> None:
    (folder / "model.safetensors").unlink()
    parts = halves(tensors)
    parts["1.safetensors"]["lm_head.weight"] = parts["0.safetensors"]["lm_head.weight"] = tensors["lm_head.weight"]
    indexed(folder, parts)


def listed_and_lost(folder: Path, tensors: Tensors) -> None:
    (folder / "model.safetensors").unlink()
    parts = halves(tensors)
    indexed(
        folder,
        parts,
        {"model.layers.0.lost.weight": "0.safetensors"} | dict.fromkeys(parts["1.safetensors"], "1.safetensors"),
    )


def no_shard(folder: Path, tensors: Tensors) -> None:
    indexed(folder, halves(tensors))
    (folder / "model.safetensors").unlink()
    (folder / "1.safetensors").unlink()


def odd_index(folder: Path, tensors: Tensors) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": ["0.safetensors"]}')


def pickled(folder: Path, tensors: Tensors) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def adapter(folder: Path, tensors: Tensors) -> None:
    (folder / "adapter_config.json").write_text("{}")


def untied(folder: Path, tensors: Tensors) -> None:
    tied(folder, tensors)
    stored(tensors, folder / "model.safetensors")


def short_stack(folder: Path, tensors: Tensors) -> None:
    stack(folder, tensors)
    found = load_file(folder / "model.safetensors")
    found["model.layers.2.mlp.experts.down_proj"] = found["model.layers.2.mlp.experts.down_proj"][:3]
    stored(found, folder / "model.safetensors")


def biased(folder: Path, tensors: Tensors) -> None:
    tensors["model.layers.2.self_attn.k_proj.bias"][3] = 0.5
    stored(tensors, folder / "model.safetensors")


def large(folder: Path, tensors: Tensors) -> None:
    """More than the dtype holds in which the library loads it."""
    tensors["model.norm.weight"][5] = 7e4
    stored(tensors, folder / "model.safetensors")
    describe(folder, dtype=None, torch_dtype="float16")


def quantized(folder: Path, tensors: Tensors) -> None:
    """A configuration that was left when the weights were decompressed."""
    describe(folder, quantization_config={"quant_method": "compressed-tensors", "config_groups": {}})


def describe(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | fields))


def unbiased(folder: Path, tensors: Tensors) -> None:
    stored({name: t for name, t in tensors.items() if "v_proj.bias" not in name}, folder / "model.safetensors")


@pytest.mark.parametrize(
    "how, told",
    [
        (two_kinds, "has model.safetensors and the shards of model.safetensors.index.json, and tools differ in which"),
        (twice, "has lm_head.weight twice ("),
        (listed_and_lost, "has no model.layers.0.lost.weight, which model.safetensors.index.json lists; restore it"),
        (no_shard, "1.safetensors' cannot be read (No such file"),
        (odd_index, "weight_map names no files; restore it"),
        (pickled, "has no model.safetensors; convert its *.bin with save_pretrained"),
        (adapter, "has an adapter beside its weights; merge the two"),
        (untied, "is not the embedding, and tie_word_embeddings is true; make that false, or take lm_head.weight out"),
        (short_stack, "model.layers.2.mlp.experts.down_proj of '{}' is (3, 64, 32), not (4, 64, 32); restore it"),
        (biased, "model.layers.2.self_attn.k_proj.bias of '{}' is not zero: our attention has no biases"),
        (large, "model.norm.weight of '{}' has 70000, beyond the dtype of config.json; correct the dtype"),
        (quantized, "has no packed matrix and a quantization_config; correct config.json"),
        (unbiased, "has no model.layers.0.self_attn.v_proj.bias; restore it"),
    ],
    ids=lambda x: "" if isinstance(x, str) else x.__name__,
)
def test_files_that_do_not_fit_are_refused(
    how: Callable[[Path, Tensors], None], told: str, folders: Path, tmp_path: Path
) -> None:
    folder = changed(folders, "qwen2_moe", {}, tmp_path / "f")
    how(folder, load_file(folder / "model.safetensors"))
    with pytest.raises(ValueError, match=re.escape(told.format(folder))):
        apart(folder)


SCALE, GLOBAL = (
    "model.layers.1.mlp.experts.2.up_proj.weight_scale",
    "model.layers.1.mlp.experts.2.up_proj.weight_scale_2",
)


@pytest.mark.parametrize(
    "how, told",
    [
        (lambda t: t.pop(GLOBAL), "has no weight_scale_2 or weight_global_scale, unlike nvfp4-pack-quantized; restore"),
        (lambda t: t.update({GLOBAL: t[GLOBAL] * 0}), "has a scale of the whole matrix that is no positive number"),
        (lambda t: t.update({GLOBAL: t[GLOBAL].expand(32).clone()}), "has a scale of the whole matrix that is no posi"),
        (lambda t: t.update({GLOBAL: t[GLOBAL] / 0}), "has a scale of the whole matrix that is no positive number"),
        (lambda t: t.update({GLOBAL.replace("_2", "").replace("scale", "global_scale"): t[GLOBAL] * 1}), "take one of"),
        (lambda t: t.pop(SCALE), "up_proj.weight of '{}' is torch.uint8; it needs BF16, FP16 or FP32"),
        (lambda t: t[SCALE].view(torch.uint8)[3, 1].fill_(0x7F), "has a NaN or an infinity; use another folder"),
    ],
    ids=["lost", "zero", "of rows", "infinite", "two", "no block scales", "NaN"],
)
def test_packed_weights_that_are_damaged_are_refused(
    how: Callable[[Tensors], object], told: str, tmp_path: Path
) -> None:
    run = loaded("fourbit", MODELS["qwen2_moe"])
    write(export(run, "modelopt"), run, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    how(tensors)
    stored(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=re.escape(told.format(tmp_path))):
        initialize(Transformer(run.model.config, run.model.recipe, ops, 0), run.model.config, tmp_path)


def test_packed_weights_that_the_configuration_hides_are_refused(tmp_path: Path) -> None:
    run = loaded("fourbit", MODELS["mixtral"])
    write(export(run, "modelopt"), run, tmp_path)
    model = Transformer(run.model.config, run.model.recipe, ops, 0)
    describe(tmp_path, quantization_config=None)
    initialize(model, run.model.config, tmp_path)  # hf_quant_config.json says it too
    (tmp_path / "hf_quant_config.json").unlink()
    with pytest.raises(ValueError, match="has packed matrices and no quantization_config; correct"):
        initialize(model, run.model.config, tmp_path)
