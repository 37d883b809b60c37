"""`fourbit check FOLDER`: sound checkpoints pass, files and the command.

Contract: folders in the layouts of ModelOpt, compressed-tensors, gpt-oss and DeepSeek, and our own exports, pass with
and without their original; shards that are missing, cut, extra or twice are named with their tensors; what cannot be
judged is one sentence. Oracles: layouts written by hand (`folder_cases`); files damaged by hand.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import MODELS, loaded
from folder_cases import L0, MAKERS, UP, change, judged, made, write_shards
from safetensors.torch import load_file, save_file

import fourbit
from hw.check_folder import check_folder
from reference.export import export, write


@pytest.mark.parametrize("against", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_sound_folder_passes(name: str, against: bool, tmp_path: Path) -> None:
    report = judged(made(name), tmp_path, against)
    assert report, report
    unknown = "cannot be known without --against" in str(report)
    assert unknown != against


@pytest.mark.parametrize("kind", ["qwen2_moe", "mixtral", "glm4_moe"])
@pytest.mark.parametrize("to", ["modelopt", "compressed-tensors"])
def test_our_own_exports_pass(kind: str, to: Any, tmp_path: Path) -> None:
    run = loaded("fourbit", MODELS[kind])
    for layout in (to, "bf16"):
        write(export(run, layout), run, tmp_path / layout)
    for original in (None, tmp_path / "bf16"):
        report = check_folder(tmp_path / to, original)
        assert report, report


# ---- files -----------------------------------------------------------------------------------------------------------

SHARD = "model-{:05d}-of-00003.safetensors"


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def index_of(path: Path, edit: Callable[[dict[str, str]], object]) -> None:
    file = path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    edit(index["weight_map"])
    file.write_text(json.dumps(index))


def twice(path: Path, changed: bool) -> None:
    """The first tensor of the first shard in the second as well."""
    one, two = (load_file(path / SHARD.format(i)) for i in (1, 2))
    name = next(iter(one))
    save_file(two | {name: one[name] + changed}, path / SHARD.format(2))


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (lambda p: (p / SHARD.format(2)).unlink(), "which is not there"),
    "truncated shard": (lambda p: cut(p / SHARD.format(3), 30_000), "is truncated: 30,000 of"),
    "truncated header": (lambda p: cut(p / SHARD.format(3), 100), "is cut off within its header"),
    "no file at all": (lambda p: (p / SHARD.format(1)).write_bytes(b"oid sha256"), "is cut off within its header"),
    "a pointer": (lambda p: cut(p / SHARD.format(1), 0), "is cut off within its header"),
    "tail": (lambda p: (p / SHARD.format(1)).open("ab").write(b"0" * 8), "has 8 bytes behind its last tensor"),
    "extra shard": (lambda p: save_file({"a": torch.ones(2)}, p / "old.safetensors"), "old.safetensors is not in"),
    "one beside": (lambda p: write_shards({"a": torch.ones(2)}, p, 1), "transformers reads it and none of the shards"),
    "no index": (lambda p: (p / "model.safetensors.index.json").unlink(), "have no index"),
    "index of nothing": (lambda p: index_of(p, lambda m: m.update({"ghost.weight": SHARD.format(1)})), "it does not"),
    "index of another": (lambda p: index_of(p, lambda m: m.update({UP + ".weight": SHARD.format(3)})), "it does not"),
    "left out of the index": (lambda p: index_of(p, lambda m: m.pop(UP + ".weight")), "the index does not name them"),
    "broken index": (lambda p: (p / "model.safetensors.index.json").write_text("{"), "is no index"),
    "twice": (lambda p: twice(p, False), "the same bytes in both"),
    "twice, different": (lambda p: twice(p, True), "and the bytes differ"),
    "no JSON": (lambda p: (p / "config.json").write_text("{,"), "config.json cannot be read"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_files_lack_is_named(name: str, tmp_path: Path) -> None:
    edit, said = FILES[name]
    path = made("modelopt").write(tmp_path, 3)
    edit(path)
    report = check_folder(path)
    assert any(said in f.text for f in report.findings), report


def test_a_missing_shard_names_its_tensors(tmp_path: Path) -> None:
    path = made("compressed").write(tmp_path, 3)
    lost = set(load_file(path / SHARD.format(2)))
    (path / SHARD.format(2)).unlink()
    assert lost in [set(f.tensors) for f in check_folder(path).findings]


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_writes_and_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made("modelopt")
    path, original = folder.write(tmp_path / "q"), folder.against(tmp_path / "original")
    assert fourbit.main(["check", str(path), "--against", str(original)]) == 0
    assert capsys.readouterr().out.startswith("passed: ")
    change("input_scale", torch.zeros_like, L0)(folder)
    folder.write(path)
    assert fourbit.main(["check", str(path), "--out", str(tmp_path / "report.json")]) == 1
    told = capsys.readouterr().out
    assert "and 14 more of the same kind: the scale of activations is 0" in told
    assert "1 kind of faults, 16 tensors" in told
    written = json.loads((tmp_path / "report.json").read_text())
    assert not written["passed"] and [len(f["tensors"]) for f in written["findings"]] == [1] * 16


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "holds no .safetensors file; name one of its folders: original, other, q"),
        (["q", "--format", "nvfp4"], "is a checkpoint; leave it out"),
        (["original"], "holds nothing quantized"),
        (["q/model.safetensors", "--against", "original"], "is no checkpoint's folder; leave it out"),
        (["q", "--against", "nowhere"], "holds no .safetensors file"),
        (["q", "--against", "other"], "it has the original of none of the matrices, such as model.layers"),
    ],
)
def test_what_cannot_be_judged_is_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made("mxfp4")
    folder.write(tmp_path / "q")
    folder.against(tmp_path / "original")
    (tmp_path / "other").mkdir()
    write_shards({"weight": torch.ones(2, 2)}, tmp_path / "other", 1)
    full = [a if a.startswith("--") or a == "nvfp4" else str(tmp_path / a) for a in arguments or ["."]]
    assert fourbit.main(["check", *full]) == 2
    assert said in capsys.readouterr().err


def test_other_methods_are_refused(tmp_path: Path) -> None:
    folder = made("mxfp4")
    folder.config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(ValueError, match="is quantized by gptq: NVFP4, MXFP4, MXFP8, FP8 are judged"):
        check_folder(folder.write(tmp_path))
