"""A checkpoint of several ranks: a folder with a safetensors file of each rank and an index, whole or not there.

    checkpoint-<step>/00000.safetensors, 00001.safetensors, ..     pieces of tensors, under <name>@<offset, offset, ..>
                      index.json                                   every tensor's shape, dtype and pieces; metadata

It is written as `.checkpoint-<step>.tmp`, which every reader ignores, and renamed when every file of every rank is on
the disk. Each piece has its sha256 in the index, the index its own. Nothing is pickled. One process reads it without
torch.distributed. Exact: bits are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from . import checkpoint

_INDEX = "index.json"
_REMEDY = "restore it, or delete the folder to use the one before"


@dataclass(frozen=True)
class Piece:
    """A box of a tensor, and the file that has it. sha256, hex, of its bytes."""

    offset: tuple[int, ...]
    size: tuple[int, ...]
    file: str
    sha256: str

    def key(self, name: str) -> str:
        """Its name in the file."""
        return piece_key(name, self.offset)


@dataclass(frozen=True)
class Whole:
    """A tensor of the checkpoint, by its pieces, which do not overlap."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Index:
    """What a checkpoint's folder holds. meta: the JSON object that was saved with it."""

    folder: Path
    tensors: dict[str, Whole]
    meta: dict[str, Any]


def piece_key(name: str, offset: tuple[int, ...]) -> str:
    """The name of a piece in its file."""
    return f"{name}@{','.join(map(str, offset))}"


def digest(tensor: Tensor) -> str:
    """sha256, hex, of a contiguous CPU tensor's bytes."""
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest()


def temporary(path: Path) -> Path:
    """Where the checkpoint that will be `path` is written; the same on every rank."""
    return path.with_name(f".{path.name}.tmp")


def publish(path: Path, tensors: dict[str, Whole], meta: dict[str, Any]) -> None:
    """Write the index beside the ranks' files, which are on the disk, and make the folder visible.

    Raises:
        OSError: the disk refuses; `path` is unchanged.
    """
    unfinished = temporary(path)
    body = {
        "meta": meta,
        "tensors": {
            name: asdict(whole) | {"dtype": str(whole.dtype).removeprefix("torch.")} for name, whole in tensors.items()
        },
    }
    checkpoint.write_json(unfinished / _INDEX, {"sha256": _body_digest(body), "body": body})
    if path.exists():
        checkpoint.remove(path)  # of the same step, and not the newest: a run does not save a step that it resumed from
    unfinished.rename(path)
    checkpoint.flush_folder(path.parent)


def read_index(path: Path) -> Index:
    """What the folder holds; every file that it needs is there.

    Raises:
        ValueError: it is missing, damaged, no checkpoint, or lacks a rank's file; the message says which.
    """
    if not (path / _INDEX).is_file():
        raise ValueError(f"checkpoint {str(path)!r} lacks {_INDEX}: it is missing or damaged; {_REMEDY}")
    stored = checkpoint.read_json(path / _INDEX, "sha256", "body")
    if _body_digest(stored["body"]) != stored["sha256"]:
        raise ValueError(f"checkpoint {str(path)!r} has a damaged {_INDEX}; {_REMEDY}")
    tensors = {name: _whole(entry) for name, entry in stored["body"]["tensors"].items()}
    files = sorted({piece.file for whole in tensors.values() for piece in whole.pieces})
    lacking = [name for name in files if not (path / name).is_file()]
    if lacking:
        raise ValueError(
            f"checkpoint {str(path)!r} lacks {', '.join(lacking)} of the {len(files)} files that its ranks wrote; "
            + _REMEDY
        )
    return Index(path, tensors, stored["body"]["meta"])


def pieces(index: Index, wanted: list[tuple[str, Piece]]) -> Iterator[Tensor]:
    """The pieces, on the CPU, in the order of `wanted`; each is compared with its sha256.

    Raises:
        ValueError: a file is damaged.
    """
    for name, piece in wanted:
        path = index.folder / piece.file
        try:
            with safe_open(path, framework="pt") as file:
                tensor = file.get_tensor(piece.key(name)).clone()  # not a map of the file
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"checkpoint file {str(path)!r} cannot be read ({error}): it is damaged; {_REMEDY}"
            ) from None
        if digest(tensor) != piece.sha256:
            raise ValueError(f"checkpoint file {str(path)!r} is damaged: {name} is not what was saved; {_REMEDY}")
        yield tensor


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read any checkpoint, of one process or of several ranks, whole, as `checkpoint.load` does.

    Raises:
        ValueError: it is missing, damaged, or no checkpoint of fourbit.
    """
    if not path.is_dir():
        return checkpoint.load(path)
    index = read_index(path)
    tensors: dict[str, Tensor] = {}
    for name, whole in index.tensors.items():
        tensors[name] = torch.empty(whole.shape, dtype=whole.dtype)
        wanted = [(name, piece) for piece in whole.pieces]
        for (_, piece), tensor in zip(wanted, pieces(index, wanted), strict=True):
            box = tuple(slice(start, start + size) for start, size in zip(piece.offset, piece.size, strict=True))
            tensors[name][box] = tensor
    return tensors, index.meta


def _whole(entry: dict[str, Any]) -> Whole:
    """A tensor of the index, which its digest vouches for."""
    parts = tuple(
        Piece(tuple(p["offset"]), tuple(p["size"]), Path(p["file"]).name, p["sha256"]) for p in entry["pieces"]
    )
    dtype = getattr(torch, entry["dtype"])
    assert isinstance(dtype, torch.dtype) and sum(math.prod(p.size) for p in parts) == math.prod(entry["shape"])
    return Whole(dtype, tuple(entry["shape"]), parts)


def _body_digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
