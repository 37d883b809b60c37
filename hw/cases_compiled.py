"""Cases of `validate --compiled`: one per kind of arithmetic, since every one is compiled for every dtype."""

from __future__ import annotations

from functools import partial

import torch

import numerics as nm

from .cases import Draw, Inputs, Operation, Outputs, parts
from .cases_numerics import hadamard_both_ways, swiglu_both_ways

MODES = (nm.Rounding.NEAREST_EVEN, nm.Rounding.STOCHASTIC)
ROUNDED = (nm.Rounding.NEAREST_AWAY, nm.Rounding.TOWARD_POSITIVE, nm.Rounding.TOWARD_ZERO)


def _encode(fmt: nm.Format, modes: tuple[nm.Rounding, ...], i: Inputs) -> Outputs:
    out = {}
    for mode in modes:
        field = i["bits"] if mode is nm.Rounding.STOCHASTIC else None
        out[mode.name] = nm.codes.encode_tensor(i["x"], fmt, mode, field)
    return out


def _quantize(fmt: nm.BlockFormat, axis: int, i: Inputs) -> Outputs:
    out: Outputs = {}
    scopes = {"NVFP4": ["tensor", "row", 128, None], "NVFP4_46": ["row", None]}.get(fmt.name, [fmt.outer])
    for scope in scopes:
        q = nm.quantize(i["x"], fmt, axis, outer=scope, groups=i.get("groups"))
        out |= parts(f"outer {scope}", q) | {f"outer {scope}, values": q.dequantize()}
    return out


def _given(i: Inputs) -> Outputs:
    return parts("given", nm.quantize(i["x"], nm.NVFP4, outer=i["outer"]))


def _by_rule(rule: str, i: Inputs) -> Outputs:
    return parts(rule, nm.quantize(i["x"], nm.NVFP4, rule=rule))


def _stochastic(fmt: nm.BlockFormat, i: Inputs) -> Outputs:
    q = nm.requantize(nm.quantize(i["x"], nm.NVFP4_46, outer="row"), fmt, outer="multiply", random=i["random"])
    return parts("requantized", q) | {"values": q.dequantize(torch.bfloat16)}


def compiled_operations() -> list[Operation]:
    """Elements in every rounding mode, every block format, every rule of NVFP4, requantization, transforms."""

    def bits(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 250), "bits": d.integers(16, d.rows, 250).to(torch.int32)}

    def matrix(d: Draw) -> Inputs:
        return {
            "x": d.tested(d.rows, 160),
            "outer": torch.exp(d.normal(d.rows, 1)),
            "random": nm.Random((9, 4), (7, 1)),
        }

    def ragged(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 250)}

    def grouped(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 250), "groups": d.groups}

    def glu(d: Draw) -> Inputs:
        gate, up = d.tested(2, d.rows, 64, dtype=torch.bfloat16)
        return {"gate": gate, "up": up, "dh": d.tested(d.rows, 64, dtype=torch.float32)}

    rules = (
        "static_6",
        "static_4",
        "four_over_six_mae",
        "four_over_six_absmax",
        "unbiased",
        "app_b",
        "torchao",
        "exact",
    )
    fp32, both = (torch.float32,), (torch.float32, torch.bfloat16)
    usual = (nm.NVFP4, nm.NVFP4_46, nm.MXFP8, nm.MXS2F6)
    others = (torch.float64, torch.bfloat16, torch.float16)  # a compiler fuses conversions with taking magnitudes
    return [
        *(Operation(f"encode {f.name}", bits, partial(_encode, f, MODES), dtypes=fp32) for f in nm.FORMATS.values()),
        Operation("encode E2M1, other modes", bits, partial(_encode, nm.E2M1, ROUNDED), dtypes=fp32),
        *(
            Operation(f"encode {f.name}, other dtypes", bits, partial(_encode, f, MODES[:1]), dtypes=others)
            for f in (nm.E2M1, nm.E5M2, nm.E8M0)
        ),
        Operation("quantize NVFP4, other dtypes", matrix, partial(_quantize, nm.NVFP4, -1), dtypes=others[::2]),
        Operation("quantize MXFP8, other dtypes", matrix, partial(_quantize, nm.MXFP8, -1), dtypes=others[::2]),
        *(
            Operation(f"quantize {f.name}", matrix, partial(_quantize, f, -1), dtypes=both if f in usual else fp32)
            for f in nm.BLOCK_FORMATS.values()
        ),
        *(
            Operation(f"quantize {f.name} ragged", ragged, partial(_quantize, f, -1), dtypes=fp32)
            for f in (nm.NVFP4_46, nm.MXFP8)
        ),
        *(
            Operation(f"quantize {f.name} columns", ragged, partial(_quantize, f, -2), dtypes=fp32)
            for f in (nm.NVFP4, nm.MXS2F6)
        ),
        *(
            Operation(f"quantize {f.name} groups", grouped, partial(_quantize, f, -2), dtypes=fp32)
            for f in (nm.NVFP4, nm.MXFP8)
        ),
        Operation("quantize NVFP4 outer given", matrix, _given, dtypes=fp32),
        *(Operation(f"quantize NVFP4 {rule}", matrix, partial(_by_rule, rule), dtypes=fp32) for rule in rules),
        *(
            Operation(f"requantize {f.name}", matrix, partial(_stochastic, f), dtypes=fp32)
            for f in (nm.MXFP8, nm.NVFP4)
        ),
        Operation("hadamard", lambda d: {"x": d.tested(d.rows, 256)}, hadamard_both_ways, dtypes=fp32),
        Operation("swiglu", glu, swiglu_both_ways, dtypes=(torch.bfloat16,)),
    ]
