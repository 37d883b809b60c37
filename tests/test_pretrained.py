"""Contract of reference.pretrained: a folder of transformers gives a run its sizes and FP32 masters: what was exported
packed comes back with the codes and scales of the run that it came from; a folder with anything that our model lacks,
or damaged, is refused in one sentence.

Oracle: the exported model itself. Outer scales are equal too, but those that went through compressed-tensors, whose
reciprocal they are stored as: within an ulp or two (a reciprocal rounds once each way), and equal if powers of two.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import MODELS, SIZES, loaded
from safetensors.torch import load_file, save_file

import fourbit
from numerics import ops
from reference import checkpoint
from reference.command_line import parse
from reference.export import export, write
from reference.load import Loaded, load_run
from reference.model import ModelConfig, Transformer
from reference.pretrained import digest, initialize, sizes_of
from reference.train import TrainConfig, require_resumable, train


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small BF16 export with a gate for each shared expert."""
    run = loaded("bf16", SIZES)
    write(export(run, "bf16"), run, tmp_path / "hf")
    return tmp_path / "hf"


def started(run: Loaded, folder: Path) -> Transformer:
    model = Transformer(run.model.config, run.model.recipe, ops, 99)
    initialize(model, run.model.config, folder)
    return model


PACKED = ("fourbit", "fourbit_pow2_outer", "fourbit_2d_weights", "nvfp4_46", "mxfp8")
LAYOUTS = [(name, to) for name in PACKED for to in ("compressed-tensors", "modelopt", "bf16")]


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name, to", [*LAYOUTS, ("bf16", "bf16")])
def test_what_was_exported_comes_back(name: str, kind: str, to: Any, tmp_path: Path) -> None:
    run = loaded(name, MODELS[kind])
    write(export(run, to), run, tmp_path)
    before, after = run.model.state_dict(), started(run, tmp_path).state_dict()
    for key, old in before.items():
        new, vector = after[key], key.endswith(("gain", "bias"))
        assert new.dtype == torch.float32
        cast = run.model.recipes[int(key.split(".")[1])].weight if key.endswith((".w13", ".w2")) else None
        if cast is None or cast.fmt is None:
            assert torch.equal(new, old if vector else old.to(torch.bfloat16).to(torch.float32))
            continue
        p, q = ops.quantize_tokens(old, cast), ops.quantize_tokens(new, cast)
        if to == "bf16":  # only what its codes stand for, rounded
            assert torch.equal(new, p.dequantize().to(torch.bfloat16).to(torch.float32))
            continue
        assert torch.equal(p.codes, q.codes) and torch.equal(p.scales, q.scales)
        if p.outer is None or to == "modelopt" or name == "fourbit_pow2_outer":
            assert p.outer is None or torch.equal(p.outer, q.outer)
        else:
            assert (p.outer / q.outer - 1).abs().max() <= 2.0**-22


def test_shards_are_read_by_their_index(folder: Path) -> None:
    run, tensors = loaded("bf16", SIZES), load_file(folder / "model.safetensors")
    whole = started(run, folder).state_dict()
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {f"model-{i}.safetensors": names[i::2] for i in range(2)}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert all(torch.equal(whole[name], t) for name, t in started(run, folder).state_dict().items())
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-1.safetensors' cannot be read .* missing or damaged; restore it"):
        started(run, folder)


def test_a_tied_head_is_the_embedding(folder: Path) -> None:
    change(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"has no lm_head\.weight; restore it"):
        started(loaded("bf16", SIZES), folder)
    describe(folder, tie_word_embeddings=True)
    model = started(loaded("bf16", SIZES), folder)
    assert torch.equal(model.head.weight, model.embed)


# ---- a run that starts from a folder ---------------------------------------------------------------------------------


def arguments(tmp_path: Path, start: Path, *more: str) -> list[str]:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(random.Random(0).choices(range(97, 123), k=4000)))
    words = "--batch 1 --grain 1 --warmup 1 --eval-every 1 --eval-sequences 2 --checkpoint-every 1 --monitor-every 0"
    return [
        *("--out", str(tmp_path / "run"), "--data", str(text), "--steps", "2", *words.split(), "--progress", "hide"),
        *("--init-from", str(start), "--model.sequence", "24", *more),
    ]


def test_a_run_starts_from_the_folder_and_resumes(tmp_path: Path, folder: Path) -> None:
    """With a learning rate that moves nothing the weights of the last step are the folder's; a run that was cut and one
    that was not are one."""
    config = parse(arguments(tmp_path, folder, "--lr", "1e-30", "--weight-decay", "0"))
    assert config.model == SIZES and config.init_from == folder
    train(config, ops)
    after = load_run(config.out).model.state_dict()
    assert all(
        torch.equal(after[name], t) for name, t in started(loaded("fourbit", SIZES), folder).state_dict().items()
    )
    moving = replace(config, lr=1e-3, out=tmp_path / "whole")
    whole = train(moving, ops)
    cut = replace(moving, out=tmp_path / "cut")
    train(cut, ops)
    checkpoint.checkpoint_path(cut.out, 2).unlink()
    assert train(cut, ops).resumed_from == 1
    for name, tensor in load_run(whole.folder).model.state_dict().items():
        assert torch.equal(tensor, load_run(cut.out).model.state_dict()[name])
    require_resumable(cut, ops)
    change(folder, lambda tensors: tensors["model.norm.weight"].mul_(2))
    with pytest.raises(ValueError, match="init_from"):
        require_resumable(cut, ops)


def test_where_the_folder_lies_does_not_matter(folder: Path, tmp_path: Path) -> None:
    before = digest(folder)
    moved = folder.rename(tmp_path / "moved")
    assert digest(moved) == before
    change(moved, lambda tensors: tensors["model.norm.weight"].mul_(2))
    assert digest(moved) != before


