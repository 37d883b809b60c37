"""`fourbit validate --products`: the sums of the GPU's tensor cores against their model, bit for bit.

The cases of `product_cases` run through `hw.tensor_core` on the device and through `nm.matmul` beside it, under the row
of `numerics.accumulators` that describes the instruction which the compiler chose. A corner of every product up to
K = 512 is computed by `nm.matmul` on the CPU too. A line of the table is a format, a kind of data and a kind of c, over
all K and seeds.

Results are compared as integers, signs of zeros included. A NaN equals any NaN; those whose bits are not 0x7FFFFFFF,
the tensor cores' own, are counted beside it.

`vectors` keeps corners of the products, operands and results, as data for machines without a GPU: what the hardware
said, not the model.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import numerics as nm
from numerics.accumulators import ACCUMULATORS

from .product_cases import DATA, STARTS, Case, cases, kinds, lengths

Machine = Callable[[Tensor, Tensor, Tensor | None, nm.Format], tuple[Tensor, str]]  # `hw.tensor_core.product`

FORMATS = (nm.E4M3, nm.E5M2, nm.BF16, nm.FP16, nm.TF32)
ROWS = 256  # rows and columns of a product
CORNER = 8  # of each product, computed on the CPU too
CANONICAL = 0x7FFFFFFF  # the tensor cores' NaN
SHOWN = 512  # K up to which the operands of a difference are recorded, and corners are computed on the CPU


@dataclass
class Row:
    """A line of the table. dots: products compared. other_nans: NaNs with other bits than 0x7FFFFFFF. on_cpu: of the
    corners, how many the CPU computes otherwise than the device. by_k: differing of each K that has some. `first`: the
    first difference, or the error that ended the comparison; operands: its a, b and c, hexadecimal."""

    format: str
    data: str
    c: str
    instruction: str | None = None
    model: str | None = None
    dots: int = 0
    differing: int = 0
    nans: int = 0
    other_nans: int = 0
    on_cpu: int = 0
    seconds: float = 0.0
    first: str | None = None
    by_k: dict[int, int] = field(default_factory=dict)
    operands: dict[str, str] | None = None
    not_run: str | None = None

    @property
    def failed(self) -> bool:
        return self.not_run is None and (
            self.dots == 0 or self.differing > 0 or self.on_cpu > 0 or self.first is not None
        )

    def __str__(self) -> str:
        text = f"not run: {self.not_run}" if self.not_run else self.first or ""
        counts = f"{self.dots:>9} {self.differing:>9} {self.nans:>8} {self.other_nans:>6} {self.seconds:>6.1f}"
        return f"{self.format:<6} {self.data:<11} {self.c:<8} {counts}  {text}".rstrip()


HEAD = f"{'format':<6} {'data':<11} {'c':<8} {'dots':>9} {'differing':>9} {'NaN':>8} {'other':>6} {'s':>6}  first"


def model_of(capability: tuple[int, int], instruction: str, fmt: nm.Format) -> str | None:
    """The row of the accumulators' table for an instruction, "wgmma m64n64k32 f32.e4m3.e4m3", of a chip; None: there is
    none, or it is no single matrix instruction. fmt: for tcgen05, whose words do not tell BF16 from FP16."""
    found = re.fullmatch(r"(wgmma|mma\.sync|tcgen05\.mma) \S+ (?:f32\.(\w+)\.(\w+)(?:\.f32)?|kind::(\w+))", instruction)
    if found is None:
        return None
    kinds = {"e4m3": "fp8", "e5m2": "fp8", "bf16": "bf16", "f16": "fp16", "tf32": "tf32", "f8f6f4": "fp8"}
    kind = fmt.name.lower() if found[4] == "f16" else kinds.get(found[2] or found[4])
    if found[1] == "mma.sync" and kind == "fp8" and capability[0] in (9, 10):
        return "mma_sync_fp8_as_fp16"
    chip = {7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}.get(capability[0])
    if capability == (7, 5) or (chip == "ampere" and kind == "fp8"):
        chip = "ampere" if capability == (7, 5) else "ada"
    name = f"{chip}_{kind}"
    return name if name in ACCUMULATORS else None


@dataclass
class Comparison:
    """A format on a device: compares cases and keeps what `vectors` writes.

    Args: machine: what is judged. capability: of the device, which with the instruction decides on the model. refused:
    what `machine` raises, beside RuntimeError, for a format that the device lacks.
    """

    device: torch.device
    machine: Machine
    capability: tuple[int, int]
    refused: tuple[type[Exception], ...] = ()
    kept: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def compare(self, rows: dict[str, Row], case: Case) -> None:
        """One product under every kind of c, each counted in its row."""
        a, b = case.operands(self.device)
        x, y = nm.decode(a, case.fmt), nm.decode(b, case.fmt)
        first, instruction = self.machine(a, b, None, case.fmt)
        model = model_of(self.capability, instruction, case.fmt)
        for row in rows.values():
            row.instruction, row.model = row.instruction or instruction, row.model or model
            if row.model is None:
                row.not_run = f"{instruction} on compute capability {self.capability}: no row of ACCUMULATORS"
        if model is None:
            return
        alone = nm.matmul(x, y, accumulator=model)
        starts = case.starts(a, b, alone)
        c = torch.stack([torch.zeros_like(alone), *starts.values()])
        # one call for all of them: on a GPU launches are what costs
        expected = nm.matmul(x.expand(len(c), -1, -1), y, accumulator=model, c=c)
        expected[0] = alone
        wrong = self._on_cpu(case, model, x, y, c, expected) if case.k <= SHOWN else [0] * len(c)
        for index, (kind, row) in enumerate(rows.items()):
            start = starts.get(kind)
            found, instruction = (first, instruction) if start is None else self.machine(a, b, start, case.fmt)
            if model_of(self.capability, instruction, case.fmt) != row.model:
                row.first = row.first or f"K={case.k}: the compiler chose {instruction}, not {row.instruction}"
            row.on_cpu += wrong[index]
            self._count(row, case, found, expected[index], (a, b, start))
            if is_kept(case, kind):
                self._keep(case, kind, a, b, start, found)

    def _on_cpu(self, case: Case, model: str, x: Tensor, y: Tensor, c: Tensor, expected: Tensor) -> list[int]:
        """In how many places of its corner each product (kinds of c, rows, rows) is another on the CPU."""
        x, y, c = x[:CORNER].cpu(), y[:CORNER].cpu(), c[:, :CORNER, :CORNER].cpu()
        corners = nm.matmul(x.expand(len(c), -1, -1), y, accumulator=model, c=c)
        corners[0] = nm.matmul(x, y, accumulator=model)
        return [int(n) for n in _differs(corners, expected[:, :CORNER, :CORNER].cpu()).sum((1, 2))]

    def _count(
        self, row: Row, case: Case, found: Tensor, expected: Tensor, operands: tuple[Tensor, Tensor, Tensor | None]
    ) -> None:
        differs, nan = _differs(found, expected), torch.isnan(found)
        count = int(differs.sum())
        row.dots, row.differing = row.dots + found.numel(), row.differing + count
        row.nans += int(nan.sum())
        row.other_nans += int((nan & (found.view(torch.int32) != CANONICAL)).sum())
        if count == 0:
            return
        row.by_k[case.k] = row.by_k.get(case.k, 0) + count
        if row.first is None:
            m, n = (int(i) for i in differs.nonzero()[0])
            a, b, c = operands
            start = "none" if c is None else _hex(c[m, n])
            gives = f"gives {_hex(found[m, n])}, should be {_hex(expected[m, n])}"
            row.first = f"K={case.k}, seed {case.seed}, [{m}, {n}]: c {start} {gives}"
            if case.k <= SHOWN:
                row.operands = {"a": _words(a[m], case.fmt), "b": _words(b[n], case.fmt), "c": start}

    def _keep(self, case: Case, kind: str, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor) -> None:
        m, n = (4, 8) if case.k < 512 else (1, 4)
        c_part = None if c is None else c[:m, :n].contiguous().view(torch.int32)
        parts = {"a": a[:m], "b": b[:n], "c": c_part, "d": d[:m, :n].contiguous().view(torch.int32)}
        for name, part in parts.items():
            if part is not None:
                array = part.cpu().numpy()
                self.kept[f"{case.fmt.name}/{case.data}/K{case.k}/{kind}/{name}"] = (
                    array.view(np.uint32) if array.dtype == np.int32 else array
                )

    def run(self, fmt: nm.Format, rows: int, seeds: tuple[int, ...], longest: int = 4096) -> Iterator[Row]:
        """Every line of a format, as soon as it is known. rows: of a and of b. longest: K."""
        for data in kinds(fmt):
            lines, begun = {start: Row(fmt.name, data, start) for start in STARTS}, time.monotonic()
            try:
                for case in cases(fmt, data, rows, seeds, longest):
                    self.compare(lines, case)
            # no memory, or a format that the compiler refuses for this chip: the others still count
            except (RuntimeError, *self.refused) as error:
                for row in lines.values():
                    row.first = row.first or f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            for row in lines.values():
                row.seconds = round((time.monotonic() - begun) / len(lines), 2)
                yield row


def is_kept(case: Case, start: str) -> bool:
    """Whether `vectors` keeps a corner of a product: one K of every kind of data and c, and a few long ones."""
    if case.seed != 0:
        return False
    turn = list(DATA).index(case.data) * len(STARTS) + STARTS.index(start)
    long = {("wide", "near"): 512, ("ties", "opposed"): 512, ("across", "near"): 4096, ("truncation", "far"): 4096}
    return case.k in (lengths(case.fmt)[turn % 4], long.get((case.data, start)))


def _differs(found: Tensor, expected: Tensor) -> Tensor:
    return (found.view(torch.int32) != expected.view(torch.int32)) & ~(torch.isnan(found) & torch.isnan(expected))


def _hex(x: Tensor) -> str:
    return f"0x{int(x.view(torch.int32)) & 0xFFFFFFFF:08x}"


def _words(codes: Tensor, fmt: nm.Format) -> str:
    width = -(-fmt.bits // 4)
    return " ".join(f"{code & ((1 << fmt.bits) - 1):0{width}x}" for code in codes.to(torch.int64).tolist())


def vectors(kept: dict[str, np.ndarray[Any, Any]], about: dict[str, Any]) -> bytes:
    """The file of kept corners: <format>/<data>/K<K>/<c>/<a|b|c|d>, a (m, K) and b (n, K) codes, c and d (m, n) uint32
    patterns of float32, no c where the sum started from nothing; "about": JSON text."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=np.array(json.dumps(about)), **kept)  # type: ignore[arg-type]
    return buffer.getvalue()


def conclude(rows: list[Row], about: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The summary in one line, and the result for the record."""
    ran, failed = [row for row in rows if row.not_run is None], [row for row in rows if row.failed]
    dots, differing = sum(row.dots for row in ran), sum(row.differing for row in ran)
    passed = dots > 0 and not failed
    against = f"the tensor cores of {about['device']} against nm.matmul on it"
    found = "none differs" if passed else f"{differing} differ, {len(failed)} lines failed"
    by_format = {name: sum(row.dots for row in ran if row.format == name) for name in {row.format: 0 for row in ran}}
    line = f"{'passed' if passed else 'FAILED'}: {against} ({about['name']}): {dots} dot products compared, {found}; "
    line += f"{sum(row.other_nans for row in ran)} NaNs with other bits than 0x7FFFFFFF; {len(rows) - len(ran)} lines "
    line += "not run"
    result: dict[str, Any] = {"status": "passed" if passed else "failed", "device": about, "compared": against}
    result |= {"dots": dots, "by_format": by_format, "differing": differing, "failed": len(failed)}
    return line, result | {"not_run": len(rows) - len(ran), "cases": [asdict(row) for row in rows]}
