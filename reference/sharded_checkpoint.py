"""Checkpoints of several ranks by torch.distributed.checkpoint, in the folders of `checkpoint_folder`; they reshard.

Every rank gives its tensors under global names: a DTensor for what is spread over ranks, the same tensor on all ranks
for what is not, which one of them then writes. Loading asks for other pieces than were written: any number of ranks
loads what any number has saved, one process included, and many ranks load a one-process file. With one rank the
checkpoint is that file. Exact: bits are kept.

torch's planner decides who writes and reads what; the storage below is ours, because torch's own pickles. On the way
to and from the planner torch sends plans between ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save as serialize
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint import metadata as described
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement
from torch.futures import Future

from . import checkpoint, checkpoint_folder
from .checkpoint_folder import Index, Piece, Whole
from .ranks import DIMS, Ranks
from .same import RanksDiffer, named


@dataclass(frozen=True)
class Layout:
    """How a parameter, and its state in the optimizer, lies on the ranks.

    shape: of the whole. local: the model has this rank's piece as a plain tensor, not as a DTensor."""

    shape: tuple[int, ...]
    mesh: Any
    placements: tuple[Placement, ...]
    local: bool


def layouts(model: nn.Module, ranks: Ranks, spread: Mapping[str, int]) -> dict[str, Layout]:
    """The layout of every parameter that is not whole on every rank.

    Args: spread: plain parameters of which a rank has a piece, by name, and the dim of the mesh's `ep` that cuts them,
        such as 0 for the leading one of experts.
    """
    found = {}
    for name, weight in model.named_parameters():
        if isinstance(weight, DTensor):
            found[name] = Layout(tuple(weight.shape), weight.device_mesh, tuple(weight.placements), False)
        elif name in spread:
            shape = list(weight.shape)
            shape[spread[name]] *= ranks.ep
            cut = tuple(Shard(spread[name]) if dim == "ep" else Replicate() for dim in DIMS)
            found[name] = Layout(tuple(shape), ranks.mesh, cut, True)
    return found


def save(
    path: Path, tensors: dict[str, Tensor], meta: dict[str, Any], ranks: Ranks, spread: Mapping[str, Layout]
) -> None:
    """Write one checkpoint, atomically and durably. All ranks call it.

    Args:
        path: the folder to be, in the run folder; the same on every rank.
        tensors: as `checkpoint.training_state` names them, the same names on every rank.
        meta: a JSON object; the first rank's is written.
        spread: of `layouts`.

    Raises:
        OSError: a rank's disk refuses, raised by all; `path` is then absent and nothing of it is left.
        RanksDiffer: another mistake of a rank, raised by all.
    """
    # a DTensor of a piece has the shape and the place of the whole
    given = {name: _of_piece(tensor, _layout(name, spread)) for name, tensor in tensors.items()}
    try:
        dcp.save(given, storage_writer=_Writer(path, meta, ranks.rank), planner=DefaultSavePlanner(False, False))
    except CheckpointException as error:
        if ranks.first and checkpoint_folder.temporary(path).exists():
            checkpoint.remove(checkpoint_folder.temporary(path))
        raise _told(error, f"checkpoint {path.name} was not written") from None


