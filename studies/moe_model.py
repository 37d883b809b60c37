"""A model of one mixture-of-experts layer on a rack of GPUs: FLOP, bytes and seconds. Nothing here is measured.

Counts for one token sent to one expert of hidden size h and width d, with w1 and w3 (h x d each) and w2 (d x h):

    forward   6 h d FLOP: 4 h d in w1 and w3, 2 h d in w2; h values travel to the expert and h values back
    backward  12 h d FLOP, half for the inputs, half for the weights; h values of gradient each way

A GPU holds E / G of the experts and keeps `tokens` tokens. It sends and receives n = tokens top_k (G - 1) / G rows in
a dispatch, and as many in a combine. Where experts and tokens live on the same GPUs, either direction of its link
carries both: C / B <= 6 d / (b_dispatch + b_combine), with bytes b of one value, hides all traffic behind products.
Where experts have GPUs of their own, one direction carries the dispatch alone and the other the combine:
C / B <= 6 d / max(b).

Waves: the rows are cut into `waves` equal parts, and while one is multiplied the next arrives (DeepSeek-V4, arXiv
2606.19348, section 3.1). The tensor cores take waves in order, w1 and w3 before w2; a link gives way to dispatches;
products of the weights' gradient come last. The busiest GPU has `imbalance` times the mean's rows, and all phases take
as long as there. Every transfer ends `latency` after its last byte left.

Rates: dense peaks times an efficiency. Left out: attention's own time, optimizer, pipeline bubbles, routing and
kernel launches; traffic leaves the rack never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numerics as nm

BF16_BITS = float(nm.BF16.bits)
Resource = Literal["dispatch", "w1 and w3", "w2", "weight gradients", "combine"]


@dataclass(frozen=True)
class Machine:
    """Dense peak rates of one GPU: FLOP/s by format, B/s of its link in one direction and of its memory."""

    name: str
    nvfp4: float
    mxfp8: float
    bf16: float
    link: float
    memory: float


GB300 = Machine("GB300", 15e15, 5e15, 2.5e15, 900e9, 8e12)
B200 = Machine("B200", 9e15, 4.5e15, 2.25e15, 900e9, 7.7e12)


@dataclass(frozen=True)
class Recipe:
    """Bits per value on the wire and of stored weights, and the format whose rate the forward and backward run at."""

    name: str
    dispatch: float
    combine: float
    weights: float
    forward: Literal["nvfp4", "mxfp8", "bf16"]
    backward: Literal["mxfp8", "bf16"] = "mxfp8"


_FOUR, _EIGHT, _WIRE = nm.NVFP4.bits_per_value, nm.MXFP8.bits_per_value, nm.MXS2F6.bits_per_value
BASELINE = Recipe("MXFP8", _EIGHT, BF16_BITS, _EIGHT, "mxfp8")
LADDER = (
    Recipe("BF16", BF16_BITS, BF16_BITS, BF16_BITS, "bf16", "bf16"),
    BASELINE,
    Recipe("+ NVFP4 products", _EIGHT, BF16_BITS, _FOUR, "nvfp4"),
    Recipe("+ NVFP4 dispatch", _FOUR, BF16_BITS, _FOUR, "nvfp4"),
    Recipe("+ S2F6 combine", _FOUR, _WIRE, _FOUR, "nvfp4"),
)
SIXTEEN, FULL = LADDER[-2:]
LAST = Recipe("last layers", _EIGHT, _WIRE, _EIGHT, "mxfp8")  # MXFP8, with the recipe's combine


@dataclass(frozen=True)
class Setup:
    """Everything that the model depends on. Efficiencies are shares of the peak; times are seconds.

    Attributes:
        hidden, width, top_k, experts, layers: of the routed experts. rest: parameters that a token meets elsewhere.
        gpus: that share the experts. tokens: of a GPU in one pass of training. decode_tokens: of a GPU in one step of
        a rollout. waves: of a pass of training; a rollout's step has one. imbalance: rows of the busiest GPU over the
        mean's. own_gpus: experts have GPUs of their own. behind: share of training's traffic that hides behind other
        layers' work, as with two micro-batches in flight. fp4, fp8: efficiency of the experts' products.
        bf16: of everything else. link, memory: of their bandwidth. latency: of a transfer. extra_bytes: memory traffic
        of requantization beyond the baseline's, per saved value. last: share of layers that stay in MXFP8.
        rollouts: share of reinforcement learning's time, and rollout_experts: share of a rollout's time in the
        routed experts, both under the baseline.
    """

    machine: Machine = GB300
    hidden: int = 4096
    width: int = 2048
    top_k: int = 6
    experts: int = 256
    layers: int = 40
    rest: float = 6e9
    gpus: int = 72
    tokens: int = 8192
    decode_tokens: int = 64
    waves: int = 8
    imbalance: float = 1.2
    own_gpus: bool = False
    behind: float = 0.0
    fp4: float = 0.55
    fp8: float = 0.55
    bf16: float = 0.45
    link: float = 0.6
    memory: float = 0.6
    latency: float = 2e-6
    extra_bytes: float = 0.1
    last: float = 1 / 6
    rollouts: float = 0.7
    rollout_experts: float = 0.5


@dataclass(frozen=True)
class Phases:
    """Seconds that each phase of a pass takes alone, on the busiest GPU: dispatch, w1 and w3, w2, the weights'
    gradients, combine."""

    dispatch: float
    first: float
    second: float
    weights: float
    combine: float

    @property
    def serial(self) -> float:
        """One phase after the other."""
        return self.dispatch + self.products + self.combine

    @property
    def products(self) -> float:
        """All products."""
        return self.first + self.second + self.weights


@dataclass(frozen=True)
class Task:
    """One bar of a timeline: what is done for which wave, from `start` to `end` in seconds."""

    what: Resource
    wave: int
    start: float
    end: float


def balance(machine: Machine, rate: str = "nvfp4") -> float:
    """C / B: FLOP that the tensor cores do while one direction of the link carries a byte. `rate`: a field's name."""
    return float(getattr(machine, rate)) / machine.link


