"""The processes that train together: who they are, how they reach each other, and that they run the same thing.

`torchrun` starts WORLD_SIZE processes and tells each its RANK; one process without it is no rank, and nothing here is
used. The ranks are a grid (dp, fsdp, ep), ep the fastest: rank = (dp_i * fsdp + fsdp_i) * ep + ep_i. Ranks of one `ep`
group hold different experts of the same layers; `fsdp` shards what is not an expert; `dp` repeats.

Before the grid is made, every rank tells the others what it runs: fields of the configuration, a sha256 of every source
file, versions. What differs ends all of them with one sentence that names the ranks and the fields. Messages between
ranks are JSON over gloo on the CPU, also where tensors go over NCCL.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .collectives import Traffic
from .same import RanksDiffer, check_same, flat, named, software
from .waiting import waiting

DIMS = ("dp", "fsdp", "ep")
_GIVEN = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # beside WORLD_SIZE
_joined: list[int] = []  # this process's rank, once it has been one


class Placed(Protocol):
    """What of a configuration places it on ranks. timeout: seconds without which a silent rank has died."""

    @property
    def ep(self) -> int: ...
    @property
    def fsdp(self) -> int: ...
    @property
    def dp(self) -> int: ...
    @property
    def timeout(self) -> float: ...
    @property
    def device(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Ranks:
    """This process among the ranks. mesh: dims `DIMS`; its groups carry tensors of the device. traffic: what its
    collectives send."""

    rank: int
    world: int
    local_rank: int
    ep: int
    fsdp: int
    dp: int
    timeout: float
    mesh: DeviceMesh
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and speaks."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this rank's tensors are."""
        kind = self.mesh.device_type
        return torch.device(kind, self.local_rank) if kind == "cuda" else torch.device(kind)

    def index(self, dim: str) -> int:
        """This rank's place along a dim of the mesh."""
        return int(self.mesh.get_local_rank(dim))

    def group(self, dim: str) -> dist.ProcessGroup:
        """The ranks that differ from this one along that dim of the mesh alone."""
        return self.mesh.get_group(dim)

    def gather(self, value: Any) -> list[Any]:
        """What every rank has given, a JSON value each, in rank order. All ranks call it."""
        with waiting("a word of every rank"):
            return _gather(value, self.world, self.traffic)

    @contextlib.contextmanager
    def together(self, what: str) -> Iterator[None]:
        """A mistake that any rank meets inside is raised by all, as `RanksDiffer`: none waits for one that has gone.
        Inside, ranks may not speak to each other. `what`: names the work in the message."""
        error: Exception | None = None
        try:
            yield
        except (ValueError, OSError) as met:
            error = met
        found = self.gather(None if error is None else " ".join(str(error).split()) or type(error).__name__)
        error = None  # its traceback holds this frame, and so the mesh: see `end`
        if any(said is not None for said in found):
            raise RanksDiffer(_told(found, what))


def world_size() -> int | None:
    """WORLD_SIZE of torchrun, or None without it.

    Raises:
        ValueError: it is no number, or what torchrun sets besides is missing.
    """
    given = os.environ.get("WORLD_SIZE")
    if given is None:
        return None
    lacking = [name for name in _GIVEN if name not in os.environ]
    if lacking or not given.isdigit() or int(given) < 1:
        what = f"{', '.join(lacking)} missing" if lacking else "no number of ranks"
        raise ValueError(f"WORLD_SIZE {given!r} with {what}: start ranks by `torchrun`, or unset WORLD_SIZE")
    return int(given)


def check_placement(placed: Placed, world: int | None) -> None:
    """Raises ValueError unless ep * fsdp * dp is the number of ranks; `world`: None without torchrun, which is one."""
    sizes = {name: getattr(placed, name) for name in ("ep", "fsdp", "dp")}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} {size} cannot be used; use 1 or more")
    if not placed.timeout > 0:
        raise ValueError(f"timeout {placed.timeout} cannot be used; use a positive number of seconds")
    count = placed.ep * placed.fsdp * placed.dp
    given = " * ".join(f"{name} {size}" for name, size in sizes.items())
    if world is None and count > 1:
        raise ValueError(
            f"{given} = {count} ranks, but this is one process; start it by `torchrun -m fourbit train` with "
            f"--nproc-per-node {count}, or leave them out"
        )
    if world is not None and count != world:
        raise ValueError(f"{given} = {count}, but torchrun started {world} ranks (WORLD_SIZE); make them equal")


