"""What a training run is: every field of the command line, and what each may be."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from numerics import ACCUMULATORS

from .learning_rules import learning_rules
from .model import ModelConfig
from .rank_rules import rank_rules
from .recipe import PASSES

THRESHOLDS = ("raise_error", "raise_output", "raise_flush", "raise_saturation", "raise_loss")
_LARGEST_DEPTH, _LARGEST_SIZE = 10_000, 2**31 - 1


@dataclass(frozen=True)
class TrainConfig:
    """Train a small mixture-of-experts language model on text; the same command in the same folder resumes."""

    out: Path
    """Run folder; made if missing, resumed if it holds this run."""
    preset: str = "fourbit"
    """Recipe of number formats, such as bf16, mxfp8 or fourbit; `fourbit recipes` lists them."""
    data: str | None = None
    """What to train on: a text file, JSON Lines (.jsonl), parquet, a folder of them, a glob, or a folder of tokenized
    shards that `fourbit tokenize` has written; Python's own standard library if left out."""
    tokenizer: Path | None = None
    """Tokenizer file of the library `tokenizers` that makes tokens of the text; bytes if left out, shards have one."""
    end_token: str | None = None
    """Token of that file to end documents with; found by its usual names if left out."""
    text_field: str = "text"
    """Field of JSON Lines, or column of parquet, with the text."""
    order: Literal["random", "epoch"] = "random"
    """Sequences from anywhere in the text, or each window of it once an epoch, in an order of the seed."""
    steps: int = 300
    """Optimizer steps of the whole run."""
    batch: int = 4
    """Sequences a step."""
    grain: int = 4
    """Sequences whose tokens the experts see together; their token blocks and random bits depend on it."""
    micro_batch: int | None = None
    """Sequences that pass through the model together, a multiple of grain; a grain if left out."""
    deterministic: bool = False
    """Exact sums in the experts' products and every grain alone: the same bits for any micro_batch; slower."""
    parity: bool = False
    """Forms of every operation whose bits depend on a token's own sequence alone, exact sums among them, so that what
    `fourbit generate --parity` computes equals this model's training forward; several times slower."""
    products: str | None = None
    """How the experts' products are summed: a name of `numerics.ACCUMULATORS` that takes the recipe's operands, such as
    fp32, or hopper_bf16 with bf16; if left out, library, and exact under deterministic or parity."""
    ops: Literal["emulated", "triton", "blackwell-library"] = "emulated"
    """What computes the experts: the emulation; Triton kernels with the same bits, on a GPU; or these with the
    block-scaled products of torch, on a B200 or B300 (blackwell-library; never run)."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW, or Muon for the matrices inside the layers and AdamW for the rest."""
    moments: Literal["fp32", "bf16", "mxfp8", "nvfp4"] = "fp32"
    """How the optimizer keeps its moments between steps: 8, 4, 2.1 or 1.6 bytes a weight under AdamW."""
    lr: float = 3e-3
    """Peak learning rate."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """After the warm-up: half a cosine to the end, or the peak until a decay in the last `decay_share` of the steps."""
    decay_share: float = 0.2
    """Share of the steps that wsd's decay takes."""
    decay_shape: Literal["sqrt", "linear"] = "sqrt"
    """Of wsd's decay: 1 - sqrt(progress), or a line."""
    warmup: int = 20
    """Steps of linear warm-up; shortened to the steps that there are."""
    min_lr_ratio: float = 0.1
    """Final learning rate as a share of the peak."""
    weight_decay: float = 0.1
    """AdamW's decay, on weights of two or more dimensions."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.95
    """AdamW's decay of the second moment."""
    muon_momentum: float = 0.95
    """Muon's decay of its moment."""
    clip: float = 1.0
    """Largest global norm of the gradient."""
    switch_at: float | None = None
    """Share of the steps after which the experts follow another recipe, such as 0.82; never if left out."""
    switch_to: str = "bf16"
    """The recipe that they follow then."""
    switch_pass: Literal["forward", "backward", "both"] = "both"
    """Which of its operands they take: those of the forward with its wires, those of the backward, or both."""
    layer_presets: dict[int, str] = dataclasses.field(default_factory=dict)
    """Layers, counted from 0, that follow another recipe from the start, such as `4 mxfp8 5 bf16`; the late switch
    takes them along."""
    recompute_glu: bool = False
    """Compute gate and up again in the backward instead of keeping them in BF16: the same bits, less memory."""
    recompute: Literal["none", "layers"] = "none"
    """Compute each layer again in the backward and keep its input alone: the same bits, about a ninth of
    the memory, 40 % more time on a CPU."""
    eval_every: int = 50
    """Steps between held-out evaluations; the last step is always evaluated."""
    eval_sequences: int = 64
    """Held-out sequences per evaluation, the same ones each time."""
    checkpoint_every: int = 100
    """Steps between checkpoints; the last step always has one, and under wsd the last one before the decay."""
    monitor_every: int = 50
    """Steps between observations of what quantizing does to every layer, the first step besides; 0: no monitor."""
    monitor_reference: Path | None = None
    """Folder of a run whose losses this run's are compared with, such as bf16 with the same seed; its own recent losses
    if left out."""
    tensorboard: Path | None = None
    """Folder for TensorBoard, which needs the extra `tensorboard`; none if left out."""
    wandb: str | None = None
    """Project of Weights & Biases, which needs the extra `wandb`; none if left out."""
    raise_error: float | None = None
    """Raise a layer with an operand whose rel_mse is above this; see `fourbit monitor` for what is usual."""
    raise_output: float | None = None
    """Raise a layer whose output has a rel_mse against BF16 experts above this."""
    raise_flush: float | None = None
    """Raise a layer with an operand of which more than this share of the non-zero values becomes zero."""
    raise_saturation: float | None = None
    """Raise a layer with an operand of which more than this share of the values is clipped."""
    raise_loss: float | None = None
    """Raise every layer when the loss deviates by more than this: relative to `monitor_reference`, or without one in
    robust standard deviations of the last 50 losses."""
    raise_to: str = "mxfp8"
    """The recipe that a raised layer follows from the next step to the end."""
    seed: int = 0
    """Decides initial weights, batches and stochastic rounding."""
    init_from: Path | None = None
    """Folder of the library transformers to start from (`fourbit export` writes such): its sizes, its tokenizer, its
    weights as FP32 masters; drawn from the seed if left out."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to train; never chosen for you."""
    threads: int = 1
    """CPU threads; FP32 sums depend on them. More than one pays from a width of several hundred, on an idle machine."""
    ep: int = 1
    """Ranks that share out the experts of a layer; it divides model.experts. Of several ranks, which `torchrun` starts:
    ep * fsdp * dp of them, each with its own grains."""
    fsdp: int = 1
    """Ranks that shard what is not an expert, and its optimizer; under deterministic every rank holds it."""
    dp: int = 1
    """Repeats of these ranks."""
    waves: int = 1
    """Runs of experts in which a rank computes a layer; the next one's rows travel meanwhile. The bits are the same."""
    timeout: float = 300.0
    """Seconds without a word after which a rank counts as dead."""
    activations: Path | None = None
    """Safetensors file for what the experts of the last step read, by layer, as `fourbit validate --activations` takes
    it."""
    progress: Literal["auto", "show", "hide"] = "auto"
    """Progress: auto is a bar on a terminal, else a line after a twentieth of the steps or 50."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    """Dimensions of the model."""

    @property
    def accumulator(self) -> str:
        """Of the experts' products."""
        return self.products or ("exact" if self.deterministic or self.parity else "library")

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return self.ep * self.fsdp * self.dp

    @property
    def decay_steps(self) -> int:
        """Of wsd's decay."""
        return max(1, round(self.decay_share * self.steps))

    @property
    def stable_steps(self) -> int | None:
        """The last step before wsd's decay, from which a run can be lengthened; None under cosine."""
        return self.steps - self.decay_steps if self.schedule == "wsd" else None

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is due after a step."""
        return step in (self.steps, self.stable_steps) or step % self.checkpoint_every == 0

    @property
    def warmup_steps(self) -> int:
        """Of the warm-up: one that is longer than all steps is as long as they leave it."""
        left = self.steps if self.stable_steps is None else max(0, self.stable_steps)
        return self.warmup if self.warmup <= self.steps else left

    @property
    def thresholds(self) -> dict[str, float]:
        """The thresholds that are set, by field."""
        values = {name: getattr(self, name) for name in THRESHOLDS}
        return {name: value for name, value in values.items() if value is not None}


def check(config: TrainConfig) -> None:
    """Check every field of `config` that needs no file.

    Raises:
        ValueError: names the field, its value and what would do.
    """
    for name, good, remedy in _rules(config):
        if not good:
            value = getattr(config, name)
            raise ValueError(f"{name} {str(value) if isinstance(value, Path) else value!r} cannot be used; {remedy}")
    _check_numbers(config.model)
    _check_monitor(config)
    _check_idle(config)
    if config.model.sequence < 1:
        raise ValueError(f"model.sequence {config.model.sequence} cannot be used; use 1 or more")
    if config.model.vocab < 256:
        raise ValueError(f"model.vocab {config.model.vocab} cannot hold every byte; use 256 or more")


def _rules(c: TrainConfig) -> list[tuple[str, bool, str]]:
    """Field, whether its value is good, and what would do; the first that is not good is told."""
    alone = c.deterministic or c.parity
    summing = [name for name in ACCUMULATORS if name != "library" or not alone]
    return [
        ("order", c.order in ("random", "epoch"), "use 'random' or 'epoch'"),
        ("steps", c.steps >= 1, "use 1 or more"),
        ("grain", c.grain >= 1, "use 1 or more"),
        ("batch", c.batch >= 1 and c.batch % max(1, c.grain) == 0, f"use a multiple of grain {c.grain}"),
        ("batch", c.batch <= _LARGEST_SIZE, f"use at most {_LARGEST_SIZE}"),  # numpy refuses more in words of its own
        (
            "micro_batch",
            c.micro_batch is None
            or (c.micro_batch >= 1 and c.micro_batch % max(1, c.grain) == 0 == c.batch % c.micro_batch),
            f"use a multiple of grain {c.grain} that divides batch {c.batch}",
        ),
        (
            "products",
            c.products in (None, *summing),
            f"use one of {', '.join(summing)}" + "; library depends on what passes together" * alone,
        ),
        *learning_rules(c),
        *rank_rules(c),
        ("eval_every", c.eval_every >= 1, "use 1 or more"),
        (
            "eval_sequences",
            c.eval_sequences >= 1 and c.eval_sequences % max(1, c.grain) == 0,
            f"use a multiple of grain {c.grain}",
        ),
        ("recompute", c.recompute in ("none", "layers"), "use 'none' or 'layers'"),
        ("checkpoint_every", c.checkpoint_every >= 1, "use 1 or more"),
        ("switch_at", c.switch_at is None or 0 < c.switch_at < 1, "use a share of the steps between 0 and 1"),
        ("switch_pass", c.switch_pass in PASSES, f"use one of {', '.join(PASSES)}"),
        ("monitor_every", c.monitor_every >= 0, "use 1 or more, or 0 for no monitor"),
        *((name, 0 < value < math.inf, "use a positive number") for name, value in c.thresholds.items()),
        ("seed", 0 <= c.seed < 2**32, "use 0 to 4294967295"),
        ("threads", 1 <= c.threads <= 1024, "use 1 to 1024"),
        ("device", c.device in ("cpu", "cuda"), "use 'cpu' or 'cuda'"),
        ("device", c.device != "cuda" or torch.cuda.is_available(), "this torch sees no CUDA device; use 'cpu'"),
        ("activations", can_be_file(c.activations), "name a file in a folder that exists"),
        ("progress", c.progress in ("auto", "show", "hide"), "use 'auto', 'show' or 'hide'"),
    ]


def _check_numbers(model: ModelConfig) -> None:
    """Raises ValueError for numbers of the model's sizes that are not finite, or too large to begin with."""
    for name, value in dataclasses.asdict(model).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"model.{name} {value} cannot be used; use a finite number")
        # before anything is made for each of them
        most = _LARGEST_DEPTH if name == "depth" else _LARGEST_SIZE
        if isinstance(value, int) and value > most:
            raise ValueError(f"model.{name} {value} cannot be used; use at most {most}")


