"""`fourbit pipeline`: pretraining, fine-tuning and reinforcement learning with one recipe throughout, and a page.

Every recipe goes through the three stages with the same seeds: runs of one seed have equal initial weights, batches,
examples, problems and random words to draw completions by, and differ in arithmetic alone. Two chains of stages run at
a time, each on one thread. `out` holds

    report.html                       the page, with everything inside
    chains.csv, differences.csv       its tables
    curves.svg                        its figure, for print
    runs/PRESET/seedN/STAGE/          the runs, see `reference.train`, `sft` and `rl`

Interrupted and started again, every stage goes on from its last checkpoint, and finished ones are not repeated.
"""

import dataclasses
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import tyro

from hw.choose import operations
from reference.alphabet import alphabet_of
from reference.checkpoint import checkpoint_path, write_atomic
from reference.config import check
from reference.environments import drawn, environment_of
from reference.examples import Codec, load_examples
from reference.log import read_log
from reference.model import ModelConfig
from reference.presets import preset as preset_of
from reference.progress import Progress
from reference.rl import RlConfig, prompt_tokens, rl
from reference.sft import SftConfig, sft
from reference.train import TrainConfig, train

from . import pipeline_page, plots
from .interval import Interval, interval
from .parallel import Tell, run_all

PROGRAM = "fourbit pipeline"
BASELINE = "bf16"
STAGES = ("pretrain", "sft", "rl")
MEASURES = ("pretrain_nats", "sft_nats", "sft_exact", "reward", "heldout_reward")
_LAST = 20  # one of so many RL steps, the last ones, are the reward at the end


