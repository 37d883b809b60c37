"""One quantized matrix, or one other tensor, by its own bytes: NaN, scales that cannot be, values of no model.

Nothing here needs the original. Bytes are looked at all, magnitudes on a sample of rows:

    rms = sqrt(mean(values^2))

Weights of a trained or initialized layer have an rms of 1e-4 to 1. Above `LARGE` the report says which one change
(an outer that is lost or inverted, scales that are inverted) gives such a number; a stored outer of 1 is fine where
the scales alone do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .check_folder_decode import elements, factor_of, factors, outer_of, padding_bytes, raw_scales, scaled, stored_grid
from .check_folder_files import FLOATS, Entry
from .check_folder_parts import ENCODE, Matrix
from .check_folder_report import Finding

CHUNK = 1 << 24  # bytes that are looked at together
SAMPLE = 1 << 17  # elements of a matrix that are decoded
MAGNITUDE = "magnitude"  # kind of findings that an original can refute
LARGE, LEAST, MOST = 10.0, 1e-6, 4.0  # rms: of no layer from here on; of a layer, from and to
LARGEST_INPUT, USUAL_INPUT = 2e5, (1e-2, 2e4)  # |activation|: of no layer from here on; of a layer, from and to
HALF, NEARLY = 0.5, 0.95  # of all blocks: uniform numbers have up to half at the largest scale
NANS = {"F8_E4M3": (0x7F, 0x7F), "F8_E5M2": (0x7C, 0x7F), "F8_E8M0": (0xFF, 0xFF)}  # magnitudes, from and to
INPUTS = {"NVFP4": 2688.0, "FP8": 448.0}  # amax = factor * this


@dataclass(frozen=True)
class Seen:
    """What one of a module's matrices looks like: its rms, the outer factor, 1 without one, and a digest of codes and
    scales of some rows."""

    name: str
    rms: float
    outer: float
    digest: str


def look(m: Matrix) -> tuple[list[Seen], list[Finding]]:
    """The matrices of a module, and what is wrong with them."""
    codes, scale = m.module.parts["codes"], m.module.parts["scale"]
    findings = [*_nan_bytes(codes), *_outer(m), *_padding(m)]
    outer, seen = outer_of(m), []
    for of in range(m.lead):
        name = m.module.name if m.lead == 1 else f"{m.module.name}[{of}]"
        grid = factors(stored_grid(m, of), m.fmt)
        findings += _scales(m, of, grid, name)
        values, squares, vanished, blocks, digest = (
            0,
            0.0,
            0,
            0,
            hashlib.sha256(raw_scales(m, of).view(torch.uint8).numpy()),
        )
        for first, last in sample(m):
            raw = elements(m, of, first, last)
            digest.update(raw.numpy())
            found = scaled(raw, grid, m, first).to(torch.float64)
            usable = torch.isfinite(found)
            squares += float(torch.where(usable, found, 0.0).square().sum())
            values += int(usable.sum())
            gone, total = _vanished(raw, grid, m, first)
            vanished, blocks = vanished + gone, blocks + total
        if blocks and vanished > HALF * blocks:
            text = f"most blocks have scale 0 and codes that are not: they vanish ({m.fmt})"
            findings.append(Finding("scales", text, (scale.name,), f"{vanished:,} of {blocks:,} sampled"))
        rms = (squares / max(values, 1)) ** 0.5
        seen.append(Seen(name, rms * abs(float(outer[of])), float(outer[of]), digest.hexdigest()))
        findings += _magnitude(m, grid, rms, float(outer[of]), name)
    return seen, findings


def sample(m: Matrix, count: int = SAMPLE) -> Iterator[tuple[int, int]]:
    """Runs of rows, evenly spaced, of about `count` elements of each matrix in all."""
    tall = max(m.block[0] if m.block[0] < m.rows else 1, 8)
    runs = max(1, min(count // max(1, tall * m.columns), -(-m.rows // tall)))
    for i in range(runs):
        first = i * (m.rows // runs) // tall * tall
        yield first, min(first + tall, m.rows)


def _vanished(raw: Tensor, grid: Tensor, m: Matrix, first: int) -> tuple[int, int]:
    """Blocks of some rows whose codes are not zero and whose scale is; blocks in all."""
    rows = torch.arange(first, first + len(raw)) // m.block[0]
    zero = grid[rows] == 0
    if not bool(zero.any()):
        return 0, zero.numel()
    some = torch.nn.functional.pad(raw != 0, (0, -raw.shape[1] % m.block[1])).view(*zero.shape, -1).any(-1)
    return int((zero & some).sum()), zero.numel()


def _nan_bytes(entry: Entry) -> list[Finding]:
    """NaN (and infinity) among the bytes of a tensor, or the numbers of a wider one."""
    bad = 0
    itemsize = entry.size // max(entry.numel, 1)
    if entry.dtype not in NANS and entry.dtype not in FLOATS:
        return []
    for part in _parts(entry):
        if entry.dtype in FLOATS:
            bad += int((~torch.isfinite(part)).sum())
        else:
            low, high = NANS[entry.dtype]
            magnitude = part.view(torch.uint8) & (0xFF if entry.dtype == "F8_E8M0" else 0x7F)
            bad += int(((magnitude >= low) & (magnitude <= high)).sum())
    if not bad:
        return []
    what = "NaN or infinite" if itemsize > 1 or entry.dtype == "F8_E5M2" else "NaN"
    return [Finding("NaN", f"{entry.dtype} values are {what}", (entry.name,), f"{bad:,} of {entry.numel:,}")]


def _parts(entry: Entry) -> Iterator[Tensor]:
    """A tensor flat, a chunk at a time."""
    rows = entry.shape[0] if entry.shape else 1
    step = max(1, rows * CHUNK // max(entry.size, 1))
    for first in range(0, rows if entry.size else 0, step):
        yield entry.read(first, first + step, rows).reshape(-1)


def plain(entry: Entry) -> list[Finding]:
    """What is wrong with a tensor that is not quantized: NaN, nothing in it, a dtype that is none of a weight, or a
    single scale, such as of a cache, that is none."""
    findings = _nan_bytes(entry)
    if not entry.numel:
        return [Finding("shape", f"it is empty: {list(entry.shape)}", (entry.name,))]
    if entry.name.endswith(".weight") and len(entry.shape) == 2 and entry.dtype not in FLOATS:
        text = f"a matrix of {entry.dtype} without scales: no floats, and no codes of a format that is judged"
        findings.append(Finding("dtype", text, (entry.name,)))
    if not findings and entry.name.endswith("_scale") and entry.numel == 1 and entry.dtype in FLOATS:
        value = float(entry.read().reshape(()))
        if value <= 0:
            findings.append(Finding("scales", f"the scale is {value:g}", (entry.name,)))
    return findings


def _scales(m: Matrix, of: int, grid: Tensor, name: str) -> list[Finding]:
    """Scales that cannot be, of one matrix."""
    scale = m.module.parts["scale"].name
    n = grid.numel()
    counts = {
        "NaN or infinite": int((~torch.isfinite(grid)).sum()),
        "negative": int((grid < 0).sum()),
    }
    whose = f" in {name}" if m.lead > 1 else ""
    findings = [
        Finding("scales", f"block scales are {words}", (scale,), f"{count:,} of {n:,}{whose}")
        for words, count in counts.items()
        if count
    ]
    if findings or m.fmt != "NVFP4" or n < 64:
        return findings
    top = int((grid == 448).sum())
    if bool((grid == grid.flatten()[0]).all()) and float(grid.flatten()[0]):
        text = "every block scale is the same: the scales are lost"
        findings.append(Finding("scales", text, (scale,), f"{float(grid.flatten()[0])} for {n:,} blocks"))
    elif top > NEARLY * n:
        text = "nearly all block scales are the largest, 448: they saturate under their outer scale"
        findings.append(Finding("scales", text, (scale,), f"{top:,} of {n:,}"))
    return findings


def _outer(m: Matrix) -> list[Finding]:
    """An outer scale, or one of activations, that is none."""
    findings = []
    for part, what in (("outer", "outer scale"), ("input", "scale of activations")):
        entry = m.module.parts.get(part)
        if entry is None:
            continue
        if entry.dtype not in FLOATS or (part == "outer" and entry.dtype != "F32"):
            findings.append(Finding(part, f"the {what} is {entry.dtype}, not F32", (entry.name,)))
        if entry.dtype not in FLOATS:
            continue
        stored = entry.read().reshape(-1).to(torch.float32)
        count = stored.numel()
        bad = ~torch.isfinite(stored) | (stored <= 0)
        if bool(bad.any()):
            worst = float(stored[bad][0])
            where = f" ({int(bad.sum())} of {count})" if count > 1 else ""
            findings.append(Finding(part, f"the {what} is {worst:g}", (entry.name,), where.strip(" ()")))
        elif part == "outer" and count not in (1, m.lead):
            text = f"{count} outer scales for {m.lead} matrices of {m.rows} rows"
            findings.append(Finding(part, text, (entry.name,)))
        elif part == "input":
            findings += _activations(m, entry, stored)
    return findings


def _activations(m: Matrix, entry: Entry, stored: Tensor) -> list[Finding]:
    """A scale of activations that stands for values of no layer, where its reciprocal does not."""
    most = INPUTS.get(m.fmt)
    if most is None:
        return []
    amax = float(factor_of(entry, m.module.suffix["input"], stored.numel()).max()) * most
    other = most * most / amax
    if amax < LARGEST_INPUT or not USUAL_INPUT[0] <= other <= USUAL_INPUT[1]:
        return []
    text = f"the scale of activations is inverted: it stands for values far beyond {LARGEST_INPUT:g}"
    return [Finding("input", text, (entry.name,), f"up to {amax:.3g}; 1 over it for up to {other:.3g}")]


def beyond(m: Matrix, of: int, columns: int) -> int:
    """Codes in columns from `columns` on that are not zero."""
    step = max(1, CHUNK // m.columns)
    runs = range(0, m.rows, step)
    return sum(int((elements(m, of, first, first + step)[:, columns:] != 0).sum()) for first in runs)


def _padding(m: Matrix) -> list[Finding]:
    """Bytes behind the scales of a padded matrix, in the reading that leaves fewer."""
    if m.reading not in ("padded", "swizzled"):
        return []
    stale = sum(padding_bytes(m, of) for of in range(m.lead))
    if not stale:
        return []
    text = "stale padding: bytes around the scales are not zero"
    return [Finding("padding", text, (m.module.parts["scale"].name,), f"{stale:,} bytes")]


def _magnitude(m: Matrix, grid: Tensor, rms: float, outer: float, name: str) -> list[Finding]:
    """Decoded values of no layer: which change makes them some. rms: without the outer."""
    found = rms * abs(outer)
    if not found > LARGE:
        return []
    suffix = m.module.suffix.get("outer", "")
    said = f"decoded values have an rms of no layer's weights, above {LARGE:g}"
    inverse = rms / abs(outer) if outer else 0.0
    power = grid[grid > 0].log2().mean()
    flipped = found * float(torch.exp2(-2 * power)) if grid.numel() else 0.0
    if m.fmt == "NVFP4" and (suffix == "" or outer == 1):
        lost = "there is none" if suffix == "" else f"{suffix} is 1"
        text = f"the outer scale is lost: {lost}, and {said}"
    elif suffix and LEAST < inverse < MOST:
        how = "multiplies" if suffix in ENCODE else "divides"
        text = f"{suffix} is inverted: {said}, unless it {how}"
        return [Finding(MAGNITUDE, text, (name,), f"rms {found:.3g}; inverted {inverse:.3g}")]
    elif m.fmt != "NVFP4" and LEAST < flipped < MOST:
        text = f"the scales are inverted: {said}; their reciprocals give those of a layer"
        of = (m.module.parts["scale"].name,) if m.lead == 1 else (name,)
        return [Finding(MAGNITUDE, text, of, f"rms {found:.3g}; inverted {flipped:.3g}")]
    else:
        text = f"scales or outer are wrong: {said}"
    return [Finding(MAGNITUDE, text, (name,), f"rms {found:.3g}")]
