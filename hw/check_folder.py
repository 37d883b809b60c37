"""`fourbit check FOLDER [--against BF16_FOLDER]`: is a quantized checkpoint whole, and is it what it says?

    fourbit check exported --against original --out report.json
    report = hw.check_folder.check_folder(Path("exported"))
    assert report, report

Files and index (`check_folder_files`), config (`_config`, `_scheme`), how tensors lie (`_parts`), bytes and magnitudes
(`_values`), siblings (`_kin`) and, against the original, every value (`_compare`, `_against`, `_originals`). Formats:
NVFP4, MXFP4, MXFP8 and FP8 as ModelOpt, compressed-tensors, gpt-oss and DeepSeek store them.

Tensors are read one at a time, and some 2^24 bytes of them together. Without the original the order of nibbles, and
that of scales where a shape fits several, cannot be known, and the report says so.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tqdm import tqdm

from .check_folder_compare import Judge, compare
from .check_folder_config import CONFIG, JUDGED, Plan, plan_of
from .check_folder_decode import settled
from .check_folder_files import Entry, Shelf, shelf_of
from .check_folder_kin import copies, fused, magnitudes, missing_children, missing_experts, missing_parts, odd_dtypes
from .check_folder_order import nibble_order, scale_orders
from .check_folder_parts import PARTS, Matrix, Module, matrix_of, modules_of
from .check_folder_report import Finding, FolderReport, lines
from .check_folder_scheme import against_scheme, plain_sizes, sizes, unquantized
from .check_folder_values import MAGNITUDE, Seen, look, plain

HEADERS = ("tensor_names", "_quantization_metadata")  # of files that say themselves what is quantized
BAR = 1 << 28  # bytes from which a progress bar is shown
UNKNOWN = (
    "{} is shown by {} of {} matrices, {}; of the others it cannot be known without --against",
    "whether the values are the original's cannot be known without --against",
)


def check_folder(folder: Path, original: Path | None = None, dumps: Judge | None = None) -> FolderReport:
    """Judge a checkpoint.

    Args:
        folder: with safetensors, perhaps an index, and config.json. original: the folder that it was quantized from.
        dumps: `hw.check.check`, to look for the quantizer of a few matrices; None: it is not looked for.

    Returns: a report, true if nothing is wrong.

    Raises: ValueError for a folder without safetensors, with nothing quantized, or of formats that are not judged.
    """
    shelf, findings = shelf_of(folder)
    plan, found = plan_of(folder)
    findings += found
    modules, others = modules_of(shelf.entries)
    _require_judged(shelf, plan, modules, findings)
    matrices, found = _matrices(modules, plan, shelf.metadata)
    findings += found
    seen, found = _bytes(matrices, others, shelf.size < BAR)
    findings += found
    findings += _relatives(shelf, matrices, modules, others, plan, seen, findings)
    facts = [f"config: {_said(plan)}"]
    if original is None:
        found, told = _unknown(matrices)
        findings, facts = findings + found + missing_children(_names(modules, others)), facts + told
    else:
        found, told, sound = compare(matrices, _names(modules, others), others, original, dumps, shelf.size < BAR)
        kept = [f for f in findings if f.kind != MAGNITUDE or not {n.partition("[")[0] for n in f.tensors} <= sound]
        findings, facts = kept + found, facts + told
    return _report(shelf, matrices, others, findings, facts)


def _require_judged(shelf: Shelf, plan: Plan, modules: list[Module], findings: list[Finding]) -> None:
    """Raises ValueError if there is nothing to judge; a finding if the config says quantized, and nothing is, or the
    other way round (torchao and ComfyUI say it in the files' headers)."""
    folder, unsaid = shelf.folder, plan.method is None and not {*HEADERS} & set(shelf.metadata)
    foreign = sorted({scheme.fmt for _, scheme in plan.named} - set(JUDGED))
    if foreign and all(scheme.fmt in foreign for _, scheme in plan.named):
        raise ValueError(f"{folder} is quantized by {', '.join(foreign)}: {', '.join(JUDGED)} are judged, no others")
    if modules:
        if unsaid and (folder / CONFIG).is_file() and not any(f.kind == "config" for f in findings):
            text = f"{CONFIG} has no quantization_config: a server takes what is quantized for floats"
            findings.append(Finding("config", text, ()))
        return
    if not plan.named and not findings:
        raise ValueError(f"{folder} holds nothing quantized, and its config says so: name a quantized checkpoint")
    if plan.named:
        findings.append(Finding("config", f"{plan.words} says quantized, and no tensor is", ()))


def _matrices(modules: list[Module], plan: Plan, metadata: dict[str, str]) -> tuple[list[Matrix], list[Finding]]:
    """The matrices that can be read, and what is wrong with how they lie or with what the config says of them."""
    matrices, findings = [], []
    for module in modules:
        scheme = plan.scheme(module.name)
        if scheme is not None and scheme.fmt not in JUDGED:
            continue
        m, found = matrix_of(module, scheme, metadata)
        findings += found
        if m is not None:
            m = settled(m)
            matrices.append(m)
            findings += against_scheme(m, plan)
    return matrices, findings


def _bytes(matrices: list[Matrix], others: list[Entry], quiet: bool) -> tuple[dict[str, list[Seen]], list[Finding]]:
    """Every tensor by itself: what matrices look like, and what is wrong."""
    seen, findings = {}, []
    with tqdm(total=len(matrices) + len(others), desc="tensors", leave=False, disable=quiet) as bar:
        for m in matrices:
            seen[m.module.name], found = look(m)
            findings += found
            bar.update()
        for entry in others:
            findings += plain(entry)
            bar.update()
    return seen, findings


def _names(modules: list[Module], others: list[Entry]) -> list[str]:
    """Every module, and every tensor that is none's, but for scales that are left over."""
    plain = [e.name.removesuffix(".weight") for e in others]
    return [m.name for m in modules] + [name for name in plain if name.rpartition(".")[2] not in PARTS]


def _relatives(
    shelf: Shelf,
    matrices: list[Matrix],
    modules: list[Module],
    others: list[Entry],
    plan: Plan,
    seen: dict[str, list[Seen]],
    told: list[Finding],
) -> list[Finding]:
    """What modules lack beside their siblings and the config."""
    names = _names(modules, others)
    formats = {m.module.name: m.fmt for m in matrices}
    findings = missing_parts(modules, formats, plan) + missing_experts(names, plan)
    findings += fused(matrices, [e.name.removesuffix(".weight") for e in others], seen)
    named = {name for finding in told for name in finding.tensors}
    named |= {m.name for m in modules if any(entry.name in named for entry in m.parts.values())}
    findings += magnitudes(seen, named) + copies(seen) + odd_dtypes(matrices, named)
    return (
        findings
        + unquantized(others, modules, plan)
        + sizes(matrices, set(names), shelf.entries, plan)
        + plain_sizes(others, plan)
    )


def _unknown(matrices: list[Matrix]) -> tuple[list[Finding], list[str]]:
    """What the order of nibbles and scales shows by itself, and what cannot be known without the original."""
    packed = [m for m in matrices if m.packed]
    found, known = nibble_order(matrices)
    more, others = scale_orders(matrices)
    facts = [
        UNKNOWN[0].format("the order of nibbles", known, len(packed), "whose columns follow the rows that feed them")
    ]
    facts = facts if packed else []
    facts.append(UNKNOWN[0].format("the order of scales", others, len(matrices), "by their own rows and columns"))
    return found + more, [*facts, UNKNOWN[1]]


def _said(plan: Plan) -> str:
    """What the config says, in words."""
    if plan.method is None:
        return plan.words
    formats = {}
    for _, scheme in plan.named:
        what = scheme.fmt + (f" in groups of {scheme.group}" if scheme.group else "")
        what += f" in tiles of {scheme.tile[0]} x {scheme.tile[1]}" if scheme.tile else ""
        formats[what + (", activations with a stored scale" if scheme.inputs else "")] = None
    left = f"; {len(plan.ignored)} patterns leave modules out" if plan.ignored else ""
    return f"{plan.words}: {plan.method}, {' and '.join(formats) or 'no format'}{left}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _report(
    shelf: Shelf, matrices: list[Matrix], others: list[Entry], findings: list[Finding], facts: list[str]
) -> FolderReport:
    counts = Counter(m.fmt for m in matrices)
    held = (
        ", ".join(f"{n:,} {'matrices' if n > 1 else 'matrix'} in {fmt}" for fmt, n in counts.items())
        or "no matrix that can be read"
    )
    size = f"{_count(shelf.files, 'file')}, {shelf.size / 1e9:.3g} GB"
    head = f"{shelf.folder}: {held}, {len(others):,} other tensors; {size}"
    findings = list(dict.fromkeys(findings))
    said = lines(findings)
    if findings:
        names = {name for finding in findings for name in finding.tensors}
        facts = [*facts, f"{_count(len(said), 'kind')} of faults, {len(names):,} tensors or modules"]
    return FolderReport(head, (), tuple(facts), said, findings=tuple(findings))