@dataclass(frozen=True)
class PipelineConfig:
    """Pretrain, fine-tune and reinforce small models under several recipes and write a page; resumes."""

    out: Path = Path("results/pipeline")
    """Folder of the page and the runs."""
    presets: tuple[str, ...] = ("fourbit", "mxfp8", BASELINE)
    """Recipes; the others are compared with bf16, or without it with the last one."""
    seeds: int = 3
    """Chains of each recipe; the interval of a difference needs two or more."""
    pretrain_steps: int = 300
    """Steps of `fourbit train`."""
    sft_steps: int = 250
    """Steps of `fourbit sft`."""
    rl_steps: int = 600
    """Steps of `fourbit rl`."""
    environment: str = "arithmetic"
    """Of `fourbit rl`."""
    data: str | None = None
    """Of `fourbit train`; Python's own standard library if left out."""
    sft_data: str | None = None
    """Of `fourbit sft`; generated exercises if left out."""
    ops: Literal["emulated", "triton"] = "emulated"
    """What computes the experts: the emulation; or Triton kernels with the same bits, on a GPU."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to compute; never chosen for you."""
    parity: bool = False
    """Forms whose bits do not depend on what is computed together, in every stage; several times slower."""
    workers: int = 2
    """Chains that run at the same time, each on one core."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    """Dimensions of the models."""

    @property
    def steps(self) -> dict[str, int]:
        """Of each stage."""
        return dict(zip(STAGES, (self.pretrain_steps, self.sft_steps, self.rl_steps), strict=True))

    @property
    def baseline(self) -> str:
        return BASELINE if BASELINE in self.presets else self.presets[-1]


@dataclass(frozen=True)
class Chain:
    """The three stages of one recipe and seed."""

    config: PipelineConfig
    preset: str
    seed: int

    @property
    def out(self) -> Path:
        return self.config.out / "runs" / self.preset / f"seed{self.seed}"

    def stages(self) -> tuple[TrainConfig, SftConfig, RlConfig]:
        """What is run, one after the other."""
        c = self.config
        common: dict[str, Any] = {"seed": self.seed, "device": c.device, "ops": c.ops, "parity": c.parity}
        common |= {"threads": 1, "progress": "hide", "checkpoint_every": 50}
        first, second, third = (
            common | {"out": self.out / name, "steps": n, "warmup": min(10, n // 4), "eval_every": -(-n // 6)}
            for name, n in c.steps.items()
        )
        return (
            TrainConfig(preset=self.preset, data=c.data, model=c.model, **first),
            SftConfig(init=first["out"], data=c.sft_data, **second),
            RlConfig(init=second["out"], environment=c.environment, **third),
        )


def main(argv: list[str]) -> int:
    """Run `fourbit pipeline` with `argv`; return the exit code 0, or raise as `pipeline` does."""
    config = tyro.cli(PipelineConfig, args=argv, prog=PROGRAM, config=(tyro.conf.FlagCreatePairsOff,))
    _, differences = pipeline(config, f"{PROGRAM} {shlex.join(argv)}")
    for sentence in pipeline_page.sentences(differences, config.baseline):
        print(sentence)
    print(f"\nreport: {(config.out / 'report.html').resolve()}")
    return 0


def pipeline(config: PipelineConfig, command: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Run every chain and write the page.

    Returns:
        `tabulate` and `compare` of the chains.

    Raises:
        ValueError: a bad argument, environment, corpus or run folder; what a later stage could not use is told before
            the first one runs. TrainingStopped: a NaN. OSError: the disk refuses.
    """
    _require(config)
    chains = [Chain(config, preset, seed) for seed in range(config.seeds) for preset in config.presets]
    logs = run_chains(config, chains)
    table = tabulate(logs)
    differences = compare(table, config.baseline)
    figure = plots.render(pipeline_page.draw(logs, config.presets), "svg")
    for name, frame in (("chains", table), ("differences", differences)):
        write_atomic(config.out / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n").encode())
    write_atomic(config.out / "curves.svg", figure)
    facts = pipeline_page.Facts(command, config.steps, config.environment, config.seeds, config.baseline, chains[0].out)
    page = pipeline_page.page(facts, config.presets, table, differences, figure)
    write_atomic(config.out / "report.html", page.encode())
    return table, differences


def _require(config: PipelineConfig) -> None:
    """Raises ValueError for what any stage could not begin with."""
    if config.seeds < 1 or not config.presets or min(config.steps.values()) < 1:
        raise ValueError("seeds, presets and the steps of every stage: use one or more of each")
    if len(set(config.presets)) < len(config.presets):
        raise ValueError(f"presets {' '.join(config.presets)} cannot be used; name every recipe once")
    for name in config.presets:
        config.model.check(preset_of(name))
    first, second, third = Chain(config, config.presets[0], 0).stages()
    check(first)
    codec, sequence = Codec(alphabet_of(first, tuned=True)), config.model.sequence
    load_examples(second.data, codec, sequence, second.examples, second.seed)
    asked = drawn(environment_of(third.environment), third.seed, 0)
    prompt_tokens(third.environment, asked, codec, sequence)


Logs = dict[tuple[str, int], dict[str, list[dict[str, Any]]]]


def run_chains(config: PipelineConfig, chains: list[Chain]) -> Logs:
    """Run, or resume, the chains; the logs of their stages, by preset and seed."""
    each = sum(config.steps.values())
    done = dict.fromkeys(chains, 0)
    with Progress(each * len(chains), "pipeline") as progress:

        def on_step(chain: Chain, record: dict[str, Any]) -> None:
            progress.skip(record["place"] - 1 - done[chain])  # steps of an earlier, interrupted call
            done[chain] = record["place"]
            progress.advance(1, f"{chain.preset} seed {chain.seed} {record['stage']} step {record['step']}")

        def on_end(chain: Chain, _: object) -> None:
            progress.skip(each - done[chain])
            done[chain] = each

        results = run_all(chains, run_chain, _is_done, config.workers, on_step, on_end)
    return {(chain.preset, chain.seed): result for chain, result in zip(chains, results, strict=True)}


def run_chain(chain: Chain, tell: Tell) -> dict[str, list[dict[str, Any]]]:
    """Run, or resume, the stages of a chain; their logs."""
    first, second, third = chain.stages()
    ops = operations(chain.config.ops, chain.config.device)
    before = 0

    def told(record: dict[str, Any]) -> None:
        tell({"stage": stage, "step": record["step"], "place": before + record["step"]})

    for stage in STAGES:
        if stage == "pretrain":
            train(first, ops, told)
        elif stage == "sft":
            sft(second, ops, on_progress=told)
        else:
            rl(third, ops, on_progress=told)
        before += chain.config.steps[stage]
    return {stage: read_log(chain.out / stage / "log.jsonl") for stage in STAGES}


def _is_done(chain: Chain) -> bool:
    return all(checkpoint_path(chain.out / stage, steps).exists() for stage, steps in chain.config.steps.items())


def tabulate(logs: Logs) -> pd.DataFrame:
    """One row per chain.

    Columns: preset; seed; pretrain_nats, held out, per byte; sft_nats, held out, per token of completions; sft_exact,
    share of held-out completions that greedy decoding would write; start_reward and reward, means over the first and
    last twentieth of the RL steps; heldout_reward, greedy; kl_sampler, of sampler and trainer, a mean over RL steps.
    NaN where a stage held nothing out.
    """
    rows = []
    for (preset, seed), log in logs.items():
        rewards = [record["reward"] for record in log["rl"]]
        few = max(1, len(rewards) // _LAST)
        rows.append(
            {
                "preset": preset,
                "seed": seed,
                "pretrain_nats": log["pretrain"][-1]["heldout_ce"],
                "sft_nats": log["sft"][-1].get("heldout_ce", math.nan),
                "sft_exact": log["sft"][-1].get("heldout_exact", math.nan),
                "start_reward": sum(rewards[:few]) / few,
                "reward": sum(rewards[-few:]) / few,
                "heldout_reward": log["rl"][-1].get("heldout_reward", math.nan),
                "kl_sampler": sum(record["kl_sampler"] for record in log["rl"]) / len(rewards),
            }
        )
    return pd.DataFrame(rows)


def compare(table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Of each other preset and measure the mean difference to the baseline of the same seed: columns preset, measure,
    mean, half (of Student's 95 % interval over seeds; NaN with one seed) and seeds."""
    base = table[table.preset == baseline].set_index("seed")
    rows = []
    for preset, own in table[table.preset != baseline].groupby("preset", sort=False):
        for name in MEASURES:
            pairs = (own.set_index("seed")[name] - base[name]).tolist()
            found = interval(pairs) if len(pairs) > 1 else Interval(pairs[0], float("nan"))
            rows.append(
                {"preset": preset, "measure": name, "mean": found.mean, "half": found.half, "seeds": len(pairs)}
            )
    return pd.DataFrame(rows, columns=["preset", "measure", "mean", "half", "seeds"])
