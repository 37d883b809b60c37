"""Contract of reference.export: a run becomes a folder that transformers loads, whole or not at all, in place of
nothing but an export; what cannot be exported is refused in one sentence.

Oracles: the weights of the run's own checkpoint; the package compressed-tensors, which decompresses the folder, and
transformers, which computes with the result what our BF16 forward computes with the values of the codes (tolerance as
in test_architectures).
"""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import MODELS, SIZES, assert_same_function, loaded
from safetensors import safe_open
from safetensors.torch import load_file

import fourbit
from numerics import ops
from reference import export as exporting
from reference.alphabet import Tokens
from reference.architectures import places
from reference.export import ExportConfig, export, require_free, write
from reference.load import load_run
from reference.model import Transformer
from reference.presets import preset
from reference.servers import notices
from reference.tokenization import read_tokenizer
from reference.train import TrainConfig, train

FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of two steps."""
    folder = tmp_path_factory.mktemp("export")
    text = folder / "text.txt"
    text.write_bytes(bytes(random.Random(0).choices(range(97, 123), k=4000)))
    config = TrainConfig(
        **{"out": folder / "run", "data": str(text), "steps": 2, "batch": 1, "grain": 1, "warmup": 1, "seed": 3},
        **{"eval_every": 2, "eval_sequences": 2, "checkpoint_every": 1, "monitor_every": 0, "progress": "hide"},
        model=SIZES,
    )
    train(config, ops)
    return folder / "run"


@pytest.mark.parametrize("to", ["compressed-tensors", "modelopt", "bf16"])
def test_the_command_writes_the_newest_checkpoint(
    run: Path, to: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    assert fourbit.main(["export", str(run), "--to", to, "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"qwen2_moe in {out}: step 2 of {run}, ") and ("72 quantized" in told) == (to != "bf16")
    found = export(load_run(run), to)
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [*FILES, *(["hf_quant_config.json"] if to == "modelopt" else [])]
    )
    assert json.loads((out / "config.json").read_bytes()) == found.config
    tensors = load_file(out / "model.safetensors")
    assert set(tensors) == set(found.tensors)
    for name, tensor in tensors.items():
        assert tensor.dtype == found.tensors[name].dtype
        assert torch.equal(*(t.flatten().view(torch.uint8) for t in (tensor, found.tensors[name])))
    with safe_open(out / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert found.config["fourbit"]["step"] == 2
    assert fourbit.main(["export", str(run), "--to", to, "--out", str(tmp_path / "first"), "--step", "1"]) == 0
    first = load_file(tmp_path / "first" / "model.safetensors")
    assert not torch.equal(first["lm_head.weight"], tensors["lm_head.weight"])


def test_expert_weights_take_less_than_a_third_of_bf16(run: Path) -> None:
    """4.5 bits a value, and 8.25 in the last sixth, of 16."""
    found = export(load_run(run), "compressed-tensors")
    packed = [name for name in found.tensors if name.rpartition(".")[0] in found.kinds]
    values = 6 * 4 * 3 * SIZES.dim * SIZES.expert_dim
    outers = 5 * 4 * 3 * 4  # FP32, small only in larger models
    exact = values * (5 * 4.5 + 8.25) / 6 / 8
    assert sum(found.tensors[name].nbytes for name in packed) == exact + outers
    assert exact / (2 * values) == pytest.approx(0.3203, abs=1e-4)


def test_bf16_is_what_the_forward_multiplies() -> None:
    """Quantized matrices decoded and rounded once, the shared expert's as its gate needs it, all else rounded, vectors
    not."""
    run = loaded("fourbit", MODELS["qwen2_moe"])
    state, found = run.model.state_dict(), export(run, "bf16").tensors
    for place in places(run.model.config):
        values = state[place.ours]
        if ".w13" in place.ours or ".w2" in place.ours:
            cast = run.model.recipes[int(place.ours.split(".")[1])].weight
            values = ops.quantize_tokens(values, cast).dequantize()
        values = (values if place.expert is None else values[place.expert])[place.start : place.stop]
        if not place.vector:
            values = values.to(torch.bfloat16) * (2 if place.theirs.endswith("shared_expert.down_proj.weight") else 1)
        assert found[place.theirs].dtype == values.dtype and torch.equal(found[place.theirs], values)


@pytest.mark.parametrize("kind, seed", [("qwen2_moe", 0), ("mixtral", 5), ("glm4_moe", 2)])
def test_transformers_computes_with_what_compressed_tensors_decompresses(kind: str, seed: int, tmp_path: Path) -> None:
    convert = pytest.importorskip("compressed_tensors.entrypoints.convert", reason="pip install compressed-tensors")
    run = loaded("fourbit", MODELS[kind])
    packed, plain = tmp_path / "packed", tmp_path / "plain"
    write(export(run, "compressed-tensors"), run, packed)
    convert.convert_checkpoint(packed, plain, convert.CompressedTensorsDequantizer(packed), device="cpu")
    twin = Transformer(run.model.config, preset("bf16"), ops, 0)
    state = run.model.state_dict()
    for name, tensor in state.items():
        if name.endswith((".w13", ".w2")):
            state[name] = ops.quantize_tokens(tensor, run.model.recipes[int(name.split(".")[1])].weight).dequantize()
    twin.load_state_dict(state)
    assert_same_function(twin, plain, seed)


def test_a_tokenizer_goes_along(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    vocab = {**{chr(c): c - 97 for c in range(97, 123)}, "<end>": 26}
    added = [
        {
            "id": 26,
            "content": "<end>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
    ]
    path.write_text(
        json.dumps({"version": "1.0", "added_tokens": added, "model": {"type": "BPE", "vocab": vocab, "merges": []}})
    )
    alphabet = Tokens(read_tokenizer(path, "<end>"), path, "<end>")
    run = replace(loaded("bf16", SIZES), alphabet=alphabet)
    write(export(run, "bf16"), run, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == path.read_bytes()
    assert json.loads((tmp_path / "out" / "config.json").read_bytes())["eos_token_id"] == 26


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_an_export_is_replaced_by_force_alone(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(run), "--out", str(tmp_path), "--to"]
    assert fourbit.main([*words, "modelopt"]) == 0
    before = (tmp_path / "config.json").read_bytes()
    assert fourbit.main([*words, "bf16"]) == 2
    assert "holds an export already; give --force to replace it" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_bytes() == before
    assert fourbit.main([*words, "bf16", "--force"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_bytes())


@pytest.mark.parametrize("force", [False, True])
def test_nothing_but_an_export_is_replaced(run: Path, tmp_path: Path, force: bool) -> None:
    """Least of all the run itself, which has a config.json too."""
    with pytest.raises(ValueError, match="holds something that is no export"):
        require_free(run, force)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=re.escape("no export (notes.txt); name another folder")):
        require_free(tmp_path, force)
    with pytest.raises(ValueError, match="is a file; name a folder"):
        require_free(tmp_path / "notes.txt", force)
    (tmp_path / "notes.txt").unlink()
    for contents in ("mine", "[]", '{"steps": 3}'):
        (tmp_path / "config.json").write_text(contents)
        with pytest.raises(ValueError, match="no export"):
            require_free(tmp_path, force)


def test_an_export_that_was_cut_short_is_no_model_and_may_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loaded("fourbit", SIZES)
    write(export(run, "bf16"), run, tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        write(export(run, "modelopt"), run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    require_free(tmp_path, True)


@pytest.mark.parametrize(
    "name, sizes, to, told",
    [
        ("bf16", SIZES, "modelopt", "recipe bf16 quantizes no weights, so there is nothing to pack; use --to bf16"),
        ("mxfp4", replace(SIZES, expert_dim=64), "compressed-tensors", "recipe mxfp4 quantizes no weights"),
        ("tetrajet2", replace(SIZES, dim=128, expert_dim=128), "modelopt", "an outer scale per 128 have no place"),
        ("fp8_deepseek", replace(SIZES, dim=128, expert_dim=128), "modelopt", "weights in FP8_128X128 have no place"),
        ("fourbit", replace(SIZES, convolution=4), "bf16", "model.convolution 4 (use 0)"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused(name: str, sizes: Any, to: Any, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        export(loaded(name, sizes), to)


def test_layers_that_stay_in_bf16_are_plain() -> None:
    """The last layers of NVIDIA's recipe: no target, and no packed weight."""
    run = loaded("nvfp4_nvidia", SIZES)
    found = export(run, "compressed-tensors")
    assert {name.split(".")[2] for name in found.kinds} == {"0", "1", "2", "3", "4"}
    assert found.tensors["model.layers.5.mlp.experts.0.up_proj.weight"].dtype == torch.bfloat16
    assert found.config["quantization_config"]["format"] == "nvfp4-pack-quantized"


