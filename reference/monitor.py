"""What quantizing does to a layer, measured while it trains, without changing a bit of the run.

An `Observer` that a model holds during a forward is shown every operand of the experts beside what it was quantized
from, in that forward and in its backward; the trainer shows it the first grain of a step. For each layer and role, over
the values x that were quantized and what their codes decode to, x_q:

    rel_mse     sum (x_q - x)^2 / sum x^2; 0 of a tensor of zeros
    flush       share of the non-zero x whose x_q is zero
    saturation  share of the non-zero x with |x| > s max > 0: beyond the largest value of the element format under the
                stored scales s, by more than FP32's rounding of them (2^-20). Where an E4M3 scale rounds down this is
                the largest value of many a block, clipped by at most 1/17 of itself where the scale is normal: a few
                percent are ordinary under NVFP4, none under round-up E8M0

For x after a Hadamard transform if it has one. Roles: `input`, `hidden`, `weight13`, `weight2` of the forward;
`grad_output`, `grad_gate_up` along features and along tokens, `grad_input`, and the recast `saved_` operands of the
backward. BF16 operands are left out. `output` has the rel_mse of what the layer's routed experts return against the
same experts in BF16 on the same input, the combine's error included. A shared expert under the recipe has roles of its
own, `shared_input` and so on; its weights' oscillation is not followed.

Oscillation of a layer's weights w (TetraJet-v2, arXiv 2510.27527: R = sum |dQ| / sum |dw| of each element over a window
of consecutive steps, Q(w) the decoded operand, where 16 or more counts as oscillating):

    oscillation  sum |Q(w_t) - Q(w_t-1)| / sum |w_t - w_t-1| over elements and steps: near 1 where codes follow weights
    oscillating  share of the elements that moved whose own R is 16 or more
    transitions  steps t that were summed, at most WINDOW; one code's step in so few of them can reach 16 by itself

The window ends at an observed step and never spans a checkpoint, so that a resumed run measures the same. It holds four
float32 tensors of the size of the experts' weights. Sums run in float64, differences in float32.

Shapes as in `expert`: T tokens, D, F widths, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from numerics import BlockTensor, hadamard
from numerics.ops import Recast

from .expert import Role, Routing, Setting

WINDOW = 8  # transitions of the weights before an observed step
OSCILLATING = 16.0

_SLACK = 2.0**-20

_CAST = {
    Role.X: "input",
    Role.H: "hidden",
    Role.W13: "weight13",
    Role.W2: "weight2",
    Role.DY: "grad_output",
    Role.DZ: "grad_gate_up",
    Role.DX: "grad_input",
}
_RECAST = {
    Role.X: "saved_input",
    Role.H: "saved_hidden",
    Role.W13: "saved_weight13",
    Role.W2: "saved_weight2",
    Role.DY_TOKENS: "grad_output_tokens",
    Role.DZ_TOKENS: "grad_gate_up_tokens",
}
ROLES = (*_CAST.values(), *_RECAST.values())
MEASURES = ("rel_mse", "flush", "saturation")


Part = Literal["measured", "followed"] | None


def due(step: int, every: int, steps: int) -> Part:
    """What a step from 1 to `steps` is to a monitor of interval `every` (0: none): "measured" is the first one and each
    multiple of `every`; "followed" are those whose weights alone are needed, up to WINDOW before a measured one."""
    if every == 0:
        return None
    if step == 1 or step % every == 0:
        return "measured"
    after = _next_measured(step, every)
    return "followed" if after - step <= WINDOW and after <= steps else None


def _next_measured(step: int, every: int) -> int:
    return (step // every + 1) * every


def measure(x: Tensor, q: BlockTensor) -> Tensor:
    """(rel_mse, flush, saturation) of `q` against the values `x`, of its shape, that it was quantized from: float64
    (3,) on their device."""
    x, x_q = x.detach().to(torch.float32), q.dequantize()
    limit = q.derived(codes=torch.full_like(q.codes, q.fmt.element.max_code)).dequantize().abs()
    nonzero = x != 0
    count = nonzero.sum().clamp(min=1)
    flush = (nonzero & (x_q == 0)).sum().double() / count
    saturation = ((x.abs() > limit * (1 + _SLACK)) & (limit > 0)).sum().double() / count
    return torch.stack([relative_mse(x, x_q), flush, saturation])


def relative_mse(x: Tensor, x_q: Tensor) -> Tensor:
    """sum (x_q - x)^2 / sum x^2, float64 scalar; 0 if both are zeros."""
    x = x.to(torch.float32)
    energy = torch.linalg.vector_norm(x, dtype=torch.float64)
    error = torch.linalg.vector_norm(x_q.to(torch.float32) - x, dtype=torch.float64)
    return torch.where(error == 0, 0.0, error / energy).square()


@dataclass
class _Followed:
    """A weight at the step before, and what it and its operand have moved so far; element by element, float32."""

    cast: Any
    w: Tensor
    q: Tensor
    moved: Tensor | None = None
    moved_q: Tensor | None = None
    transitions: int = 0

    def step(self, w: Tensor, q: Tensor) -> None:
        if self.moved is None or self.moved_q is None:
            self.moved, self.moved_q = torch.zeros_like(w), torch.zeros_like(q)
        self.moved += self.w.sub_(w).abs_()
        self.moved_q += self.q.sub_(q).abs_()
        self.w.copy_(w)
        self.q = q
        self.transitions += 1


class Observer:
    """Looks on while experts compute; `expert.Observer`. One of a run, used for one step after the other."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, Role], _Followed] = {}
        self._measured: dict[str, Tensor] = {}
        self._measures = False

    def begin(self, measures: bool) -> None:
        """Before a forward: whether operands are measured in it and in its backward, or weights followed alone."""
        self._measures = measures
        self._measured = {}

    def end(self, step: int, every: int) -> dict[str, float]:
        """After a measured step of a run with interval `every`: its `numbers`, and the end of the window, at which the
        next one begins if that is due already."""
        found = self.numbers()
        if _next_measured(step, every) - step > WINDOW:
            self.forget()
        for followed in self._weights.values():
            followed.moved = followed.moved_q = None
            followed.transitions = 0
        return found

    def forget(self) -> None:
        """The next step shown begins a window of the weights."""
        self._weights = {}

    def numbers(self) -> dict[str, float]:
        """What was measured since `begin`: `layer.role.measure` -> number; with the oscillation over the window so
        far. A number that is not finite is left out: what made it stops the run."""
        found = dict(self._measured)
        for layer in sorted({layer for (layer, _), followed in self._weights.items() if followed.transitions}):
            found |= self._oscillation(layer)
        if not found:
            return {}
        values = torch.cat([value.reshape(-1).double() for value in found.values()]).tolist()  # one wait for a device
        names = [name for key, value in found.items() for name in _names(key, value.numel())]
        return {name: value for name, value in zip(names, values, strict=True) if math.isfinite(value)}

    def _oscillation(self, layer: int) -> dict[str, Tensor]:
        pairs = [f for (at, _), f in self._weights.items() if at == layer and f.moved is not None]
        moved = torch.cat([f.moved.flatten() for f in pairs if f.moved is not None])
        moved_q = torch.cat([f.moved_q.flatten() for f in pairs if f.moved_q is not None])
        count = (moved > 0).sum().clamp(min=1)
        total = moved.sum(dtype=torch.float64)
        ratio = torch.where(total > 0, moved_q.sum(dtype=torch.float64) / total, 0.0)
        share = ((moved_q >= OSCILLATING * moved) & (moved > 0)).sum().double() / count
        steps = torch.tensor(float(pairs[0].transitions), dtype=torch.float64, device=moved.device)
        return {f"{layer}.weights": torch.stack([ratio, share, steps])}

    # What `expert` shows.

    def weight(self, setting: Setting, role: Role, w: Tensor, q: Any) -> None:
        """A master weight (E, .., ..) float32 and its operand."""
        self.cast(setting, role, w, q)
        if setting.slot != 0:
            return
        key, cast, w = (setting.layer, role), setting.recipe.weight, w.detach()
        if not isinstance(q, BlockTensor):  # in BF16 now, after a switch: its window has no end that is observed
            self._weights.pop(key, None)
            return
        before = self._weights.get(key)
        if before is None or before.cast != cast:  # in another format operands move without their weights
            self._weights[key] = _Followed(cast, w.clone(), q.dequantize())
        else:
            before.step(w, q.dequantize())

    def cast(self, setting: Setting, role: Role, x: Tensor, q: Any, signs: Tensor | None = None) -> None:
        """Values and the operand that they were cast to, after a Hadamard transform along features with `signs`."""
        if self._measures and isinstance(q, BlockTensor):
            x = x if signs is None else hadamard(x, len(signs), signs, -1)
            self._measured[_key(setting, _CAST[role])] = measure(x, q)

    def recast(
        self,
        setting: Setting,
        role: Role,
        source: Any,
        recast: Recast,
        q: Any,
        groups: Any = None,
        rows: Tensor | None = None,
        signs: Tensor | None = None,
    ) -> None:
        """What `ops.requantize_transpose` was given and made: `source` decoded, times `rows`, transformed, is `q`."""
        if not self._measures or not isinstance(q, BlockTensor):
            return
        if not isinstance(source, BlockTensor):
            x = source.to(torch.float32)
        elif recast.outer == "gradient" and rows is None and signs is None:
            x = source.values()  # the outer scale is the gradient's
        else:
            x = source.dequantize()
        x = x if rows is None else x * rows
        if signs is not None:
            x = hadamard(x, len(signs), signs, -2) if groups is None else hadamard(x, len(signs), signs, -2, groups)[0]
        self._measured[_key(setting, _RECAST[role])] = measure(x, q)

    def output(
        self, setting: Setting, routing: Routing, x: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, out: Tensor
    ) -> None:
        """What the experts returned, (T, D), for x (T, D) and the weights (T, K) of their rows."""
        if self._measures:
            plain = in_bf16(setting, routing, x, weights, w13, w2)
            self._measured[_key(setting, "output")] = relative_mse(plain, out)