def load(path: Path, ranks: Ranks, spread: Mapping[str, Layout]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read one checkpoint, a folder or a file, as this rank needs it. All ranks call it.

    Returns:
        Tensors of a `local` layout as this rank's piece, on the CPU; of another layout as a DTensor; the rest whole, on
        the CPU. And the metadata.

    Raises:
        RanksDiffer: a rank cannot read the checkpoint, or lacks a file of it; raised by all.
    """
    if not path.is_dir():
        with ranks.together("loading"):
            whole, meta = checkpoint.load(path)
        return {name: _cut(tensor, _layout(name, spread)) for name, tensor in whole.items()}, meta
    with ranks.together("loading"):
        index = checkpoint_folder.read_index(path)
    made = {name: _empty(whole, _layout(name, spread)) for name, whole in index.tensors.items()}
    try:
        dcp.load(made, storage_reader=_Reader(index), planner=DefaultLoadPlanner(False, False))
    except CheckpointException as error:
        raise _told(error, f"checkpoint {path.name} cannot be loaded") from None
    return {name: _as_held(tensor, _layout(name, spread)) for name, tensor in made.items()}, index.meta


class _Writer(StorageWriter):
    """Every rank's pieces in one safetensors file of its own; the coordinator publishes."""

    def __init__(self, path: Path, meta: dict[str, Any], rank: int) -> None:
        self._path, self._meta, self._rank = path, meta, rank

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """An empty folder, before any rank has a plan."""
        if is_coordinator:
            unfinished = checkpoint_folder.temporary(self._path)
            if unfinished.exists():
                checkpoint.remove(unfinished)
            unfinished.mkdir()

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def write_data(self, plan: Any, planner: Any) -> Future[list[WriteResult]]:
        file = f"{self._rank:05d}.safetensors"
        stored: dict[str, Tensor] = {}
        results = []
        for item in plan.items:
            offset = tuple(item.index.offset or (0,) * len(item.tensor_data.size))
            tensor = planner.resolve_data(item).detach().cpu().contiguous()
            stored[checkpoint_folder.piece_key(item.index.fqn, offset)] = tensor
            piece = Piece(offset, tuple(tensor.shape), file, checkpoint_folder.digest(tensor))
            results.append(WriteResult(item.index, tensor.nbytes, piece))
        if stored:
            checkpoint.write_atomic(checkpoint_folder.temporary(self._path) / file, serialize(stored))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        pieces: dict[str, list[Piece]] = {}
        for result in (one for of_rank in results for one in of_rank):
            pieces.setdefault(result.index.fqn, []).append(result.storage_data)
        wholes = {
            name: Whole(entry.properties.dtype, tuple(entry.size), tuple(sorted(pieces[name], key=lambda p: p.offset)))
            for name, entry in sorted(metadata.state_dict_metadata.items())
        }
        checkpoint_folder.publish(self._path, wholes, self._meta)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class _Reader(StorageReader):
    """Pieces that a rank's plan needs, each read once and compared with its digest."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between checkpoints."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> described.Metadata:
        def one(whole: Whole) -> described.TensorStorageMetadata:
            chunks = [described.ChunkStorageMetadata(torch.Size(p.offset), torch.Size(p.size)) for p in whole.pieces]
            kind = described.TensorProperties(dtype=whole.dtype)
            return described.TensorStorageMetadata(kind, torch.Size(whole.shape), chunks)

        return described.Metadata({name: one(whole) for name, whole in self._index.tensors.items()})

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the index is read."""

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        needed: dict[tuple[str, Piece], list[Any]] = {}
        for item in plan.items:
            name, offset = item.storage_index.fqn, tuple(item.storage_index.offset)
            piece = next(p for p in self._index.tensors[name].pieces if p.offset == offset)
            needed.setdefault((name, piece), []).append(item)
        for items, tensor in zip(needed.values(), checkpoint_folder.pieces(self._index, list(needed)), strict=True):
            for item in items:
                box = zip(item.storage_offsets, item.lengths, strict=True)
                planner.resolve_tensor(item).detach().copy_(tensor[tuple(slice(o, o + n) for o, n in box)])
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _layout(key: str, spread: Mapping[str, Layout]) -> Layout | None:
    """Of a tensor of `checkpoint.training_state`: that of the parameter it belongs to."""
    kind, _, rest = key.partition("/")
    return spread.get(rest if kind == "model" else rest.rpartition("/")[0])


def _of_piece(tensor: Tensor, layout: Layout | None) -> Tensor:
    if layout is None or not layout.local or tensor.ndim != len(layout.shape):
        return tensor
    return DTensor.from_local(tensor.detach(), layout.mesh, layout.placements, run_check=False)


def _cut(tensor: Tensor, layout: Layout | None) -> Tensor:
    """Of a tensor that every rank has whole."""
    if layout is None or tuple(tensor.shape) != layout.shape:
        return tensor
    spread = distribute_tensor(tensor.to(layout.mesh.device_type), layout.mesh, layout.placements, src_data_rank=None)
    return _as_held(spread, layout)


def _empty(whole: Whole, layout: Layout | None) -> Tensor:
    """What a tensor of the checkpoint is loaded into."""
    if layout is None or whole.shape != layout.shape:
        return torch.empty(whole.shape, dtype=whole.dtype)
    return torch.distributed.tensor.empty(
        whole.shape, dtype=whole.dtype, device_mesh=layout.mesh, placements=layout.placements
    )


def _as_held(tensor: Tensor, layout: Layout | None) -> Tensor:
    if layout is None or not layout.local or not isinstance(tensor, DTensor):
        return tensor
    return tensor.to_local().contiguous().cpu()


def _told(error: CheckpointException, what: str) -> Exception:
    """One sentence of what the ranks met. The system's errors keep their number, which has its own remedy."""
    failures = {rank: failure[0] for rank, failure in error.failures.items()}
    words = {rank: " ".join(str(met).split()) or type(met).__name__ for rank, met in failures.items()}
    first = next(iter(failures.values()))
    if isinstance(first, OSError) and first.errno:
        return OSError(first.errno, f"{first.strerror} on {named(sorted(failures))}, {what}", first.filename)
    parts = [f"{named([r for r, w in words.items() if w == word])}: {word}" for word in dict.fromkeys(words.values())]
    return RanksDiffer(f"{what}: {'; '.join(parts)}")
