"""Contract: under `deterministic` any number of ranks, and any grid of them, has the bits of one process: losses,
norms, evaluations, weights and the optimizer's state; also where a run that some ranks began goes on on others.

Oracle: the same configuration trained in one process without torchrun, which passes one grain after the other. Ranks
are processes over gloo; a watchdog ends them. Compared bit for bit, times and what was sent left out.
"""

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from numerics import ops
from reference import checkpoint, checkpoint_folder
from reference import train as trainer
from reference.command_line import command_of
from reference.config import TrainConfig, check
from reference.load import load_run
from reference.parallel_run import parallel
from reference.presets import PRESETS, preset
from reference.ranks import DIMS, Ranks
from reference.recipe import OsciReset
from reference.train import train
from tests.golden_runs import text
from tests.rank_processes import ROOT, free_port, ranks
from tests.test_train import SMALL

OPTIONS = {
    **{"router": "sigmoid", "bias_speed": 0.01, "convolution": 3, "dense_layers": 1, "dense_dim": 48, "kv_heads": 1},
}
# kind -> fields, sizes of the model
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fourbit": ({"steps": 3}, {}),
    "mxfp8": ({"preset": "mxfp8", "batch": 4}, {}),
    "bf16": ({"preset": "bf16", "batch": 4}, {}),
    # every option of the model, recomputing, another recipe at the end; a grain of two sequences
    "options": (
        {"grain": 2, "recompute": "layers", "recompute_glu": True, "switch_at": 0.5, "switch_to": "mxfp8"},
        OPTIONS,
    ),
    # weights are reset after step 3, and the next window is open in the checkpoint of step 4
    "oscillating": ({"preset": "short", "batch": 4, "steps": 4, "eval_sequences": 4}, {"sequence": 1}),
    # most experts have no row, and a rank may get none at all
    "token": ({"order": "epoch", "batch": 4}, {"sequence": 1}),
}


@dataclass(frozen=True)
class Job:
    """A run of a kind on a grid of ranks, in a folder of its name; `stop`: the step after which it is ended, 0 for
    its own end."""

    kind: str
    ep: int = 1
    fsdp: int = 1
    dp: int = 1
    waves: int = 1
    stop: int = 0
    folder: str = ""

    @property
    def name(self) -> str:
        return self.folder or f"{self.kind}-{self.ep}-{self.fsdp}-{self.dp}"

    def config(self, root: Path, **more: Any) -> TrainConfig:
        fields, sizes = KINDS[self.kind]
        common = {"steps": 2, "warmup": 1, "batch": 8, "grain": 1, "eval_sequences": 6, "eval_every": 2, "seed": 5}
        common |= {
            "checkpoint_every": 2,
            "monitor_every": 0,
            "progress": "hide",
            "deterministic": True,
            "timeout": 60.0,
        }
        common |= {"out": root / self.name, "data": str(root / "text")}
        common |= {"ep": self.ep, "fsdp": self.fsdp, "dp": self.dp, "waves": self.waves}
        return TrainConfig(**common | fields | more, model=dataclasses.replace(SMALL, **sizes))


@contextlib.contextmanager
def short_windows() -> Iterator[None]:
    """Inside there is a preset `short`: tetrajet2 with windows of three steps."""
    rule, base = OsciReset(3, 1, 1.5), preset("tetrajet2")
    with pytest.MonkeyPatch.context() as patch:
        experts = dataclasses.replace(base.experts, osci_reset=rule)
        patch.setitem(PRESETS, "short", lambda: dataclasses.replace(base, experts=experts))
        yield


class Stopped(Exception):
    """A run that a test has ended."""


