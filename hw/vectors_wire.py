"""Golden vectors of the wires: nibbles, swizzled scales, an NVFP4 payload, Hadamard + S2F6 and what receives it."""

from __future__ import annotations

import torch
from torch import Tensor

import numerics as nm
from numerics import ops

from .vectors_blocks import facts, prose
from .vectors_case import Case, case, outliers, words

NIBBLES = "Byte i holds code 2i in its low four bits and code 2i + 1 in its high four bits."
SWIZZLE = """The scale of row r and column c lies at byte ((r // 128) * T + c // 4) * 512 + (r % 32) * 16 +
    ((r % 128) // 32) * 4 + c % 4, T = ceil(columns / 4): tiles of 128 rows by 4 columns, along the columns first. Bytes
    that belong to no scale are padding, here 0. Leading axes are matrices of their own, one after another."""
BUTTERFLY = """In float32, each operation rounded once, on every block of n = {n} values along the last axis: x is
    multiplied by the n signs; then stages with stride 1, 2, 4, .. n/2, each of which replaces the pair (u, v) at
    positions i and i + stride by (u + v, u - v); then each value is multiplied by fl(n^-1/2) = 0x{factor:08X}."""
INVERSE = """In float32, each operation rounded once, on every block of n = {n} values along the last axis: stages with
    stride 1, 2, 4, .. n/2, each of which replaces the pair (u, v) at positions i and i + stride by (u + v, u - v); then
    each value is multiplied by fl(n^-1/2) = 0x{factor:08X}, and by its sign last."""


def cases() -> list[Case]:
    """All of this module."""
    return [*_nibbles(), *_swizzles(), _payload(), *_hadamard(), *_combine()]


def _nibbles() -> list[Case]:
    every = torch.arange(256)
    pairs = torch.stack((every % 16, every // 16), -1).flatten().to(torch.uint8)
    listed = []
    for name, codes in (("every_pair", pairs), ("matrix", (words(6 * 48, 90) >> 28).to(torch.uint8).view(6, 48))):
        packed = nm.layout.pack_nibbles(codes)
        prose = f"4-bit codes, one per byte, packed in pairs along the last axis. {NIBBLES}"
        back = f"The inverse of packing: bytes to 4-bit codes, one per byte. {NIBBLES}"
        listed.append(case(f"pack_nibbles/{name}", "pack_nibbles", prose, {}, {"codes": codes}, {"packed": packed}))
        listed.append(case(f"unpack_nibbles/{name}", "unpack_nibbles", back, {}, {"packed": packed}, {"codes": codes}))
    return listed


def _swizzles() -> list[Case]:
    listed = []
    for shape in ((128, 4), (256, 8), (130, 5), (1, 1), (33, 9), (3, 40, 6)):
        count = int(torch.tensor(shape).prod())
        scales = (1 + words(count, 91) % 126).to(torch.uint8).view(shape)
        swizzled = nm.layout.swizzle_scales(scales)
        name = "x".join(map(str, shape))
        prose = f"One-byte block scales into the 128x4 layout of block-scaled products on Blackwell. {SWIZZLE}"
        back = f"One-byte block scales back from the 128x4 layout, padding left out. {SWIZZLE}"
        parameters = {"shape": list(shape)}
        pair = {"scales": scales}, {"swizzled": swizzled}
        listed.append(case(f"swizzle_scales/{name}", "swizzle_scales", prose, parameters, *pair))
        listed.append(case(f"unswizzle_scales/{name}", "unswizzle_scales", back, parameters, *pair[::-1]))
    return listed


def _payload() -> Case:
    """What a kernel writes for a product: packed codes and swizzled scales at once."""
    x = outliers((130, 80), 92)
    q = nm.quantize(x, nm.NVFP4, outer="row")
    text = f"""{prose(nm.NVFP4, "row", 1)} The codes are packed in pairs along axis 1: {NIBBLES} The scales, (130, 5),
        are swizzled: {SWIZZLE}"""
    outputs = {"packed": q.packed(), "swizzled": nm.layout.swizzle_scales(q.scales), "outer": q.outer}
    parameters = facts(nm.NVFP4, "row", 1, rule="nvfp4", rounding="nearest_even")
    return case("payload/NVFP4", "payload", text, parameters, {"x": x}, outputs)


def _factor(size: int) -> int:
    return int(torch.tensor(size**-0.5, dtype=torch.float32).view(torch.int32))


def _hadamard() -> list[Case]:
    listed = []
    for size in (16, 32, 128):
        signs = nm.hadamard_signs(size, (3, 4))
        x = outliers((12, 2 * size), 93)
        named = {"n": size, "factor": _factor(size)}
        for operation, text, function in (
            ("hadamard", BUTTERFLY, nm.hadamard),
            ("hadamard_inverse", INVERSE, nm.hadamard_inverse),
        ):
            y = function(x, size, signs)
            inputs, outputs = {"x": x, "signs": signs}, {"y": y}
            listed.append(case(f"{operation}/{size}", operation, text.format(**named), {"size": size}, inputs, outputs))
    return listed


def _combine() -> list[Case]:
    """The combine: an expert's output rotated and quantized to MXS2F6, and a token's rows added and rotated back."""
    signs = nm.hadamard_signs(32, (3, 4))
    y = outliers((24, 96), 94)
    y[5] = 0.0
    wire = ops.Wire(nm.MXS2F6, signs)
    payload = nm.quantize(nm.hadamard(y, 32, signs), nm.MXS2F6, outer=None)
    named = {"n": 32, "factor": _factor(32)}
    text = f"""The rows of an expert's output on their way back, in two steps. First a
        rotation: {BUTTERFLY.format(**named)}
        Then its result, float32, is quantized. {prose(nm.MXS2F6, "none", 1)}"""
    parameters = facts(nm.MXS2F6, "none", 1, rule="rceil", rounding="nearest_even", size=32)
    stored: dict[str, Tensor] = {"codes": payload.codes, "scales": payload.scales}
    sent = case("combine/send", "combine_send", text, parameters, {"x": y, "signs": signs}, stored)
    slots = (words(10 * 3, 95) % 24).view(10, 3)
    weights = (1 + words(10 * 3, 96) % 1023).to(torch.float32).view(10, 3) * 2.0**-10
    # a term that is taken away again, before or behind a small one: only this order of the sum gives these bits
    large = weights[:, :1] * 2.0**22
    before = torch.arange(10)[:, None] % 2 == 0
    far_slots = torch.where(before, slots[:, [0, 0, 1]], slots[:, [1, 0, 0]])
    small = weights[:, 1:2]
    far = torch.where(before, torch.cat((large, -large, small), 1), torch.cat((small, large, -large), 1))
    text = f"""The rows of each token, slots[t, 0], slots[t, 1], .., decoded (code * scale, exact), each multiplied by
        weights[t, k], added in the order of k (first product + second product, and so on), then rotated back.
        {INVERSE.format(**named)} The result is rounded once to BF16, nearest even, and given as float32."""
    listed = [sent]
    for name, rows, factors in (("receive", slots, weights), ("receive_order", far_slots, far)):
        out = ops.aggregate(payload, rows, factors, wire)[0].to(torch.float32)
        inputs = {**stored, "slots": rows, "weights": factors, "signs": signs}
        listed.append(case(f"combine/{name}", "combine_receive", text, parameters, inputs, {"out": out}))
    return listed
