"""`fourbit check`: which contract do the bytes of a dump satisfy, or which is the nearest, and what is wrong?

    fourbit check dump.safetensors --format nvfp4
    report = hw.check.check({"x": x, "codes": codes, "scales": scales, "outer": outer}, contract="te")
    assert report, report                                      in a test of a kernel

`check_dump` says what a dump holds. A quantization is read in every format and layout that its shapes allow
(`check_case`, `check_layouts`); `nm.scales.identify` then looks for a dialect that makes every byte, and failing that,
`check_laws` and `check_codes` say how scales and codes depart from the nearest. A product is compared with the exact
one (`check_products`). Exit status: 0 if a contract is satisfied, 1 if not, 2 for a dump that cannot be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import Tensor
from tqdm import tqdm

import numerics as nm
from numerics.dialects_core import LAYOUTS
from numerics.near import did_you_mean
from numerics.scales import DIALECTS, Identification

from .check_case import LIES, UNLIKE, Case, cases, with_tiles
from .check_codes import CodeLaw, code_laws
from .check_differ import codes_words, reasons, scales_words
from .check_dump import Dump, dump_of, read
from .check_folded import Folded
from .check_folder import check_folder
from .check_laws import ScaleLaw
from .check_outer import Judgement, as_called, judge_outer, of_law
from .check_products import judge_product
from .check_report import Report
from .check_scale_laws import scale_laws
from .check_values import judge_values

BAR = 1 << 20  # elements from which a progress bar is shown
FORMATS = {name.lower(): name for name in LAYOUTS}


@dataclass(frozen=True)
class CheckConfig:
    """Say which contract the bytes of a dump satisfy, or what is wrong with them or with a quantized checkpoint."""

    dump: Annotated[Path, tyro.conf.Positional]
    """A .safetensors or .npz file with x, codes and scales, or with the operands and output of a product; or the folder
    of a quantized checkpoint."""
    format: str | None = None
    """nvfp4 (in tiles or not), nvfp4_2d, mxfp8, mxs2f6, mxfp4, mxfp6_e2m3, mxfp6_e3m2, mxfp8_e5m2, fp8_1x128 or
    fp8_128x128; found out if left out."""
    axis: int = -1
    """The axis of x along which blocks run, -1 or -2."""
    contract: str | None = None
    """A dialect that the bytes must be those of, such as te or fourbit; any will do if left out."""
    scale_layout: str | None = None
    """row-major, transposed, swizzled (128x4) or 8x4: how the scales must lie; any will do if left out."""
    against: Path | None = None
    """Of a checkpoint: the folder that it was quantized from."""
    out: Path | None = None
    """Of a checkpoint: a JSON file to write, with every finding and the names of its tensors."""


def check(
    tensors: Mapping[str, Any],
    fmt: str | None = None,
    axis: int = -1,
    contract: str | None = None,
    scale_layout: str | None = None,
) -> Report:
    """Judge a dump.

    Args:
        tensors: by name, see `check_dump`; torch or numpy.
        fmt: name of a block format, any case; None: the one that the bytes are like.
        axis: of x, along which blocks run: one of the last two.
        contract: a name in `nm.scales.DIALECTS` that the bytes must satisfy; None: any.
        scale_layout: "row-major", "transposed", "swizzled" (128x4), "8x4"; None: any.

    Returns: a Report: true if a contract is satisfied; `str` of it is the answer in words.

    Raises:
        TypeError, ValueError: what cannot be judged: a missing key, shapes that no layout explains, several devices,
        an unknown format, dialect or layout.
    """
    name = None if fmt is None else _format(fmt)
    if contract is not None and contract not in list(DIALECTS):  # a list also takes what cannot be a key
        raise ValueError(f"contract={contract!r}: use one of {', '.join(DIALECTS)}{did_you_mean(contract, DIALECTS)}")
    if scale_layout is not None and scale_layout not in list(LIES):
        raise ValueError(f"scale_layout={scale_layout!r}: use one of {', '.join(LIES)}, or leave it out")
    dump = dump_of(tensors, axis)
    if dump.is_product:
        asked = {"axis": axis if axis != -1 else None, "contract": contract, "scale_layout": scale_layout}
        for key, value in asked.items():
            if value is not None:
                raise ValueError(
                    f"{key}={value!r}: the dump holds a product, which is judged by its bound; leave it out"
                )
        return judge_product(dump, name)
    return _quantization(dump, name, axis, contract, scale_layout)


def _format(fmt: str) -> str:
    name = str(fmt).lower()
    if name not in FORMATS:
        raise ValueError(f"format={fmt!r} is unknown: use one of {', '.join(FORMATS)}{did_you_mean(fmt, FORMATS)}")
    return FORMATS[name]


@dataclass(frozen=True)
class _Judged:
    """A case with the dialects that make all of it, `names`, or the laws that come nearest; what is said about its
    outer and its values; the dialect that was asked for."""

    case: Case
    folded: Folded
    found: Identification
    names: tuple[str, ...]
    outer: Judgement
    contract: str | None
    scales: ScaleLaw | None = None
    codes: CodeLaw | None = None
    values: tuple[list[str], list[str]] = ([], [])

    @property
    def missed(self) -> tuple[int, int]:
        """Bytes that no law explains, then the number of faults."""
        asked = self.contract is not None and self.contract not in self.names
        faults = len(self.case.faults) + len(self.outer.faults) + len(self.values[1]) + asked
        if self.scales is None or self.codes is None:
            return 0, faults
        faults += (self.scales.fault is not None) + (self.codes.fault is not None)
        return _unexplained(self.case, self.scales, self.codes), faults


def _quantization(dump: Dump, fmt: str | None, axis: int, contract: str | None, scale_layout: str | None) -> Report:
    found = _cases(dump, fmt, axis, contract, scale_layout)
    judged: list[_Judged] = []
    for case in found:
        likely = [j for j in judged if j.case.error <= UNLIKE]
        if case.error > UNLIKE and any(2 * j.missed[0] < j.case.codes.numel() for j in likely):
            continue  # a likely one explains half of the bytes
        judged.append(_with_values(_judge(case, case.scope.outer, contract), dump, axis))
        if judged[-1].missed == (0, 0) and judged[-1].names:
            break
    best = _best([j for j in judged if j.case.error <= UNLIKE or not j.missed[0]] or judged)
    if best.case.error > UNLIKE and best.scales and best.codes and best.scales.count and best.codes.count:
        text = f"the codes do not resemble x in any layout; the best, {', '.join(found[0].words)}, has an error of"
        text = f"{text} {found[0].error:.2f} of x's energy, and no law makes them: they are of another tensor"
        return Report(found[0].layout.name, (), (), (f"{text}, or out of place",))
    return _report(best)


def _best(judged: list[_Judged]) -> _Judged:
    """The reading that explains the most. One that leaves out scale bytes that are not zero, as padding, comes after
    one that reads them all and explains half of the bytes."""
    best = min(judged, key=lambda j: (*j.missed, not j.names, j.case.unread))
    whole = [j for j in judged if not j.case.unread and not j.case.faults and 2 * j.missed[0] < j.case.codes.numel()]
    return min(whole, key=lambda j: j.missed) if best.case.unread and whole else best


def _with_values(j: _Judged, dump: Dump, axis: int) -> _Judged:
    """With what is said about the values of the dump, which decode as the dialects that make its bytes have it."""
    if dump.get("values") is None:
        return j
    others = [judge_outer(j.found, j.folded, (name,), None).meaning for name in j.names]
    return replace(j, values=judge_values(dump, j.folded, [j.outer.meaning, *others], axis))


def _cases(dump: Dump, fmt: str | None, axis: int, contract: str | None, scale_layout: str | None) -> list[Case]:
    """Readings of the dump, in the formats that the contract makes if the shapes allow any of them."""
    if fmt is None and contract is not None:
        try:
            return cases(dump, DIALECTS[contract].formats, axis, scale_layout)
        except ValueError:
            pass  # then it is said which formats it makes
    return cases(dump, None if fmt is None else with_tiles(fmt), axis, scale_layout)


def _judge(case: Case, outer: Tensor | None, contract: str | None) -> _Judged:
    found, folded = _identify(case, outer), Folded.of(case, outer)
    judged, names = None, _names(found, contract)
    if names:
        judged = _Judged(case, folded, found, names, judge_outer(found, folded, names, contract), contract)
        if not judged.outer.faults or contract in names or found[names[0]].outer == "given":
            return judged
    asked = [verdict.dialect for verdict in found if contract == verdict.dialect.name]
    laws = scale_laws(folded, asked or [verdict.dialect for verdict in found])
    few = []
    for law in laws[:3]:
        few.append((law, code_laws(folded, law)[0]))
        if law.fault is None and _unexplained(case, *few[-1]) * 1000 < case.codes.numel():
            break  # further dialects would not tell more
    scales, made = min(few, key=lambda pair: (_unexplained(case, *pair), pair[0].fault or ""))
    if judged is not None and not scales.faultless:
        return judged
    return _Judged(case, folded, found, (), of_law(scales, folded), contract, scales, made)


def _names(found: Identification, contract: str | None) -> tuple[str, ...]:
    """Dialects that make all bytes: from x alone with the stored outer; or run with that outer; or from x alone beside
    another outer. The first of these that there are, or that the contract is one of."""
    kinds = [k for k in (found.matches, found.matches_given_outer, found.matches_other_outer) if k]
    return next((k for k in kinds if contract in k), kinds[0] if kinds else ())


def _unexplained(case: Case, scales: ScaleLaw, codes: CodeLaw) -> int:
    """Codes that differ, or that stand in blocks whose scale does."""
    return scales.count * case.layout.per_scale + codes.count


def _identify(case: Case, outer: Tensor | None) -> Identification:
    """`identify`, with a bar where it takes long."""
    names = [d.name for d in DIALECTS.values() if case.layout.name in d.formats]
    bar = tqdm(names, "dialects", leave=False, disable=case.codes.numel() < BAR)
    of = [
        nm.scales.identify(
            *(case.x, case.codes, case.scales, outer, case.layout.name),
            dialects=name,
            real=case.mask,
            experts=case.experts,
        )
        for name in bar
    ]
    verdicts = sorted((v for one in of for v in one), key=lambda v: v.scales * case.layout.per_scale + v.codes)
    return Identification(case.layout, of[0].scales, of[0].codes, tuple(verdicts))


def _report(j: _Judged) -> Report:
    case, facts, faults = j.case, list(j.case.words[1:]), list(j.case.faults)
    told, wrong = _laws(j) if j.scales else ([], [])
    told, wrong = [*told, *j.outer.facts], [*wrong, *(j.outer.faults or as_called(j.outer.meaning, j.folded))]
    if j.contract is not None and j.contract not in j.names and not (j.scales and (faults or wrong)):
        wrong.append(_not_of(j, j.contract))
    told += [] if case.x.numel() else ["there are no values: nothing to tell contracts apart by"]
    facts, faults = [*facts, *told, *j.values[0]], [*faults, *wrong, *j.values[1]]
    return Report(case.layout.name, j.names, tuple(facts), tuple(faults), _first(j))


def _not_of(j: _Judged, contract: str) -> str:
    """The fault of bytes that are not those of the dialect that was asked for."""
    if j.codes is not None and j.codes.words.startswith("stochastic"):
        return f"codes are stochastic; {contract} rounds to nearest: {_beside(j, contract)}"
    return f"these are not the bytes of {contract}: {_beside(j, contract)}"


def _beside(j: _Judged, contract: str) -> str:
    """How a dialect that was asked for compares."""
    d = DIALECTS[contract]
    if j.found.layout.name not in d.formats:
        return f"it makes {', '.join(d.formats)}"
    verdict = j.found[contract]
    if verdict.same:
        return f"codes and scales are, but it stores another outer scale: {d.prose.outer}"
    why = "".join(f"; {reason}" for reason in reasons(j.folded, d))
    return f"{verdict.scales:,} scales and {verdict.codes:,} codes differ{why}; {verdict.first}"


def _laws(j: _Judged) -> tuple[list[str], list[str]]:
    """(facts, faults) of bytes that no dialect makes."""
    assert j.scales is not None and j.codes is not None
    facts, faults, n = [], [], f"{j.found.scales:,}"
    scales, codes = j.scales, j.codes
    whose = f"scales: those of {scales.dialect.name}"
    if scales.fault is not None:
        faults.append(f"{scales.fault} (dialect {scales.dialect.name})")
    elif scales.count == 0:
        facts.append(f"{whose}, every one of {n}")
    else:
        under = f", {scales.under}," * bool(scales.under)
        faults.append(f"{whose}{under} are the nearest; {scales.count:,} of {n} differ{scales_words(j.folded, scales)}")
    total = f"{j.case.values:,}"
    if codes.fault is not None:
        faults.append(codes.fault)
    elif codes.count == 0:
        facts.append(f"codes: {codes.words}, every one of {total}")
    else:
        what = codes_words(j.folded, scales, codes)
        faults.append(f"codes: {codes.words} is the nearest law; {codes.count:,} of {total} differ{what}")
    return facts, faults


def _first(j: _Judged) -> str:
    """The derivation of the first byte that differs from the nearest dialect."""
    if j.names:
        return ""
    nearest = next(iter(j.found))
    wanted = nearest if j.scales is None else j.found[j.scales.dialect.name]
    d = wanted.dialect
    return f"beside {d.name} ({d.source}), {wanted.scales:,} scales and {wanted.codes:,} codes differ; {wanted.first}"


def main(argv: list[str]) -> int:
    """`fourbit check DUMP ...`: print the report; the exit status of the module's docstring."""
    config = tyro.cli(CheckConfig, args=argv, prog="fourbit check")
    if config.dump.is_dir():
        return _folder(config)
    for name, path in (("against", config.against), ("out", config.out)):
        if path is not None:
            raise ValueError(f"{name}={str(path)!r}: {config.dump} is no checkpoint's folder; leave it out")
    report = check(read(config.dump), config.format, config.axis, config.contract, config.scale_layout)
    print(report)
    return 0 if report else 1


def _folder(config: CheckConfig) -> int:
    """Judge a checkpoint, print the report and write it; the exit status."""
    for name in ("format", "contract", "scale_layout"):
        if getattr(config, name) is not None:
            raise ValueError(f"{name}={getattr(config, name)!r}: {config.dump} is a checkpoint; leave it out")
    report = check_folder(config.dump, config.against, check)
    print(report)
    if config.out is not None:
        report.write(config.out)
    return 0 if report else 1