def in_bf16(setting: Setting, routing: Routing, x: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    """The experts' output with every operand and wire in BF16; arguments and result as those of `ExpertMLP`."""
    ops, groups = setting.ops, routing.groups
    cast, wire = ops.Cast(None), ops.Wire(None)
    x, w13, w2 = (ops.quantize_tokens(t, cast) for t in (x, w13, w2))
    h, _ = ops.gate_up_glu(x.index_select(0, routing.tokens), w13, groups, cast, setting.accumulator)
    payload = ops.down_to_wire(h, w2, groups, wire, setting.accumulator)
    out: Tensor = ops.aggregate(payload, routing.slots, weights, wire)[0]
    return out


@contextmanager
def observing(model: nn.Module, observer: Observer | None) -> Iterator[None]:
    """The forward inside, and its backward wherever it runs, are shown to `observer`."""
    model.observer = observer
    try:
        yield
    finally:
        model.observer = None


def _key(setting: Setting, role: str) -> str:
    return f"{setting.layer}.{'shared_' if setting.slot else ''}{role}"


def _names(key: str, count: int) -> list[str]:
    """Numbers of a role: the three of an operand or of the weights' window, or an output's one."""
    if key.endswith(".weights"):
        return [f"{key}.{name}" for name in ("oscillation", "oscillating", "transitions")]
    return [f"{key}.{name}" for name in MEASURES[:count]]
