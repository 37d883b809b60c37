"""Ranks: joining, the grid, what must be equal, and mistakes that all raise.

Contract: without torchrun there are no ranks; ep * fsdp * dp is WORLD_SIZE; a difference of configuration, code or
versions ends every rank with the same sentence, which names ranks and fields; what one rank raises inside `together`,
all raise. Oracle: the grid written out by `itertools.product`; sentences made by hand; real processes over gloo.
"""

import hashlib
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from numerics import ops
from reference.config import TrainConfig
from reference.ranks import check_placement, leave, ranks_of, world_size
from reference.same import RanksDiffer, check_same, code_digests, flat
from reference.train import train
from tests.rank_processes import Placed, ranks
from tests.test_train import SMALL

# fields that change no bit: what another rank has, and the default
OTHERWISE = {"waves": (2, 1), "recompute": ("layers", "none"), "eval_every": (1, 50)}


def grid() -> dict[str, Any]:
    """On 4 ranks: places and groups of (dp 1, fsdp 2, ep 2), and an exchange along ep."""
    here = ranks_of(Placed(ep=2, fsdp=2), {"model": {"dim": 8}})
    assert here is not None
    got = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(got, torch.tensor([float(here.rank)]), group=here.group("ep"))
    found = {
        "place": [here.index(name) for name in ("dp", "fsdp", "ep")],
        "ep": [int(t) for t in got],
        "fsdp": dist.get_process_group_ranks(here.group("fsdp")),
        "all": here.gather({"rank": here.rank, "wörd": "x" * here.rank}),
        "first": here.first,
        "device": str(here.device),
    }
    leave()
    leave()
    return found


def together() -> list[str]:
    """Mistakes on rank 1 alone, on both in the same words, on both in different ones, and on none."""
    here = ranks_of(Placed(dp=2))
    said = []
    for failing in ([1], [0, 1], ["own"], []):
        try:
            with here.together("reading"):
                if here.rank in failing:
                    raise ValueError("data is missing")
                if failing == ["own"]:
                    raise OSError(28, f"disk {here.rank} full")
            said.append("")
        except RanksDiffer as error:
            said.append(str(error))
    leave()
    return said


def differing() -> str:
    """The second rank is started with another width and another learning rate."""
    rank = int(os.environ["RANK"])
    try:
        ranks_of(Placed(dp=2, timeout=20 + rank), {"model": {"dim": 128 << rank}, "lr": [0.1, 0.2][rank], "out": "x"})
    except RanksDiffer as error:
        assert not dist.is_initialized()
        return str(error)
    return "joined"


def started(how: str, folder: str) -> str:
    """A run of which rank 1 has been started in another way."""
    other, text = os.environ["RANK"] == "1", Path(folder, how.replace(" ", "_"), os.environ["RANK"])
    text.mkdir(parents=True)
    (text / "text").write_bytes(b"some text\n" * 800 + (b"and more" if how == "text" and other else b""))
    os.chdir(text)
    fields: dict[str, Any] = {how: OTHERWISE[how][0]} if other and how in OTHERWISE else {}
    config = TrainConfig(
        Path("run"),
        data="text",
        batch=4,
        grain=1,
        steps=1,
        warmup=1,
        eval_sequences=4,
        ep=2,
        timeout=20,
        model=SMALL,
        **fields,
    )
    train(config, ops)
    return "trained"


def one() -> list[Any]:
    here = ranks_of(Placed())
    return [here.rank, here.world, here.gather(5)]


def test_the_grid_is_dp_by_fsdp_by_ep() -> None:
    places = list(itertools.product(range(1), range(2), range(2)))
    for rank, ended in enumerate(ranks(__file__, "grid", 4)):
        found = ended.found
        assert tuple(found["place"]) == places[rank]
        assert found["ep"] == [[0, 1], [0, 1], [2, 3], [2, 3]][rank]
        assert found["fsdp"] == [[0, 2], [1, 3], [0, 2], [1, 3]][rank]
        assert found["all"] == [{"rank": r, "wörd": "x" * r} for r in range(4)]
        assert (found["first"], found["device"]) == (rank == 0, "cpu")


def test_a_mistake_of_one_rank_is_raised_by_all() -> None:
    for ended in ranks(__file__, "together", 2):
        assert ended.found == [
            "reading failed on rank 1: data is missing",
            "data is missing",
            "reading failed on rank 0: [Errno 28] disk 0 full; on rank 1: [Errno 28] disk 1 full",
            "",
        ]