def _check_monitor(c: TrainConfig) -> None:
    """Raises ValueError for a field that means nothing without the monitor, which is off."""
    needs = dict(c.thresholds) | (
        {} if c.monitor_reference is None else {"monitor_reference": str(c.monitor_reference)}
    )
    for name, value in needs.items():
        if not c.monitor_every:
            raise ValueError(
                f"{name} {value!r} needs the monitor, which monitor_every 0 switches off; use 1 or more, such as 50"
            )


def _check_idle(c: TrainConfig) -> None:
    """Raises ValueError for a field that was set, but means nothing without another one."""
    default = {f.name: f.default for f in dataclasses.fields(TrainConfig)}
    for name, needs, there in (
        ("full_every", "model.window", c.model.window is not None),
        ("bias_speed", "model.router sigmoid", c.model.router == "sigmoid"),
        ("balance", "model.router softmax", c.model.router == "softmax"),
        ("dense_dim", "model.dense_layers", c.model.dense_layers != 0),
    ):
        value = getattr(c.model, name)
        if not there and value != getattr(ModelConfig, name):
            raise ValueError(f"model.{name} {value!r} does nothing alone; give {needs}, or leave it out")
    for names, needs, there in (
        (("switch_to", "switch_pass"), "switch_at, such as 0.82", c.switch_at is not None),
        (("muon_momentum",), "optimizer muon", c.optimizer == "muon"),
        (("decay_share", "decay_shape"), "schedule wsd", c.schedule == "wsd"),
        (("raise_to",), "a threshold, such as raise_error or raise_loss", bool(c.thresholds)),
    ):
        for name in names:
            if not there and getattr(c, name) != default[name]:
                raise ValueError(f"{name} {getattr(c, name)!r} does nothing alone; give {needs}, or leave it out")


def can_be_file(path: Path | None) -> bool:
    """Whether a file can be written there as far as folders tell; None can."""
    return path is None or (path.parent.is_dir() and not path.is_dir())
