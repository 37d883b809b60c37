"""The runs of tests/test_golden.py: a made-up text, a model of default sizes, 20 steps under three recipes, and under
`fourbit` with every option of the model.

`python tests/golden_runs.py` runs them and writes what they recorded to tests/golden/, which is right only after a change
that is meant to change losses; say in its commit what moved them. `python tests/golden_runs.py --spread` prints how far
other vector instructions move every run, which is what the tolerance of the test is derived from.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent / "golden"
STEPS = 20
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
# what torch and MKL take from the environment in the place of the processor's best
SETTINGS = [
    {"ATEN_CPU_CAPABILITY": torch_, "MKL_ENABLE_INSTRUCTIONS": mkl}
    for torch_ in ("default", "avx2", "avx512")
    for mkl in ("SSE4_2", "AVX2", "AVX512")
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
    """Run `name` on this processor: what it is, and its numbers."""
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
            **{"batch": 2, "grain": 1, "micro_batch": 2, "warmup": 4, "lr": 3e-3, "threads": 1, "progress": "hide"},
            **{"eval_every": STEPS, "eval_sequences": 8, "checkpoint_every": STEPS, "monitor_every": 0},
            model=dataclasses.replace(ModelConfig(sequence=64), **options),
        )
        train(config, ops)
        records = read_log(path / "run" / "log.jsonl")
        identity = json.loads((path / "run" / "config.json").read_text())
        about = {key: environment("cpu")[key] for key in ("torch", "numpy", "device")}
    identity.pop("data")
    numbers = {key: [r[key] for r in records] for key in ("loss", "balance", "grad_norm")}
    return {"config": identity, "recorded_on": about, "heldout_ce": records[-1]["heldout_ce"]} | numbers


def spread(name: str) -> dict[str, Any]:
    """The largest difference between this processor's best and other settings, by kind of number, by step."""
    runs = []
    for setting in [{}, *SETTINGS]:
        code = f"import json, golden_runs; print(json.dumps(golden_runs.record({name!r})))"
        path = os.pathsep.join([str(FOLDER.parent), str(FOLDER.parent.parent)])
        env = os.environ | {"PYTHONPATH": path} | setting
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    found: dict[str, Any] = {"different": len({json.dumps(run["loss"]) for run in runs})}
    for key in ("loss", "balance", "grad_norm"):
        found[key] = [max(abs(run[key][i] - runs[0][key][i]) for run in runs) for i in range(STEPS)]
    found["heldout_ce"] = max(abs(run["heldout_ce"] - runs[0]["heldout_ce"]) for run in runs)
    return found


def main(argv: list[str]) -> int:
    for name in RUNS:
        if argv == ["--spread"]:
            found = spread(name)
            print(f"{name}: {found['different']} different of {len(SETTINGS) + 1}", flush=True)
            for key in ("loss", "grad_norm", "balance"):
                print(f"  {key}: " + " ".join(f"{value:.1e}" for value in found[key]), flush=True)
            print(f"  heldout_ce: {found['heldout_ce']:.1e}", flush=True)
        else:
            (FOLDER / f"{name}.json").write_text(json.dumps(record(name), indent=1) + "\n")
            print(f"written: {name}")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent.parent))
    sys.exit(main(sys.argv[1:]))
