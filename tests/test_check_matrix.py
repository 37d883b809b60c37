"""`fourbit check` has no false alarm on sound dumps, and no false pass on destroyed ones.

Contract: a dump of any dialect's bytes, in any layout and at any size around a boundary, with its outer, without it, or
under a calibrated one, passes and is named as some dialect's; a destroyed one fails. Oracle: `dump_samples` makes the
bytes by the dialects alone, `dump_destructions` proves that x cannot be had back from those of a destroyed one.
"""

from collections.abc import Iterator

import pytest
from dump_destructions import destruction
from dump_samples import CODES, CONTENTS, MADE, OUTERS, RARE_CODES, RARE_SCALES, SCALES, sample

from hw.check import check

SLICE = range(0, len(MADE), 4)  # every fourth dialect and format


def alarms(samples) -> list[str]:
    """Sound dumps that do not pass."""
    judged = ((s, check(s.dump, **s.asked)) for s in samples)
    return [f"{s}\n{report}" for s, report in judged if not report or not report.contracts]


def passes(seeds) -> list[str]:
    """Destroyed dumps that pass."""
    judged = ((d, check(d.dump, **d.of.asked)) for d in map(destruction, seeds))
    return [f"{d}\n{report}" for d, report in judged if report]


def test_sound_dumps_pass():
    found = alarms(sample(seed, *MADE[seed]) for seed in SLICE)
    assert not found, "\n\n".join(found)


def test_destroyed_dumps_fail():
    found = passes(range(25))
    assert not found, "\n\n".join(found)


RARELY = [
    (codes, scales) for codes in ("plain", "packed", *RARE_CODES) for scales in ("plain", "swizzled", *RARE_SCALES)
]


def rarely(seeds: range) -> Iterator[tuple[int, dict[str, str]]]:
    """Seeds, and how codes and scales lie with each: as a few libraries keep them."""
    for seed in seeds:
        codes, scales = RARELY[seed % len(RARELY)]
        yield seed, {"codes": codes, "scales": scales}


def test_rare_layouts():
    found = alarms(sample(seed, *MADE[5 * seed % len(MADE)], **how) for seed, how in rarely(range(45, 60)))
    assert not found, "\n\n".join(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(20))
def test_every_rare_layout(part: int):
    """Of every dialect and format, of sizes and contents that are drawn; and 300 destroyed ones. 20 minutes in all."""
    seeds = range(part * 5 * len(RARELY), (part + 1) * 5 * len(RARELY))
    made = [MADE[(seed + seed // len(RARELY)) % len(MADE)] for seed in seeds]
    found = alarms(sample(seed, *of, **how) for of, (seed, how) in zip(made, rarely(seeds), strict=True))
    assert not found, "\n\n".join(found[:10])
    drawn = [destruction(seed, **how) for seed, how in rarely(range(9000 + 15 * part, 9015 + 15 * part))]
    found = [f"{d}\n{report}" for d, report in ((d, check(d.dump, **d.of.asked)) for d in drawn) if report]
    assert not found, "\n\n".join(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", CONTENTS)
def test_dumps_of_all_contents_pass(kind: str):
    """All dialects and formats under every outer; sizes and layouts are drawn. 25 minutes with the next."""
    made = [(*one, outer) for one in MADE for outer in OUTERS]
    drawn = (sample(seed, name, fmt, content=kind, outer=outer) for seed, (name, fmt, outer) in enumerate(made))
    found = alarms(drawn)
    assert not found, "\n\n".join(found[:10])


@pytest.mark.exhaustive
@pytest.mark.parametrize("codes", CODES)
def test_dumps_of_all_layouts_pass(codes: str):
    """All dialects and formats in every layout; sizes, contents and outers are drawn."""
    made = [(*one, scales) for one in MADE for scales in SCALES]
    drawn = (sample(10_000 + s, name, fmt, codes=codes, scales=scales) for s, (name, fmt, scales) in enumerate(made))
    found = alarms(drawn)
    assert not found, "\n\n".join(found[:10])


@pytest.mark.exhaustive
def test_every_destroyed_dump_fails():
    """300 seeds, two minutes."""
    found = passes(range(1000, 1300))
    assert not found, "\n\n".join(found)
