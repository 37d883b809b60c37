"""A folder of the library `transformers` as the start of a run: sizes, and FP32 masters.

config.json says the architecture and the sizes, see `folder_config`; the weights are read as `folder_files` says.
Packed ones become masters that give the same codes and scales under the recipe that made them, see `masters`. All
become FP32, none is rounded.

Length of sequences, weight of the balancing loss and speed of biases are of the training, not of the folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from .architectures import architecture_of, places, zeros
from .folder_config import CONFIG, described, sizes_of
from .folder_files import Files, files_of, names_of
from .masters import settle
from .sizes import ModelConfig

__all__ = ["digest", "initialize", "sizes_of"]


def digest(folder: Path) -> str:
    """sha256, hex, of the folder's configuration and weights. Raises ValueError if they are not there."""
    found = hashlib.sha256()
    files = files_of(folder)
    for path in files:
        names_of(path)
    for path in (folder / CONFIG, *files):
        with open(path, "rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


@torch.no_grad()
def initialize(model: nn.Module, sizes: ModelConfig, folder: Path) -> None:
    """Give a model of these sizes the folder's weights.

    Raises:
        ValueError: the folder's sizes are others, or its files damaged, incomplete, or of more than our model has.
    """
    found = described(folder)
    for name, value in found.decided.items():
        if getattr(sizes, name) != value:
            raise ValueError(
                f"model.{name} {getattr(sizes, name)}: init_from {str(folder)!r} has {value}; leave it out"
            )
    files = Files(folder, architecture_of(sizes).block, found)
    files.require_equal_if_tied()
    state = model.state_dict()
    outers: dict[tuple[str, int | None], set[float]] = {}
    for place in places(sizes):
        target = state[place.ours] if place.expert is None else state[place.ours][place.expert]
        shape = tuple(target[place.start : place.stop].shape)
        values, outer = files.matrix(place, shape, sizes.experts)
        target[place.start : place.stop].copy_(values)
        outers.setdefault((place.ours, place.expert), set()).add(outer)
    for (ours, expert), scales in outers.items():
        if len(scales) == 1 and (outer := scales.pop()):  # 0: none
            target = state[ours] if expert is None else state[ours][expert]
            target.copy_(settle(target, torch.tensor(outer)))
    files.require_nothing_else({z.theirs: z.lacks for z in zeros(sizes) if found.biases or not z.bias})
