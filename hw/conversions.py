"""`fourbit validate --conversions`: the GPU's own `cvt` instructions against the emulator, bit for bit.

The instruction runs on the device through `hw.cvt`, the emulator beside it on the same device, from the same bits:

    narrow <-> f32, f16x2, bf16x2     every form of `numerics.ptx`
    f16, bf16, f16x2, bf16x2 <- f32   `numerics.encode`; without .satfinite overflow goes as IEEE 754 rounds it, to
    tf32 <- f32                       infinity or to the largest number; NaN see `_nan`; .relu as in
                                      `numerics.ptx`

Inputs. One float32 operand takes all 2^32 patterns; the others of the same instruction, and random bits, take a
permutation of all patterns each (an odd multiple, modulo 2^32), so that every element of the word meets every input.
Words of 16 bits take all patterns, float16 pairs all 65,536 halves in both places. A scale doubles the domain: words of
16 bits meet all 65,536 scales. Registers are compared as they are, NaN too, except for the low 13 bits of tf32, which
its consumers ignore: words that have some of them set are counted in `note`.

Forms that the chip lacks are "not run", neither passed nor failed.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import numerics as nm
from numerics.ptx_arithmetic import relu

Machine = Callable[[str, list[Tensor]], Tensor]  # `hw.cvt.issue`
Capability = tuple[int, int]

CHUNK = 1 << 25  # words that are compared at once: about 5 GB of temporaries
FAST = 1 << 24  # words of each instruction under --fast
_ODD = (1, 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F)  # multiples that permute the 2^32 patterns
_MASK = 0xFFFFFFFF
_WIDE = {"f16": nm.FP16, "bf16": nm.BF16, "f16x2": nm.FP16, "bf16x2": nm.BF16, "tf32": nm.TF32}
_ROUNDINGS = {
    "rn": nm.Rounding.NEAREST_EVEN,
    "rna": nm.Rounding.NEAREST_AWAY,
    "rz": nm.Rounding.TOWARD_ZERO,
    "rp": nm.Rounding.TOWARD_POSITIVE,
    "rm": nm.Rounding.TOWARD_NEGATIVE,
}
# the first expression that matches an instruction says which compute capabilities have it (PTX ISA 9.4, "cvt")
_TARGETS: tuple[tuple[str, str, Callable[[Capability], bool]], ...] = (
    (r"cvt\.rz\..*(s2f6x2|\.e\dm\dx2)\.", "sm_107a", lambda c: c == (10, 7)),
    (r"cvt\.rs", "sm_100a", lambda c: c in ((10, 0), (10, 3), (10, 7))),
    (r".*s2f6x2", "sm_100a", lambda c: c in ((10, 0), (10, 3), (10, 7), (11, 0), (12, 0), (12, 1))),
    (r".*(ue8m0x2|e2m1x2|e2m3x2|e3m2x2|\.bf16x2\.e|\.e\dm\dx2\.bf16x2)", "sm_100a", lambda c: c >= (10, 0)),
    (r"cvt\.r[nz]\.satfinite.*tf32", "sm_100", lambda c: c >= (10, 0)),
    (r".*", "sm_90", lambda c: c >= (9, 0)),
)


@dataclass
class Row:
    """A line of the table. words: registers compared; elements: numbers in them. `first`: the first difference, or the
    error that ended the comparison. `note`: what was seen beside it. `not_run`: what this machine lacks."""

    instruction: str
    words: int = 0
    elements: int = 0
    differing: int = 0
    first: str | None = None
    note: str | None = None
    not_run: str | None = None

    @property
    def failed(self) -> bool:
        return self.not_run is None and (self.words == 0 or self.differing > 0 or self.first is not None)

    def __str__(self) -> str:
        text = f"not run: {self.not_run}" if self.not_run else "  ".join(filter(None, (self.first, self.note)))
        return f"{self.instruction:<55} {self.words:>10} {self.differing:>10}  {text}".rstrip()


def instructions() -> dict[str, Callable[..., Tensor]]:
    """The emulator of every instruction: float32 operands or words, and scale or random bits, to result words."""
    both = [f"{r}{s}{l}" for r in ("rn", "rz") for s in ("", ".satfinite") for l in ("", ".relu")]
    modifiers = {"bf16x2": both, "bf16": [*both, "rm", "rp"], "f16x2": both, "f16": [*both, "rm", "rp"]}
    modifiers["tf32"] = ["rna", "rna.satfinite", *both]
    texts = [f"cvt.{modifier}.{kind}.f32" for kind, listed in modifiers.items() for modifier in listed]
    wide = {text: _emulate_wide(text) for text in texts}
    return nm.ptx.instructions() | wide


def lacks(text: str, capability: Capability) -> str | None:
    """What an instruction needs that a chip of this compute capability is not; None: the chip has it."""
    needs, has = next((needs, has) for expression, needs, has in _TARGETS if re.match(expression, text))
    return None if has(capability) else f"needs {needs}"


def _emulate_wide(text: str) -> Callable[..., Tensor]:
    parts = text.split(".")
    fmt, rounding = _WIDE[parts[-2]], _ROUNDINGS[parts[1]]

    def code(x: Tensor) -> Tensor:
        x = relu(x) if "relu" in parts else x
        found = nm.encode(x, fmt, rounding).to(torch.int64) & ((1 << fmt.bits) - 1)
        if "satfinite" not in parts:
            sign = found & (1 << (fmt.bits - 1))
            found = torch.where(_overflows(x, fmt, rounding), sign | (fmt.max_code + 1), found)
        return torch.where(torch.isnan(x), _nan(x, parts), found)

    def emulate(*operands: Tensor) -> Tensor:
        codes = [code(x) for x in operands]
        return (codes[0] << 16) | codes[1] if len(codes) == 2 else codes[0] << (13 * (fmt is nm.TF32))

    return emulate


def _nan(x: Tensor, parts: list[str]) -> Tensor | int:
    """Code of a NaN: all ones without sign.

    .rna knows no NaN, as an H200 showed: it cuts off the payload, and with .satfinite takes one place from what then
    has the largest exponent, so that some NaNs become infinity or the largest number.
    """
    if parts[1] != "rna":
        return (1 << (_WIDE[parts[-2]].bits - 1)) - 1
    return ((x.view(torch.int32).to(torch.int64) & _MASK) >> 13) - int("satfinite" in parts)


def _overflows(x: Tensor, fmt: nm.Format, rounding: nm.Rounding) -> Tensor:
    """Where IEEE 754 rounds float32 numbers to infinity instead of the largest number."""
    if rounding in (nm.Rounding.NEAREST_EVEN, nm.Rounding.NEAREST_AWAY):
        # beyond the largest number by half of its last place or more: the tie goes to the even one, or away
        return x.abs() >= fmt.max + fmt.max / ((1 << fmt.mantissa_bits + 1) - 1) / 2
    if rounding is nm.Rounding.TOWARD_POSITIVE:
        return (x > fmt.max) | (x == -torch.inf)
    if rounding is nm.Rounding.TOWARD_NEGATIVE:
        return (x < -fmt.max) | (x == torch.inf)
    return torch.isinf(x)


# Inputs.


@dataclass(frozen=True)
class Domain:
    """The operands of an instruction as functions of an index below `words`."""

    text: str

    @property
    def parts(self) -> list[str]:
        return self.text.split(".")

    @property
    def scaled(self) -> bool:
        return any(part.startswith("scaled") for part in self.parts)

    @property
    def count(self) -> int:
        """Elements of the result."""
        return int(self.parts[-2][-1]) if self.parts[-2][-2:] in ("x2", "x4") else 1

    @property
    def source_bits(self) -> int:
        """Bits that a packed source varies in; a pair of halves varies together."""
        return {"f32": 32, "e2m1x2": 8}.get(self.parts[-1], 16)

    @property
    def words(self) -> int:
        return 1 << min(32, self.source_bits + 16 * self.scaled)

    def operands(self, index: Tensor) -> list[Tensor]:
        """int64 patterns in [0, 2^32), the scale or the random bits last."""
        if self.source_bits == 32:
            found = [_permuted(index, place) for place in range(self.count)]
        else:
            low = index & ((1 << self.source_bits) - 1)
            found = [low if self.parts[-1] not in ("f16x2", "bf16x2") else (low * _ODD[1] & 0xFFFF) << 16 | low]
        if self.parts[-1] in ("e2m3x2", "e3m2x2"):
            found[0] = found[0] & 0x3F3F  # what the two bits above a 6-bit code do is not defined
        if self.scaled:
            found.append(index >> self.source_bits if self.source_bits < 32 else _permuted(index, 4) >> 16)
        if self.parts[1] == "rs":
            random = _permuted(index, 4)
            found.append(random & 0x1FFF1FFF if self.parts[-2] == "f16x2" else random)
        return found


def _permuted(index: Tensor, place: int) -> Tensor:
    return index * _ODD[place] & _MASK


def as_register(pattern: Tensor) -> Tensor:
    """int64 patterns in [0, 2^32) as int32."""
    return ((pattern ^ 0x80000000) - 0x80000000).to(torch.int32)


# Comparing.


def compare(text: str, emulate: Callable[..., Tensor], machine: Machine, device: torch.device, limit: int) -> Row:
    """One instruction, on all of its domain or on `limit` inputs spread over it."""
    domain, row, extra = Domain(text), Row(text), 0
    words = min(domain.words, limit)
    for start in range(0, words, CHUNK):
        index = torch.arange(start, min(start + CHUNK, words), device=device)
        if words < domain.words:
            index = index * _ODD[1] & (domain.words - 1)
        patterns = domain.operands(index)
        found = machine(text, [as_register(x) for x in patterns]).to(torch.int64) & _MASK
        numbers = len(patterns) - (domain.scaled or domain.parts[1] == "rs") if domain.source_bits == 32 else 0
        floats = [as_register(x).view(torch.float32) for x in patterns[:numbers]]
        expected = emulate(*floats, *patterns[numbers:]).to(torch.int64) & _MASK
        differs = found != expected
        if domain.parts[-2] == "tf32":
            differs, extra = (found ^ expected) >> 13 != 0, extra + int(((found & 0x1FFF) != 0).sum())
        row.words, row.elements = row.words + len(index), row.elements + len(index) * domain.count
        row.differing += int(differs.sum())
        if row.first is None and bool(differs.any()):
            at = int(differs.nonzero()[0])
            given = ", ".join(f"0x{int(x[at]):08x}" for x in patterns)
            row.first = f"{given} gives 0x{int(found[at]):x}, should be 0x{int(expected[at]):x}"
    row.note = f"{extra} words have some of their low 13 bits set" if extra else None
    return row


def run(device: torch.device, machine: Machine, limit: int, refused: type[Exception]) -> Iterator[Row]:
    """Every instruction: those of the device compared, the others not run. `refused`: what `machine` raises for an
    instruction that its assembler does not know."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    everything = instructions()
    mine = [text for text in everything if lacks(text, capability) is None]
    total = sum(min(Domain(text).words, limit) for text in mine)
    with tqdm(total=total, unit="word", unit_scale=True, disable=None, leave=False) as bar:
        for text, emulate in everything.items():
            if text not in mine:
                yield Row(text, not_run=lacks(text, capability))
                continue
            bar.set_description(text)
            try:
                first = Domain(text).operands(torch.zeros(1, dtype=torch.int64, device=device))
                with contextlib.redirect_stdout(io.StringIO()):  # Triton prints the whole program that was refused
                    machine(text, [as_register(x) for x in first])
                row = compare(text, emulate, machine, device, limit)
            except refused as error:
                reason = next((line for line in str(error).splitlines() if "error   :" in line), str(error))
                row = Row(text, not_run=f"the assembler refuses it: {reason.split('error   :')[-1].strip()[:200]}")
            except RuntimeError as error:  # no memory: the others still count
                row = Row(text, first=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            bar.update(min(Domain(text).words, limit))
            yield row


def conclude(rows: list[Row], about: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The summary in one line, and the result for the record."""
    ran, failed = [row for row in rows if row.not_run is None], [row for row in rows if row.failed]
    words, differing = sum(row.words for row in ran), sum(row.differing for row in ran)
    passed = words > 0 and not failed
    against = f"the cvt instructions of {about['device']} against the emulator on it"
    found = "none differs" if passed else f"{differing} differ, {len(failed)} instructions failed"
    line = f"{'passed' if passed else 'FAILED'}: {against} ({about['name']}): {len(ran)} instructions, {words} words "
    line += f"compared, {found}; {len(rows) - len(ran)} instructions not run"
    result = {"status": "passed" if passed else "failed", "device": about, "compared": against, "words": words}
    result |= {"differing": differing, "failed": len(failed), "not_run": len(rows) - len(ran)}
    return line, result | {"cases": [asdict(row) for row in rows]}
