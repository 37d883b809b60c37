"""The optimizer over FP32 master weights: AdamW, or Muon for the matrices inside the layers and AdamW for the rest.

AdamW (Loshchilov and Hutter, arXiv 1711.05101), decay only on weights of two or more dimensions; with moments in FP32
it is torch's, which takes several tensors at once on a GPU. Muon (see `muon`) moves the weights of linear layers and
experts inside the layers; embeddings, head, router, norms and convolutions stay with AdamW. `moments` says how both
keep their state between steps (see `moments`); weights of fewer than two dimensions keep it in FP32.

State of a weight: "step", a float32 scalar that counts its updates, and "exp_avg" and "exp_avg_sq" or, under Muon,
"momentum"; a moment in blocks is "<moment>.codes", "<moment>.scales" and "<moment>.outer". A run's random words depend
on (seed, step) and the weight's place in the groups, so this state is all that a resumed run needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as adamw_step

from .config import TrainConfig
from .learning_rate import learning_rate as learning_rate
from .moments import MOMENTS, decode_moment, encode_moment, stored_shapes, words
from .muon import move, nesterov, parts

_EPS = 1e-8
_ENTRIES = {"adamw": ("exp_avg", "exp_avg_sq"), "muon": ("momentum",)}
_TOGETHER = 1 << 27  # values that Muon moves together: 3 GB of temporaries, for hundreds of launches fewer
_MATRICES = ("weight", "w13", "w2")  # last words of the names of linear layers' and experts' weights

Layout = dict[str, tuple[torch.Size, torch.dtype]]


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Make the optimizer that `config` names over the FP32 master weights of `model`."""
    if (config.optimizer, config.moments) == ("adamw", "fp32"):
        return adamw(model, config)
    return MomentOptimizer(model, config)


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Make AdamW over the FP32 master weights; weights of two or more dimensions decay."""
    kinds: dict[tuple[bool, bool], list[tuple[str, nn.Parameter]]] = {(True, False): [], (False, False): []}
    for name, weight in _masters(model):  # a GPU takes a group at once, which sharded and whole weights cannot share
        kinds.setdefault((weight.ndim >= 2, hasattr(weight, "device_mesh")), []).append((name, weight))
    groups = [
        {"params": named, "weight_decay": config.weight_decay if matrix else 0.0}
        for (matrix, _), named in kinds.items()
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.lr, betas=betas)


class MomentOptimizer(torch.optim.Optimizer):
    """Muon or AdamW by group, with moments in the format of the group.

    Args: model: its parameters are float32 masters; their names decide what Muon moves. config: `optimizer`, `moments`,
        `lr`, `beta1`, `beta2`, `muon_momentum`, `weight_decay` and `seed`.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self._seed = config.seed
        kinds: dict[tuple[str, bool], list[tuple[str, nn.Parameter]]] = {}
        for name, weight in _masters(model):
            kind = "muon" if config.optimizer == "muon" and moved_by_muon(name, weight) else "adamw"
            kinds.setdefault((kind, weight.ndim >= 2), []).append((name, weight))
        groups = [
            {
                "params": named,
                "kind": kind,
                "moments": config.moments if matrix else "fp32",
                "weight_decay": config.weight_decay if matrix else 0.0,
            }
            for (kind, matrix), named in kinds.items()
        ]
        defaults = {"lr": config.lr, "betas": (config.beta1, config.beta2), "momentum": config.muon_momentum}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step with the gradients that are there; a weight without one stays as it is."""
        loss = closure() if closure is not None else None
        number = 0
        for group in self.param_groups:
            numbered = enumerate(zip(group["param_names"], group["params"], strict=True), start=number)
            ready = [(i, name, weight) for i, (name, weight) in numbered if weight.grad is not None]
            number += len(group["params"])
            if group["kind"] == "muon":
                self._muon(group, ready)
            elif group["moments"] == "fp32":
                self._adamw(group, ready)  # all at once: a GPU takes them together
            else:
                for one in ready:
                    self._adamw(group, [one])  # one at a time: one weight's moments are decoded
        return loss

    def _muon(self, group: dict[str, Any], ready: list[tuple[int, str, Tensor]]) -> None:
        """Matrices wait until there are enough of them: a GPU takes those of one shape together."""
        weights: list[Tensor] = []
        directions: list[Tensor] = []
        for number, name, weight in ready:
            step, (moment,) = self._load(group, weight)
            step += 1
            rows = parts(name, weight.shape)
            directions += nesterov(weight.grad, moment, group["momentum"]).split(rows, dim=-2)
            weights += weight.split(rows, dim=-2)
            self._store(group, number, weight, step, [moment])
            if number == ready[-1][0] or sum(u.numel() for u in directions) >= _TOGETHER:
                move(weights, directions, group["lr"], group["weight_decay"])
                weights, directions = [], []

    def _adamw(self, group: dict[str, Any], ready: list[tuple[int, str, Tensor]]) -> None:
        if not ready:
            return
        weights = [weight for *_, weight in ready]
        steps, moments = zip(*(self._load(group, weight) for weight in weights), strict=True)
        beta1, beta2 = group["betas"]
        adamw_step(
            weights,
            [weight.grad for weight in weights],
            [first for first, _ in moments],
            [second for _, second in moments],
            [],
            list(steps),
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=_EPS,
            maximize=False,
        )
        for (number, _, weight), step, updated in zip(ready, steps, moments, strict=True):
            self._store(group, number, weight, step, updated)

    def _load(self, group: dict[str, Any], weight: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The weight's count of steps, and its moments in float32; zeros before the first step."""
        state, entries = self.state[weight], _ENTRIES[group["kind"]]
        if not state:
            state["step"] = torch.tensor(0.0)
            return state["step"], [torch.zeros_like(weight) for _ in entries]
        formats = _formats(group)
        return state["step"], [
            decode_moment(
                {key.removeprefix(entry).removeprefix("."): t for key, t in state.items() if _belongs(key, entry)},
                fmt,
                weight.shape,
            )
            for entry, fmt in zip(entries, formats, strict=True)
        ]

    def _store(self, group: dict[str, Any], number: int, weight: Tensor, step: Tensor, moments: Any) -> None:
        state = self.state[weight]
        for i, (entry, fmt, x) in enumerate(zip(_ENTRIES[group["kind"]], _formats(group), moments, strict=True)):
            random = words(self._seed, int(step), number, i)
            for part, tensor in encode_moment(x, fmt, random, positive=entry == "exp_avg_sq").items():
                state[_key(entry, part)] = tensor


