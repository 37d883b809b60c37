"""Copies of `numerics/ops.py` for the tests of `fourbit validate --ops`: true ones, and ones with a single fault each.

A copy is the file's text with absolute imports, so its functions are others than those of `numerics.ops`. A fault is a
text replaced by another, or code behind an operation that spoils its result.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from hw import validate

ROOT = Path(validate.__file__).resolve().parent.parent
CPU = ["--device", "cpu", "--fast"]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """The judged side has two threads, whatever the machine. In force where it is imported."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2, "validate must give the number of threads back"
    torch.set_num_threads(before)


def written(folder: Path, old: str = "", new: str = "", more: str = "", name: str = "mine.py") -> Path:
    """Write a copy with one text replaced by another, and with `more` behind it."""
    text = (ROOT / "numerics" / "ops.py").read_text("utf-8")
    assert old in text
    text = text.replace(old, new, 1) if old else text
    text = re.sub(r"^from \.(\w+) import", r"from numerics.\1 import", text, flags=re.MULTILINE)
    text += "\n\nfrom numerics.ops import Cast, Recast, Wire  # the ones that validate passes\n" + more
    (folder / name).write_text(text, "utf-8")
    return folder / name


def run(capsys: pytest.CaptureFixture[str], path: object, *arguments: str) -> tuple[int, list[str]]:
    """Exit status and the lines of the output."""
    capsys.readouterr()
    status = validate.main(["--ops", str(path), *CPU, *arguments])
    return status, capsys.readouterr().out.splitlines()


def failed(lines: list[str]) -> list[str]:
    """The table's lines of failed cases."""
    return [line for line in lines[1:-1] if not line.startswith("    ") and re.search(r"\d+ +[1-9]\d*  \S", line)]


def returns(operation: str, fault: str) -> str:
    """Code that puts a fault, an expression of the result `r`, behind an operation."""
    return f"""
import inspect
from numerics.layout import swizzle_scales
def _behind(true):
    def {operation}(*args, **kwargs):
        r = true(*args, **kwargs)
        return {fault}
    {operation}.__signature__ = inspect.signature(true)
    return {operation}
{operation} = _behind({operation})
"""


@dataclass(frozen=True)
class Fault:
    """A fault and how it is told.

    Args:
        name: as engineers call it. operation: where. case: the line that must fail first. output: what that line must
        name. line: part of the derivation. old, new: texts of the copy; behind: spoils the result instead.
    """

    name: str
    operation: str
    case: str
    output: str
    line: str
    old: str = ""
    new: str = ""
    behind: str = ""

    def write(self, folder: Path) -> Path:
        """The broken copy."""
        return written(folder, self.old, self.new, returns(self.operation, self.behind) if self.behind else "")


_SWAPPED = "r.derived(codes=r.codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)) if isinstance(r, BlockTensor) else r"
_SWIZZLED = (
    "r.derived(scales=swizzle_scales(r.scales)[: r.scales.numel()].reshape(r.scales.shape))"
    " if isinstance(r, BlockTensor) and r.codes.ndim == 2 else r"
)
_QUANTIZE = (
    "    return quantize(x, cast.fmt, axis, cast.outer, cast.outer_rounding, groups, "
    "rounding=cast.rounding, random=random)"
)
_AWAY = _QUANTIZE.replace(
    "=cast.rounding,", "=cast.rounding if cast.rounding is Rounding.STOCHASTIC else Rounding.NEAREST_AWAY,"
)
_STALE = f"""    block, length = cast.fmt.block, x.shape[-1]
    if axis == -1 and length % block and cast.rounding is not Rounding.STOCHASTIC:
        last = x[..., length - length % block - block : length - length % block]  # a full block; what it has left there
        outer = quantize(x, cast.fmt, axis, cast.outer).outer
        q = quantize(torch.cat([x, last[..., length % block :]], -1), cast.fmt, axis, outer)
        return q.derived(codes=q.codes[..., :length].contiguous())
{_QUANTIZE}"""
_UNROUNDED = """    import numerics as nm
    x = g.to(torch.float32).index_select(0, tokens) * row_weights
    q = quantize_tokens(x, cast, random)
    if not isinstance(q, BlockTensor):
        return q
    blocks = torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).unflatten(-1, (-1, 32))
    scaled = blocks / (blocks.abs().amax(-1, keepdim=True) / torch.full((), 448.0))
    return q.derived(codes=nm.encode(scaled, nm.E4M3).flatten(-2)[:, : x.shape[1]].contiguous())"""
_SENT = "    return quantize_tokens(g.to(torch.float32).index_select(0, tokens) * row_weights, cast, random)"
_SHIFTED = "groups = [min(n + (0 < i < len(groups) - 1), groups[-1]) for i, n in enumerate(groups)]\n    "
_DOWN = "y = matmul(h, w2, accumulator, groups=groups)"
_ROTATED = "y = hadamard(y, len(wire.signs), wire.signs)"
_ROTATED_G = "g = hadamard(g, len(wire.signs), wire.signs)"
_BACK = "total = hadamard_inverse(total, len(wire.signs), wire.signs)"
_KEPT = 'outer = "drop" if recast.outer == "gradient" else recast.outer'
_CAST_AGAIN = (
    "return quantize_tokens(values, Cast(recast.fmt, recast.scope, recast.rounding), random, groups, -2, signs)"
)
_QUANTIZED = "quantize_tokens NVFP4, normal"

