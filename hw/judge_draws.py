"""The line "draws" of `validate --ops --own-random`: one case over many draws, judged by `draws`.

The inputs hold fractions of every size, of values of every size: see `ways.fractions`. Each draw has a `random` of its
own, which differs from the first's in low bits or in a high one of one component alone: mostly the step, else the seed,
the layer and role, or the grain. Scales, outer scales and kinds are compared with the emulation's at each draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

import numerics as nm

from .cases import Shape
from .cases_ops import DRAWS, SeamCase
from .compare import OpsRow
from .derive import drawn
from .derive_blocks import Source
from .draws import Draws
from .judge import Judge

HIGH = (1 << 8, 1 << 16, 1 << 24, 1 << 31)
VARIED = {"step": 49, "seed": 15, "layer and role": 16, "grain": 16}  # how often each component is another
FAST = Shape(DRAWS, lambda n: (0, n // 3 + 1, n // 2 + 2, n // 2 + 2, n - 1, n), 128, 128, 64)
FULL = replace(FAST, rows=544, model=256)


def randoms(first: nm.Random) -> Iterator[tuple[str, nm.Random]]:
    """The words of each draw, and the component in which they differ from the first's."""
    (seed, step), (tensor, grain) = first.key, first.counter
    yield "step", first
    for name, count in VARIED.items():
        # the counter of an expert is added to the grain's: they lie apart
        apart = 64 if name == "grain" else 1
        high = [(f"high bits of the {name}", i) for i in HIGH if i > apart * count]
        for said, more in [*((name, i * apart) for i in range(1, count - len(high))), *high]:
            key = (seed + more * (name == "seed"), step + more * (name == "step"))
            counter = (tensor + more * (name == "layer and role"), grain + more * (name == "grain"))
            yield said, replace(first, key=key, counter=counter)


def draws(judge: Judge, row: OpsRow, case: SeamCase) -> None:
    """See the module's docstring."""
    where, inputs = judge.drawn(row, case, FAST if judge.config.fast else FULL, DRAWS)
    expected = judge.expected(case, inputs)
    loose = replace(expected, drawn=dict.fromkeys(expected.drawn))  # which code is for `draws` to say
    codes: dict[str, list[Tensor]] = {operand: [] for operand in expected.drawn}
    names = []
    for name, random in [*randoms(inputs["random"]), ("", inputs["random"])]:
        given = inputs | {"random": random}
        found = judge.tried(row, case, f"{where}, draw {len(names)}", given, loose, judge.sides.whole.run)
        each = {operand: found.get(f"{operand}.codes") for operand in codes}
        if any(x is None or x.shape != expected.outputs[f"{o}.codes"].shape for o, x in each.items()):
            return
        for operand, x in each.items():
            codes[operand].append(x)
        names.append(name)
    lines = []
    for operand, source in drawn(case, inputs, expected.outputs).items():
        *some, again = codes[operand]
        made = _draws(source, expected.drawn[operand], torch.stack(some), tuple(names[:-1]))
        findings, remarks = made.findings(), made.remarks()
        if not torch.equal(again, some[0]):
            remarks.append("the same `random` gives other codes: a step cannot be computed again")
        row.differing += len(findings)
        if findings and row.first is None:
            row.first = f"{operand}: {findings.pop(0)}"
        lines += [f"{operand}: {text}" for text in [*findings, *remarks]]
    row.derivation = row.derivation or tuple(lines)


def _draws(source: Source, pair: tuple[Tensor, Tensor], codes: Tensor, names: tuple[str, ...]) -> Draws:
    """What `draws` takes, with leading axes as rows."""
    q = source.quantized()
    assert isinstance(q, nm.BlockTensor)
    step = nm.decode(q.scales_per_value(), q.fmt.scale or nm.E8M0).to(torch.float64)
    outer = q.outer_per_value()
    step = step if outer is None else step * outer.to(torch.float64)
    ratio = source.values.to(torch.float64) / torch.where(step == 0, torch.inf, step)
    width = ratio.shape[-1]
    flat = (x.reshape(-1, width) for x in (ratio, *pair))
    return Draws(*flat, codes.reshape(len(codes), -1, width), names, q.fmt.element)
