"""Cases of `validate`: elements, random words, transforms, block formats and exact products."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import numerics as nm
from numerics import swiglu

from .cases import EXPERTS, Cut, Draw, Inputs, Operation, Outputs, _spread, parts

# Elements, random words, transforms.


def _encode(fmt: nm.Format, i: Inputs) -> Outputs:
    bits = {m: i["bits"] if m is nm.Rounding.STOCHASTIC else None for m in nm.Rounding}
    return {m.name: nm.encode(i["x"], fmt, m, bits[m]) for m in nm.Rounding}


_RANDOM = nm.Random((7, 3), (65, 2))


def _philox(i: Inputs) -> Outputs:
    places = i["expert"], i["line"], i["group"]
    fields = {f"fields of {bits} bits": _RANDOM.fields(*places, bits) for bits in (4, 8)}
    return {"words": nm.philox(i["key"], i["counter"])} | fields


def _philox_in_triton(i: Inputs) -> Outputs:
    from . import philox  # needs triton

    places = i["expert"], i["line"], i["group"]
    fields = {f"fields of {bits} bits": philox.fields(_RANDOM, *places, bits) for bits in (4, 8)}
    return {"words": philox.philox(i["key"], i["counter"])} | fields


def hadamard_both_ways(i: Inputs) -> Outputs:
    out = {}
    for size in (16, 32, 64, 128):
        signs = nm.hadamard_signs(size, (1, size))
        out[f"{size}"] = nm.hadamard(i["x"], size, signs)
        out[f"{size} inverse"] = nm.hadamard_inverse(i["x"], size, signs)
    return out


def swiglu_both_ways(i: Inputs) -> Outputs:
    d_gate, d_up = swiglu.swiglu_backward(i["dh"], i["gate"], i["up"])
    return {"h": swiglu.swiglu(i["gate"], i["up"]), "d_gate": d_gate, "d_up": d_up}


def _all_gates(d: Draw) -> Inputs:
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).view(256, 256)
    return {"gate": patterns, "up": d.normal(256, 256).to(torch.bfloat16), "dh": d.normal(256, 256)}


def element_operations() -> list[Operation]:
    def words(d: Draw) -> Inputs:
        counters = {name: d.integers(32, d.rows) for name in ("expert", "line", "group")}
        return {"key": d.integers(32, d.rows, 2), "counter": d.integers(32, d.rows, 4)} | counters

    def glu(d: Draw) -> Inputs:
        gate, up = d.tested(2, d.rows, 64, dtype=torch.bfloat16)
        return {"gate": gate, "up": up, "dh": d.tested(d.rows, 64, dtype=torch.float32)}

    def bits(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 250), "bits": d.integers(16, d.rows, 250)}

    rows, glu_rows = Cut(0, ("x",)), Cut(0, ("gate", "up", "dh"))
    words_cut, bits_cut = Cut(0, ("key", "counter", "expert", "line", "group")), Cut(0, ("x", "bits"))
    integers = ("integers",), (torch.int64,)
    return [
        *(Operation(f"encode {f.name}", bits, partial(_encode, f), bits_cut) for f in nm.FORMATS.values()),
        Operation("philox", words, _philox, words_cut, *integers),
        Operation("philox in Triton", words, _philox, words_cut, *integers, kernel=_philox_in_triton),
        Operation("hadamard", lambda d: {"x": d.tested(d.rows, 256)}, hadamard_both_ways, rows),
        Operation("swiglu", _all_gates, swiglu_both_ways, glu_rows, ("all gates",), (torch.bfloat16,)),
        Operation("swiglu", glu, swiglu_both_ways, glu_rows, dtypes=(torch.bfloat16,)),
    ]


# Block formats.


def _quantize(fmt: nm.BlockFormat, axis: int, options: dict[str, dict[str, Any]], i: Inputs) -> Outputs:
    out: Outputs = {}
    for name, option in options.items():
        given = {"outer": i["outer"]} if name == "given" else option
        out |= parts(name, nm.quantize(i["x"], fmt, axis, groups=i.get("groups"), **given))
    return out


def _requantize(fmt: nm.BlockFormat, i: Inputs) -> Outputs:
    out = {"values": i["q"].dequantize(), "values in bfloat16": i["q"].dequantize(torch.bfloat16)}
    for outer in ("multiply", "drop"):
        out |= parts(outer, nm.requantize(i["q"], fmt, -2, i["groups"], outer, random=i["random"]))
    kept = nm.requantize(i["w"], fmt, -2, random=i["random"])
    return out | parts("keep", kept) | {"kept values": kept.dequantize()}


NONE: dict[str, dict[str, Any]] = {"none": {"outer": None}}
ROW = {"row": {"outer": "row"}, "row pow2": {"outer": "row", "outer_rounding": "pow2"}, "run": {"outer": 128}}
RULES = ("static_6", "static_4", "four_over_six_mae", "four_over_six_absmax", "unbiased")
WHOLE = {
    "tensor": {"outer": "tensor"},
    "tensor pow2": {"outer": "tensor", "outer_rounding": "pow2"},
    "leading": {"outer": "leading"},
    "stochastic": {"rounding": nm.Rounding.STOCHASTIC, "random": nm.Random((5, 1), (64, 0))},
}
GIVEN: dict[str, dict[str, Any]] = {"given": {}}


def block_operations() -> list[Operation]:
    def tokens(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 250), "outer": torch.exp(d.normal(d.rows, 1))}

    def columns(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 250), "outer": torch.exp(d.normal(1, 250)), "groups": d.groups}

    def experts(d: Draw) -> Inputs:
        return {"x": d.tested(4, d.rows // 4, 250)}

    def saved(fmt: nm.BlockFormat, d: Draw) -> Inputs:
        q = nm.quantize(d.tested(d.rows, 250), fmt, outer="row")
        w = nm.quantize(d.tested(EXPERTS, 40, 96), fmt, outer="leading")
        return {"q": q, "w": w, "groups": d.groups, "random": nm.Random((9, 4), (130, 10))}

    rows, columns_cut, by_expert = Cut(0, ("x", "outer")), Cut(-1, ("x", "outer")), Cut(0, ("q",), ("w",))
    found = []
    for fmt in nm.BLOCK_FORMATS.values():
        scopes = (NONE if fmt.outer is None else NONE | ROW) | GIVEN
        whole = {k: v for k, v in WHOLE.items() if fmt.outer is not None or k == "stochastic"}
        found.append(Operation(f"quantize {fmt.name} whole", experts, partial(_quantize, fmt, -1, whole)))
        if fmt.tile > 1:  # a tile reaches over rows and columns: there are no pieces to compute alone
            continue
        found += [
            Operation(f"quantize {fmt.name}", tokens, partial(_quantize, fmt, -1, scopes), rows),
            Operation(f"quantize {fmt.name} groups", columns, partial(_quantize, fmt, -2, scopes), columns_cut),
        ]
    rules: dict[str, dict[str, Any]] = {name: {"outer": "row", "rule": name} for name in RULES}
    found.append(Operation("quantize NVFP4 by rule", tokens, partial(_quantize, nm.NVFP4, -1, rules), rows))
    for old, new in ((nm.NVFP4, nm.MXFP8), (nm.NVFP4_46, nm.MXFP8), (nm.NVFP4, nm.MXS2F6), (nm.NVFP4_46, nm.NVFP4)):
        name = f"requantize {old.name} {new.name}"
        found.append(Operation(name, partial(saved, old), partial(_requantize, new), by_expert))
    return found


# Exact products.


def _product(i: Inputs) -> Outputs:
    return {"product": nm.matmul(i["a"], i["b"], "exact", groups=i.get("groups"))}


def product_operations() -> list[Operation]:
    def plain(d: Draw) -> Inputs:
        return {"a": d.tested(d.rows, 250), "b": d.tested(48, 250)}

    def row_blocks(d: Draw) -> nm.BlockTensor:
        return nm.quantize(d.tested(d.rows, 250), nm.NVFP4_46, outer="row")

    def blocks(d: Draw) -> Inputs:
        return {"a": row_blocks(d), "b": nm.quantize(d.normal(48, 250), nm.NVFP4)}

    def grouped(d: Draw) -> Inputs:
        w = nm.quantize(d.normal(EXPERTS, 48, 250), nm.NVFP4, outer="leading")
        return {"a": row_blocks(d), "b": w, "groups": d.groups}

    def contraction(d: Draw) -> Inputs:
        a, b = (nm.quantize(t, nm.MXFP8, -2, groups=d.groups) for t in (d.tested(d.rows, 96), d.normal(d.rows, 48)))
        # one outer scale for each token, inside the sum
        return {"a": a.mT, "b": replace(b, outer=torch.exp(2 * d.normal(d.rows, 1))).mT, "groups": d.groups}

    def cancelling(d: Draw) -> Inputs:
        """Terms of 1e-36 to 1e36, of which all but a few cancel exactly: float64 sums lose every bit of the rest."""
        a, b = (torch.from_numpy(_spread(-18, 18, d.rng, (n, 125)).astype(np.float32)) for n in (d.rows, 48))
        a = torch.cat((a, -a), dim=1)
        a[:, ::50] = d.normal(d.rows, 5)
        return {"a": a, "b": torch.cat((b, b), dim=1)}

    rows, fp32 = Cut(0, ("a",)), (torch.float32,)
    return [
        Operation("exact product", plain, _product, rows),
        Operation("exact product", cancelling, _product, rows, ("cancelling",), fp32),
        Operation("exact product of blocks", blocks, _product, rows, dtypes=fp32),
        Operation("exact grouped rows", grouped, _product, Cut(0, ("a",), ("b",)), dtypes=fp32),
        Operation("exact grouped contraction", contraction, _product, Cut(-2, ("a",)), dtypes=fp32),
    ]