FAULTS = [
    Fault(
        "wrong tie", "quantize_tokens", "quantize_tokens NVFP4, ties", "payload.codes[", "code exp", _QUANTIZE, _AWAY
    ),
    Fault("swapped nibbles", "quantize_tokens", _QUANTIZED, "payload.codes[", "code exp", behind=_SWAPPED),
    Fault(
        "swapped nibbles",
        "requantize_transpose",
        "requantize_transpose NVFP4, normal",
        "input.codes[",
        "random field",
        behind=_SWAPPED,
    ),
    Fault("unswizzled scale", "quantize_tokens", _QUANTIZED, "payload.scales[", "mapped to 4", behind=_SWIZZLED),
    Fault(
        "unswizzled scale",
        "down_to_wire",
        "down_to_wire NVFP4, normal",
        "payload.scales[",
        "scale exp",
        behind=_SWIZZLED,
    ),
    Fault("stale padding", "quantize_tokens", _QUANTIZED, "payload.scales[", "8 of 16: a short", _QUANTIZE, _STALE),
    Fault(
        "reversed Hadamard sign",
        "down_to_wire",
        "down_to_wire NVFP4, normal",
        "payload.codes[",
        "block amax b",
        _ROTATED,
        _ROTATED.replace(", wire.signs)", ", -wire.signs)"),
    ),
    Fault(
        "reversed Hadamard sign",
        "aggregate",
        "aggregate NVFP4, normal",
        "out[",
        "after the inverse Hadamard",
        _BACK,
        _BACK.replace(", wire.signs)", ", wire.signs.flip(0))"),
    ),
    Fault(
        "reversed Hadamard sign",
        "router_gradient",
        "router_gradient NVFP4, normal",
        "d_weights[",
        "any order",
        _ROTATED_G,
        _ROTATED_G.replace(", wire.signs)", ", -wire.signs)"),
    ),
    Fault(
        "off-by-one group",
        "gate_up_glu",
        "gate_up_glu NVFP4, normal",
        "gate_up[",
        "belongs to expert",
        "gate_up = matmul(x, w13",
        _SHIFTED + "gate_up = matmul(x, w13",
    ),
    Fault(
        "off-by-one group",
        "grad_products",
        "grad_products NVFP4, normal",
        "dx[",
        "exact sum of products",
        "dx = matmul(g, w.mT",
        _SHIFTED + "dx = matmul(g, w.mT",
    ),
    Fault(
        "E8M0 scale rounded but payload not",
        "grad_to_wire",
        "grad_to_wire NVFP4, normal",
        "payload.codes[",
        "scale before rounding up to a power of two",
        _SENT,
        _UNROUNDED,
    ),
    Fault(
        "lost outer scale",
        "gate_up_glu",
        "gate_up_glu NVFP4, normal",
        "gate_up[",
        "times fl(outer",
        "matmul(x, w13,",
        "matmul(x.derived(outer=None) if isinstance(x, BlockTensor) else x, w13,",
    ),
    Fault(
        "lost outer scale",
        "requantize_transpose",
        "requantize_transpose NVFP4, normal",
        "input.scales[",
        "block amax b",
        _KEPT,
        'outer = "drop" if recast.outer != "keep" else "keep"',
    ),
    Fault(
        "lost outer scale",
        "row_scale",
        "row_scale NVFP4, normal",
        "row_scale returned None instead of a tensor",
        "",
        "        return q.outer\n",
        "        return None\n",
    ),
    Fault(
        "double rounding through bf16",
        "grad_to_wire",
        "grad_to_wire NVFP4, normal",
        "payload.codes[",
        "element before rounding",
        "index_select(0, tokens) * row_weights, cast",
        "index_select(0, tokens).mul(row_weights).to(torch.bfloat16), cast",
    ),
    Fault(
        "double rounding through bf16",
        "down_to_wire",
        "down_to_wire NVFP4, normal",
        "payload.codes[",
        "code expected",
        _DOWN,
        f"{_DOWN}.to(torch.bfloat16).to(torch.float32)",
    ),
    Fault(
        "double rounding through bf16",
        "glu_backward",
        "glu_backward, normal",
        "d_gate_up[",
        "silu'(gate)",
        "swiglu_backward(dh,",
        "swiglu_backward(dh.to(torch.bfloat16).to(torch.float32),",
    ),
    Fault(
        "reversed Hadamard sign",
        "requantize_transpose",
        "requantize_transpose NVFP4 rotated, normal",
        "input.codes[",
        "random field",
        _CAST_AGAIN,
        _CAST_AGAIN.replace(", signs)", ", None if signs is None else -signs)"),
    ),
    Fault(
        "truncated codes of a tile",
        "requantize_transpose",
        "requantize_transpose NVFP4 rotated, normal",
        "weight.codes[",
        "block amax b",
        _CAST_AGAIN,
        _CAST_AGAIN.replace("recast.rounding)", "Rounding.TOWARD_ZERO if q.codes.ndim == 3 else recast.rounding)"),
    ),
    Fault(
        "sum in another order",
        "aggregate",
        "aggregate NVFP4 cancelling, normal",
        "out[",
        "their sum in this order",
        "for k in range(slots.shape[1]):",
        "for k in reversed(range(slots.shape[1])):",
    ),
]
