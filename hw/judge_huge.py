"""The lines "2^16" and, with --huge, "2^31" of `validate --ops`: tensors of a few more elements than that.

A kernel whose index, or byte offset, has 32 bits goes wrong beyond 2^31 or 2^32 of them, one of 16 bits beyond 2^16.
The inputs are made on the device: BF16 and FP32 values, and operands of random bytes. R rows of `wide` elements are a
little more than the limit. What is compared with the emulation, which sees nothing but these rows:

    experts      the first, the last, and one whose rows lie on both sides of the limit; the others are huge
    rows         of operations without experts the same rows, and as many at random places

2^31 needs a GPU with `MEMORY`; what runs out of memory there is not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import numerics as nm
from numerics import ops

from .calls import Wrong, mapped
from .cases import EXPERTS, Inputs, Outputs, narrow
from .cases_ops import HUGE, LARGE, SeamCase
from .cases_seam import ExpertPath
from .compare import OpsRow, move
from .judge import Judge

LIMITS = {LARGE: (1 << 16, 96), HUGE: (1 << 31, 2080)}  # elements, and of a row: a multiple of 32, no power of two
NARROW = 64
MEMORY = 100 << 30
SMALL = (0, 2, 4)  # experts that are compared


@dataclass(frozen=True)
class Huge:
    """Makes what a case takes. rows: R, of `wide` elements. groups: of five experts, multiples of 32."""

    path: ExpertPath | None
    rows: int
    wide: int
    groups: tuple[int, ...]
    generator: torch.Generator

    @staticmethod
    def of(path: ExpertPath | None, limit: str, device: torch.device) -> Huge:
        elements, wide = LIMITS[limit]
        boundary = elements // wide // 32 * 32
        rows = boundary + 128
        groups = (0, 32, boundary - 32, boundary + 32, rows - 32, rows)
        return Huge(path, rows, wide, groups, torch.Generator(device).manual_seed(5))

    def values(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=self.generator.device, generator=self.generator)

    def below(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.randint(low, high, shape, dtype=dtype, device=self.generator.device, generator=self.generator)

    def operand(self, fmt: nm.BlockFormat | None, outer: tuple[int, ...] | None, axis: int, *shape: int) -> ops.Operand:
        """Random bytes in a format, finite all; along axis 0 in the groups. outer: its shape."""
        if fmt is None:
            return self.values(*shape)
        codes = self.below(0, 1 << fmt.element.bits, *shape)
        if fmt.element.nan_code is not None:  # without the NaNs
            codes.sub_((codes & 0x7F == 0x7F).to(torch.uint8))
        at = [-(-n // fmt.block) if d == axis else n for d, n in enumerate(shape)]
        scales = self.below(*((120, 134) if fmt.scale == nm.E8M0 else (0x20, 0x70)), *at)
        factor = None if outer is None else self.values(*outer, dtype=torch.float32).abs() + 0.1
        groups = self.groups if axis == 0 else None
        return nm.BlockTensor(codes, scales, factor, fmt, fmt.rule.name, axis, groups)

    def activation(self, width: int) -> ops.Operand:
        cast = self._path.activation
        return self.operand(cast.fmt, (self.rows, 1) if cast.outer else None, 1, self.rows, width)

    def weight(self, n: int, k: int) -> ops.Operand:
        cast = self._path.weight
        return self.operand(cast.fmt, (EXPERTS, 1, 1) if cast.outer else None, 2, EXPERTS, n, k)

    @property
    def _path(self) -> ExpertPath:
        assert self.path is not None
        return self.path

    def slots(self) -> Tensor:
        order = torch.randperm(self.rows, device=self.generator.device, generator=self.generator)
        return order.view(-1, 2)


def _tokens(h: Huge) -> Inputs:
    return {"x": h.values(h.rows, h.wide), "groups": h.groups, "random": nm.Random((3, 8), (66, 30))}


def _gate_up(h: Huge) -> Inputs:
    return {"x": h.activation(NARROW), "w": h.weight(h.wide, NARROW), "groups": h.groups}


def _down(h: Huge) -> Inputs:
    return {"x": h.activation(h.wide), "w": h.weight(NARROW, h.wide), "groups": h.groups}


def _combine(h: Huge) -> Inputs:
    payload = h.operand(h._path.wire.fmt, None, 1, h.rows, h.wide)
    return {"payload": payload, "slots": h.slots(), "weights": h.values(h.rows // 2, 2, dtype=torch.float32)}


def _router(h: Huge) -> Inputs:
    decoded = h.values(h.rows, h.wide, dtype=torch.float32)
    return {"g": h.values(h.rows // 2, h.wide), "decoded": decoded, "slots": h.slots()}


def _gradient(h: Huge) -> Inputs:
    tokens = h.below(0, h.rows // 2, h.rows, dtype=torch.int64)
    return {"g": h.values(h.rows // 2, h.wide), "tokens": tokens, "weights": h.values(h.rows, 1, dtype=torch.float32)}


def _saved(h: Huge) -> Inputs:
    return {"q": h.activation(h.wide), "w": h.weight(NARROW, NARROW), "groups": h.groups, "random": nm.Random((2, 6))}


def _products(h: Huge) -> Inputs:
    p = h._path
    outer = (EXPERTS, 1, 1) if p.weight.outer else None
    return {
        "g": h.operand(p.grad.fmt, None, 1, h.rows, NARROW),
        "g_tokens": h.operand(p.grad.fmt, None, 0, h.rows, NARROW),
        "w": h.operand(p.saved_weight.fmt, outer, 1, EXPERTS, NARROW, h.wide),
        "x": h.operand(p.saved_input.fmt, None, 0, h.rows, h.wide),
        "groups": h.groups,
    }


def _glu(h: Huge) -> Inputs:
    return {"dh": h.values(h.rows, h.wide, dtype=torch.float32), "gate_up": h.values(h.rows, 2 * h.wide)}


# case, without its path -> what makes the inputs
MADE: dict[str, Callable[[Huge], Inputs]] = {
    "quantize_tokens": _tokens,
    "quantize_tokens rows": _tokens,
    "gate_up_glu library": _gate_up,
    "down_to_wire library": _down,
    "aggregate": _combine,
    "router_gradient": _router,
    "grad_to_wire bfloat16": _gradient,
    "requantize_transpose": _saved,
    "grad_products library": _products,
    "glu_backward": _glu,
}


def made(case: SeamCase) -> Callable[[Huge], Inputs] | None:
    """What makes the inputs of a case; None: there are no huge ones."""
    path = case.path.name if case.path is not None else ""
    return MADE.get(" ".join(word for word in case.words if word != path))


# What is compared.


def _rows(x: ops.Operand, start: int, end: int) -> ops.Operand:
    """Rows of one expert; of blocks along them, whole blocks."""
    if isinstance(x, Tensor) or x.axis != 0:
        return narrow(x, 0, start, end)
    at = slice(start // x.fmt.block, end // x.fmt.block)
    return x.derived(codes=x.codes[start:end], scales=x.scales[at], groups=(0, end - start))


def _piece(i: Inputs, expert: int, rows: int) -> Inputs:
    """The inputs of one expert alone."""
    start, end = tuple(pairwise(i["groups"]))[expert]
    piece: dict[str, Any] = {"groups": (0, end - start)}
    for name, x in i.items():
        if name in ("w",):
            piece[name] = x if "q" in i else narrow(x, 0, expert, expert + 1)
        elif name == "random":
            first, second = x.counter
            piece[name] = replace(x, counter=(first, second + expert))
        elif name != "groups":
            piece[name] = _rows(x, start, end)
    return piece


def _found(out: Outputs, expected: Outputs, h: Huge, expert: int) -> Outputs:
    """The part of the outputs that belongs to one expert: rows, blocks of rows, or its matrix."""
    start, end = h.groups[expert], h.groups[expert + 1]
    spans = {h.rows: (start, end), h.rows // 32: (start // 32, end // 32), EXPERTS: (expert, expert + 1)}
    return {
        name: x if x.shape == expected[name].shape else x[slice(*spans.get(len(x), (0, 0)))]
        for name, x in out.items()
        if name in expected
    }


def _chosen(h: Huge, count: int) -> Tensor:
    """Some of `count` rows: the ends, those of the middle expert, others at random."""
    ends = [torch.arange(8), torch.arange(count - 8, count)]
    middle = torch.arange(h.groups[2], h.groups[3]) * count // h.rows
    return torch.cat([*ends, middle, h.below(0, count, 64, dtype=torch.int64).cpu()]).to(h.generator.device)


def _some(i: Inputs, h: Huge) -> tuple[Inputs, Tensor, int]:
    """The inputs of some rows, or tokens, alone; which they are, and how many rows a token has."""
    if "slots" in i:
        at = _chosen(h, len(i["slots"]))
        rows = i["slots"][at]
        alone: Inputs = {"slots": torch.arange(rows.numel(), device=rows.device).view(rows.shape)}
        for name in i.keys() - {"slots"}:
            x = i[name]
            index = rows.flatten() if name in ("payload", "decoded") else at
            alone[name] = x.rows(index) if isinstance(x, nm.BlockTensor) else x[index]
        return alone, at, rows.shape[1]
    at = _chosen(h, h.rows)
    if "tokens" in i:
        tokens = torch.arange(len(at), device=at.device)
        return {"g": i["g"][i["tokens"][at]], "tokens": tokens, "weights": i["weights"][at]}, at, 1
    return {name: x[at] for name, x in i.items()}, at, 1


def huge(judge: Judge, row: OpsRow, case: SeamCase) -> None:
    """See the module's docstring."""
    device = judge.sides.whole.device
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    if row.data == HUGE and memory < MEMORY:
        row.not_run = f"{HUGE} elements need a GPU with {MEMORY >> 30} GiB"
        return
    h, make = Huge.of(case.path, row.data, device), made(case)
    assert make is not None
    judge.theirs.looks = row.data != HUGE
    try:
        inputs = make(h)
        judge.theirs.expect(None)
        _compare(judge, row, case, h, inputs, case.theirs.run(inputs))
    except torch.OutOfMemoryError as error:
        row.not_run = f"{row.data} elements: {' '.join(str(error).split())[:120]}"
    except Exception as error:
        row.elements, row.differing = row.elements + 1, row.differing + 1
        said = " ".join(str(error).split())[:300]
        row.first = f"{row.data} elements: {said if isinstance(error, Wrong) else f'{type(error).__name__}: {said}'}"
    finally:
        judge.theirs.looks = True
        if row.data == HUGE:
            torch.cuda.empty_cache()