def moved_by_muon(name: str, weight: Tensor) -> bool:
    """Whether a parameter is a matrix, or several, of a linear layer or of experts inside the layers."""
    path = name.split(".")
    return weight.ndim >= 2 and path[0] == "layers" and path[-1] in _MATRICES and "router" not in path


def restore_state(optimizer: torch.optim.Optimizer, states: dict[str, dict[str, Tensor]]) -> None:
    """Put back the state of every parameter, by name; empty for one that has had no gradient yet.

    Args: optimizer: made from named parameters.

    Raises:
        ValueError: entries, shapes or dtypes are not those that this optimizer keeps; nothing was changed.
    """
    named = {
        name: (group, weight)
        for group in optimizer.param_groups
        for name, weight in zip(group["param_names"], group["params"], strict=True)
    }
    odd = sorted(states.keys() ^ named.keys())
    for name in named.keys() & states.keys():
        group, weight = named[name]
        found = {key: (tensor.shape, tensor.dtype) for key, tensor in states[name].items()}
        wanted = _layout(group, weight) if found else {}
        odd += [f"{name}/{key}" for key in sorted(found.keys() | wanted.keys()) if found.get(key) != wanted.get(key)]
    if odd:
        raise ValueError(
            f"the state of the optimizer does not fit in {_first(odd)}: it is of another optimizer, of other moments "
            "or of another model; start in another run folder"
        )
    for name, state in states.items():
        weight = named[name][1]
        # torch counts steps on the CPU
        moved = {key: tensor if key == "step" else tensor.to(weight.device) for key, tensor in state.items()}
        optimizer.state[weight] = moved


def _layout(group: dict[str, Any], weight: Tensor) -> Layout:
    """Shape and dtype of every entry of a weight's state."""
    found: Layout = {"step": (torch.Size(), torch.float32)}
    for entry, fmt in zip(_ENTRIES[group.get("kind", "adamw")], _formats(group), strict=True):
        found |= {_key(entry, part): kind for part, kind in stored_shapes(weight.shape, fmt).items()}
    return found


def _formats(group: dict[str, Any]) -> tuple[Any, ...]:
    """Formats of the entries of a group; torch's own AdamW keeps float32."""
    chosen = MOMENTS[group.get("moments", "fp32")]
    return (chosen.first, chosen.second)[: len(_ENTRIES[group.get("kind", "adamw")])]


def _key(entry: str, part: str) -> str:
    return f"{entry}.{part}" if part else entry


def _belongs(key: str, entry: str) -> bool:
    return key == entry or key.startswith(f"{entry}.")


def _first(names: list[str], count: int = 3) -> str:
    rest = len(names) - count
    return ", ".join(sorted(names)[:count]) + (f" and {rest} more" if rest > 0 else "")


def _masters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    named = list(model.named_parameters())
    assert all(weight.dtype == torch.float32 for _, weight in named), "master weights are FP32"
    return named
