"""The runs of tests/test_golden.py: a made-up text, a model of default sizes, 20 steps under three recipes, and under
`fourbit` with every option of the model.

They run in a process whose libraries are told to use no more than what every x86-64 processor has, in an order of their
own that does not depend on it (PINNED): AVX2, FMA and AVX-512 are left unused, as is a choice between them.

    python tests/golden_runs.py            writes what they record here to tests/golden/: right only after a change that
                                           is meant to change losses; its commit says what moved them
    python tests/golden_runs.py --spread   prints how far from the records libraries are that choose for themselves, at
                                           three sets of vector instructions: what the test's tolerances come from
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent / "golden"
STEPS = 20
NUMBERS = ("loss", "balance", "grad_norm")
OPTIONS = {
    **{"kv_heads": 2, "window": 24, "full_every": 3, "positions": "none", "router": "sigmoid", "bias_speed": 0.01},
    **{"convolution": 4, "dense_layers": 1, "dense_dim": 96},
}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("bf16", {}),
    "mxfp8": ("mxfp8", {}),
    "fourbit": ("fourbit", {}),
    "fourbit_options": ("fourbit", OPTIONS),
}
PINNED = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
# of nine pairs of settings these three are all that differ in a bit
SETTINGS = [
    {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    {"ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
]


def text() -> bytes:
    """About 25 kB: lines of words of which the next depends on the one before; the same everywhere and forever.

    From raw words of Philox, which numpy keeps stable across versions.
    """
    words = iter(np.random.Philox(key=np.array([11, 0], dtype=np.uint64)).random_raw(60_000).tolist())
    letters = "abcdefghijklmnopqrstuvwxyz"
    lexicon = ["".join(letters[next(words) % 26] for _ in range(2 + next(words) % 5)) for _ in range(60)]
    found, at = [], 0
    for number in range(4800):
        at = (at * 7 + next(words) % 4) % len(lexicon)
        found.append(lexicon[at] + ("\n" if number % 9 == 8 else " "))
    return "".join(found).encode()


def record(name: str) -> dict[str, Any]:
    """Run `name` in this process: what it is, and its numbers."""
    from numerics import ops
    from reference.log import environment, read_log
    from reference.model import ModelConfig
    from reference.train import TrainConfig, train

    preset, options = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "text").write_bytes(text())
        config = TrainConfig(
            **{"out": path / "run", "preset": preset, "data": str(path / "text"), "steps": STEPS, "seed": 7},
            **{"batch": 2, "grain": 1, "micro_batch": 2, "warmup": 4, "lr": 1e-3, "threads": 1, "progress": "hide"},
            **{"eval_every": STEPS, "eval_sequences": 8, "checkpoint_every": STEPS, "monitor_every": 0},
            model=dataclasses.replace(ModelConfig(sequence=64), **options),
        )
        train(config, ops)
        records = read_log(path / "run" / "log.jsonl")
        identity = json.loads((path / "run" / "config.json").read_text())
        about = {
            "torch": environment("cpu")["torch"].partition("+")[0],
            "machine": platform.machine(),
            "processor": processor(),
        }
    identity.pop("data")
    numbers = {key: [r[key] for r in records] for key in NUMBERS}
    return {"config": identity, "recorded_on": about, "heldout_ce": records[-1]["heldout_ce"]} | numbers


def processor() -> str:
    """Who made the processor, as Linux names it: with equal instructions two makers' bits still differed."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), platform.processor()
    )


def records(setting: dict[str, str]) -> dict[str, Any]:
    """All runs, by name, in a process of its own with these settings of its libraries."""
    left = {name: value for name, value in os.environ.items() if not name.startswith(("ATEN_", "MKL_", "OMP_"))}
    command = [sys.executable, __file__, "--print"]
    done = subprocess.run(command, env=left | setting, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def stored(name: str) -> dict[str, Any]:
    """What tests/golden/ has of a run."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def distances(run: dict[str, Any], golden: dict[str, Any]) -> dict[str, list[float]]:
    """How far numbers of a run are from the recorded ones, step by step."""
    pairs = {key: zip(run[key], golden[key], strict=True) for key in NUMBERS}
    found = {key: [abs(a - b) for a, b in values] for key, values in pairs.items()}
    mean = abs(sum(run["loss"]) - sum(golden["loss"])) / STEPS
    return found | {"mean_loss": [mean], "heldout_ce": [abs(run["heldout_ce"] - golden["heldout_ce"])]}


def main(argv: list[str]) -> int:
    if argv == ["--print"]:
        print(json.dumps({name: record(name) for name in RUNS}))
    elif argv == ["--spread"]:
        for setting in SETTINGS:
            print(setting)
            for name, run in records(setting).items():
                for key, values in distances(run, stored(name)).items():
                    print(f"  {name} {key}: " + " ".join(f"{value:.1e}" for value in values), flush=True)
    elif not argv:
        for name, run in records(PINNED).items():
            (FOLDER / f"{name}.json").write_text(json.dumps(run, indent=1) + "\n")
            print(f"written: {FOLDER / name}.json")
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent.parent))
    sys.exit(main(sys.argv[1:]))