def test_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ExportConfig.__doc__
    assert fourbit.main(["export", str(tmp_path / "none"), "--to", "bf16", "--out", str(tmp_path / "out")]) == 2
    assert "does not exist; name the --out of `fourbit train`" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ["fourbit", "nvfp4_nvidia"])
def test_every_module_is_quantized_or_ignored(name: str, kind: str) -> None:
    """SGLang, and some versions of vLLM, refuse one that is in no list (vllm-project/vllm#12617)."""
    found = export(loaded(name, MODELS[kind]), "compressed-tensors")
    entry = found.config["quantization_config"]
    patterns = [target.removeprefix("re:") for g in entry["config_groups"].values() for target in g["targets"]]
    modules = {n.rpartition(".")[0] for n, t in found.tensors.items() if t.ndim == 2}
    hit = {module for module in modules if any(re.match(pattern, module) for pattern in patterns)}
    plain = {m for m in modules if any(re.match(i[3:], m) if i.startswith("re:") else i == m for i in entry["ignore"])}
    assert hit == set(found.kinds) and plain == modules - hit
    # vLLM asks for the experts of mixtral by these names
    names = [f"{m.partition('.experts.')[0]}.experts.0.gate_proj" for m in plain if ".experts." in m]
    assert bool(names) == (name == "nvfp4_nvidia")
    assert all(any(i.startswith("re:") and re.match(i[3:], n) for i in entry["ignore"]) for n in names)