def _compare(judge: Judge, row: OpsRow, case: SeamCase, h: Huge, inputs: Inputs, out: Outputs) -> None:
    """By experts where there are some, else some rows."""

    def judged(where: str, alone: Inputs, part: Callable[[Outputs], Outputs]) -> None:
        there = {name: mapped(move(x, torch.device("cpu")), torch.clone) for name, x in alone.items()}
        expected = judge.expected(case, there)
        # a weight's words are those of the whole
        outputs = {name: x for name, x in expected.outputs.items() if not name.startswith("weight.")}
        expected = replace(expected, outputs=outputs, returned=None)
        judge.tried(
            row, case, where, there, expected, lambda *_: {n: x.cpu() for n, x in part(expected.outputs).items()}
        )

    if "groups" in inputs:
        for expert in SMALL:
            where = f"{row.data} elements, rows {h.groups[expert]} to {h.groups[expert + 1]}"
            judged(where, _piece(inputs, expert, h.rows), lambda e, expert=expert: _found(out, e, h, expert))
        return
    alone, at, each = _some(inputs, h)
    of_row = (at[:, None] * each + torch.arange(each, device=at.device)).flatten()
    tokens = h.rows // each
    judged(
        f"{row.data} elements, some rows",
        alone,
        lambda _: {n: x[at if len(x) == tokens else of_row] for n, x in out.items()},
    )
