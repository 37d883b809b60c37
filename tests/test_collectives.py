"""Rows between processes, and their bytes.

Contract: `exchange` gives every rank the rows that are for it, in the order of ranks, for any splits, none included;
what is counted is what was handed over, and that is the formula's bytes exactly. Oracle: rows that carry who sent
them to whom, and `bits_per_value`. Four processes on gloo do everything once; the tests look at what they found.
"""

from dataclasses import asdict

import pytest
import torch
import torch.distributed as dist

from numerics.ops import quantize_tokens
from reference.collectives import Traffic, exchange, exchange_counts
from reference.wires import WIRES, Layout, bits_per_value, pack, unpack
from tests.rank_processes import ranks

RANKS, WIDTH = 4, 64
SPLITS = {  # rows from rank r to rank p
    "ragged": lambda r, p: (3 * r + p) % 4,
    "one rank has nothing": lambda r, p: 0 if r == 2 else 1 + p,
    "all rows to one rank": lambda r, p: 5 if p == 1 else 0,
    "no rows": lambda r, p: 0,
    "one row": lambda r, p: int(r == 3 and p == 0),
}


def row(sender: int, receiver: int, number: int) -> torch.Tensor:
    """The row that only this sender sends to this receiver."""
    made = torch.Generator().manual_seed(sender * 10000 + receiver * 100 + number)
    return torch.randn(1, WIDTH, generator=made).to(torch.bfloat16)


def rows(pairs: list[tuple[int, int, int]]) -> torch.Tensor:
    """(sender, receiver, how many) -> their rows below each other."""
    made = [row(s, p, i) for s, p, count in pairs for i in range(count)]
    return torch.cat(made) if made else torch.empty(0, WIDTH, dtype=torch.bfloat16)


def look(rank: int) -> dict[str, object]:
    """What one process finds: for each wire and split whether the rows were right, and what was counted."""
    found: dict[str, object] = {}
    group = dist.group.WORLD
    for name, (cast, _) in WIRES.items():
        traffic = Traffic()
        for split, count in SPLITS.items():
            send, receive = [count(rank, p) for p in range(RANKS)], [count(s, rank) for s in range(RANKS)]
            buffer = pack(quantize_tokens(rows([(rank, p, n) for p, n in enumerate(send)]), cast))
            handle = exchange(buffer, send, receive, group, name, WIDTH, traffic)
            expected = quantize_tokens(rows([(s, rank, n) for s, n in enumerate(receive)]), cast)
            got = handle.wait()
            found[f"{name}: {split}"] = torch.equal(got, pack(expected)) and torch.equal(got, handle.wait())
            back = unpack(got, Layout(WIDTH, cast))
            same = torch.equal(back.codes, expected.codes) if cast.fmt else torch.equal(back, expected)
            found[f"{name}: {split}, unpacked"] = same
        found[name] = asdict(traffic.of(name)) | traffic.wires()[name]
    # two on their way at once, waited for in the other order
    send = [1] * RANKS
    handles = [exchange(pack(rows([(rank, p, 1) for p in range(RANKS)])) ^ i, send, send, group, "x") for i in (0, 1)]
    expected = pack(rows([(s, rank, 1) for s in range(RANKS)]))
    found["two at once"] = all(torch.equal(handles[i].wait(), expected ^ i) for i in (1, 0))
    counts = exchange_counts(torch.arange(8) + 100 * rank, group, traffic := Traffic())
    found["counts"] = counts.tolist()
    found["counts, bytes"] = traffic.of("counts").bytes
    return found


def work() -> dict[str, object]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen = look(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()
    return seen


@pytest.fixture(scope="module")
def found() -> list[dict[str, object]]:
    """What each of four processes found, rank by rank; minutes are a hang."""
    return [one.found for one in ranks(__file__, "work", RANKS, seconds=240)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("wire", WIRES)
def test_every_rank_gets_its_rows(found: list[dict[str, object]], wire: str, split: str) -> None:
    assert [each[f"{wire}: {split}"] for each in found] == [True] * RANKS
    assert [each[f"{wire}: {split}, unpacked"] for each in found] == [True] * RANKS


@pytest.mark.parametrize("wire", WIRES)
def test_counted_bytes_are_the_formulas(found: list[dict[str, object]], wire: str) -> None:
    bits = bits_per_value(WIRES[wire][0], WIDTH)
    for rank, each in enumerate(found):
        sent = [[count(rank, p) for p in range(RANKS)] for count in SPLITS.values()]
        values = WIDTH * sum(map(sum, sent))
        told = each[wire]
        assert (told["calls"], told["rows"], told["values"]) == (len(SPLITS), values // WIDTH, values)
        assert told["bytes"] * 8 == values * bits
        assert told["bytes_kept"] * 8 == WIDTH * sum(split[rank] for split in sent) * bits
        assert told["bits_per_value"] == float(bits)


def test_exchanges_overlap_and_counts_are_told(found: list[dict[str, object]]) -> None:
    for rank, each in enumerate(found):
        assert each["two at once"]
        assert each["counts"] == [[100 * s + 2 * rank, 100 * s + 2 * rank + 1] for s in range(RANKS)]
        assert each["counts, bytes"] == 64


def test_a_process_alone_receives_what_it_sends() -> None:
    traffic = Traffic()
    buffer = pack(rows([(0, 0, 3)]))
    assert exchange(buffer, [3], [3], None, "dispatch", WIDTH, traffic).wait() is buffer
    assert exchange_counts(torch.tensor([2, 0, 1]), None, traffic).tolist() == [[2, 0, 1]]
    told = traffic.of("dispatch")
    assert (told.bytes, told.bytes_kept, told.bits_per_value) == (3 * WIDTH * 2, 3 * WIDTH * 2, 16)


def test_the_summary_tells_measured_bits_beside_those_of_bf16() -> None:
    traffic = Traffic()
    for phase, wire in (("dispatch", "nvfp4"), ("combine", "s2f6_rht"), ("gradients", "bf16")):
        q = quantize_tokens(rows([(0, 0, 8)]), WIRES[wire][0])
        exchange(pack(q), [8], [8], None, phase, WIDTH, traffic).wait()
    lines = traffic.summary().splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["dispatch", "5.0000"],
        ["combine", "8.2500"],
        ["gradients", "16.0000"],
    ]
    assert "3.200x fewer" in lines[1] and "1.939x fewer" in lines[2] and "the same" in lines[3]
    assert set(traffic.take()) == {"dispatch", "combine", "gradients"} and traffic.phases == {}


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda b: exchange(b.float(), [2], [2], None, "x"), TypeError, "buffer has dtype"),
        (lambda b: exchange(b.T, [2], [2], None, "x"), ValueError, "pass contiguous rows"),
        (lambda b: exchange(b, [1, 1], [2], None, "x"), ValueError, r"send=\[1, 1\]: pass rows for each of 1 ranks"),
        (lambda b: exchange(b, [2], [-1], None, "x"), ValueError, r"receive=\[-1\]: pass rows"),
        (lambda b: exchange(b, [3], [3], None, "x"), ValueError, "adds up to 3 rows: buffer has 2"),
        (lambda b: exchange(b, [2], [3], None, "x"), ValueError, "a process alone receives what it sends"),
        (lambda b: exchange_counts(torch.zeros(2), None), TypeError, "rows has dtype"),
        (lambda b: exchange_counts(torch.zeros(2, 2, dtype=torch.int64), None), ValueError, "pass .E,."),
    ],
)
def test_bad_input_is_told(call: object, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        call(torch.zeros(2, 3, dtype=torch.uint8))