EXPERT, SHARED = "model.layers.0.mlp.experts.0.up_proj", "model.layers.0.mlp.shared_expert.up_proj"


@pytest.mark.parametrize(
    "sizes, packed, told",
    [
        (replace(SIZES, dim=128, expert_dim=64, shared_dim=64), [EXPERT, SHARED], []),
        (SIZES, [], []),
        # gate and up are one matrix; one that is no expert's may have N 64 if K is 128
        (
            replace(SIZES, dim=128, expert_dim=32, shared_dim=32),
            [EXPERT, SHARED],
            [
                "will refuse mlp.experts: gate_proj with up_proj (K 128, N 64), mlp.experts: down_proj (K 32, N 128), "
                "mlp.shared_expert: down_proj (K 32, N 128); for them train with such widths, or export --to bf16"
            ],
        ),
        (
            replace(MODELS["mixtral"], dim=96, expert_dim=64),
            [EXPERT.replace("mlp", "block_sparse_moe")],
            [
                "will refuse block_sparse_moe.experts: w1 with w3 (K 96, N 128), block_sparse_moe.experts: w2 (K 64, "
                "N 96); for them",
                "in a mixtral SGLang has no window: texts of more than 8 tokens are computed otherwise",
            ],
        ),
        (
            MODELS["qwen2_moe"],
            [],
            [
                "in a qwen2_moe vLLM has one window for all layers or none, SGLang none: texts of more than 8 tokens",
                "SGLang takes every layer of a qwen2_moe for one with experts, and cannot load this model",
            ],
        ),
        (MODELS["glm4_moe"], [], []),
    ],
)
def test_what_servers_refuse_or_read_otherwise_is_said(sizes: Any, packed: list[str], told: list[str]) -> None:
    found = notices(sizes, packed)
    assert len(found) == len(told) and all(part in notice for part, notice in zip(told, found, strict=True))


def test_the_command_says_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(["export", str(run), "--to", "modelopt", "--out", str(tmp_path / "out")]) == 0
    assert "\nnotice: the Marlin kernels of vLLM and SGLang take inputs K" in capsys.readouterr().out


@pytest.mark.parametrize("to", ["compressed-tensors", "modelopt", "bf16"])
def test_biases_that_vllm_has_in_any_case_are_zeros(to: Any) -> None:
    """Of q, k and v in every layer of qwen2_moe, and the configuration says that they are there."""
    found = export(loaded("fourbit", MODELS["qwen2_moe"]), to)
    rows = {"q_proj": 64, "k_proj": 32, "v_proj": 32}
    biases = {name: tensor for name, tensor in found.tensors.items() if name.endswith("_proj.bias")}
    assert set(biases) == {f"model.layers.{i}.self_attn.{name}.bias" for i in range(6) for name in rows}
    assert all(t.shape == (rows[n.split(".")[4]],) and t.dtype == torch.bfloat16 for n, t in biases.items())
    assert not any(tensor.any() for tensor in biases.values()) and found.config["qkv_bias"] is True
    assert not any("_proj.bias" in name for name in export(loaded("fourbit", MODELS["mixtral"]), to).tensors)