def hidden_balance(width: float, dispatch: float, combine: float, own_gpus: bool = False) -> float:
    """The largest C / B, FLOP per byte, at which products of width d hide all traffic: 6 d / bytes of a value.

    Args: dispatch, combine: bits per value. own_gpus: see the module.
    """
    bits = max(dispatch, combine) if own_gpus else dispatch + combine
    return 6 * width / (bits / 8)


def break_even_width(c_over_b: float, dispatch: float, combine: float, own_gpus: bool = False) -> float:
    """The least expert width d that hides all traffic at `c_over_b`, FLOP per byte."""
    return c_over_b / hidden_balance(1.0, dispatch, combine, own_gpus)


def overlap_bound(products: float, traffic: float) -> float:
    """(products + traffic) / max of both: the most that overlapping two durations can gain; at most 2."""
    return (products + traffic) / max(products, traffic)


def rows(setup: Setup, tokens: int) -> float:
    """Rows that the busiest GPU multiplies: imbalance tokens top_k."""
    return setup.imbalance * tokens * setup.top_k


def link_seconds(setup: Setup, tokens: int, bits: float) -> float:
    """Rows from other GPUs, h values of `bits` each, at the link's bandwidth times its efficiency."""
    remote = rows(setup, tokens) * (setup.gpus - 1) / setup.gpus
    return remote * setup.hidden * bits / 8 / (setup.machine.link * setup.link)


def product_seconds(setup: Setup, tokens: int, rate: str) -> float:
    """2 h d FLOP a row at the rate's peak times its efficiency."""
    efficiency = {"nvfp4": setup.fp4, "mxfp8": setup.fp8, "bf16": setup.bf16}[rate]
    flop = 2 * setup.hidden * setup.width * rows(setup, tokens)
    return flop / (getattr(setup.machine, rate) * efficiency)


def forward(setup: Setup, recipe: Recipe) -> Phases:
    """The forward pass of one layer in training."""
    third = product_seconds(setup, setup.tokens, recipe.forward)
    left = 1 - setup.behind
    dispatch, combine = (left * link_seconds(setup, setup.tokens, b) for b in (recipe.dispatch, recipe.combine))
    return Phases(dispatch, 2 * third, third, 0.0, combine)


def backward(setup: Setup, recipe: Recipe) -> Phases:
    """The backward pass: gradients of the output arrive, those of the input leave, both in the backward's format.

    Extra memory traffic of requantization, `extra_bytes` for each of h + d saved values a row, adds to the weights'
    gradients; a quantizer with BF16 input that writes rows and columns of MXFP8 in one pass moves 2 + 2 x 1.03 bytes a
    value, one that writes NVFP4 and later reads it and writes MXFP8 moves 2 + 0.56 + 0.56 + 1.03, 0.1 more.
    """
    third = product_seconds(setup, setup.tokens, recipe.backward)
    wire = (1 - setup.behind) * link_seconds(setup, setup.tokens, _EIGHT if recipe.backward == "mxfp8" else BF16_BITS)
    extra = 0.0
    if recipe.forward == "nvfp4":
        values = rows(setup, setup.tokens) * (setup.hidden + setup.width)
        extra = values * setup.extra_bytes / (setup.machine.memory * setup.memory)
    return Phases(wire, third, 2 * third, 3 * third + extra, wire)


def timeline(phases: Phases, waves: int, latency: float, own_gpus: bool) -> list[Task]:
    """The waves' tasks, event by event; see the module for the order. Empty tasks are left out.

    Raises: ValueError if `waves` is below 1.
    """
    if waves < 1:
        raise ValueError(f"waves={waves}: use 1 or more")
    send, first, second, back = (x / waves for x in (phases.dispatch, phases.first, phases.second, phases.combine))
    cores, tasks = 0.0, list[Task]()
    link = 0.0 if own_gpus else phases.dispatch  # of combines: a shared direction carries all dispatches before
    for wave in range(waves):
        arrived = (wave + 1) * send + latency
        begun = max(cores, arrived)
        cores = begun + first + second
        leaves = max(link, cores)
        link = leaves + back
        tasks.append(Task("dispatch", wave, wave * send, (wave + 1) * send))
        tasks.append(Task("w1 and w3", wave, begun, begun + first))
        tasks.append(Task("w2", wave, begun + first, cores))
        tasks.append(Task("combine", wave, leaves, link))
    if phases.weights:
        tasks.append(Task("weight gradients", waves - 1, cores, cores + phases.weights))
    return tasks


def makespan(phases: Phases, waves: int, latency: float, own_gpus: bool) -> float:
    """Seconds until the last combine has arrived and the last product is done."""
    tasks = timeline(phases, waves, latency, own_gpus)
    return max(task.end + latency * (task.what == "combine") for task in tasks)