def test_sizes_that_contradict_the_folder_are_refused(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fourbit.main(["train", *arguments(tmp_path, folder, "--model.expert-dim", "64")]) == 2
    assert f"--model.expert-dim 64: --init-from {str(folder)!r} has 32; leave it out" in capsys.readouterr().err
    assert fourbit.main(["train", *arguments(tmp_path, folder, "--dial", "6")]) == 2
    assert f"--dial 6 and --init-from {str(folder)!r} both give sizes; leave one out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# ---- refusals --------------------------------------------------------------------------------------------------------


def change(folder: Path, how: Callable[[dict[str, Any]], object]) -> None:
    """Change the folder's tensors."""
    tensors = load_file(folder / "model.safetensors")
    how(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def describe(folder: Path, **fields: object) -> None:
    """Change the folder's config.json; None takes a field out."""
    path = folder / "config.json"
    config = json.loads(path.read_bytes()) | fields
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


@pytest.mark.parametrize(
    "fields, told",
    [
        ({"model_type": "llama"}, "architecture 'llama' is unknown; fourbit knows mixtral, qwen2_moe, glm4_moe"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_theta is 1000000.0, and this model"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type is 'yarn'"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, and this model has 1e-06"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"norm_topk_prob": None}, "norm_topk_prob is False"),
        ({"head_dim": 32}, "head_dim is 128"),
        ({"mlp_only_layers": [2]}, "mlp_only_layers is [2]"),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["full_attention", "sliding_attention"] * 3,
            },
            "full attention in layers [1, 3, 5]",
        ),
        ({"shared_expert_intermediate_size": 0}, "a qwen2_moe with these options is a mixtral"),
        ({"hidden_size": None}, "is damaged, or of another version: it lacks 'hidden_size'; restore it"),
        ({"vocab_size": "many"}, "is damaged, or of another version: vocab is 'many'"),
        ({"intermediate_size": "wide"}, "is damaged, or of another version: intermediate_size is 'wide'"),
        ({"rope_parameters": "default"}, "is damaged"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_another_architecture_is_refused(folder: Path, fields: dict[str, Any], told: str) -> None:
    describe(folder, **fields)
    with pytest.raises(ValueError, match=re.escape(told)):
        sizes_of(folder)


def gate(tensors: dict[str, Any]) -> None:
    tensors["model.layers.3.mlp.shared_expert_gate.weight"][0, 5] = 1.0


def infinite(tensors: dict[str, Any]) -> None:
    tensors["model.layers.3.mlp.gate.weight"][1, 5] = float("inf")


def narrow(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:, :5]


def whole_numbers(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int32)


@pytest.mark.parametrize(
    "how, told",
    [
        (gate, "model.layers.3.mlp.shared_expert_gate.weight of '{}' is not zero: our shared expert has no gate"),
        (infinite, "model.layers.3.mlp.gate.weight of '{}' has a NaN or an infinity"),
        (narrow, "lm_head.weight of '{}' is (256, 5), not (256, 64); restore it"),
        (whole_numbers, "lm_head.weight of '{}' is torch.int32; it needs BF16, FP16 or FP32"),
        (lambda t: t.pop("model.norm.weight"), "init_from '{}' has no model.norm.weight; restore it"),
        (
            lambda t: t.update({f"model.layers.{i}.self_attn.q_norm.weight": torch.ones(16) for i in range(6)}),
            "init_from '{}' has what our model has no place for: model.layers.0.self_attn.q_norm.weight, "
            "model.layers.1.self_attn.q_norm.weight, model.layers.2.self_attn.q_norm.weight and 3 more",
        ),
    ],
    ids=["gate", "infinity", "narrow", "integers", "missing", "more"],
)
def test_weights_of_another_model_are_refused(folder: Path, how: Callable[[dict[str, Any]], object], told: str) -> None:
    change(folder, how)
    with pytest.raises(ValueError, match=re.escape(told.format(folder))):
        started(loaded("bf16", SIZES), folder)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"\xff" * 8 + b[8:], lambda b: b""])
def test_a_damaged_file_is_refused(folder: Path, damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    for use in (lambda: started(loaded("bf16", SIZES), folder), lambda: digest(folder)):
        with pytest.raises(ValueError, match=r"model.safetensors' cannot be read .* it is missing or damaged; restore"):
            use()


@pytest.mark.parametrize("to", ["compressed-tensors", "modelopt"])
def test_packed_weights_that_do_not_fit_are_refused(to: Any, tmp_path: Path) -> None:
    run = loaded("fourbit", SIZES)
    write(export(run, to), run, tmp_path)
    module = "model.layers.0.mlp.experts.2.up_proj"

    def cut(tensors: dict[str, Any]) -> None:
        tensors[f"{module}.weight_scale"] = tensors[f"{module}.weight_scale"][:, :2]

    change(tmp_path, cut)
    with pytest.raises(ValueError, match=re.escape(f"{module} of {str(tmp_path)!r} has scales of shape (32, 2)")):
        started(run, tmp_path)
    change(tmp_path, lambda t: t.update({f"{module}.weight_scale": torch.ones(32, 1)}))
    with pytest.raises(
        ValueError, match=re.escape(f"{module} of {str(tmp_path)!r} is in a format that fourbit cannot")
    ):
        started(run, tmp_path)


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json; name a folder of the library transformers"):
        sizes_of(tmp_path / "none")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json' is damaged"):
        sizes_of(tmp_path)
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        digest(tmp_path)
    assert isinstance(TrainConfig(tmp_path).init_from, type(None)) and ModelConfig().dim == 96
