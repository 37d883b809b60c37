"""A trained model out of its run folder, as it was evaluated: weights, recipes, and what its tokens are.

config.json names the model, the newest checkpoint has its weights. Layers follow what they followed in the checkpoint's
step: the late switch and layers that the monitor had raised count. On one device, with the run's threads, a forward has
the bits of the run's own evaluations.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from numerics import ops as emulated

from . import checkpoint, checkpoint_folder
from .alphabet import Alphabet, alphabet_of
from .config import TrainConfig, check
from .guard import raised_layers
from .log import read_log
from .model import ModelConfig, Transformer
from .presets import preset
from .schedule import schedule
from .stopping import model_in_memory

TUNED = "tuned"  # what config.json of a run has besides that went on from another one: see `tune`
# what config.json has besides the fields of a configuration, or in another form: none of it decides what a model is
_NOT_FIELDS = ("ops", "monitor_reference", "init_from", TUNED)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A trained model.

    Attributes:
        config: of the run, on the device where the model is.
        model: in eval mode; its parameters take no gradients.
        step: optimizer steps that it has taken.
        corpus: sha256, hex, of what it was trained on.
        alphabet: its tokens.
    """

    config: TrainConfig
    model: Transformer
    step: int
    corpus: str
    alphabet: Alphabet


def load_run(folder: Path, ops: ModuleType = emulated, device: str = "cpu", step: int | None = None) -> Loaded:
    """Load a run's model.

    Args:
        folder: the run folder.
        ops: the operations of the expert path.
        device: "cpu" or "cuda".
        step: of the checkpoint; the newest one if left out.

    Raises:
        ValueError: no run, no checkpoint, or something damaged, in one sentence.
    """
    config = dataclasses.replace(read_config(folder), device=device)  # type: ignore[arg-type]
    try:
        check(config)
    except TypeError as error:  # a value of another type than its field's
        raise ValueError(f"run {str(folder)!r} has a damaged config.json ({error}); restore it") from None
    path = checkpoint.latest(folder) if step is None else checkpoint.at(folder, step)
    if path is None:
        missing = "no checkpoint yet" if step is None else f"no checkpoint of step {step}"
        raise ValueError(f"run {str(folder)!r} has {missing}; {_others(folder)}")
    tensors, meta = checkpoint_folder.load(path)
    layers = schedule(config)
    with model_in_memory(config.model):
        model = Transformer(config.model, preset(config.preset), ops, config.seed, config.accumulator)
        model.follow(layers.at(meta["step"], _raised(folder, config, meta["step"])))
        if config.parity:
            model.keep_parity()
        model.load_state_dict(checkpoint.model_weights(tensors, model))
        model.requires_grad_(False).eval().to(device)
    return Loaded(config, model, meta["step"], meta["corpus"], _alphabet(folder, config))


def read_config(folder: Path) -> TrainConfig:
    """The configuration of the run in `folder`, which was trained in it, on the CPU.

    Raises:
        ValueError: there is none, it is damaged, or has fields that this version does not know.
    """
    path = folder / "config.json"
    if not path.is_file():
        what = "does not exist" if not folder.exists() else "is no run folder: it has no config.json"
        raise ValueError(f"run {str(folder)!r} {what}; name the --out of `fourbit train`")
    stored = checkpoint.read_json(path, "preset", "steps", "model")
    found = {name: value for name, value in stored.items() if name not in _NOT_FIELDS}
    if not isinstance(found["model"], dict):
        raise ValueError(f"{str(path)!r} is damaged: model is {found['model']!r}; restore it")
    known = {f.name for f in dataclasses.fields(TrainConfig)}, {f.name for f in dataclasses.fields(ModelConfig)}
    odd = [*sorted(set(found) - known[0]), *(f"model.{name}" for name in sorted(set(found["model"]) - known[1]))]
    if odd:
        raise ValueError(
            f"run {str(folder)!r} has fields that this version does not know ({', '.join(odd)}): another version of "
            "fourbit wrote it; use that one, meta.json names it"
        )
    return _made(folder, found)


def _made(folder: Path, found: dict[str, Any]) -> TrainConfig:
    """The configuration of JSON fields, those back in their types that JSON lacks."""
    for f in dataclasses.fields(TrainConfig):
        if isinstance(found.get(f.name), str) and Path in typing.get_args(f.type):
            found[f.name] = Path(found[f.name])
    for path, kind, values in (("", TrainConfig, found), ("model.", ModelConfig, found["model"])):
        hints = typing.get_type_hints(kind)
        for name, value in values.items():
            if name not in ("model", "layer_presets") and not _is_a(value, hints[name]):
                raise ValueError(
                    f"run {str(folder)!r} has a damaged config.json: {path}{name} is {value!r}; restore it"
                )
    try:
        found["layer_presets"] = {int(layer): name for layer, name in found.get("layer_presets", {}).items()}
    except (ValueError, AttributeError):
        raise ValueError(f"run {str(folder)!r} has a damaged config.json (layer_presets); restore it") from None
    return TrainConfig(**(found | {"out": folder, "model": ModelConfig(**found["model"])}))


def _is_a(value: object, hint: Any) -> bool:
    """Whether a value is of a field's type; the numbers of JSON may be whole where the field's need not."""
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    kinds = typing.get_args(hint) or (hint,)
    is_path = isinstance(value, Path) and Path in kinds  # of a class of its own
    return type(value) in kinds or is_path or (float in kinds and type(value) is int)


def _alphabet(folder: Path, config: TrainConfig) -> Alphabet:
    """The run's tokens, which must still be those of its corpus."""
    found, path = alphabet_of(config, TUNED in checkpoint.read_json(folder / "config.json")), folder / "meta.json"
    corpus = checkpoint.read_json(path).get("corpus") if path.is_file() else None
    vocab = corpus.get("vocab", 256) if isinstance(corpus, dict) else found.size
    if vocab != found.size:
        raise ValueError(
            f"run {str(folder)!r} was trained on {vocab} tokens of {config.data!r}, which has {found.size} now: it is "
            "missing or another one; restore it"
        )
    return found


def _raised(folder: Path, config: TrainConfig, step: int) -> set[int]:
    """Layers that the monitor had raised before `step`."""
    if not config.thresholds:
        return set()
    records = read_log(folder / "log.jsonl", "loss")[: step - 1]
    return set().union(*map(raised_layers, records))


def _others(folder: Path) -> str:
    """What to do without a checkpoint."""
    steps = checkpoint.steps(folder)
    return f"it has those of steps {', '.join(map(str, steps))}" if steps else "let it train to its first one"
