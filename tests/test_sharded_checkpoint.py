"""Checkpoints of several ranks: what four save, four, two or one load with the same bits; whole, or not there.

Contract: every tensor comes back with its bits on any number of ranks, with torchrun or without; a one-process file
loads on ranks; a folder lacks nothing or is refused with one sentence; a disk that is full leaves the checkpoint before
and no remains. Oracle: the whole tensors, made from a seed, which every rank cuts by hand, FSDP's by `chunk`.
"""

import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from reference import checkpoint, checkpoint_folder, sharded_checkpoint
from reference.ranks import leave, ranks_of
from reference.same import RanksDiffer
from tests.rank_processes import Placed, ranks

EXPERTS = {"layer.w13": 0}


def whole(seed: int = 3) -> dict[str, Tensor]:
    """All tensors of a run in miniature, with bits that only a copy keeps: NaN payloads, subnormals, -0."""
    g = torch.Generator().manual_seed(seed)

    def bits(*shape: int) -> Tensor:
        return torch.randint(-(2**31), 2**31, shape, generator=g).to(torch.int32).view(torch.float32)

    tensors = {"model/layer.w13": bits(8, 6, 5), "model/embed": bits(7, 3), "model/norm": bits(5)}
    for name in ("layer.w13", "embed", "norm"):
        shape = tensors[f"model/{name}"].shape
        tensors |= {f"adam/{name}/exp_avg": bits(*shape), f"adam/{name}/step": torch.tensor(4.0)}
    return tensors | {"model/bias": torch.arange(3, dtype=torch.int64), "adam/idle/unused": torch.zeros(0)}


