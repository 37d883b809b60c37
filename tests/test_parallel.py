"""Contract: under `deterministic` any number of ranks, and any grid of them, has the bits of one process: losses,
norms, evaluations, weights and the optimizer's state.

Oracle: the same configuration trained in one process without torchrun, which passes one grain after the other. Ranks
are processes over gloo; a watchdog ends them. Compared bit for bit, times and what was sent left out.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from numerics import ops
from reference import train as trainer
from reference.config import TrainConfig, check
from reference.parallel_run import parallel
from reference.ranks import DIMS, Ranks
from reference.train import train
from tests.golden_runs import text
from tests.rank_processes import ranks
from tests.test_train import SMALL

OPTIONS = {
    **{"router": "sigmoid", "bias_speed": 0.01, "convolution": 3, "dense_layers": 1, "dense_dim": 48, "kv_heads": 1},
}
SIZES = ("ep", "fsdp", "dp", "waves")
# name -> fields, sizes of the model
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fourbit": ({}, {}),
    "mxfp8": ({"preset": "mxfp8"}, {}),
    "bf16": ({"preset": "bf16"}, {}),
    # every option of the model, recomputing, another recipe at the end; a grain of two sequences
    "options": (
        {"grain": 2, "recompute": "layers", "recompute_glu": True, "switch_at": 0.5, "switch_to": "mxfp8"},
        OPTIONS,
    ),
    "one token": ({"preset": "fourbit", "order": "epoch"}, {"sequence": 1}),
}


def configured(folder: Path, name: str, **fields: Any) -> TrainConfig:
    """Three steps of run `name` in a folder of its own, on the text beside it."""
    own, sizes = RUNS[name]
    if not (folder / "text").exists():
        (folder / "text").write_bytes(text())
    common = {"steps": 3, "warmup": 1, "batch": 8, "grain": 1, "eval_sequences": 6, "eval_every": 2, "seed": 5}
    common |= {"checkpoint_every": 2, "monitor_every": 0, "progress": "hide", "deterministic": True, "timeout": 60.0}
    out = folder / "-".join([name.replace(" ", "_"), *(f"{key}{value}" for key, value in fields.items())])
    model = dataclasses.replace(SMALL, **sizes)
    return TrainConfig(**{"out": out, "data": str(folder / "text"), **common, **own, **fields, "model": model})


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("seconds", "wires")} for line in lines]


def same(a: Path, b: Path) -> None:
    """Two run folders tell of the same bits."""
    assert records(a) == records(b)
    one, other = (load_file(sorted(folder.glob("checkpoint-*.safetensors"))[-1]) for folder in (a, b))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def trained(folder: str, *runs: str) -> int:
    """On ranks that torchrun would have started: runs `name ep fsdp dp`, one after the other in the same processes."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    for run in runs:
        name, *sizes = run.split("/")
        config = configured(Path(folder), name, **dict(zip(SIZES, map(int, sizes), strict=False)))
        check(config)
        mesh = init_device_mesh("cpu", (config.dp, config.fsdp, config.ep), mesh_dim_names=DIMS)
        here = Ranks(rank, world, rank, config.ep, config.fsdp, config.dp, config.timeout, mesh)
        trainer._train(parallel(config), ops, None, None, here)
    dist.destroy_process_group()
    return len(runs)


def on_ranks(folder: Path, world: int, *runs: tuple[Any, ...]) -> None:
    for one in ranks(__file__, "trained", world, str(folder), *("/".join(map(str, run)) for run in runs), seconds=240):
        assert one.found == len(runs)


def placed(folder: Path, run: tuple[Any, ...]) -> Path:
    name, *sizes = run
    return configured(folder, name, **dict(zip(SIZES, sizes, strict=False))).out


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every run as one process trains it."""
    folder = tmp_path_factory.mktemp("runs")
    for name in RUNS:
        train(configured(folder, name), ops)
    return folder


FOUR = [
    *(("fourbit", 4, 1, 1), ("mxfp8", 4, 1, 1), ("bf16", 4, 1, 1), ("fourbit", 2, 1, 2), ("options", 2, 2, 1, 2)),
    *(("one token", 4, 1, 1), ("fourbit", 1, 2, 2)),
]


def test_four_ranks_have_the_bits_of_one_process(alone):
    on_ranks(alone, 4, *FOUR)
    for run in FOUR:
        same(alone / run[0].replace(" ", "_"), placed(alone, run))


def test_one_and_two_ranks_have_the_bits_of_one_process(alone):
    on_ranks(alone, 1, ("fourbit", 1, 1, 1))
    on_ranks(alone, 2, ("fourbit", 2, 1, 1), ("bf16", 1, 1, 2))
    for run in (("fourbit", 1, 1, 1), ("fourbit", 2, 1, 1), ("bf16", 1, 1, 2)):
        same(alone / run[0], placed(alone, run))


def test_the_log_tells_measured_bits_of_every_wire(alone, tmp_path):
    """Four ranks that share out the experts of six layers, the last one's in MXFP8; widths of 32."""
    (tmp_path / "text").write_bytes(text())
    on_ranks(tmp_path, 4, ("fourbit", 4, 1, 1))
    folder = placed(tmp_path, ("fourbit", 4, 1, 1))
    for line in map(json.loads, (folder / "log.jsonl").read_text().splitlines()):
        bits = {phase: told["bits_per_value"] for phase, told in line["wires"].items()}
        rows, values = SMALL.top_k * SMALL.sequence * 8, 32  # eight sequences
        assert bits["dispatch NVFP4_46"] == 4.5 + 32 / 32 and bits["combine MXS2F6"] == 8.25
        assert bits["dispatch MXFP8"] == bits["gradient dispatch MXFP8"] == bits["gradient combine MXFP8"] == 8.25
        assert line["wires"]["dispatch NVFP4_46"]["bytes"] * 8 == 5 * rows * values * 5.5
