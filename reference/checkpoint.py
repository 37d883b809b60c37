"""Atomic files, and checkpoints: what a step depends on, in one safetensors file that survives a kill.

A write goes to a temporary file in the target's folder, is flushed to the disk and renamed over the target; then the
folder is flushed. So a target is absent, old or new, never half-written, and once `save` has returned, neither SIGKILL
nor a power cut loses the file. A killed write leaves a temporary file, which every reader here ignores.

A checkpoint is `checkpoint-<step>.safetensors`: named tensors, bits kept exactly, and a JSON object in the header.
Nothing is pickled. POSIX only: a folder is flushed through a descriptor.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor, nn

from .optimizer import restore_state

_HEADER = "fourbit"  # the header entry that tells our files from other safetensors
_NAME = re.compile(r"checkpoint-(\d{8,})(\.safetensors)?")  # a folder is of several ranks: see `checkpoint_folder`
_TEMPORARY = (".", ".tmp")  # prefix and suffix of unfinished files


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the disk inside says which file it was in, which a full one does not by itself."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_atomic(path: Path, contents: bytes) -> None:
    """Replace `path` by `contents`, atomically and durably.

    Args:
        path: the target; its folder must exist.
        contents: the whole file.

    Raises:
        OSError: the disk refuses; `path` is then unchanged and no temporary file is left.
    """
    temporary = path.with_name(f"{_TEMPORARY[0]}{path.name}.{os.getpid()}{_TEMPORARY[1]}")
    try:
        with naming(path), open(temporary, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make `path` and the folders above it that are missing, durably.

    Raises:
        OSError: the disk refuses, or a file is in the way.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Force a folder's entries to the disk: without it, a power cut can undo a rename or a new folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically and durably.

    Raises:
        OSError: the disk refuses.
        ValueError: a float that JSON cannot hold (NaN, infinity).
    """
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path, *entries: str) -> dict[str, Any]:
    """The JSON object in `path`, which has these entries.

    Raises:
        ValueError: it holds something else; the message names the file. OSError: there is none.
    """
    try:
        value = json.loads(path.read_bytes())
        lacks = [name for name in entries if name not in value] if isinstance(value, dict) else ["{}"]
    except ValueError:
        lacks = ["JSON"]
    if lacks:
        raise ValueError(f"{str(path)!r} is damaged, or of something else: it lacks {', '.join(lacks)}; restore it")
    return dict(value)


