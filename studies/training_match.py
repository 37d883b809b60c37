"""`fourbit validate training`: the same training run on the emulation and on kernels, step by step.

Two questions, each for every step of a run:

    together    both models train side by side from one seed. Under products that have bits of their own ("exact") both
                call the same routine for every sum, the router's gradient too, and every loss and, at the end, every
                parameter must be equal, bit for bit. Under "library" sums differ in their order, and a trajectory has
                no bound: its deviation is told.
    layer by layer   the emulation trains, and every operation of every layer is computed by the kernels as well, from
                the very same inputs: codes, scales, outer scales and all else with defined bits must be equal; sums of
                undefined order must lie in the intervals of `hw.bounds`.

Exit status: 0 if nothing differs that must not, 1 otherwise, 2 without the device.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor

from hw import bounds
from hw.cases import Outputs, parts
from hw.cases_ops import PRODUCTS
from hw.cases_seam import ExpertPath
from hw.choose import operations
from hw.compare import bits_of
from hw.device import DeviceAbsent, describe, resolve
from hw.record import write_record
from hw.seam import seam
from numerics import BlockTensor
from numerics import ops as emulated
from numerics.ops import Cast, Recast, Wire
from reference.config import TrainConfig
from reference.data import load_corpus
from reference.expert import Draw
from reference.model import ModelConfig, Transformer
from reference.optimizer import adamw
from reference.presets import preset
from reference.progress import Progress


@dataclass(frozen=True)
class MatchConfig:
    """Train on the emulation and on kernels, and compare losses, parameters and every operand."""

    device: str = "cuda"
    """Where both train."""
    ops: Literal["triton"] = "triton"
    """The kernels."""
    preset: str = "fourbit"
    """Recipe of number formats."""
    steps: int = 200
    """Optimizer steps."""
    products: Literal["exact", "library"] = "exact"
    """How products are summed: exact, by one routine on both sides, or by each side's library."""
    layers_every: int = 1
    """Steps between those that are compared layer by layer; 0: none."""
    batch: int = 4
    """Sequences a step, one grain."""
    seed: int = 0
    """Of parameters, data and random words."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    """Dimensions of the model."""
    out: Path | None = None
    """JSON file for what was found."""


class Both:
    """The seam's operations, computed twice from the same inputs; returns the emulation's results, counts differences.

    compared, differing: elements by operation; judged: those of sums that were held against an interval.
    """

    Cast, Recast, Wire = Cast, Recast, Wire
    __name__ = "both"

    def __init__(self, kernels: Any) -> None:
        self.active = False
        self.compared: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()
        self.differing: Counter[str] = Counter()
        for name in seam():
            setattr(self, name, self._twice(name, getattr(emulated, name), getattr(kernels, name)))

    def _twice(self, name: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(ours)

        def run(*args: Any, **kwargs: Any) -> Any:
            result = ours(*args, **kwargs)
            if self.active:
                given = signature.bind(*args, **kwargs)
                given.apply_defaults()
                self._compare(name, given.arguments, _outputs(name, result), _outputs(name, theirs(*args, **kwargs)))
            return result

        return run

    def _compare(self, name: str, given: dict[str, Any], expected: Outputs, found: Outputs) -> None:
        summed = name == "router_gradient" or (name in PRODUCTS and given["accumulator"] == "library")
        if summed:
            ends, expected = _bounded(name, given, found)
            found = {part: _on_cpu(x) for part, x in found.items()}
            for part, interval in ends.items():
                x = bounds.value_of(part, found[part], _path(name, given))
                self.judged[name] += int(interval.judged.sum())
                self.differing[name] += int((~interval.holds(x)).sum())
        for part, e in expected.items():
            f = found[part]
            if f.shape != e.shape or f.dtype != e.dtype:
                self.differing[name] += e.numel()
                continue
            same = (bits_of(e) == bits_of(f)) | (torch.isnan(e) & torch.isnan(f) if e.is_floating_point() else False)
            self.compared[name] += e.numel()
            self.differing[name] += int((~same).sum())


_NAMES = {"gate_up_glu": ("h", "gate_up"), "grad_products": ("dx", "dw"), "aggregate": ("out", "decoded")}


def _outputs(name: str, result: Any) -> Outputs:
    """Tensors of what an operation returned, by name."""
    if result is None:
        return {}
    if not isinstance(result, tuple):
        return parts("payload", result)
    return {key: x for part, of in zip(_NAMES[name], result, strict=True) for key, x in parts(part, of).items()}


def _path(name: str, given: dict[str, Any]) -> ExpertPath:
    """What `hw.bounds` asks of a path: the cast of h, or the wire."""
    plain, kept = Cast(None), Recast(None)
    return ExpertPath("", given.get("hidden", plain), plain, kept, kept, _on_cpu(given.get("wire", Wire(None))), ())


def _on_cpu(x: Any) -> Any:
    """Where `hw.bounds` computes."""
    if isinstance(x, BlockTensor):
        outer = None if x.outer is None else x.outer.cpu()
        return x.derived(codes=x.codes.cpu(), scales=x.scales.cpu(), outer=outer)
    if isinstance(x, Wire):
        return dataclasses.replace(x, signs=None if x.signs is None else x.signs.cpu())
    return x.cpu() if isinstance(x, Tensor) else x


def _bounded(name: str, given: dict[str, Any], found: Outputs) -> tuple[dict[str, bounds.Interval], Outputs]:
    renamed = {"w13": "w", "w2": "w", "h": "x"}
    inputs = {renamed.get(key, key): _on_cpu(value) for key, value in given.items()}
    found = {key: _on_cpu(value) for key, value in found.items()}
    if name == "router_gradient":
        found = {"d_weights": found["payload"]}
        ends, follows = bounds.judged(name, _path(name, given), inputs, found)
        return {"payload": ends["d_weights"]}, follows
    return bounds.judged(name, _path(name, given), inputs, found)


class _Model:
    """A model and its steps."""

    def __init__(self, config: MatchConfig, ops: Any) -> None:
        self.config, self.taken = config, 0
        model = Transformer(config.model, preset(config.preset), ops, config.seed, config.products)
        self.model = model.to(config.device)
        run = TrainConfig(Path(), config.preset, steps=config.steps, batch=config.batch, model=config.model)
        self.optimizer = adamw(self.model, run)

    def step(self, tokens: Tensor) -> float:
        """Take one; the loss, nats per token."""
        self.taken += 1
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.model(tokens[:, :-1], tokens[:, 1:], Draw(self.config.seed, self.taken, 0))
        losses.total.backward()
        self.optimizer.step()
        return float(losses.ce.detach())


def compare(config: MatchConfig) -> dict[str, Any]:
    """Train; what was found. Raises: ValueError for steps or an interval that cannot be; DeviceAbsent."""
    if config.steps < 1 or config.layers_every < 0:
        raise ValueError(f"steps={config.steps}, layers_every={config.layers_every}: use 1 or more, 0 or more")
    kernels = operations(config.ops, config.device)
    both = Both(kernels)
    if config.products == "exact":
        kernels = SimpleNamespace(**vars(kernels) | {"router_gradient": emulated.router_gradient})
    models = [_Model(config, both), _Model(config, kernels)]
    text = load_corpus(None).train
    generator = torch.Generator().manual_seed(config.seed)
    losses: list[tuple[float, float]] = []
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA's products are first used
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with Progress(config.steps, "steps") as progress:
            for step in range(config.steps):
                both.active = config.layers_every > 0 and step % config.layers_every == 0
                starts = torch.randint(len(text) - config.model.sequence - 1, (config.batch,), generator=generator)
                rows = [text[s : s + config.model.sequence + 1] for s in starts.tolist()]
                tokens = torch.from_numpy(np.stack(rows).astype(np.int64)).to(config.device)
                first, second = (model.step(tokens) for model in models)
                losses.append((first, second))
                progress.advance()
    finally:
        torch.use_deterministic_algorithms(before)
    pairs = zip(models[0].model.parameters(), models[1].model.parameters(), strict=True)
    moved = sum(int((bits_of(a.detach()) != bits_of(b.detach())).sum()) for a, b in pairs)
    cases = [
        {"operation": name, "compared": both.compared[name], "judged": both.judged[name], "differing": n}
        for name in seam()
        if (n := both.differing[name]) or both.compared[name] or both.judged[name]
    ]
    unequal = sum(a != b for a, b in losses)
    return {
        "losses": losses,
        "unequal_losses": unequal,
        "largest_difference": max(abs(a - b) for a, b in losses),
        "parameters": sum(p.numel() for p in models[0].model.parameters()),
        "unequal_parameters": moved,
        "cases": cases,
    }


def report(config: MatchConfig, found: dict[str, Any]) -> tuple[str, bool]:
    """The result as text, and whether all holds that must."""
    lines = [f"{'operation':<22} {'equal bits':>14} {'in an interval':>14} {'differing':>10}"]
    for case in found["cases"]:
        lines.append("{operation:<22} {compared:>14} {judged:>14} {differing:>10}".format(**case))
    layers = all(case["differing"] == 0 for case in found["cases"])
    together = found["unequal_losses"] == 0 and found["unequal_parameters"] == 0
    holds = layers and (together or config.products != "exact")
    lines.append(
        f"{'passed' if holds else 'FAILED'}: {config.steps} steps of {config.preset}, products {config.products}: "
        f"{found['unequal_losses']} losses differ (by up to {found['largest_difference']:.3g} nats), "
        f"{found['unequal_parameters']} of {found['parameters']} parameters differ at the end"
    )
    return "\n".join(lines), holds


def main(argv: list[str]) -> int:
    """Run `fourbit validate training`; the exit status of the module's docstring."""
    config = tyro.cli(MatchConfig, args=argv, prog="fourbit validate training")
    try:
        device = resolve(config.device)
    except DeviceAbsent as error:
        print(f"not run: {error}", file=sys.stderr)
        return 2
    found = compare(config)
    text, holds = report(config, found)
    print(text)
    asked = SimpleNamespace(**{k: str(v) for k, v in dataclasses.asdict(config).items() if k != "out"})
    status = {"status": "passed" if holds else "failed", "device": describe(device)}
    write_record(config.out, vars(asked), status | found)
    return 0 if holds else 1
