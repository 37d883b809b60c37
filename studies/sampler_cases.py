"""Measures for `sampler`: a model is trained, and its sampler's distributions are held against its training forward's.

Both read the same texts. The training forward sees them whole; the sampler reads a prompt and then token after token
from its cache. Over the places after the prompt, with p the sampler's and q the trainer's probabilities of all tokens:

    kl         mean of sum p (log p - log q), nats per token
    apart      mean of |log p - log q| of the text's own token, as an importance ratio of RL would see it
    equal      share of places where all V log-probabilities have the same bits
    rerouted   share of (place, layer) whose experts are not the same

Shapes: B texts, S tokens, P of them the prompt, V vocabulary.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from numerics import ops
from reference.config import TrainConfig
from reference.decode import Frozen
from reference.expert import Draw
from reference.load import load_run
from reference.model import Transformer
from reference.moe import MoE
from reference.presets import preset
from reference.router import choose
from reference.sample import log_probabilities
from reference.sizes import ModelConfig
from reference.tasks import TASKS
from reference.train import train

PROMPT = 16
_ITEMS = 400  # of each task, about 90,000 bytes


@dataclass(frozen=True)
class Pair:
    """A trainer and a sampler of the same weights: their recipes, and whether both have parity. together: whether the
    sampler reads the texts in one batch or each alone."""

    name: str
    trainer: str
    sampler: str
    parity: bool = False
    together: bool = True


PAIRS = (
    Pair("parity", "fourbit", "fourbit", True),
    Pair("library sums", "fourbit", "fourbit"),
    Pair("library sums, bf16", "bf16", "bf16"),
    Pair("outer per tensor in both", "fourbit_tensor_outer", "fourbit_tensor_outer"),
    Pair("outer per tensor in both, alone", "fourbit_tensor_outer", "fourbit_tensor_outer", together=False),
    Pair("outer per tensor in the sampler", "fourbit", "fourbit_tensor_outer"),
    Pair("sampler in mxfp8", "fourbit", "mxfp8"),
    Pair("sampler in bf16", "fourbit", "bf16"),
)


def corpus() -> bytes:
    """Solved items of the small tasks, one after the other."""
    made = []
    for number in range(_ITEMS):
        for task in TASKS:
            item = task.item(0, number)
            made.append(item.prompt + item.choices[item.answer] + b"\n")
    return b"".join(made)


def trained(seed: int, steps: int, sizes: dict[str, Any], folder: Path) -> Transformer:
    """A model trained under `fourbit` for `steps` steps."""
    (folder / "text.txt").write_bytes(corpus())
    run = TrainConfig(
        *(folder / "run", "fourbit", str(folder / "text.txt")),
        **{"steps": steps, "warmup": min(20, steps // 4), "eval_every": steps, "eval_sequences": 4},
        **{"checkpoint_every": steps, "monitor_every": 0, "seed": seed, "progress": "hide"},
        model=ModelConfig(**sizes),
    )
    train(run, ops)
    return load_run(run.out).model


def texts(count: int, length: int) -> list[list[int]]:
    """`count` texts of `length` tokens from the end of the corpus, where it is held out."""
    whole = corpus()
    held = whole[-len(whole) // 10 :]
    return [list(held[i * 97 : i * 97 + length]) for i in range(count)]


def under(model: Transformer, recipe: str, parity: bool) -> Transformer:
    """The same weights under a recipe."""
    other = Transformer(model.config, preset(recipe), ops, 0)
    other.load_state_dict(model.state_dict())
    other.signs = model.signs
    if parity:
        other.keep_parity()
    return other.requires_grad_(False).eval()


def trainers(model: Transformer, tokens: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B, S - P, V) and experts (B, S - P, layers, K) of the training forward."""
    found: list[Tensor] = []

    def note(moe: MoE, args: tuple[Any, ...]) -> None:
        # the layer's own choice once more: the same operation on the same tensor
        choice = choose(args[0].flatten(0, 1), moe.router, moe.top_k, moe.balancer, moe.parity)
        found.append(choice.experts.unflatten(0, args[0].shape[:2]))

    layers = [part for part in model.modules() if isinstance(part, MoE)]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        logits_BSV, _ = model.logits(torch.tensor(tokens), Draw(0, -1, 0))
    finally:
        for hook in hooks:
            hook.remove()
    return log_probabilities(logits_BSV, model.parity)[:, PROMPT - 1 : -1], torch.stack(found, 2)[:, PROMPT - 1 : -1]


def samplers(model: Transformer, tokens: list[list[int]]) -> tuple[Tensor, Tensor]:
    """The same of a sampler that reads the texts together, token after token behind their prompts."""
    frozen = Frozen(model)
    length = len(tokens[0])
    cache = frozen.cache(len(tokens), length)
    logs, experts = [], []
    for piece in _pieces(length):
        logits_BV, chosen = frozen.feed(cache, [text[piece] for text in tokens])
        logs.append(log_probabilities(logits_BV, model.parity))
        experts.append(chosen.unflatten(1, (len(tokens), -1))[:, :, -1].transpose(0, 1))
    return torch.stack(logs, 1), torch.stack(experts, 1)


def _pieces(length: int) -> Iterator[slice]:
    yield slice(0, PROMPT)
    for place in range(PROMPT, length - 1):
        yield slice(place, place + 1)


@torch.no_grad()
def mismatch(seed: int, steps: int, count: int, sizes: dict[str, Any]) -> pd.DataFrame:
    """One row for each of `PAIRS`: see the module."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        model = trained(seed, steps, sizes, Path(folder))
    tokens = texts(count, model.config.sequence)
    own_BS = torch.tensor(tokens)[:, PROMPT:, None]
    for pair in PAIRS:
        q_BSV, wanted = trainers(under(model, pair.trainer, pair.parity), tokens)
        sampler = under(model, pair.sampler, pair.parity)
        if pair.together:
            p_BSV, chosen = samplers(sampler, tokens)
        else:
            p_BSV, chosen = (torch.cat(part) for part in zip(*(samplers(sampler, [t]) for t in tokens), strict=True))
        p, q = p_BSV.to(torch.float64), q_BSV.to(torch.float64)
        rows.append(
            {"seed": seed, "steps": steps, "pair": pair.name, "places": q[..., 0].numel()}
            | {"kl": float((p.exp() * (p - q)).sum(-1).mean())}
            | {"apart": float((p - q).gather(-1, own_BS).abs().mean())}
            | {"largest": float((p - q).gather(-1, own_BS).abs().max())}
            | {"equal": float((p_BSV == q_BSV).all(-1).float().mean())}
            | {"rerouted": float((chosen != wanted).any(-1).float().mean())}
            | {"loss": float(-q.gather(-1, own_BS).mean())}
        )
    return pd.DataFrame(rows)