def trained(root: str, more: str, *jobs: str) -> int:
    """On ranks as torchrun starts them: one job after the other in the same processes."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    for job in (Job(**json.loads(words)) for words in jobs):
        config = job.config(Path(root), **json.loads(more))
        check(config)
        mesh = init_device_mesh("cpu", (config.dp, config.fsdp, config.ep), mesh_dim_names=DIMS)
        here = Ranks(rank, world, rank, config.ep, config.fsdp, config.dp, config.timeout, mesh)

        def stop(record: dict[str, Any], step: int = job.stop) -> None:
            if record["step"] == step:
                raise Stopped

        with contextlib.suppress(Stopped), short_windows():
            trainer._train(parallel(config), ops, stop, None, here)
    dist.destroy_process_group()
    return len(jobs)


def on_ranks(root: Path, *jobs: Job, more: dict[str, Any] | None = None) -> None:
    """Train these jobs, with these fields, on the ranks of a grid."""
    world = jobs[0].ep * jobs[0].fsdp * jobs[0].dp
    words = json.dumps(more or {}), *(json.dumps(dataclasses.asdict(job)) for job in jobs)
    found = ranks(__file__, "trained", world, str(root), *words, seconds=300)
    assert [one.found for one in found] == [len(jobs)] * world


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("seconds", "wires")} for line in lines]


def same(a: Path, b: Path) -> None:
    """Two run folders tell of the same bits."""
    assert records(a) == records(b)
    one, other = (checkpoint_folder.load(checkpoint.latest(folder)) for folder in (a, b))
    assert one[0].keys() == other[0].keys() and one[1] == other[1]
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])


FOUR = (
    Job("fourbit", ep=2, dp=2),
    Job("mxfp8", ep=4),
    Job("bf16", fsdp=4),
    Job("options", ep=2, fsdp=2, waves=2),
    Job("token", ep=4),
    Job("oscillating", ep=2, dp=2),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every kind of run as one process trains it, by its name, those of FOUR, and a stopped one."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text").write_bytes(text())
    for kind in KINDS:
        with short_windows():
            train(Job(kind, folder=kind).config(folder), ops)
    on_ranks(folder, *FOUR, Job("fourbit", ep=4, stop=2, folder="stopped"))
    return folder


@pytest.mark.parametrize("job", FOUR, ids=lambda job: job.name)
def test_four_ranks_have_the_bits_of_one_process(root, job):
    same(root / job.kind, root / job.name)


def test_reset_weights_are_counted_over_all_ranks(root):
    """The test above compares the count; here it is one."""
    assert 0 < records(root / "oscillating-2-1-2")[2]["weights_reset"] < 1


@pytest.mark.exhaustive
def test_a_run_that_four_ranks_began_goes_on_on_two_on_one_and_in_one_process(root, monkeypatch):
    assert len(records(root / "stopped")) == 2 and checkpoint.latest(root / "stopped").name == "checkpoint-00000002"
    for name in ("process", "two", "one"):
        shutil.copytree(root / "stopped", root / name)
    two = Job("fourbit", ep=2)
    on_ranks(root, two, dataclasses.replace(two, folder="two"))
    assert train(Job("fourbit", folder="process").config(root), ops).resumed_from == 2
    given = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    assert train(Job("fourbit", folder="one").config(root), ops).resumed_from == 2
    for name in (two.name, "two", "one", "process"):
        same(root / "fourbit", root / name)
    meta = json.loads((root / "process" / "meta.json").read_text())
    assert [entry["step"] for entry in meta["resumed"]] == [2]


def test_what_ranks_have_trained_is_loaded_by_one_process(root):
    found, whole = (load_run(root / name).model.state_dict() for name in ("mxfp8-4-1-1", "mxfp8"))
    assert found.keys() == whole.keys() and all(torch.equal(found[name], whole[name]) for name in found)


def test_the_log_tells_measured_bits_of_every_wire(root):
    """Four ranks that share out the experts of six layers, the last one's in MXFP8; widths of 32."""
    for line in map(json.loads, (root / "stopped" / "log.jsonl").read_text().splitlines()):
        bits = {phase: told["bits_per_value"] for phase, told in line["wires"].items()}
        rows, values = SMALL.top_k * SMALL.sequence * 8, 32  # eight sequences
        assert bits["dispatch NVFP4_46"] == 4.5 + 32 / 32 and bits["combine MXS2F6"] == 8.25
        assert bits["dispatch MXFP8"] == bits["gradient dispatch MXFP8"] == bits["gradient combine MXFP8"] == 8.25
        assert line["wires"]["dispatch NVFP4_46"]["bytes"] * 8 == 5 * rows * values * 5.5


def test_torchrun_starts_ranks_of_the_command_line(root):
    words = shlex.split(command_of(Job("bf16", ep=2, folder="torchrun").config(root)))[1:]
    launch = ["--nproc-per-node", "2", "--master-port", str(free_port()), "-m", "fourbit", *words]
    command = [sys.executable, "-m", "torch.distributed.run", *launch]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    same(root / "bf16", root / "torchrun")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"bf16 in {root / 'torchrun'} done: 2 steps")
    told = {line.split("  ")[0]: line.split()[-4] for line in lines[2:] if "BF16" in line}
    assert told.keys() == {f"{way} BF16" for way in ("dispatch", "combine", "gradient dispatch", "gradient combine")}
    meta = json.loads((root / "torchrun" / "meta.json").read_text())
    assert meta["command"].startswith("torchrun --nproc-per-node 2 -m fourbit train --out ")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["fourbit", "mxfp8", "bf16"])
def test_twenty_steps_on_one_two_and_four_ranks_and_resumed_on_fewer(tmp_path, name):
    (tmp_path / "text").write_bytes(text())
    long = {"preset": name, "steps": 20, "eval_every": 10, "checkpoint_every": 5, "batch": 8}
    train(Job("fourbit", folder="process").config(tmp_path, **long), ops)
    grids = Job("fourbit"), Job("fourbit", ep=2), Job("fourbit", dp=2), Job("fourbit", ep=4, waves=1)
    grids += Job("fourbit", ep=2, fsdp=2, waves=2), Job("fourbit", ep=2, dp=2), Job("fourbit", fsdp=2, dp=2)
    for job in grids:
        on_ranks(tmp_path, job, more=long)
        same(tmp_path / "process", tmp_path / job.name)
    on_ranks(tmp_path, Job("fourbit", ep=4, stop=12, folder="stopped"), more=long)
    for job in (Job("fourbit", ep=2, folder="two"), Job("fourbit", folder="one")):
        shutil.copytree(tmp_path / "stopped", tmp_path / job.name)
        on_ranks(tmp_path, job, more=long)
        same(tmp_path / "process", tmp_path / job.name)
    assert train(Job("fourbit", folder="stopped").config(tmp_path, **long), ops).resumed_from == 10
    same(tmp_path / "process", tmp_path / "stopped")
