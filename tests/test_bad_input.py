"""What the public functions of numerics say to arguments that they cannot use.

Contract: a wrong kind of object, dtype, shape or value is a TypeError or ValueError of ours that names the argument,
tells what came and what to pass; no AttributeError or IndexError, and no RuntimeError from inside torch. Oracle: the
table below, a row for each bad call with a regular expression that its message must match.
"""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import numerics as nm
from numerics import layout, metrics, ops, swiglu
from numerics.blocks import BlockFormat, BlockTensor
from numerics.torch_views import TorchOperand, as_torch, from_torch

NEAREST, STOCHASTIC = nm.Rounding.NEAREST_EVEN, nm.Rounding.STOCHASTIC
X = torch.linspace(-3, 3, 4 * 64).view(4, 64)
BF16 = X.to(torch.bfloat16)
Q = nm.quantize(X, nm.NVFP4)
W = torch.linspace(-1, 1, 2 * 32 * 64).view(2, 32, 64)
BYTES = torch.zeros(4, 64, dtype=torch.uint8)
RANDOM = nm.Random((1, 2))
LONG = torch.zeros(4, dtype=torch.int64)
CAST, WIRE = ops.Cast(nm.NVFP4), ops.Wire(nm.MXS2F6)
OPERAND = as_torch(nm.quantize(torch.ones(16, 64), nm.MXFP8))
GROUPS = (0, 1, 4)
SLOTS = torch.tensor([[0, 1], [2, 3]])
FMT = r"fmt is .*pass an element format such as nm.E2M1"
BLOCK_FMT = r"fmt is .*pass a block format such as nm.NVFP4"
TENSOR = "is .*: pass a torch tensor"

