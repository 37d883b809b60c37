"""Faults of a checkpoint that only its original shows, and those that can be said without it to be unknown.

Contract: each is named beside the original, with the tensor that has it; without the original the report passes and
says what cannot be known. Oracle: as `test_check_folder_faults`.
"""

import random
from pathlib import Path

import pytest
import torch
from folder_cases import (
    DOWN,
    GATE,
    L0,
    MAKERS,
    UP,
    Edit,
    Folder,
    Q,
    change,
    judged,
    made,
    nibbles,
    nvfp4,
    swap,
    swizzled,
    transposed_content,
    weight,
)
from torch import Tensor

import numerics as nm
from hw.check import check
from hw.check_folder import check_folder


def swapped_scales(one: str, other: str) -> Edit:
    return swap(f"{one}.weight_scale", f"{other}.weight_scale")


def swapped_matrices(one: str, other: str) -> Edit:
    def apply(folder: Folder) -> None:
        for part in ("weight", "weight_scale"):
            swap(f"{one}.{part}", f"{other}.{part}")(folder)

    return apply


def scrambled_rows(t: torch.Tensor) -> torch.Tensor:
    t = t.clone()
    t.view(torch.uint8)[5:8] = t.view(torch.uint8)[5:8].flip(-1)
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
    "nibbles": (
        "modelopt",
        change(".weight", lambda t: nibbles(t) if t.dtype == torch.uint8 else t, "model.layers"),
        "the nibbles are swapped",
        UP,
    ),
    "nibbles, compressed": ("compressed", change("weight_packed", nibbles), "the nibbles are swapped", UP),
    "nibbles, MXFP4": ("mxfp4", change("weight_packed", nibbles), "the nibbles are swapped", UP),
    "nibbles, gpt-oss": (
        "gpt_oss",
        change("gate_up_proj_blocks", nibbles, L0),
        "the nibbles are swapped",
        f"{STACK}[3]",
    ),
    "transposed content": (
        "modelopt",
        change("q_proj.weight_scale", transposed_content, L0),
        "the scale is transposed",
        Q,
    ),
    "transposed content, MX": (
        "mxfp8",
        change("q_proj.weight_scale", transposed_content, L0),
        "the scale is transposed",
        Q,
    ),
    "swizzled under a linear name": (
        "modelopt",
        change("q_proj.weight_scale", swizzled, L0),
        "128x4-swizzled under the name",
        Q,
    ),
    "swizzled and nibbles": (
        "modelopt",
        lambda f: [change("q_proj.weight_scale", swizzled, L0)(f), change("q_proj.weight", nibbles, L0)(f)],
        "128x4-swizzled under the name",
        Q,
    ),
    "inverted E8M0": ("mxfp4", change("weight_scale", lambda t: 254 - t, "model"), "the scales are inverted", UP),
    "inverted in a stack": (
        "gpt_oss",
        change("down_proj_scales", lambda t: 254 - t, L0),
        "the scales are inverted",
        f"{DOWN_STACK}[1]",
    ),
    "another outer": (
        "modelopt",
        change("down_proj.weight_scale_2", lambda t: t * 2),
        "the outer scale is another one",
        DOWN,
    ),
    "all scales": ("mxfp8", change("down_proj.weight_scale", lambda t: t + 1), "decoded values are a multiple", DOWN),
    "scales of an expert": (
        "modelopt",
        swapped_scales(UP, f"{L0}.mlp.experts.2.up_proj"),
        "the scales are those of a sibling",
        UP,
    ),
    "scales of an expert, MX": (
        "mxfp4",
        swapped_scales(UP, f"{L0}.mlp.experts.2.up_proj"),
        "the scales are those of a sibling",
        UP,
    ),
    "experts": (
        "mxfp8",
        swapped_matrices(UP, f"{L0}.mlp.experts.2.up_proj"),
        "codes and scales are those of a sibling",
        UP,
    ),
    "gate is up": ("mxfp8", swapped_matrices(UP, GATE), "codes and scales are those of a sibling", GATE),
    "rows": ("modelopt", change("up_proj.weight", scrambled_rows), "some blocks do not decode to the original", UP),
    "rows of FP8": (
        "deepseek",
        change("up_proj.weight", scrambled_rows),
        "some blocks do not decode to the original",
        UP,
    ),
    "half of a stack": ("gpt_oss", other_half, "the halves of the rows, gate and up, are exchanged", f"{STACK}[2]"),
    "a norm": (
        "modelopt",
        change("input_layernorm.weight", torch.zeros_like, L0),
        "its values are not the original's",
        f"{L0}.input_layernorm.weight",
    ),
    "signs": (
        "deepseek",
        change("up_proj.weight", lambda t: (t.view(torch.uint8) ^ 0x80).view(t.dtype)),
        "decoded values are a multiple",
        UP,
    ),
    "another tensor": (
        "modelopt",
        change("down_proj.weight", lambda t: t.flip(0)),
        "decoded values are not those of the original",
        DOWN,
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_fault_is_named_beside_the_original(name: str, tmp_path: Path) -> None:
    maker, edit, said, whose = SILENT[name]
    folder = made(maker)
    edit(folder)
    report = judged(folder, tmp_path, against=True)
    found = [f for f in report.findings if said in f.text]
    assert found and any(whose in f.tensors for f in found), report
    assert len(report.faults) <= 2, report


@pytest.mark.parametrize("name", ["nibbles", "scales of an expert", "another outer"])
def test_what_cannot_be_known_is_said_and_no_fault(name: str, tmp_path: Path) -> None:
    maker, edit, _, _ = SILENT[name]
    folder = made(maker)
    edit(folder)
    report = judged(folder, tmp_path)
    assert report and "cannot be known without --against" in str(report), report


def test_the_quantizer_is_a_fact(tmp_path: Path) -> None:
    folder = made("mxfp8")
    report = check_folder(folder.write(tmp_path / "q"), folder.against(tmp_path / "o"), check)
    assert report and "are the bytes of rceil" in str(report), report


@pytest.mark.parametrize("maker, part", [("modelopt", "weight_scale"), ("mxfp4", "weight_scale")])
def test_rows_and_columns_show_the_order_of_scales(maker: str, part: str, tmp_path: Path) -> None:
    """Where there are enough of them: the scales of a swizzle are named without the original, and those of random
    numbers, which have no rows and columns, are not."""
    folder, x = made(maker), weight(256, 512, 7)
    for values, found in ((x, True), (torch.randn(256, 512, dtype=torch.bfloat16), False)):
        if maker == "modelopt":
            codes, scales = nvfp4(values, values.float().abs().max() / 2688)
        else:
            q = nm.quantize(values.float(), nm.MXFP4)
            codes, scales = nm.layout.pack_nibbles(q.codes), q.scales
        folder.config |= {"hidden_size": 512, "num_hidden_layers": 1}
        name = "weight" if maker == "modelopt" else "weight_packed"
        for stored, words in (
            (scales, ""),
            (swizzled(scales), "128x4-swizzled"),
            (transposed_content(scales), "transp"),
        ):
            tensors = {f"{Q}.{name}": codes, f"{Q}.{part}": stored}
            if maker == "modelopt":
                tensors |= {
                    f"{Q}.weight_scale_2": values.float().abs().max() / 2688,
                    f"{Q}.input_scale": torch.ones(()),
                }
            folder.tensors = tensors
            report = judged(folder, tmp_path, shards=1)
            assert bool(report) != (found and bool(words)), report
            assert not report.faults or words in report.faults[0]
            assert report.faults or f"the order of scales is shown by {int(found)} of 1" in str(report)


def test_columns_that_follow_their_rows_show_the_order_of_nibbles(tmp_path: Path) -> None:
    """Units that are large on both of their sides, as in a trained network, say which nibble is the even one; random
    ones say nothing."""
    folder, generator = made("modelopt"), torch.Generator().manual_seed(3)
    folder.config |= {"hidden_size": 128, "num_hidden_layers": 1, "num_experts": None, "moe_intermediate_size": None}
    size = torch.exp(0.3 * torch.randn(512, 1, generator=generator))
    for trained in (True, False):
        up = torch.randn(512, 128, generator=generator) * (size if trained else 1)
        down = torch.randn(128, 512, generator=generator) * (size.mT if trained else 1)
        for wrong in (False, True):
            folder.tensors = {}
            for name, x in (("up_proj", up), ("down_proj", down)):
                module, outer = f"{L0}.mlp.{name}", x.abs().max() / 2688
                codes, scales = nvfp4(x, outer)
                folder.tensors |= {f"{module}.weight": nibbles(codes) if wrong else codes}
                folder.tensors |= {f"{module}.weight_scale": scales, f"{module}.weight_scale_2": outer}
                folder.tensors |= {f"{module}.input_scale": torch.ones(())}
            report = judged(folder, tmp_path, shards=1)
            assert bool(report) != (trained and wrong), report
            assert f"the order of nibbles is shown by {int(trained)} of 2" in str(report)
            assert not wrong or not trained or "the nibbles are swapped" in report.faults[0]


def destroyed(folder: Folder, seed: int) -> str:
    """Destroy some bytes of one quantized tensor; what was done, or nothing if the bytes are as before."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    name = choose.choice([n for n, t in folder.tensors.items() if "_proj" in n and t.numel() > 1 and "bias" not in n])
    t = folder.tensors[name]
    rows = t.contiguous().clone().view(torch.uint8).reshape(-1, t.shape[-1])
    before, first = rows.clone(), choose.randrange(len(rows))
    some = slice(first, first + choose.choice([1, 2, len(rows) // 4 or 1, len(rows)]))
    kind = choose.choice(["zero", "random", "constant", "flip", "reverse", "copy", "roll", "shift"])
    if kind == "random":
        rows[some] = torch.randint(0, 256, rows[some].shape, generator=generator, dtype=torch.uint8)
    elif kind in ("zero", "constant"):
        rows[some] = 0 if kind == "zero" else choose.choice([0x38, 0x7E, 0x01, 0x55])
    elif kind == "flip":
        rows[some] ^= choose.choice([0x88, 0x80, 0x11, 0x08, 0x40])
    elif kind == "reverse":
        rows[some] = rows[some].flip(1)
    elif kind == "copy":
        rows[some] = before[(first + len(rows) // 2) % len(rows)]
    else:
        rows = rows.roll(choose.choice([1, 2, 7]), 0 if kind == "roll" else 1)
    if torch.equal(rows, before):
        return ""
    folder.tensors[name] = rows.view(t.dtype).view(t.shape)
    return f"{kind} of {name} from row {first}, seed {seed}"


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 412), marks=pytest.mark.exhaustive)], ids=len)
def test_no_destruction_passes_beside_the_original(seeds: range, tmp_path: Path) -> None:
    originals = {name: made(name).against(tmp_path / f"original {name}") for name in MAKERS}
    tried = 0
    for seed in seeds:
        maker = MAKERS[seed % len(MAKERS)]
        folder = made(maker)
        what = destroyed(folder, seed)
        tried += bool(what)
        assert not what or not check_folder(folder.write(tmp_path / "quantized"), originals[maker]), what
    assert tried > 0.8 * len(seeds)


def calibrated(w: Tensor, correlation: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(packed codes, scales, outer) by GPTQ (Frantar and others, arXiv:2210.17323): column by column, each error spread
    over the later ones by the inverse of the inputs' second moments."""
    n, k = w.shape
    shared = torch.randn(4 * k, 8, generator=generator) @ torch.randn(8, k, generator=generator)
    x = (1 - correlation) * torch.randn(4 * k, k, generator=generator) + correlation * shared
    moments = (x.mT @ x) / len(x)
    moments += 0.01 * moments.diagonal().mean() * torch.eye(k)
    spread = torch.linalg.cholesky(torch.linalg.inv(moments), upper=True)
    left, outer = w.clone(), w.abs().max() / 2688
    codes, scales = (torch.zeros(n, m, dtype=torch.uint8) for m in (k, k // 16))
    for j in range(k):
        if j % 16 == 0:
            scales[:, j // 16] = nm.encode(left[:, j : j + 16].abs().amax(1) / 6 / outer, nm.E4M3)
        step = nm.decode(scales[:, j // 16], nm.E4M3) * outer
        codes[:, j] = nm.encode(torch.where(step > 0, left[:, j] / step, 0.0), nm.E2M1)
        error = (left[:, j] - nm.decode(codes[:, j], nm.E2M1) * step) / spread[j, j]
        left[:, j + 1 :] -= error.unsqueeze(1) * spread[j, j + 1 :]
    return nm.layout.pack_nibbles(codes), scales.view(torch.float8_e4m3fn), outer


@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_calibrated_codes_are_the_originals(correlation: float, tmp_path: Path) -> None:
    """Errors that were moved to other columns, up to whole blocks, are no alarm."""
    folder, generator = made("modelopt"), torch.Generator().manual_seed(0)
    x = torch.randn(128, 256, generator=generator) * 0.02
    codes, scales, outer = calibrated(x, correlation, generator)
    folder.tensors = {f"{Q}.weight": codes, f"{Q}.weight_scale": scales, f"{Q}.weight_scale_2": outer}
    folder.tensors[f"{Q}.input_scale"] = torch.ones(())
    folder.original = {f"{Q}.weight": x}
    folder.config |= {"hidden_size": 256, "num_hidden_layers": 1}
    report = judged(folder, tmp_path, against=True, shards=1)
    assert report, report
