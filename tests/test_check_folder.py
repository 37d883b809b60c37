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
from folder_cases import DOWN, L0, MAKERS, UP, Folder, change, judged, made, nvfp4, weight, write_shards
from safetensors.torch import load_file, save_file

import fourbit
import numerics as nm
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


def stacked_turned() -> Folder:
    """NVFP4 experts as ModelOpt leaves those of Llama 4: (E, in / 2, out) codes, (E, in / 16, out) scales."""
    folder = made("modelopt")
    for name, n, k in (("gate_up_proj", 128, 128), ("down_proj", 128, 64)):
        head = f"{L0}.feed_forward.experts.{name}"
        x = torch.stack([weight(n, k, seed) for seed in range(4)])
        outer = x.float().abs().amax((1, 2)) / 2688
        parts = [nvfp4(x[e], outer[e]) for e in range(4)]
        folder.tensors[head] = torch.stack([codes.mT for codes, _ in parts])
        folder.tensors[f"{head}_weight_scale"] = torch.stack([scales.view(torch.uint8).mT for _, scales in parts]).view(
            torch.float8_e4m3fn
        )
        folder.tensors[f"{head}_weight_scale_2"] = outer
        folder.tensors[f"{head}_input_scale"] = torch.tensor(0.01)
        folder.original[head] = x.mT.contiguous()
    return folder


def deepseek_4() -> Folder:
    """FP8 tiles with E8M0 scales under the name `scale`, experts in MXFP4 bytes (int8)."""
    folder = made("deepseek")
    for name in [n for n in folder.tensors if n.endswith("weight_scale_inv")]:
        module = name.removesuffix(".weight_scale_inv")
        x = folder.original[f"{module}.weight"].float()
        del folder.tensors[name]
        if ".experts." in module:
            q = nm.quantize(x, nm.MXFP4)
            codes, scale = nm.layout.pack_nibbles(q.codes).view(torch.int8), q.scales
        else:
            scale = nm.encode((x.abs().max() / 448).view(1, 1), nm.E8M0, nm.Rounding.TOWARD_POSITIVE)
            codes = (x / nm.decode(scale, nm.E8M0)).to(torch.float8_e4m3fn)
        folder.tensors |= {f"{module}.weight": codes, f"{module}.scale": scale.view(torch.float8_e8m0fnu)}
    folder.config["expert_dtype"] = "fp4"
    return folder


def quark() -> Folder:
    """MXFP4 of AMD Quark."""
    folder = made("mxfp4")
    folder.tensors = {n.replace("weight_packed", "weight"): t for n, t in folder.tensors.items()}
    weights = {"dtype": "fp4", "group_size": 32, "qscheme": "per_group", "scale_format": "e8m0"}
    group = {"weight": weights, "input_tensors": {**weights, "is_dynamic": True}}
    left = ["lm_head", "*mlp.gate"]
    folder.config["quantization_config"] = {"quant_method": "quark", "global_quant_config": group, "exclude": left}
    return folder


def cross_attention() -> Folder:
    """q reads another input than k and v, and need not share their outer scale; and no config at all."""
    folder = made("modelopt")
    for side in ("q", "k", "v"):
        codes, scales = nvfp4(weight(64, 64, 7), torch.tensor(1e-4 if side == "q" else 2e-4))
        head = f"blocks.0.attn2.to_{side}"
        folder.tensors |= {f"{head}.weight": codes, f"{head}.weight_scale": scales}
        folder.tensors |= {f"{head}.weight_scale_2": torch.tensor(1e-4 if side == "q" else 2e-4)}
        folder.tensors |= {f"{head}.input_scale": torch.tensor(0.01)}
    return folder


LAYOUTS = {f.__name__: f for f in (stacked_turned, deepseek_4, quark, cross_attention)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_further_layouts_pass(name: str, tmp_path: Path) -> None:
    folder = LAYOUTS[name]()
    for against in (False, True):
        report = judged(folder, tmp_path, against)
        assert report, report
    nothing = Folder(folder.tensors, {}, None, folder.original).write(tmp_path / "bare")
    (nothing / "config.json").unlink()
    assert check_folder(nothing, tmp_path / "original")


def test_padding_columns_decode_to_zero(tmp_path: Path) -> None:
    """A product reads them; padding rows may hold what they like."""
    folder = made("modelopt")
    x = folder.original[f"{DOWN}.weight"]
    for stale in (0.0, 0.5):
        wide = torch.nn.functional.pad(x.float(), (0, 64, 0, 16), value=stale * float(x.abs().max()))
        wide[128:] = 0.01
        outer = folder.tensors[f"{DOWN}.weight_scale_2"]
        folder.tensors[f"{DOWN}.weight"], folder.tensors[f"{DOWN}.weight_scale"] = nvfp4(wide, outer)
        folder.config |= {"moe_intermediate_size": None, "hidden_size": None}
        report = judged(folder, tmp_path, True)
        assert bool(report) == (not stale), report
        assert report or "columns beyond the original's do not decode to zero" in str(report)


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
