"""What the modelled layer (`moe_model`) makes of a training step, of a rollout and of their costs. Nothing is measured.

    step      layers (forward + backward) + 6 FLOP for each other parameter that a token meets
    rollout   latencies + traffic + max(weights read from memory, products), for one layer
    gain      seconds under the baseline / seconds under a recipe - 1: more work in the same time

In reinforcement learning rollouts and training alternate; of a rollout the experts alone become faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from .moe_model import BASELINE, FULL, LAST, Recipe, Setup, backward, forward, link_seconds, makespan, product_seconds


def layer_seconds(setup: Setup, recipe: Recipe) -> tuple[float, float]:
    """One layer's forward and backward in training, overlapped."""
    passes = (forward(setup, recipe), backward(setup, recipe))
    first, second = (makespan(each, setup.waves, setup.latency, setup.own_gpus) for each in passes)
    return first, second


def rest_seconds(setup: Setup) -> float:
    """Everything else of a training step: 6 FLOP for each of a token's other parameters, in BF16."""
    return 6 * setup.rest * setup.tokens / (setup.machine.bf16 * setup.bf16)


def step_seconds(setup: Setup, recipe: Recipe) -> float:
    """A training step: all layers, the `last` ones of a 4-bit recipe in MXFP8, and the rest."""
    layer = sum(layer_seconds(setup, recipe))
    if recipe.forward == "nvfp4":
        layer = (1 - setup.last) * layer + setup.last * sum(layer_seconds(setup, LAST))
    return setup.layers * layer + rest_seconds(setup)


@dataclass(frozen=True)
class Decode:
    """Seconds of one layer in one step of a rollout: two latencies; traffic; weights read from memory; products.
    Memory and tensor cores overlap with each other, not with the link: `total` adds the larger one."""

    latency: float
    link: float
    memory: float
    products: float

    @property
    def total(self) -> float:
        return self.latency + self.link + max(self.memory, self.products)


def decode(setup: Setup, recipe: Recipe) -> Decode:
    """One layer of a rollout's step. Of the experts E / G of a GPU the share 1 - (1 - top_k / E)^(tokens G) is met."""
    tokens = setup.decode_tokens
    met = setup.experts / setup.gpus * (1 - (1 - setup.top_k / setup.experts) ** (tokens * setup.gpus))
    weights = 3 * setup.hidden * setup.width * met * recipe.weights / 8
    return Decode(
        latency=2 * setup.latency,
        link=link_seconds(setup, tokens, recipe.dispatch + recipe.combine),
        memory=weights / (setup.machine.memory * setup.memory),
        products=3 * product_seconds(setup, tokens, recipe.forward),
    )


def decode_seconds(setup: Setup, recipe: Recipe) -> float:
    """The mean layer of a rollout's step; the `last` layers of a 4-bit recipe are in MXFP8."""
    layer = decode(setup, recipe).total
    if recipe.forward == "nvfp4":
        return (1 - setup.last) * layer + setup.last * decode(setup, LAST).total
    return layer


def training_gain(setup: Setup, recipe: Recipe = FULL) -> float:
    """How much more work a second of training does than under the baseline: 0.08 is 8 % more."""
    return step_seconds(setup, BASELINE) / step_seconds(setup, recipe) - 1


def learning_gain(setup: Setup, recipe: Recipe = FULL) -> float:
    """The same of reinforcement learning: rollouts, whose experts alone become faster, and training."""
    faster = decode_seconds(setup, BASELINE) / decode_seconds(setup, recipe)
    rollout = 1 - setup.rollout_experts + setup.rollout_experts / faster
    train = 1 / (1 + training_gain(setup, recipe))
    return 1 / (setup.rollouts * rollout + (1 - setup.rollouts) * train) - 1


def expert_share(setup: Setup, recipe: Recipe = BASELINE) -> float:
    """Share of a training step spent in the routed experts and their traffic."""
    return 1 - rest_seconds(setup) / step_seconds(setup, recipe)