def test_ranks_with_different_configurations_end_with_one_sentence() -> None:
    said = [ended.found for ended in ranks(__file__, "differing", 2)]
    assert said[0] == said[1]
    assert "timeout is 21 on rank 1, 20 on rank 0" in said[0] and "model.dim is 256 on rank 1, 128 on rank 0" in said[0]
    assert "lr is 0.2 on rank 1, 0.1 on rank 0" in said[0] and said[0].endswith("same command and environment")


@pytest.mark.parametrize("field", OTHERWISE)
def test_a_field_of_one_rank_alone_is_told_though_it_changes_no_bit(tmp_path: Path, field: str) -> None:
    """Two ranks that wait for each other at different places would wait for ever, or take each other's rows."""
    ended = ranks(__file__, "started", 2, field, str(tmp_path))
    assert [one.code for one in ended] == [2, 2]
    (said,) = [line for one in ended for line in one.err.splitlines() if line.startswith("fourbit: error:")]
    there, here = OTHERWISE[field]
    assert (
        f"ranks differ: {field} is {there} on rank 1, {here} on rank 0; start every rank with the same command" in said
    )


def test_ranks_that_read_different_text_are_told(tmp_path: Path) -> None:
    ended = ranks(__file__, "started", 2, "text", str(tmp_path))
    assert [one.code for one in ended] == [2, 2]
    (said,) = [line for one in ended for line in one.err.splitlines() if line.startswith("fourbit: error:")]
    assert "ranks differ: data.sha256 is " in said and said.endswith("; start all from the same files")
    assert not any((path / "run").exists() for path in (tmp_path / "text").iterdir())


def test_one_process_of_torchrun_is_one_rank() -> None:
    assert ranks(__file__, "one", 1)[0].found == [0, 1, [5]]


def test_without_torchrun_there_are_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert world_size() is None and ranks_of(Placed()) is None
    with pytest.raises(
        ValueError, match=r"ep 2 \* fsdp 1 \* dp 3 = 6 ranks, but this is one process.*nproc-per-node 6"
    ):
        ranks_of(Placed(ep=2, dp=3))


@pytest.mark.parametrize(
    ("placed", "says"),
    [
        (Placed(ep=2), "ep 2 * fsdp 1 * dp 1 = 2, but torchrun started 4 ranks"),
        (Placed(ep=0), "ep 0 cannot be used"),
        (Placed(dp=-4), "dp -4 cannot be used"),
        (Placed(dp=4, timeout=0), "timeout 0 cannot be used"),
        (Placed(dp=4, timeout=float("nan")), "timeout nan cannot be used"),
    ],
)
def test_a_grid_that_is_not_the_world_is_refused(placed: Placed, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_placement(placed, 4)
    assert says in str(caught.value)


def test_half_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT missing"):
        world_size()


def test_differences_name_the_rarest_first_and_count_the_rest() -> None:
    told = [{"lr": 1.0, "code.a.py": "x", "b": 1, "c": 1, "d": None} for _ in range(4)]
    check_same(told)
    told[2] = {"lr": 1.0, "code.a.py": "y", "b": 1, "c": 1}
    with pytest.raises(RanksDiffer) as caught:
        check_same(told)
    assert str(caught.value) == (
        "ranks differ: d is absent on rank 2, None on ranks 0, 1, 3; code.a.py is y on rank 2, x on ranks 0, 1, 3; "
        "start all from the same files"
    )
    told[2] |= {"lr": 2.0, "b": 2}
    with pytest.raises(RanksDiffer, match="; and 1 fields more; "):
        check_same(told)


def test_digests_are_of_the_sources(tmp_path: Path) -> None:
    (tmp_path / "numerics").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "numerics" / "a.py").write_text("x = 1\n")
    (tmp_path / "tests" / "b.py").write_text("")
    (tmp_path / "fourbit.py").write_text("")
    assert code_digests(tmp_path) == {
        "fourbit.py": hashlib.sha256(b"").hexdigest()[:12],
        "numerics/a.py": hashlib.sha256(b"x = 1\n").hexdigest()[:12],
    }


def test_flat_names() -> None:
    assert flat({"a": {"b": {"c": 1}}, "d": [2]}) == {"a.b.c": 1, "d": [2]}
