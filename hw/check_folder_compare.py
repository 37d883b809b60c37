"""A folder beside the one that it was quantized from: every matrix, every other tensor, and what is missing.

Matrices are compared by `check_folder_against`. Other tensors must have the original's bits, or be it rounded to a
narrower dtype. Of up to `NAMED` matrices that are the original's, some rows are also run through every dialect, by
`check`: a fact, since calibrated codes are those of no dialect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from .check_folder_against import against
from .check_folder_config import plan_of
from .check_folder_decode import outer_of, readings, stored_grid
from .check_folder_explain import sample_of
from .check_folder_files import FLOATS, Entry, shelf_of
from .check_folder_kin import role
from .check_folder_originals import Original, Originals
from .check_folder_parts import Matrix, matrix_of, modules_of
from .check_folder_report import Finding
from .check_report import Report

Judge = Callable[[dict[str, Tensor], str], Report]  # `check`
NAMED, ROWS, WIDTH = 3, 64, 4096  # matrices whose quantizer is looked for, and what of them
SLACK = 2.0**-8  # relative: a tensor that was rounded to bfloat16
DERIVED = ("inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "position_ids", "masked_bias")


def originals_of(folder: Path) -> Originals:
    """The originals in a folder. Raises: ValueError if it has no tensors."""
    shelf, _ = shelf_of(folder)
    plan, _ = plan_of(folder)
    modules, plain = modules_of(shelf.entries)
    found = [matrix_of(module, plan.scheme(module.name), shelf.metadata)[0] for module in modules]
    return Originals(plain, [m for m in found if m is not None])


def compare(
    matrices: list[Matrix], names: list[str], plain: list[Entry], folder: Path, dumps: Judge | None, quiet: bool
) -> tuple[list[Finding], list[str], set[str]]:
    """What is wrong beside the originals, facts, and the modules that are the original's.

    names: of all modules, also of those that cannot be read. dumps: what judges a dump; quiet: without a bar.

    Raises: ValueError if the folder has no tensors, or the original of none of the matrices.
    """
    originals = originals_of(folder)
    kin = _kin(matrices)
    findings: list[Finding] = []
    without, errors, named, sound = [], [], {}, set()
    bar = tqdm(matrices, "against", unit="matrix", leave=False, disable=quiet)
    for m in bar:
        original = originals.of(m)
        if original is None:
            without.append(m.module.name)
            continue
        original = _right_way(m, original)
        if original.shape[0] > m.rows or original.shape[1] > m.columns:
            text = "the original is larger, or turned: shapes differ"
            detail = f"{m.rows} x {m.columns}, original {original.shape[0]} x {original.shape[1]}"
            findings.append(Finding("shape", text, (m.module.name,), detail))
            continue
        found = [against(m, of, original.rows, original.shape, kin[m.module.name]) for of in range(m.lead)]
        errors += [error for error, _ in found]
        wrong = [finding for _, some in found for finding in some]
        findings += wrong
        sound |= set() if wrong else {m.module.name}
        if dumps and not wrong and len(named) < NAMED and role(m.module.name) not in named:
            named[role(m.module.name)] = _quantizer(m, original, dumps)
    if len(without) == len(matrices) > 0:
        raise ValueError(f"against {str(folder)!r}: it has the original of none of the matrices, such as {without[0]}")
    findings += _others(plain, originals) + _missing(matrices, names, plain, originals)
    return findings, _facts(errors, without, [text for text in named.values() if text]), sound


def _facts(errors: list[float], without: list[str], named: list[str]) -> list[str]:
    facts = []
    if errors:
        ordered = sorted(errors)
        middle = ordered[len(ordered) // 2]
        facts.append(
            f"against the original: {len(errors):,} matrices, every value decoded; error {middle:.2g} of the energy in "
            f"the middle, {ordered[-1]:.2g} at most"
        )
    facts += named
    if without:
        more = f" and {len(without) - 2:,} more" if len(without) > 2 else ""
        facts.append(f"no original for {', '.join(without[:2])}{more}: judged without")
    return facts


def _kin(matrices: list[Matrix]) -> dict[str, list[Matrix]]:
    """By module: those whose scales or codes it may have, its own role and those beside it, in its own layer first."""
    by_parent: dict[str, list[Matrix]] = defaultdict(list)
    by_role: dict[str, list[Matrix]] = defaultdict(list)
    for m in matrices:
        by_parent[m.module.name.rpartition(".")[0]].append(m)
        by_role[role(m.module.name)].append(m)
    return {
        m.module.name: [*by_parent[m.module.name.rpartition(".")[0]], *by_role[role(m.module.name)]][:512]
        for m in matrices
    }


def _right_way(m: Matrix, original: Original) -> Original:
    """Of a stacked original with square matrices, the way round that fits: nothing else says it."""
    if m.lead == 1 or original.shape[0] != original.shape[1] or original.entry is None:
        return original
    turned = Original(original.shape, original.entry, lead=original.lead, transposed=True)

    def error(o: Original) -> float:
        shown = sample_of(m, 0, o.rows, o.shape)
        return min(shown.error(reading)[0] for reading in readings(m, 0))

    return min((original, turned), key=error)


def _quantizer(m: Matrix, original: Original, dumps: Judge) -> str:
    """Whose bytes some rows are, in words; nothing where `check` does not read the format."""
    if m.fmt == "FP8" or m.reading != "linear" or m.columns % m.block[1] or original.shape[1] != m.columns:
        return ""
    rows, columns = min(ROWS, m.rows, original.shape[0]), min(WIDTH, m.columns)
    raw = m.module.parts["codes"].read(0, rows, m.lead * m.rows).view(torch.uint8).view(rows, -1)
    grid = stored_grid(m, 0)[:rows, : columns // m.block[1]].contiguous().view(torch.uint8)
    dump = {
        "x": original.rows(0, 0, rows)[:, :columns].to(torch.bfloat16),
        "codes": raw[:, : columns // (2 if m.packed else 1)].contiguous(),
        "scales": grid,
    }
    if m.fmt == "NVFP4":
        dump["outer"] = outer_of(m)[:1].clone()
    try:
        report = dumps(dump, m.fmt)
    except ValueError:
        return ""
    what = f"{rows} x {columns} values of {m.module.name}"
    if report.contracts:
        return f"{what} are the bytes of {', '.join(report.contracts[:4])}"
    return f"{what} are the bytes of no known quantizer, as calibrated ones are, or those of another original"


def _others(plain: list[Entry], originals: Originals) -> list[Finding]:
    """Tensors that are not quantized beside their originals."""
    findings = []
    for entry in plain:
        other = originals.named(entry.name)
        if other is None or entry.dtype not in FLOATS or other.dtype not in FLOATS:
            continue
        if entry.shape != other.shape:
            text = "its shape is not the original's"
            findings.append(Finding("shape", text, (entry.name,), f"{list(entry.shape)}, {list(other.shape)}"))
            continue
        rows = max(1, entry.shape[0] if entry.shape else 1)
        step = max(1, rows * (1 << 24) // max(entry.size, 1))
        off = 0
        for first in range(0, rows if entry.numel else 0, step):
            a, b = (e.read(first, first + step, rows).reshape(-1).to(torch.float32) for e in (entry, other))
            off += int(((a - b).abs() > SLACK * b.abs()).sum() + (torch.isnan(a) & ~torch.isnan(b)).sum())
        if off:
            text = "it is not quantized, and its values are not the original's"
            findings.append(Finding("values", text, (entry.name,), f"{off:,} of {entry.numel:,} differ"))
    return findings


def _missing(matrices: list[Matrix], names: list[str], plain: list[Entry], originals: Originals) -> list[Finding]:
    """Tensors of the original that nothing here is, or is a part of."""
    there = [*(entry.name for entry in plain), *(form for name in names for form in (name, f"{name}.weight"))]
    used = {entry.name for name in there if (entry := originals.named(name)) is not None}
    for m in matrices:
        original = originals.of(m)
        for o in () if original is None else (original, *original.apart):
            used |= {o.entry.name} if o.entry is not None else set()
    lost = [n for n in originals.plain if n not in used and not n.endswith(DERIVED)]
    head = [n for n in lost if not n.endswith("lm_head.weight")]
    text = "it is missing: the original has it"
    return [Finding("missing", text, (name,)) for name in head]