class Model(nn.Module):
    """As a rank holds it: its experts, `embed` whole or as FSDP would have it (7 rows do not divide), `norm` whole."""

    def __init__(self, here: Any, sharded: bool) -> None:
        super().__init__()
        self.layer = nn.Module()
        self.layer.w13 = nn.Parameter(torch.zeros(8 // here.ep, 6, 5))
        embed = torch.zeros(7, 3)
        if sharded:
            embed = distribute_tensor(embed, here.mesh["fsdp"], [Shard(0)], src_data_rank=None)
        self.embed, self.norm = nn.Parameter(embed), nn.Parameter(torch.zeros(5))


def expected(here: Any, sharded: bool) -> dict[str, Tensor]:
    """What this rank holds of `whole`, cut by hand."""
    found = {}
    for key, tensor in whole().items():
        if "w13" in key and tensor.ndim:
            tensor = tensor.tensor_split(here.ep)[here.index("ep")]
        if "embed" in key and tensor.ndim and sharded:
            chunks = tensor.chunk(here.fsdp)
            tensor = chunks[here.index("fsdp")] if here.index("fsdp") < len(chunks) else tensor[:0]
        found[key] = tensor
    return found


def held(here: Any, sharded: bool) -> dict[str, Tensor]:
    """`expected`, sharded weights and their moments as DTensors."""
    return {
        key: DTensor.from_local(t.clone(), here.mesh["fsdp"], [Shard(0)], shape=torch.Size((7, 3)), stride=(3, 1))
        if sharded and "embed" in key and t.ndim
        else t
        for key, t in expected(here, sharded).items()
    }


def raw(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    """Bitwise, names and dtypes too."""
    plain = {key: t.to_local() if isinstance(t, DTensor) else t for key, t in found.items()}
    return plain.keys() == wanted.keys() and all(
        plain[key].dtype == t.dtype and torch.equal(raw(plain[key]), raw(t)) for key, t in wanted.items()
    )


def spread_of(here: Any, sharded: bool) -> dict[str, sharded_checkpoint.Layout]:
    return sharded_checkpoint.layouts(Model(here, sharded), here, EXPERTS)


def loads(here: Any, path: Path, sharded: bool) -> list[Any]:
    """Whether this rank gets its pieces, whether as DTensors where the model has some; and the metadata."""
    tensors, meta = sharded_checkpoint.load(path, here, spread_of(here, sharded))
    is_sharded = isinstance(tensors["model/embed"], DTensor) and isinstance(tensors["adam/embed/exp_avg"], DTensor)
    return [same(tensors, expected(here, sharded)), is_sharded == sharded, meta["step"]]


def save_and_load(folder: str, ep: str, fsdp: str, save: str) -> list[Any]:
    """On ep * fsdp ranks: save steps 1 and 2, whole and sharded, if `save`; load what is there, and a file."""
    here = ranks_of(Placed(ep=int(ep), fsdp=int(fsdp), timeout=60.0))
    found = []
    for kind in ("plain", "sharded"):
        sharded, path = kind == "sharded", Path(folder) / kind / "checkpoint-00000002"
        for step in (1, 2) if save == "save" else ():
            target = path.with_name(f"checkpoint-{step:08d}")
            sharded_checkpoint.save(target, held(here, sharded), {"step": step}, here, spread_of(here, sharded))
        found += [loads(here, path, sharded), loads(here, Path(folder) / "checkpoint-00000007.safetensors", sharded)]
    if save == "save":
        found.append(full_disk(here, Path(folder) / "disk"))
    else:
        found.append([broken(here, path.parent.parent / "broken" / str(i)) for i in range(len(BREAKS))])
    leave()
    return found


def broken(here: Any, folder: Path) -> str:
    try:
        sharded_checkpoint.load(checkpoint.latest(folder), here, spread_of(here, False))
    except RanksDiffer as error:
        return str(error)
    return "loaded"


def full_disk(here: Any, folder: Path) -> list[Any]:
    """The second rank's disk is full while it saves step 2; once there is room, it is saved."""
    spread, path = spread_of(here, False), folder / "checkpoint-00000001"
    sharded_checkpoint.save(path, held(here, False), {"step": 1}, here, spread)
    write = checkpoint.write_atomic

    def refuse(path: Path, contents: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    checkpoint.write_atomic = refuse if here.rank == 1 else write
    try:
        sharded_checkpoint.save(path.with_name("checkpoint-00000002"), held(here, False), {"step": 2}, here, spread)
    except OSError as error:
        said = [error.errno, error.strerror, Path(error.filename).name]
    here.gather(None)  # the first rank has cleared
    there = sorted(p.name for p in folder.iterdir())
    here.gather(None)
    checkpoint.write_atomic = write
    sharded_checkpoint.save(path.with_name("checkpoint-00000002"), held(here, False), {"step": 2}, here, spread)
    return [said, there, sorted(p.name for p in folder.iterdir())]


@dataclass(frozen=True)
class Saved:
    """By four ranks: the folder, and what each rank found."""

    folder: Path
    four: list[list[Any]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("ranks")
    for name in ("plain", "sharded", "disk"):
        (folder / name).mkdir()
    checkpoint.save(checkpoint.checkpoint_path(folder, 7), whole(), {"step": 7})
    four = [ended.found for ended in ranks(__file__, "save_and_load", 4, str(folder), "2", "2", "save", seconds=200)]
    for i, how in enumerate(BREAKS):
        make_broken(Path(shutil.copytree(folder / "plain", folder / "broken" / str(i))), how)
    return Saved(folder, four)


def loaded_rightly(found: list[list[Any]]) -> bool:
    return all(one[:4] == [[True, True, 2], [True, True, 7]] * 2 for one in found)


def test_four_ranks_load_what_they_saved(saved: Saved) -> None:
    assert loaded_rightly(saved.four)


def test_two_ranks_load_it_and_tell_what_is_broken_once(saved: Saved) -> None:
    ended = ranks(__file__, "save_and_load", 2, str(saved.folder), "2", "1", "load", seconds=200)
    found = [one.found for one in ended]
    assert loaded_rightly(found) and found[0][4] == found[1][4]
    for how, said in zip(BREAKS, found[0][4], strict=True):
        assert BREAKS[how] in said and "delete the folder to use the one before" in said


@pytest.mark.exhaustive
@pytest.mark.parametrize(("ep", "fsdp"), [(4, 1), (1, 4), (1, 2), (1, 1)])
def test_other_ranks_load_it(saved: Saved, ep: int, fsdp: int) -> None:
    ended = ranks(__file__, "save_and_load", ep * fsdp, str(saved.folder), str(ep), str(fsdp), "load", seconds=200)
    assert loaded_rightly([one.found for one in ended])


@pytest.mark.parametrize("kind", ["plain", "sharded"])
def test_one_process_loads_it_without_ranks(saved: Saved, kind: str) -> None:
    folder = saved.folder / kind
    path = checkpoint.latest(folder)
    assert checkpoint.steps(folder) == [1, 2] and path == folder / "checkpoint-00000002"
    tensors, meta = checkpoint_folder.load(path)
    assert same(tensors, whole()) and meta == {"step": 2}
    assert same(checkpoint_folder.load(saved.folder / "checkpoint-00000007.safetensors")[0], whole())


@pytest.mark.parametrize("kind", ["plain", "sharded"])
def test_every_value_is_written_once_and_by_every_rank(saved: Saved, kind: str) -> None:
    index = checkpoint_folder.read_index(checkpoint.latest(saved.folder / kind))
    for name, tensor in whole().items():
        assert sum(torch.Size(p.size).numel() for p in index.tensors[name].pieces) == tensor.numel()
    assert len(index.tensors["model/layer.w13"].pieces) == 2
    assert len({p.file for t in index.tensors.values() for p in t.pieces}) == 4


def make_broken(folder: Path, how: str) -> None:
    path = checkpoint.latest(folder)
    if how == "a rank's file is missing":
        (path / "00001.safetensors").unlink()
    elif how == "no index":
        (path / "index.json").unlink()
    elif how == "a damaged index":
        contents = (path / "index.json").read_text()
        (path / "index.json").write_text(contents.replace('"step": 2', '"step": 3'))
    else:
        contents = bytearray((path / "00000.safetensors").read_bytes())
        contents[-1] ^= 1
        (path / "00000.safetensors").write_bytes(contents[:-1] if how == "a file cut short" else contents)


BREAKS = {
    "a rank's file is missing": "lacks 00001.safetensors of the 4 files that its ranks wrote",
    "no index": "lacks index.json",
    "a damaged index": "has a damaged index.json",
    "a flipped bit": "is not what was saved",
    "a file cut short": "cannot be read",
}


@pytest.mark.parametrize("how", BREAKS)
def test_one_process_tells_a_broken_folder(saved: Saved, how: str) -> None:
    with pytest.raises(ValueError) as caught:
        checkpoint_folder.load(checkpoint.latest(saved.folder / "broken" / str(list(BREAKS).index(how))))
    assert BREAKS[how] in str(caught.value) and "delete the folder to use the one before" in str(caught.value)


def test_a_full_disk_of_one_rank_leaves_the_one_before(saved: Saved) -> None:
    for found in saved.four:
        said, there, after = found[4]
        assert said[0] == errno.ENOSPC and "on rank 1" in said[1] and said[2] == "00001.safetensors"
        assert there == ["checkpoint-00000001"] and after == ["checkpoint-00000001", "checkpoint-00000002"]


def test_unfinished_folders_are_no_checkpoints_and_go(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        (tmp_path / f"checkpoint-{step:08d}").mkdir()
        (tmp_path / f"checkpoint-{step:08d}" / "index.json").write_text(json.dumps({}))
    checkpoint.save(checkpoint.checkpoint_path(tmp_path, 4), {"x": torch.zeros(1)}, {})
    unfinished = checkpoint_folder.temporary(tmp_path / "checkpoint-00000009")
    unfinished.mkdir()
    (tmp_path / "checkpoint-00000008").write_text("a file, not a folder")
    assert checkpoint.is_leftover(unfinished) and checkpoint.steps(tmp_path) == [1, 2, 3, 4]
    checkpoint.prune(tmp_path, keep=2)
    assert checkpoint.steps(tmp_path) == [3, 4]
    checkpoint.remove(unfinished)
    assert not unfinished.exists() and not (tmp_path / "checkpoint-00000001").exists()