# function, arguments, keyword arguments, what the message says
CALLS: list[tuple[Any, tuple, dict[str, Any], str]] = [
    # element formats
    (nm.encode, (X, "E2M1"), {}, r"fmt is 'E2M1' \(str\): pass an element format such as nm.E2M1"),
    (nm.encode, (X, nm.NVFP4), {}, FMT),
    (nm.encode, (X, None), {}, FMT),
    (nm.encode, ([1.0, 2.0], nm.E2M1), {}, r"x is \[1.0, 2.0\] \(list\): pass a torch tensor or a numpy array"),
    (nm.encode, (X.int(), nm.E2M1), {}, "x has dtype torch.int32: convert it to float32"),
    (nm.encode, (X > 0, nm.E2M1), {}, "x has dtype torch.bool: convert it"),
    (nm.encode, (X.to(torch.complex64), nm.E2M1), {}, "x has dtype torch.complex64: convert it"),
    (nm.encode, (np.ones(3, np.complex64), nm.E2M1), {}, "x has numpy dtype complex64: convert it"),
    (nm.encode, (np.ones(3, int), nm.E2M1), {}, "x has dtype torch.int64: convert it"),
    (nm.encode, (X, nm.E2M1, "nearest"), {}, r"rounding is 'nearest' \(str\): use a member of nm.Rounding"),
    (nm.encode, (X, nm.E2M1, STOCHASTIC), {}, "rounding=STOCHASTIC needs random_bits"),
    (nm.encode, (X, nm.E2M1, STOCHASTIC, X), {}, "random_bits have dtype torch.float32: pass integers"),
    (nm.encode, (X, nm.E2M1, STOCHASTIC, X > 0), {}, "random_bits have dtype torch.bool"),
    (nm.encode, (X, nm.E2M1, STOCHASTIC, 7), {}, r"random_bits is 7 \(int\): pass a torch tensor"),
    (nm.encode, (X, nm.E2M1, STOCHASTIC, LONG), {}, r"random_bits has shape \(4,\): x has \(4, 64\); make them equal"),
    (nm.encode, (X, nm.E2M1, STOCHASTIC, X.long().to("meta")), {}, "random_bits is on meta: x is on cpu; move"),
    (nm.encode, (X, nm.E2M1), {"nan": 3}, r"nan is 3 \(int\): use 'max' or 'raise'"),
    (nm.encode, (X, nm.E2M1), {"nan": "zero"}, "nan='zero': use 'max' or 'raise'"),
    (nm.encode, (X, nm.E2M1), {"random_width": "16"}, r"random_width is '16' \(str\): use 16 or 32"),
    (nm.encode, (X, nm.E2M1), {"random_width": 17}, "random_width=17: use 16 or 32"),
    (nm.round_to, (X, nm.NVFP4), {}, FMT),
    (nm.round_to, ("1.0", nm.E2M1), {}, "x is '1.0'"),
    (nm.round_to, (X.long(), nm.E2M1), {}, "x has dtype torch.int64"),
    (nm.round_to, (X, nm.E2M1, 3), {}, "rounding is 3"),
    (nm.decode, (BYTES, "E2M1"), {}, FMT),
    (nm.decode, (BYTES, nm.MXFP8), {}, FMT),
    (nm.decode, ([1, 2], nm.E2M1), {}, r"codes is \[1, 2\] \(list\)"),
    (nm.decode, (X, nm.E2M1), {}, "codes have dtype torch.float32: pass integer codes of E2M1"),
    (nm.decode, (BYTES.bool(), nm.E2M1), {}, "codes have dtype torch.bool"),
    (nm.decode, (X.to(torch.complex64), nm.E2M1), {}, "codes have dtype torch.complex64"),
    (nm.decode, (BYTES + 16, nm.E2M1), {}, "codes reach from 16 to 16: E2M1 has codes 0 to 15"),
    (nm.decode, (np.array([-1]), nm.E4M3), {}, "codes reach from -1 to -1"),
    (nm.Format, ("X", "float", "4", 2, 1, 1), {}, r"bits is '4' \(str\): format X needs an integer"),
    (nm.Format, ("X", "float", 4, 2.0, 1, 1), {}, r"exponent_bits is 2.0 \(float\)"),
    (nm.E2M1.value, ("3",), {}, r"code is '3' \(str\): use 0 to 15"),
    (nm.E2M1.value, (16,), {}, "code=16 is not a code of E2M1"),
    # quantize
    (nm.quantize, (X, nm.E2M1), {}, BLOCK_FMT),
    (nm.quantize, (X, "NVFP4"), {}, BLOCK_FMT),
    (nm.quantize, (X.tolist(), nm.NVFP4), {}, "x is .*list.*: pass a torch tensor or a numpy array"),
    (nm.quantize, (Q, nm.NVFP4), {}, r"x is BlockTensor\(.*pass a torch tensor"),
    (nm.quantize, (X.int(), nm.NVFP4), {}, "x has dtype torch.int32"),
    (nm.quantize, (X > 0, nm.NVFP4), {}, "x has dtype torch.bool"),
    (nm.quantize, (X + 1j, nm.NVFP4), {}, "x has dtype torch.complex64"),
    (nm.quantize, (torch.tensor(1.0), nm.NVFP4), {}, "x has no axis: pass a tensor of one axis or more"),
    (nm.quantize, (X, nm.NVFP4, 2), {}, r"axis=2: x has shape \(4, 64\); use -2 to 1"),
    (nm.quantize, (X, nm.NVFP4, -3), {}, "axis=-3: .*use -2 to 1"),
    (nm.quantize, (X, nm.NVFP4, 1.0), {}, r"axis is 1.0 \(float\): use an integer, -2 to 1"),
    (nm.quantize, (X, nm.NVFP4, "last"), {}, "axis is 'last'"),
    (nm.quantize, (X, nm.NVFP4, None), {}, "axis is None"),
    (nm.quantize, (X, nm.NVFP4, True), {}, r"axis is True \(bool\)"),
    (nm.quantize, (X, nm.NVFP4), {"outer": [1.0]}, r"outer is \[1.0\] \(list\): use None, 'tensor'"),
    (nm.quantize, (X, nm.NVFP4), {"outer": 1.0}, r"outer is 1.0 \(float\): use None, 'tensor'"),
    (nm.quantize, (X, nm.NVFP4), {"outer": True}, r"outer is True \(bool\)"),
    (nm.quantize, (X, nm.NVFP4), {"outer": np.ones((4, 1))}, "outer is a numpy float64 array of shape.*torch tensor"),
    (nm.quantize, (X, nm.NVFP4), {"outer": "rows"}, "outer='rows': use None, 'tensor', 'row'"),
    (nm.quantize, (X, nm.NVFP4), {"outer": 0}, "outer=0: use a multiple of the block 16"),
    (nm.quantize, (X, nm.NVFP4), {"outer": torch.ones(4)}, r"outer of shape \(4,\).*pass float32 with the 2 axes"),
    (nm.quantize, (X, nm.NVFP4), {"outer": torch.ones(4, 1).double()}, "outer of shape .*float64: pass float32"),
    (nm.quantize, (X, nm.NVFP4), {"outer": torch.ones(4, 1, device="meta")}, "outer is on meta: x is on cpu"),
    (nm.quantize, (X, nm.NVFP4), {"outer": torch.full((4, 1), torch.nan)}, "outer reaches down to nan: use finite"),
    (nm.quantize, (X, nm.NVFP4), {"outer_rounding": 2}, r"outer_rounding is 2 \(int\): use None or 'pow2'"),
    (nm.quantize, (X, nm.NVFP4), {"outer_rounding": X}, "outer_rounding is a torch.float32 tensor of shape"),
    (nm.quantize, (X, nm.NVFP4), {"rule": 3}, r"rule is 3 \(int\): use one of nvfp4"),
    (nm.quantize, (X, nm.NVFP4), {"rule": ["nvfp4"]}, r"rule is \['nvfp4'\] \(list\)"),
    (nm.quantize, (X, nm.NVFP4), {"rule": "best"}, "rule='best': known rules are nvfp4"),
    (nm.quantize, (X, nm.NVFP4), {"rounding": "up"}, "rounding is 'up'"),
    (nm.quantize, (X, nm.NVFP4), {"rounding": STOCHASTIC}, r"STOCHASTIC needs random=nm.Random"),
    (nm.quantize, (X, nm.NVFP4), {"rounding": STOCHASTIC, "random": 3}, r"random is 3 \(int\): pass nm.Random"),
    (nm.quantize, (X, nm.NVFP4), {"random": torch.Generator()}, r"random is .*: pass nm.Random\(key, counter\)"),
    (
        nm.quantize,
        (W, nm.NVFP4),
        {"rounding": STOCHASTIC, "random": nm.Random((1, 2), rows=(0, 2))},
        r"random.rows=\(0, 2\) with x of shape \(2, 32, 64\): rows need two axes",
    ),
    (
        nm.quantize,
        (X, nm.NVFP4),
        {"rounding": STOCHASTIC, "random": nm.Random((1, 2), rows=(0, 5))},
        r"random.rows=\[0, 5\]: offsets must start at 0",
    ),
    # tiles
    (nm.quantize, (X[0], nm.NVFP4_2D), {}, "axis=0 of 1: tiles need"),
    (nm.quantize, (X, nm.NVFP4_2D), {"outer": "row"}, "outer='row': a tile has one scale"),
    (nm.quantize, (X, nm.NVFP4_2D), {"outer": "leading"}, "outer='leading': a tile has one.*use 'tensor', or a tensor"),
    (nm.quantize, (X, nm.NVFP4_2D), {"outer": 32}, "outer=32: a tile has one scale"),
    (nm.quantize, (X, nm.NVFP4_2D), {"outer": torch.ones(4, 1)}, r"outer of shape \(4, 1\): a tile has one scale"),
    (nm.quantize, (X, nm.NVFP4_2D), {"outer": torch.ones(())}, r"outer of shape \(\): a tile has one scale"),
    (nm.quantize, (W, nm.NVFP4_2D), {"outer": torch.ones(3, 1, 1)}, r"outer of shape \(3, 1, 1\).*with the 3 axes"),
    # groups
    *(
        (function, arguments, {"axis": 0, "groups": groups, "rounding": NEAREST}, message)
        for function, arguments in ((nm.quantize, (X, nm.MXFP8)), (nm.requantize, (Q, nm.MXFP8)))
        for groups, message in (
            ((0.0, 4.0), r"groups\[0\] is 0.0 \(float\): pass integer offsets"),
            ((0, 2.5, 4), r"groups\[1\] is 2.5 \(float\)"),
            ((False, 4), r"groups\[0\] is False \(bool\)"),
            (("0", "4"), r"groups\[0\] is '0' \(str\)"),
            ("04", r"groups is '04' \(str\): pass integer offsets"),
            (4, r"groups is 4 \(int\): pass integer offsets"),
            ({0, 4}, r"groups is .* \(set\): pass integer offsets"),
            (torch.tensor([0.0, 4.0]), "groups have dtype torch.float32: pass integer offsets"),
            (torch.tensor([False, True]), "groups have dtype torch.bool"),
            (np.array([0.0, 4.0]), "groups is a numpy float64 array"),
            (torch.tensor([[0, 4]]), r"groups is a torch.int64 tensor of shape \(1, 2\)"),
            (torch.tensor(4), r"groups is a torch.int64 tensor of shape \(\)"),
            ((0, 3, 2, 4), r"groups=\[0, 3, 2, 4\]: offsets must start at 0, never fall"),
            ((0, 3), r"groups=\[0, 3\]: .* end at the axis length 4"),
            ((1, 4), r"groups=\[1, 4\]: offsets must start at 0"),
            ((), r"groups=\[\]: offsets must start at 0"),
        )
    ),
    # requantize, dequantize
    (nm.requantize, (X, nm.MXFP8), {}, "q is a torch.float32 tensor.*plain tensors go to nm.quantize"),
    (nm.requantize, (X.numpy(), nm.MXFP8), {}, "q is a numpy float32 array"),
    (nm.requantize, (Q, nm.E4M3), {"random": RANDOM}, BLOCK_FMT),
    (nm.requantize, (Q, nm.MXFP8, 5), {}, r"axis=5: q has shape \(4, 64\); use -2 to 1"),
    (nm.requantize, (Q, nm.MXFP8, "tokens"), {}, "axis is 'tokens'"),
    (nm.requantize, (Q, nm.MXFP8), {"outer": None}, r"outer is None \(NoneType\): use 'keep', 'multiply' or 'drop'"),
    (nm.requantize, (Q, nm.MXFP8), {"outer": "hold"}, "outer='hold': use 'keep'"),
    (nm.requantize, (Q, nm.MXFP8), {}, "STOCHASTIC needs random"),
    (nm.dequantize, (X,), {}, "q is a torch.float32 tensor .*pass what nm.quantize returns"),
    (nm.dequantize, (Q, "float32"), {}, r"dtype is 'float32' \(str\): pass a torch dtype such as torch.float32"),
    (Q.dequantize, (torch.int32,), {}, "dtype=torch.int32: pass float32"),
    (Q.rows, ([0, 1],), {}, f"index {TENSOR}"),
    (Q.rows, (torch.tensor([0.0]),), {}, "index has dtype torch.float32: pass int64 or int32"),
    (Q.rows, (torch.tensor([[0]]),), {}, r"index has shape \(1, 1\): pass one axis of row numbers"),
    (Q.rows, (torch.tensor([4]),), {}, "index reaches from 4 to 4: there are 4 rows, 0 to 3"),
    # block tensors by hand
    (BlockTensor, (X, Q.scales, None, nm.NVFP4, "", 1), {}, "codes has dtype torch.float32: pass uint8"),
    (BlockTensor, (BYTES.numpy(), Q.scales, None, nm.NVFP4, "", 1), {}, f"codes {TENSOR}"),
    (BlockTensor, (BYTES + 16, Q.scales, None, nm.NVFP4, "", 1), {}, "codes reach up to 16: E2M1 has codes 0 to 15"),
    (BlockTensor, (BYTES, Q.scales[:, :3], None, nm.NVFP4, "", 1), {}, r"scales have shape \(4, 3\): .*shape \(4, 4\)"),
    (BlockTensor, (BYTES, Q.scales, None, nm.NVFP4, "", 0), {}, r"scales have shape \(4, 4\): .*shape \(1, 64\)"),
    (BlockTensor, (BYTES, Q.scales, None, nm.NVFP4, "", 1, (0, 8, 64)), {}, r"take scales of shape \(4, 5\)"),
    (BlockTensor, (BYTES, Q.scales, None, nm.NVFP4_2D, "", 1), {}, r"take scales of shape \(1, 4\)"),
    (BlockTensor, (BYTES, Q.scales.float(), None, nm.NVFP4, "", 1), {}, "scales has dtype torch.float32: pass uint8"),
    (BlockTensor, (BYTES, Q.scales, None, nm.FP8_1X128, "", 1), {}, "scales has dtype torch.uint8: pass float32"),
    (BlockTensor, (BYTES, Q.scales.to("meta"), None, nm.NVFP4, "", 1), {}, "scales is on meta: codes is on cpu"),
    (BlockTensor, (BYTES, None, None, nm.NVFP4, "", 1), {}, f"scales {TENSOR}"),
    (BlockTensor, (BYTES, Q.scales, 1.0, nm.NVFP4, "", 1), {}, f"outer {TENSOR}"),
    (
        BlockTensor,
        (BYTES, Q.scales, torch.ones(3, 1), nm.NVFP4, "", 1),
        {},
        r"outer has shape \(3, 1\): .* \(4, 64\)",
    ),
    (BlockTensor, (BYTES, Q.scales, torch.ones(()), nm.NVFP4, "", 1), {}, r"outer has shape \(\): "),
    (BlockTensor, (BYTES, Q.scales, torch.ones(4, 3), nm.NVFP4, "", 1, None, 32), {}, r"take \(4, 2\), or 1 .*but 1"),
    (BlockTensor, (BYTES, Q.scales, None, nm.E2M1, "", 1), {}, BLOCK_FMT),
    (BlockTensor, (BYTES, Q.scales, None, nm.NVFP4, "", -1), {}, "axis=-1: .*count axes from the front"),
    (BlockTensor, (BYTES, Q.scales, None, nm.NVFP4, "", "1"), {}, "axis is '1'"),
    (BlockTensor, (BYTES, Q.scales, None, nm.NVFP4, "", 1, (0, 63)), {}, r"groups=\[0, 63\]: .*axis length 64"),
    (BlockTensor, (BYTES[0, 0], Q.scales, None, nm.NVFP4, "", 0), {}, r"axis=0: codes have shape \(\)"),
    (BlockFormat, ("X", "E2M1", 16, nm.E4M3, nm.NVFP4.rule), {}, r"element is 'E2M1' \(str\): pass an element format"),
    (BlockFormat, ("X", nm.E2M1, 16, "E4M3", nm.NVFP4.rule), {}, "scale is 'E4M3'"),
    (BlockFormat, ("X", nm.E2M1, 16, nm.E4M3, "nvfp4"), {}, "rule is 'nvfp4'"),
    (BlockFormat, ("X", nm.E2M1, 16.0, nm.E4M3, nm.NVFP4.rule), {}, "block is 16.0"),
    (BlockFormat, ("X", nm.E2M1, 0, nm.E4M3, nm.NVFP4.rule), {}, "block=0 of format X: pass a power of two"),
    # random words
    (nm.philox, ((1.0, 2.0), (0, 0, 0, 0)), {}, r"a word of key is 1.0 \(float\): pass integers in \[0, 2\^32\)"),
    (nm.philox, ((1, 2), "four"), {}, "counter is 'four'"),
    (nm.philox, ((1, 2), ("a", 0, 0, 0)), {}, "a word of counter is 'a'"),
    (nm.philox, ((1, True), (0, 0, 0, 0)), {}, "a word of key is True"),
    (nm.philox, ((1, 2), [(0, 0, 0, 0), (0, 0)]), {}, r"counter is .*: its parts have unequal shapes"),
    (nm.philox, ((1, 2), X[:, :4]), {}, "counter have dtype torch.float32: pass integers"),
    (nm.philox, ((1, 2), np.ones(4)), {}, "counter have dtype torch.float64"),
    (nm.philox, ((1, 2, 3), (0, 0, 0, 0)), {}, r"key has shape \(3,\): its last dimension must hold 2 words"),
    (nm.philox, (1, (0, 0, 0, 0)), {}, r"key is 1 \(int\): pass a torch tensor or a numpy array"),
    (nm.philox, (LONG.view(2, 2), LONG.expand(3, 4)), {}, r"key has shape \(2, 2\) and counter \(3, 4\): .*broadcast"),
    (nm.philox, ((1, 2), (0, 0, 0, 0)), {"rounds": 1.5}, "rounds is 1.5"),
    (nm.philox, ((1, 2), (0, 0, 0, 0)), {"rounds": -1}, "rounds=-1: use 0 or more"),
    (nm.Random, (1,), {}, r"key is 1 \(int\): pass a pair of integers"),
    (nm.Random, ((1, 2, 3),), {}, r"key=\(1, 2, 3\): pass a pair of integers"),
    (nm.Random, ((1, 2.0),), {}, "a word of key is 2.0"),
    (nm.Random, ((1, 2), (0, "a")), {}, "a word of counter is 'a'"),
    (nm.Random, ((1, 2),), {"rows": 4}, r"rows is 4 \(int\): pass offsets"),
    (RANDOM.fields, (0, LONG, 3, 4), {}, f"group {TENSOR}"),
    (RANDOM.fields, (0, X, LONG, 4), {}, "line has dtype torch.float32: pass int64"),
    (RANDOM.fields, ("a", LONG, LONG, 4), {}, "expert is 'a'"),
    (RANDOM.fields, (0, LONG, LONG, "4"), {}, "element_bits is '4'"),
    # NVIDIA's conversions
    (nm.ptx.cvt_rs_satfinite_e2m1x4_f32, (X, X, X, X, None), {}, r"rbits is None \(NoneType\): pass 32-bit words"),
    (nm.ptx.cvt_rs_satfinite_e2m1x4_f32, (X, X, X, X, 2**70), {}, "rbits reaches from 1180591620717411303424"),
    (nm.ptx.cvt_rs_satfinite_e2m1x4_f32, (X, X, None, X, 1), {}, "e is None"),
    (nm.ptx.cvt_rn_satfinite_e2m1x2_f32, (X, X.to("meta")), {}, "b is on meta: a is on cpu; move"),
    (nm.ptx.cvt_rn_f16x2_e4m3x2, (7,), {}, r"a is 7 \(int\): pass 16-bit words"),
    # Hadamard
    *(
        call
        for function in (nm.hadamard, nm.hadamard_inverse)
        for call in (
            (function, (X.tolist(),), {}, r"x is .*list"),
            (function, (X.int(),), {}, "x has dtype torch.int32"),
            (function, (X, 24), {}, "size=24: use one of 16, 32, 64, 128"),
            (function, (X, 32.0), {}, r"size is 32.0 \(float\): use one of 16"),
            (function, (X, "32"), {}, "size is '32'"),
            (function, (X, 32, np.ones(32)), {}, "signs is a numpy float64 array of shape .*pass a torch tensor"),
            (function, (X, 32, [1.0] * 32), {}, f"signs {TENSOR}"),
            (function, (X, 32, torch.ones(32) > 0), {}, "signs have dtype torch.bool"),
            (function, (X, 32, 2 * torch.ones(32)), {}, r"signs\[0\] is 2.0: pass \+1 and -1"),
            (function, (X, 32, torch.ones(32).to(torch.float8_e4m3fn)), {}, "signs have dtype torch.float8_e4m3fn"),
            (function, (X, 32, torch.ones(16)), {}, r"signs has shape \(16,\): one sign per element"),
            (function, (X, 32, None, 3), {}, "axis=3: x has shape .*use -2 to 1"),
            (function, (X, 32, None, 1.0), {}, "axis is 1.0"),
            (function, (torch.tensor(1.0),), {}, "x has no axis"),
            (function, (X, 128), {}, "length 64: size=128 does not divide"),
        )
    ),
    (nm.hadamard_signs, (24, (1, 2)), {}, "size=24"),
    (nm.hadamard_signs, (32, 1), {}, "key is 1"),
    (nm.hadamard_signs, (32, (1, 2, 3)), {}, r"key=\(1, 2, 3\): pass a pair"),
    (nm.hadamard_signs, (32, (1, 2.0)), {}, r"key\[1\] is 2.0"),
    # products
    (nm.matmul, ([[1.0]], X), {}, r"a is .*\(list\): pass a BlockTensor or a torch tensor"),
    (nm.matmul, (X, X.numpy()), {}, "b is a numpy float32 array of shape .*pass a BlockTensor or a torch tensor"),
    (nm.matmul, (X.int(), X), {}, "a is torch.int32: pass float32"),
    (nm.matmul, (X, X + 1j), {}, "b is torch.complex64: pass float32"),
    (nm.matmul, (X > 0, X), {}, "a is torch.bool"),
    (nm.matmul, (torch.tensor(1.0), X), {}, r"a has shape \(\): pass a matrix"),
    (nm.matmul, (X[0], X), {}, r"a has shape \(64,\): pass a matrix"),
    (nm.matmul, (X, X[:, :32]), {}, "their last axes, the contraction, must agree"),
    (nm.matmul, (W, W[:1].expand(3, 32, 64)), {}, "their leading axes must broadcast"),
    (nm.matmul, (X, X, 3), {}, r"accumulator is 3 \(int\): use one of exact"),
    (nm.matmul, (X, X, "tf32"), {}, "accumulator='tf32': use one of exact"),
    (nm.matmul, (X, X), {"c": 1.0}, f"c {TENSOR}"),
    (nm.matmul, (X, X), {"c": LONG}, "c has dtype torch.int64: pass float32"),
    (nm.matmul, (X, X), {"c": X.double()}, "c has dtype torch.float64: pass float32"),
    (nm.matmul, (X[:1], X[:3]), {"c": torch.ones(5, 3)}, r"c has shape \(5, 3\): the product has \(1, 3\)"),
    (nm.matmul, (X, X.to(torch.float8_e4m3fn)), {}, "b is torch.float8_e4m3fn: pass float32"),
    (nm.matmul, (X, X), {"c": torch.ones(3, 4)}, r"c has shape \(3, 4\): the product has \(4, 4\)"),
    (nm.matmul, (X, X.to("meta")), {}, "b is on meta: a is on cpu"),
    (nm.matmul, (X, W), {"groups": "all"}, "groups is 'all'"),
    (nm.matmul, (X, W), {"groups": (0, 1.0, 4)}, r"groups\[1\] is 1.0"),
    (nm.matmul, (X, W), {"groups": (0, 4)}, "groups has 2 offsets: b holds 2 experts"),
    (nm.matmul, (W, W), {"groups": GROUPS}, r"a has shape \(2, 32, 64\) .*groups take a \(T, K\)"),
    (nm.matmul, (nm.quantize(X, nm.MXFP8, 0), X), {}, "a has its blocks along axis 0.*use .mT"),
    # layouts
    (layout.pack_nibbles, ([1, 2],), {}, f"codes {TENSOR}"),
    (layout.pack_nibbles, (BYTES.numpy(),), {}, "codes is a numpy uint8 array"),
    (layout.pack_nibbles, (X,), {}, "codes have dtype torch.float32: pass uint8"),
    (layout.pack_nibbles, (BYTES[0, 0],), {}, r"codes of shape \(\): the last axis must be even"),
    (layout.pack_nibbles, (BYTES + 16,), {}, "codes reach up to 16"),
    (layout.unpack_nibbles, (BYTES.numpy(),), {}, f"packed {TENSOR}"),
    (layout.unpack_nibbles, (X,), {}, "packed has dtype torch.float32"),
    (layout.swizzle_scales, (BYTES.numpy(),), {}, f"scales {TENSOR}"),
    (layout.swizzle_scales, (X,), {}, "scales has dtype torch.float32: pass uint8"),
    (layout.swizzle_scales, (BYTES[0],), {}, r"scales have shape \(64,\): pass"),
    (layout.unswizzle_scales, ("bytes", (4, 4)), {}, f"swizzled {TENSOR}"),
    (layout.unswizzle_scales, (BYTES, 4), {}, r"shape is 4 \(int\): pass integers \(..., rows, k\)"),
    (layout.unswizzle_scales, (BYTES, "44"), {}, "shape is '44'"),
    (layout.unswizzle_scales, (BYTES, (4.0, 4)), {}, r"shape\[0\] is 4.0"),
    (layout.unswizzle_scales, (BYTES, (4,)), {}, r"shape=\(4,\): pass"),
    (layout.unswizzle_scales, (BYTES, (4, 4)), {}, "swizzled has 256 bytes: scales of shape"),
    (layout.padded_scales, (4.0, 4), {}, "rows is 4.0"),
    (layout.padded_scales, (4, -1), {}, "k=-1: pass 0 or more"),
    # torch's operands
    (as_torch, (X,), {}, "q is a torch.float32 tensor .*pass what nm.quantize returns"),
    (as_torch, (Q,), {"swizzle": "none"}, "swizzle is 'none'"),
    (as_torch, (Q,), {"outer": "left"}, "outer='left': use 'inside' or 'outside'"),
    (as_torch, (Q,), {"row_groups": (0, 3)}, r"row_groups=\[0, 3\]: offsets must start at 0"),
    (as_torch, (Q,), {"row_groups": (0, 4.0)}, r"row_groups\[1\] is 4.0"),
    (from_torch, (X, nm.MXFP8), {}, "operand is a torch.float32 tensor .*pass a TorchOperand"),
    (from_torch, (OPERAND, nm.E4M3), {}, BLOCK_FMT),
    (from_torch, (OPERAND, "MXFP8"), {}, BLOCK_FMT),
    (from_torch, (replace(OPERAND, scales=[]), nm.MXFP8), {}, "operand.scales has 0 entries"),
    (from_torch, (replace(OPERAND, recipes=None), nm.MXFP8), {}, "operand.recipes is None"),
    (from_torch, (replace(OPERAND, scales=OPERAND.scales[0]), nm.MXFP8), {}, "operand.scales is a torch"),
    (from_torch, (replace(OPERAND, scales=[1.0]), nm.MXFP8), {}, r"operand.scales\[0\] is 1.0"),
    (from_torch, (replace(OPERAND, data=None), nm.MXFP8), {}, f"operand.data {TENSOR}"),
    (from_torch, (replace(OPERAND, outer=2.0), nm.MXFP8), {}, f"operand.outer {TENSOR}"),
    (from_torch, (replace(OPERAND, outer=torch.ones(3, 1)), nm.MXFP8), {}, r"outer has shape \(3, 1\)"),
    (from_torch, (replace(OPERAND, scales=[OPERAND.scales[0][:-16]]), nm.MXFP8), {}, "swizzled has 496 bytes"),
    (from_torch, (OPERAND, nm.NVFP4), {}, "NVFP4 is"),
    (from_torch, (replace(OPERAND, swizzles=[None]), nm.MXFP8), {}, r"operand.swizzles\[0\] is None"),
    (from_torch, (replace(OPERAND, scales=OPERAND.scales * 2), nm.MXFP8), {}, "operand has 2 scales, 1 recipes and 1"),
    # measures
    (metrics.error, ([1.0], X), {}, r"x is \[1.0\]"),
    (metrics.error, (X, None), {}, "x_q is None"),
    (metrics.error, (X, X.int()), {}, "x_q has dtype torch.int32"),
    (metrics.error, (X + 1j, X), {}, "x has dtype torch.complex64"),
    (metrics.error, (X > 0, X), {}, "x has dtype torch.bool"),
    (metrics.error, (X, X[:3]), {}, r"x has shape \(4, 64\), x_q \(3, 64\)"),
    (metrics.error, (X[:0], X[:0]), {}, "must agree and hold a value"),
    (metrics.crest_factor, (X.numpy(), 16), {}, f"x {TENSOR}"),
    (metrics.crest_factor, (torch.tensor(1.0), 16), {}, "x has no axis"),
    (metrics.crest_factor, (X, 16.0), {}, "block is 16.0"),
    (metrics.crest_factor, (X, 0), {}, "block=0 does not divide"),
    (metrics.cosine, (X, X.numpy()), {}, f"y {TENSOR}"),
    (metrics.cosine, (X, X[:3]), {}, r"y has shape \(3, 64\): x has \(4, 64\)"),
    # SwiGLU
    (swiglu.silu, (X,), {}, "x has dtype torch.float32: pass bfloat16"),
    (swiglu.silu, (X.numpy(),), {}, f"x {TENSOR}"),
    (swiglu.swiglu, (BF16, X), {}, "up has dtype torch.float32: pass bfloat16"),
    (swiglu.swiglu, (BF16, BF16[:2]), {}, r"up has shape \(2, 64\): gate has \(4, 64\)"),
    (swiglu.swiglu_backward, (BF16, BF16, BF16), {}, "dh has dtype torch.bfloat16: pass float32"),
    (swiglu.swiglu_backward, (X[:1], BF16, BF16), {}, r"dh has shape \(1, 64\)"),
    # the seam
    (ops.Cast, ("NVFP4",), {}, BLOCK_FMT),
    (ops.Cast, (nm.E2M1,), {}, BLOCK_FMT),
    (ops.Cast, (nm.NVFP4, None, "nearest"), {}, "rounding is 'nearest'"),
    (ops.Cast, (nm.NVFP4, 1.0), {}, "outer is 1.0"),
    (ops.Recast, (nm.MXFP8, None), {}, "outer is None"),
    (ops.Recast, (nm.MXFP8, "drop"), {}, "outer='drop' of a recast"),
    (ops.Wire, ("MXS2F6",), {}, r"fmt is 'MXS2F6' \(str\): pass a block format such as nm.MXS2F6"),
    (ops.Wire, (nm.MXS2F6, [1.0] * 32), {}, f"signs {TENSOR}"),
    (ops.Wire, (nm.MXS2F6, torch.ones(24)), {}, r"signs has shape \(24,\): pass \(n,\), n one of"),
    (ops.quantize_tokens, (X.numpy(), CAST), {}, f"x {TENSOR}"),
    (ops.quantize_tokens, (X.int(), ops.Cast(None)), {}, "x has dtype torch.int32"),
    (ops.quantize_tokens, (X, nm.NVFP4), {}, r"cast is NVFP4.*: pass a Cast"),
    (ops.gate_up_glu, (X.numpy(), W, GROUPS, CAST), {}, "x is a numpy"),
    (ops.gate_up_glu, (X, W[0], GROUPS, CAST), {}, r"w13 has shape \(32, 64\): pass 3 axes"),
    (ops.gate_up_glu, (X, W[:, :31], GROUPS, CAST), {}, "axis 1 stacks gate above up and must be even"),
    (ops.gate_up_glu, (X, W, None, CAST), {}, "groups is None: pass the offsets"),
    (ops.gate_up_glu, (X, W, GROUPS, None), {}, "cast is None|hidden is None"),
    (ops.gate_up_glu, (X, W, GROUPS, CAST, "fp16"), {}, "accumulator='fp16'"),
    (ops.down_to_wire, (X[None], W, GROUPS, WIRE), {}, r"h has shape \(1, 4, 64\): pass 2 axes"),
    (ops.down_to_wire, (X, W, GROUPS, nm.MXS2F6), {}, "wire is .*: pass a Wire"),
    (ops.aggregate, (X.tolist(), SLOTS, None, WIRE), {}, "payload is .*list"),
    (ops.aggregate, (X, SLOTS.float(), None, WIRE), {}, "slots has dtype torch.float32: pass int64"),
    (ops.aggregate, (X, SLOTS[0], None, WIRE), {}, r"slots has shape \(2,\): pass 2 axes of row numbers"),
    (ops.aggregate, (X, SLOTS[:, :0], None, WIRE), {}, r"slots has shape \(2, 0\)"),
    (ops.aggregate, (X, SLOTS + 1, None, WIRE), {}, "slots reaches from 1 to 4: there are 4 rows, 0 to 3"),
    (ops.aggregate, (X, SLOTS, torch.ones(2, 3), WIRE), {}, r"weights has shape \(2, 3\): slots has \(2, 2\)"),
    (ops.aggregate, (X, SLOTS, SLOTS, WIRE), {}, "weights has dtype torch.int64"),
    (ops.aggregate, (X, SLOTS, None, None), {}, "wire is None"),
    (ops.router_gradient, (X, X, SLOTS, WIRE), {}, r"g has shape \(4, 64\): pass one row per token, \(2, 64\)"),
    (ops.router_gradient, (X[:2], Q, SLOTS, WIRE), {}, f"decoded {TENSOR}"),
    (ops.grad_to_wire, (X, LONG.int(), torch.ones(4, 1), CAST), {}, "tokens has dtype torch.int32: pass int64"),
    (ops.grad_to_wire, (X, LONG + 4, torch.ones(4, 1), CAST), {}, "tokens reaches from 4 to 4: there are 4 rows"),
    (ops.grad_to_wire, (X, LONG, torch.ones(4), CAST), {}, r"row_weights has shape \(4,\): pass one factor per row"),
    (ops.row_scale, (Q, CAST), {}, "recast is .*: pass a Recast"),
    (ops.requantize_transpose, (X.numpy(), ops.Recast(nm.MXFP8)), {}, "q is a numpy"),
    (ops.requantize_transpose, (Q, CAST), {}, "recast is .*: pass a Recast"),
    (
        ops.requantize_transpose,
        (Q, ops.Recast(nm.MXFP8), (0, 4), None, X),
        {},
        r"rows has shape \(4, 64\): pass one",
    ),
    (ops.grad_products, (X, X, W, X, None), {}, "groups is None"),
    (ops.grad_products, (X, X, W[0], X, GROUPS), {}, r"w has shape \(32, 64\): pass 3 axes"),
    (ops.glu_backward, (X, BF16), {}, r"gate_up has shape \(4, 64\) and dh \(4, 64\): pass \(R, 2F\) and \(R, F\)"),
    (ops.glu_backward, (BF16, BF16), {}, "dh has dtype torch.bfloat16: pass float32"),
    (ops.glu_backward, (X[:, :32], X), {}, "gate_up has dtype torch.float32: pass bfloat16"),
]


