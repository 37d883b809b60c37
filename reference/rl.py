"""`fourbit rl`: reinforcement learning from rewards that can be checked, by group-relative advantages (GRPO).

A step asks `prompts` problems, draws `group` completions of each from the model at temperature 1, and scores them:

    A    = (reward - mean) / (deviation + 1e-6)          over the completions of one problem, the same for all tokens
    r    = exp(log p_trainer - log p_sampler)            of a token, the sampler's as it was when the token was drawn
    loss = sum over tokens of [ -min(r A, clip(r, 1 - c, 1 + c) A) + kl_weight (exp(d) - 1 - d) ] / tokens,
    d    = log p_start - log p_trainer                   of the model that the run began with

after GRPO (Shao et al., arXiv 2402.03300, section 4.1), with one mean over all tokens of a step (DAPO, arXiv
2503.14476, section 3.3), not of each completion. Old probabilities are the sampler's own, so whatever sampler and
trainer differ in, numerics included, is in r, and the log says how much that is: nothing at all under `parity`.
Problems whose completions all have one reward teach nothing, and go through the model without a backward unless the
start pulls.

Sampler and trainer have one set of weights and one recipe: the sampler's experts are the packed codes that the forward
of the next step multiplies.

Evaluations answer problems greedily that are held out by what they ask, see `heldout`; `heldout_reward` is the mean of
their scores. An environment that asks too few different questions has nothing to hold out: then the log has the mean of
other draws of the same questions, as `greedy_reward`, and a line on stderr says so.

The log of a step, means over completions or over their tokens: `reward`; `length` in tokens; `ended`, the share that
came to an end; `failures` of the environment; `groups_taught`, the share of problems with unequal rewards; `entropy` in
nats; `clipped`; of trainer and sampler `difference`, the mean distance of log-probabilities, `difference_max` and
`kl_sampler`; and `kl` to the start, in every step where it pulls, else in the first one and in those of an evaluation.

Exact: problems, completions and losses are functions of the seed, the step and the weights; see `tune`. Shapes: B rows
of packed completions, S positions, V vocabulary.
"""

from __future__ import annotations

import copy
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import tyro
from torch import Tensor
from tqdm import tqdm

from .asking import Asking, asking
from .environments import Problem, Scorer, drawn, environment_of
from .examples import Codec
from .expert import Draw
from .flags import named_flags
from .interrupts import interruptible
from .model import Transformer
from .notice import notice
from .packing import IGNORED
from .rollouts import Rollouts, clipped_surrogate, deviation, group_advantages, rollouts_of
from .sample import Completion, Sampler, log_probabilities
from .sampling import Sampling
from .stopping import require_finite
from .tune import TuneConfig, Tuned, Tuning, begin, tune

PROGRAM = "fourbit rl"


@dataclass(frozen=True)
class RlConfig(TuneConfig):
    """Improve a model by rewards that can be checked, from `init`; the same command in the same folder resumes."""

    environment: str = "arithmetic"
    """What is asked: arithmetic, countdown, reversal, or the import path module:function of another one."""
    prompts: int = 8
    """Problems a step."""
    group: int = 32
    """Completions of each problem, two or more."""
    tokens: int = 16
    """Tokens of a completion, at most."""
    updates: int = 1
    """Optimizer steps with the completions of a step."""
    clip_ratio: float = 0.2
    """How far the probability of a token may move from the sampler's, as a share, before it is no longer pushed."""
    kl_weight: float = 0.0
    """Pull towards the model that the run began with."""
    steps: int = 600
    """Steps of the whole run."""
    lr: float = 5e-4
    """Peak learning rate."""
    weight_decay: float = 0.0
    """AdamW's decay, on weights of two or more dimensions."""
    eval_problems: int = 100
    """Problems of each held-out evaluation, at most: the same different ones each time, answered greedily."""