def save(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write one checkpoint, atomically and durably.

    Args:
        path: the target file.
        tensors: any dtypes and devices; stored contiguous, bits kept.
        meta: a JSON object.

    Raises:
        OSError: the disk refuses.
    """
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # one entry: safetensors writes several in no fixed order
    header = json.dumps({"sha256": digest_of(stored), "meta": meta}, allow_nan=False)
    write_atomic(path, serialize(stored, metadata={_HEADER: header}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read one checkpoint.

    Returns:
        The tensors, on the CPU, and the metadata that `save` got.

    Raises:
        ValueError: the file is missing, truncated, or no checkpoint of fourbit.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # not a map of the file
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"checkpoint {str(path)!r} cannot be read ({error}): it is missing or damaged; delete it to "
            "use the one before"
        ) from None
    if _HEADER not in header:
        raise ValueError(
            f"checkpoint {str(path)!r} was not written by fourbit; name a checkpoint-*.safetensors of a run folder"
        )
    try:
        stored = json.loads(header[_HEADER])
        digest, meta = stored["sha256"], stored["meta"]
    except (ValueError, KeyError, TypeError):
        digest, meta = None, {}
    if digest != digest_of(tensors):
        raise ValueError(
            f"checkpoint {str(path)!r} is damaged: it does not hold what was saved; delete it to use the one before"
        )
    return tensors, meta


def digest_of(tensors: dict[str, Tensor]) -> str:
    """sha256, hex, over names and bytes of all tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Collect all that a step depends on: weights as "model/<name>", torch's AdamW's state as "adam/<name>/<entry>",
    another optimizer's as "optimizer/<name>/<entry>". A parameter without state, because it has had no gradient, has an
    empty "unused" as its entry.

    Args:
        model: any module.
        optimizer: made from named parameters of `model`.

    Returns:
        The tensors themselves, not copies.
    """
    names = _parameter_names(optimizer)
    weights = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    states, kind = optimizer.state_dict()["state"], _kind(optimizer)
    return weights | {
        f"{kind}{name}/{key}": value
        for i, name in enumerate(names)
        for key, value in (states.get(i) or {"unused": torch.zeros(0)}).items()
    }


def restore_training_state(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put what `training_state` collected back into a model and an optimizer of the same making.

    Raises:
        ValueError: the tensors are of another model or another optimizer; neither was changed.
    """
    weights = model_weights(tensors, model)
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith(_kind(optimizer)):
            name, entry = key.removeprefix(_kind(optimizer)).rsplit("/", 1)
            states.setdefault(name, {}).update({} if entry == "unused" else {entry: tensor})
    restore_state(optimizer, states)
    model.load_state_dict(weights)


def model_weights(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights among a checkpoint's tensors, under the names that `model` has for them.

    Raises:
        ValueError: they are of another model.
    """
    own = model.state_dict()
    weights = {name.removeprefix("model/"): tensor for name, tensor in tensors.items() if name.startswith("model/")}
    odd = sorted(set(own) ^ set(weights)) or [name for name in own if own[name].shape != weights[name].shape]
    if odd:
        raise ValueError(
            f"checkpoint and model differ in {', '.join(odd)}: another version wrote it; start in another run folder"
        )
    return weights


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return where the checkpoint of `step` lies in a run folder."""
    return folder / f"checkpoint-{step:08d}.safetensors"


def folder_path(folder: Path, step: int) -> Path:
    """Return where the checkpoint of `step` of several ranks lies in a run folder."""
    return folder / f"checkpoint-{step:08d}"


def at(folder: Path, step: int) -> Path | None:
    """Return the checkpoint of `step`, or None."""
    found = [path for path in _checkpoints(folder) if int(path.stem.removeprefix("checkpoint-")) == step]
    return found[0] if found else None


def latest(folder: Path) -> Path | None:
    """Return the checkpoint of the highest step, or None; unfinished files do not count."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def steps(folder: Path) -> list[int]:
    """The steps that a run folder has checkpoints of, ascending."""
    return [int(path.stem.removeprefix("checkpoint-")) for path in _checkpoints(folder)]


def prune(folder: Path, keep: int = 2, stable: int | None = None) -> None:
    """Delete all but the last `keep` checkpoints, and but the last one of a step up to `stable`.

    Raises:
        ValueError: keep < 1.
    """
    if keep < 1:
        raise ValueError(f"keep {keep} would delete every checkpoint; use 1 or more")
    kept = [step for step in steps(folder) if stable is not None and step <= stable][-1:]
    for step, path in list(zip(steps(folder), _checkpoints(folder), strict=True))[:-keep]:
        if step not in kept:
            remove(path)


def remove(path: Path) -> None:
    """Delete a checkpoint, or what is left of an unfinished one: a file, or a folder, which goes as a whole."""
    if not path.is_dir():
        path.unlink()
        return
    if not is_leftover(path):
        hidden = path.with_name(f".{path.name}.old.tmp")
        if hidden.exists():
            shutil.rmtree(hidden)
        path = path.rename(hidden)
    shutil.rmtree(path)


def is_leftover(path: Path) -> bool:
    """Tell whether `path` is an unfinished file of `write_atomic`, or an unfinished checkpoint of several ranks."""
    return path.name.startswith(_TEMPORARY[0]) and path.name.endswith(_TEMPORARY[1])


def _checkpoints(folder: Path) -> list[Path]:
    steps = {
        int(match[1]): path
        for path in folder.iterdir()
        if (match := _NAME.fullmatch(path.name)) and path.is_dir() == (match[2] is None)
    }
    return [steps[step] for step in sorted(steps)]


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """How the names of the optimizer's state start in a checkpoint."""
    return "adam/" if isinstance(optimizer, torch.optim.AdamW) else "optimizer/"


def _parameter_names(optimizer: torch.optim.Optimizer) -> list[str]:
    """List the names of the parameters in the order in which the optimizer numbers them."""
    return [name for group in optimizer.param_groups for name in group["param_names"]]