def ranks_of(placed: Placed, identity: Mapping[str, Any] | None = None) -> Ranks | None:
    """Join the ranks that torchrun has started; None without it. Collective: every rank calls it first, once.

    Args:
        placed: ep, fsdp, dp, timeout in seconds, and device `cpu` (gloo) or `cuda` (gloo and NCCL).
        identity: what else must be equal on all ranks, as JSON, such as the run's configuration.

    Raises:
        ValueError: the ranks do not multiply to WORLD_SIZE.
        RanksDiffer: ranks run different configurations, code or versions; all of them raise it.
    """
    world = world_size()
    check_placement(placed, world)
    if world is None:
        return None
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if placed.device == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"rank {rank} is number {local_rank} of its machine, which has {torch.cuda.device_count()} CUDA "
                "devices; start at most so many ranks"
            )
        torch.cuda.set_device(local_rank)
    if not _joined:
        _joined.append(rank)
        atexit.register(gc.collect)  # groups in unreachable cycles, for the same reason as in `end`
    backend = "cpu:gloo,cuda:nccl" if placed.device == "cuda" else "gloo"
    try:
        store = open_store(placed.timeout)
        dist.init_process_group(backend, None, timedelta(seconds=placed.timeout), world, rank, store)
    except RuntimeError as error:
        raise ValueError(
            f"rank {rank} did not reach all {world} ranks within timeout {placed.timeout:g} s ({_line(error)}); see "
            "whether every rank has started, or use a longer one"
        ) from None
    try:
        here = {name: getattr(placed, name) for name in (*DIMS, "timeout", "device")}
        check_same(_gather(flat(here | dict(identity or {}) | software()), world))
        mesh = init_device_mesh(placed.device, (placed.dp, placed.fsdp, placed.ep), mesh_dim_names=DIMS)
    except BaseException:
        dist.destroy_process_group()
        raise
    return Ranks(rank, world, local_rank, placed.ep, placed.fsdp, placed.dp, placed.timeout, mesh)


def holds_store() -> bool:
    """Whether the store is in this process: in rank 0's, where torchrun has none."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and os.environ["RANK"] == "0"


def open_store(timeout: float) -> Any:
    """A connection to torchrun's store, or to rank 0's, for keys of this attempt.

    torchrun's outlives a restart, and what the ranks of the attempt before told of themselves would still be in it:
    torch 2.13 gives a restarted rank such an address, which nobody listens to.

    Raises:
        ValueError: nobody answers.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = dist.TCPStore(address, port, None, holds_store(), timedelta(seconds=timeout), False, multi_tenant=True)
    except RuntimeError as error:
        raise ValueError(
            f"rank {os.environ['RANK']} did not reach {address}:{port} within timeout {timeout:g} s ({_line(error)}); "
            "see whether rank 0 has started"
        ) from None
    attempt = [os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RUN_ID", "RESTART_COUNT")]
    return dist.PrefixStore(f"fourbit/{'/'.join(attempt)}", store)


def leave() -> None:
    """Close this process's connections to the other ranks, if it has any; without them, nothing happens."""
    if dist.is_initialized():
        dist.destroy_process_group()


def end(code: int) -> None:
    """End this process at once if it is, and has been, a rank, with that exit code; else return.

    What still holds a group when the interpreter is taken down, such as torch's own caches, can abort the process.
    """
    if _joined and world_size() is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor is on this rank: of a DTensor its piece, which shares its memory."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # without importing DTensor
    return found


def _gather(value: Any, world: int, traffic: Traffic | None = None) -> list[Any]:
    """All ranks' JSON values; lengths first, then bytes padded to the longest."""
    text = json.dumps(value, default=str).encode()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(text)]))
    most = max(int(size) for size in sizes)
    padded = torch.frombuffer(bytearray(text.ljust(most)), dtype=torch.uint8)
    found = [torch.zeros(most, dtype=torch.uint8) for _ in range(world)]
    if traffic is not None:
        traffic.sent("notes", (8 + most) * world, 8 + most)
    dist.all_gather(found, padded)
    return [json.loads(bytes(one[: int(size)].tolist())) for one, size in zip(found, sizes, strict=True)]


def _told(found: list[str | None], what: str) -> str:
    """Who met which mistake; one that all have met in the same words is told as one process would."""
    if found.count(found[0]) == len(found):
        return str(found[0])
    told = dict.fromkeys(said for said in found if said is not None)
    parts = [f"{named([rank for rank, one in enumerate(found) if one == said])}: {said}" for said in told]
    return f"{what} failed on {'; on '.join(parts)}"


def _line(error: BaseException) -> str:
    """The first line of an error's words."""
    return (str(error).splitlines() or [type(error).__name__])[0].strip()