@named_flags(RlConfig)
def main(argv: list[str], operations: Callable[[str, str], ModuleType]) -> int:
    """Run `fourbit rl` with `argv`; return the exit code 0, or raise as `rl` does."""
    config = tyro.cli(RlConfig, args=argv, prog=PROGRAM)
    done = rl(config, operations(config.ops, config.device), f"{PROGRAM} {shlex.join(argv)}")
    rewards = [record["reward"] for record in done.records]
    few = max(1, len(rewards) // 20)
    said, last = "was finished already" if done.resumed_from == config.steps else "done", done.records[-1]
    judged = (
        f"held out {last['heldout_reward']:.3f} greedily, of {last['heldout_problems']} problems"
        if "heldout_reward" in last
        else f"{last['greedy_reward']:.3f} greedily, of problems like those learned from: nothing is held out"
    )
    print(
        f"rl in {done.folder} {said}: {config.steps} steps, reward {sum(rewards[:few]) / few:.3f} in the first {few}, "
        f"{sum(rewards[-few:]) / few:.3f} in the last {few}, {judged}"
    )
    return 0


def rl(
    config: RlConfig,
    ops: ModuleType,
    command: str | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> Tuned:
    """Learn, or resume.

    Raises:
        ValueError: a bad argument, environment or run folder, of which nothing was written; a prompt that is too long.
        TrainingStopped, Interrupted, OSError: as `train`.
    """
    with interruptible(config.out) as interrupts:
        _check(config)
        environment = environment_of(config.environment)
        start = begin(config, ops, config.grain)
        own = ("prompts", "group", "tokens", "updates", "clip_ratio", "kl_weight", "eval_problems")
        tuned = {"stage": "rl", "environment": config.environment} | {name: getattr(config, name) for name in own}
        # what the environment does is not known, its first problem tells it from others
        first = drawn(environment, config.seed, 0)
        prompt_tokens(config.environment, first, start.codec, start.config.model.sequence)  # before a folder is made
        asked = asking(environment, config.seed, config.eval_problems)
        for each in asked.judged:
            prompt_tokens(config.environment, each, start.codec, start.config.model.sequence)
        if not asked.held_out:
            notice(f"environment {config.environment!r}: {asked.said}")
        data = {
            "digest": f"{config.environment}: {first.prompt}",
            "description": f"environment {config.environment}, {asked.said}",
        }
        # before a checkpoint is loaded; modules cannot be copied
        reference = copy.deepcopy(start.model, {id(ops): ops}).requires_grad_(False).eval()

        def make(tuning: Tuning) -> Rl:
            return Rl(tuning, config, asked, Sampler(start.model), reference, Scorer(_show))

        return tune(start, tuned, data, make, interrupts, command, on_progress, config.updates)


def _check(c: RlConfig) -> None:
    for name, good, remedy in (
        (
            "init",
            c.init is not None,
            "name the run folder of a model that is sometimes right, such as one of fourbit sft",
        ),
        ("prompts", c.prompts >= 1, "use 1 or more"),
        ("group", c.group >= 2, "use 2 or more: completions are compared with each other"),
        ("tokens", c.tokens >= 1, "use 1 or more"),
        ("updates", c.updates >= 1, "use 1 or more"),
        ("clip_ratio", 0 < c.clip_ratio < 1, "use a share between 0 and 1"),
        ("kl_weight", 0 <= c.kl_weight < 1e6, "use 0 or more"),
        ("eval_problems", c.eval_problems >= 1, "use 1 or more"),
        ("steps", c.steps * c.prompts * c.group < 2**31, "there are numbers for 2^31 completions"),
    ):
        if not good:
            raise ValueError(f"{name} {getattr(c, name)} cannot be used; {remedy}")


def prompt_tokens(environment: str, asked: Problem, codec: Codec, sequence: int) -> tuple[int, ...]:
    """The tokens of a problem's prompt. Raises ValueError if the model cannot be asked so; `environment` names it."""
    try:
        found = codec.encode(asked.prompt)
    except ValueError as error:
        raise ValueError(f"environment {environment!r} asks {asked.prompt[:40]!r}: {error}") from None
    if 1 <= len(found) <= sequence:
        return found
    raise ValueError(
        f"environment {environment!r} asks {asked.prompt[:40]!r} with {len(found)} tokens, and the model sees "
        f"{sequence}; ask in 1 to {sequence} tokens"
    )


def _show(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


@dataclass(frozen=True, eq=False)
class Rl:
    """The stage, see `tune.Stage`. `reference`: the model that the run began with."""

    tuning: Tuning
    config: RlConfig
    asking: Asking
    sampler: Sampler
    reference: Transformer
    scorer: Scorer

    def advance(self, step: int) -> dict[str, Any]:
        c, failures = self.config, self.scorer.failures
        asked = [self.asking.problem((step - 1) * c.prompts + i) for i in range(c.prompts)]
        asked = [each for each in asked for _ in range(c.group)]
        first = (step - 1) * len(asked)
        done = self._complete(asked, Sampling(1.0, 1.0, c.seed), range(first, first + len(asked)))
        rewards = torch.tensor([self._score(each, found) for each, found in zip(asked, done, strict=True)])
        advantages = group_advantages(rewards.view(c.prompts, c.group)).flatten()
        rollouts = self._packed(asked, done, advantages)
        record: dict[str, Any] = {
            "reward": rewards.mean().item(),
            "length": sum(len(found.tokens) for found in done) / len(done),
            "ended": sum(found.ended for found in done) / len(done),
            "failures": self.scorer.failures - failures,
            "groups_taught": int((advantages.view(c.prompts, c.group) != 0).any(1).sum()) / c.prompts,
        }
        for update in range(c.updates):
            found = self._update(rollouts, step, update)
            record = {**found, **record}  # the first update's: of the weights that the sampler had
        self.sampler.refresh()
        return record

    @torch.no_grad()
    def evaluate(self, step: int) -> dict[str, Any]:
        """heldout_reward: the mean, of heldout_problems that are the same each time, answered greedily; greedy_reward
        where nothing is held out."""
        asked, failures = self.asking.judged, self.scorer.failures
        done = self._complete(asked, Sampling(0.0, 1.0, self.config.seed), range(len(asked)))
        scores = [self._score(each, found) for each, found in zip(asked, done, strict=True)]
        kind = "heldout" if self.asking.held_out else "greedy"
        numbers = {"reward": sum(scores) / len(asked), "problems": len(asked)}
        return {f"{kind}_{k}": v for k, v in (numbers | {"failures": self.scorer.failures - failures}).items()}

    def _complete(self, asked: list[Problem], sampling: Sampling, numbers: range) -> list[Completion]:
        codec, sequence = self.tuning.start.codec, self.tuning.start.config.model.sequence
        prompts = [list(prompt_tokens(self.config.environment, each, codec, sequence)) for each in asked]
        return self.sampler.sample(prompts, self.config.tokens, sampling, codec.end, numbers=numbers)

    def _score(self, asked: Problem, found: Completion) -> float:
        return self.scorer(asked, self.tuning.start.codec.decode(found.tokens))

    def _packed(self, asked: list[Problem], done: list[Completion], advantages: Tensor) -> Rollouts:
        codec, sequence = self.tuning.start.codec, self.tuning.start.config.model.sequence
        prompts = [codec.encode(each.prompt) for each in asked]
        return rollouts_of(prompts, done, advantages.tolist(), self.config.group, sequence)

    def _update(self, rollouts: Rollouts, step: int, update: int) -> dict[str, Any]:
        """One optimizer step, if anything teaches. What the log says is a mean over tokens."""
        c, grain = self.config, self.config.grain
        count = int(rollouts.times.sum())
        compared = c.kl_weight > 0 or step % c.eval_every == 0 or step in (1, c.steps)
        sums: dict[str, float] = {}
        largest, real = 0.0, rollouts.rows.real
        for i, first in enumerate(range(0, len(rollouts.rows), grain)):
            pulled = c.kl_weight > 0 or first < rollouts.taught
            part = rollouts.part(first, first + grain, c.device)
            draw = Draw(c.seed, (step - 1) * c.updates + update + 1, i)
            with torch.set_grad_enabled(pulled):
                loss, balance, found, difference = self._losses(part, draw, compared)
            share = rollouts.rows.take(slice(first, first + grain)).real / real
            require_finite(c.out, step, "loss", (loss + balance).item())
            if pulled:
                (loss / torch.full((), count, dtype=torch.float32, device=loss.device) + balance * share).backward()
            sums = {name: sums.get(name, 0.0) + value for name, value in found.items()}
            largest = max(largest, difference)
        moved = rollouts.taught > 0 or c.kl_weight > 0
        said = self.tuning.update(step, (step - 1) * c.updates + update + 1) if moved else {"lr": 0.0, "grad_norm": 0.0}
        return {name: value / count for name, value in sums.items()} | {"difference_max": largest} | said

    def _losses(
        self, part: tuple[Tensor, ...], draw: Draw, compared: bool
    ) -> tuple[Tensor, Tensor, dict[str, float], float]:
        """(loss, summed over tokens; balance; sums for the log; largest difference of sampler and trainer)."""
        tokens, targets, segments, old_BS, advantages_BS, times_BS = part
        learned = targets != IGNORED
        logits_BSV, balance = self.tuning.start.model.logits(tokens, draw, 1, segments)
        exactly = self.tuning.start.config.parity
        logs_NV = log_probabilities(logits_BSV[learned], exactly)
        at, old, times = targets[learned][:, None], old_BS[learned], times_BS[learned]
        new = logs_NV.gather(1, at)[:, 0]
        apart = new.detach() - old
        surrogate, clipped = clipped_surrogate(new, old, advantages_BS[learned], self.config.clip_ratio)
        loss = -(times * surrogate).sum()
        sums = {
            "loss": 0.0,
            "entropy": -(times[:, None] * logs_NV.detach().exp() * logs_NV.detach()).sum().item(),
            "clipped": (times * clipped).sum().item(),
            # of sampler and trainer, which have the same weights in a step's first update
            "difference": (times * apart.abs()).sum().item(),
            "kl_sampler": (times * deviation(apart)).sum().item(),
        }
        if compared:
            with torch.no_grad():
                start_BSV, _ = self.reference.logits(tokens, draw, 1, segments)
                start = log_probabilities(start_BSV[learned], exactly).gather(1, at)[:, 0]
            pull = (times * deviation(start - new)).sum()
            loss, sums["kl"] = loss + self.config.kl_weight * pull, pull.item()
        sums["loss"] = loss.item()
        return loss, balance, sums, apart.abs().max().item() if len(apart) else 0.0