def name(call: tuple[Any, tuple, dict[str, Any], str]) -> str:
    return f"{call[0].__name__}: {re.sub(r'[^a-z0-9_ ]+', ' ', call[3].lower())[:50]}"


@pytest.mark.parametrize(("function", "arguments", "keywords", "message"), CALLS, ids=map(name, CALLS))
def test_a_bad_call_is_refused_in_words(
    function: Any, arguments: tuple, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        function(*arguments, **keywords)
    where = caught.traceback[-1].path
    assert where is not None and where.parent.name == "numerics", "the message is ours, not torch's"
    assert len(str(caught.value)) < 500


def test_integers_of_every_kind_are_taken() -> None:
    """What the checks refuse is no more than it must be: numpy's ints and integer tensors count."""
    expected = nm.quantize(X, nm.MXFP8, 0, groups=(0, 1, 4))
    for groups in ([0, 1, 4], np.array([0, 1, 4], np.int32), torch.tensor([0, 1, 4]), (np.int64(0), 1, np.uint8(4))):
        assert torch.equal(nm.quantize(X, nm.MXFP8, np.int64(0), groups=groups).scales, expected.scales)
    assert torch.equal(nm.hadamard(X, np.int64(32)), nm.hadamard(X, 32))
    assert nm.E2M1.value(np.uint8(7)) == 6.0


def test_a_tensor_by_hand_is_what_quantize_made() -> None:
    for fmt in nm.BLOCK_FORMATS.values():
        q = nm.quantize(W, fmt)
        again = BlockTensor(q.codes, q.scales, q.outer, q.fmt, q.rule, q.axis, q.groups, q.outer_block)
        assert torch.equal(again.dequantize(), q.dequantize()) and again.__dict__ == q.__dict__
    for q in (nm.quantize(X, nm.NVFP4, outer=32, groups=(0, 40, 64)), nm.quantize(X[:0], nm.NVFP4, outer="row")):
        assert torch.equal(replace(q).dequantize(), q.dequantize())
        assert replace(q.mT).shape == q.mT.shape


@pytest.mark.parametrize("operand", [OPERAND, as_torch(Q)])
def test_good_operands_come_back(operand: TorchOperand) -> None:
    fmt = nm.NVFP4 if operand is not OPERAND else nm.MXFP8
    assert from_torch(operand, fmt).fmt is fmt
