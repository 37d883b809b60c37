"""What `hw.ops` refuses, in the interpreter.

Contract: an error in words for what has no kernel, for arguments that do not fit and for a device that cannot run them;
never another result. Oracle: the emulator, where something is done after all.
"""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_cases import RANDOM, data
from seam_calls import refused, same, same_or_refused

import numerics as nm
from hw.device import INTERPRET
from numerics.hadamard import SIZES
from numerics.ops import Cast, Recast, Wire

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw import ops
from hw.launches import forced

pytestmark = [
    # numpy, which interprets kernels, tells of infinities and NaN
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
    pytest.mark.skipif(os.environ.get(INTERPRET) != "1", reason=f"not run: {INTERPRET}=1 interprets kernels on a CPU"),
]

ROOT = Path(__file__).resolve().parent.parent
HW = Path(ops.__file__).resolve().parent.parent  # the copy of hw that is tested, which may be another's
NEAREST, SR = nm.Rounding.NEAREST_EVEN, nm.Rounding.STOCHASTIC
X = data("tails", 9, 96)
GROUPS = (0, 4, 4, 9)


# Refused, in words.


def test_row_numbers_that_are_vouched_for() -> None:
    """Believed until they are written to, and never of another type: kernels read 64 bits."""
    q = nm.quantize(X, nm.MXFP8)
    slots = torch.zeros(2, 1, dtype=torch.int64)
    slots.vouched = (slots._version, len(X))
    same("aggregate", q, slots, None, Wire(None))
    slots[0] = len(X)
    refused("slots", "aggregate", q, slots, None, Wire(None))
    narrow = torch.zeros(2, 1, dtype=torch.int32)
    narrow.vouched = (narrow._version, len(X))
    refused("slots", "aggregate", q, narrow, None, Wire(None), error=TypeError)


def test_blocks_that_start_anew_where_no_kernel_expects_it() -> None:
    """Groups along features, as a transposed operand of tokens has them, and groups of a batch."""
    x, w = data("normal", 40, 48), nm.quantize(data("normal", 32, 40).view(2, 16, 40), nm.MXFP8)
    said = "hw has no Triton kernel for blocks along features that start anew at groups"
    for q in (nm.quantize(x, nm.MXFP8, axis=-2, groups=(0, 5, 40)).mT, nm.quantize(x.T, nm.MXFP8, groups=(0, 5, 40))):
        for native in (False, True):
            with forced(native):
                refused(said, "gate_up_glu", q, w, (0, 20, 48), Cast(None))
                refused(said, "down_to_wire", q, w, (0, 20, 48), Wire(None))
        refused(said, "requantize_transpose", q, Recast(nm.MXFP8, "multiply"))
        refused(said, "aggregate", q, torch.zeros(2, 1, dtype=torch.int64), None, Wire(None))
    same("aggregate", nm.quantize(x.T, nm.MXFP8, groups=(0, 32, 40)), torch.tensor([[1], [7]]), None, Wire(None))
    batch = nm.quantize(x[None].expand(2, -1, -1), nm.MXFP8, axis=-2, groups=(0, 5, 40))
    refused("groups of a batch of matrices", "requantize_transpose", batch, Recast(None))


@pytest.mark.parametrize(
    "fmt",
    [nm.MXFP6_E2M3, nm.MXFP6_E3M2, nm.MXFP8_E5M2, nm.NVINT4, nm.MXINT4, nm.IF4, nm.FP8_1X128, nm.FP8_128X128],
    ids=lambda fmt: fmt.name,
)
def test_formats_without_kernels(fmt: nm.BlockFormat) -> None:
    said = f"hw has no Triton kernel for the format {fmt.name}; use --ops emulated, or a recipe without it"
    x = data("normal", 128, 128)
    q, slots = nm.quantize(x, fmt), torch.zeros(2, 2, dtype=torch.int64)
    for axis in (-1, -2):
        refused(said, "quantize_tokens", x, Cast(fmt), axis=axis)
    refused(said, "requantize_transpose", q, Recast(nm.MXFP8, "multiply"))
    refused(said, "requantize_transpose", x, Recast(fmt))
    refused(said, "aggregate", q, slots, None, Wire(fmt))
    refused(said, "grad_to_wire", x, slots[0], torch.ones(2, 1), Cast(fmt))
    stack = nm.quantize(x[None], fmt)
    refused(said, "gate_up_glu", q, stack, (0, 128), Cast(None))
    refused(said, "down_to_wire", x, x[None], (0, 128), Wire(fmt), error=ValueError)


def test_transforms_without_kernels() -> None:
    x = data("normal", 128, 128)
    for size in SIZES:
        signs = nm.hadamard_signs(size, (1, 2))
        said = f"hw has no Triton kernel for a Hadamard transform of {size} before blocks of"
        for fmt, own in ((nm.NVFP4, 16), (nm.MXFP8, 32), (nm.MXFP4, 32)):
            cast = Cast(fmt, "row" if own == 16 else None)
            if size == own:
                same("quantize_tokens", x, cast, signs=signs)
            else:
                refused(f"{said} {own}; use", "quantize_tokens", x, cast, signs=signs)
        if size == 16:
            same("quantize_tokens", x[:16], Cast(nm.NVFP4, "tensor"), signs=signs, axis=-2)
        else:
            refused(f"{said} 16", "quantize_tokens", x, Cast(nm.NVFP4, "tensor"), signs=signs, axis=-2)
            where = "MXFP8 along tokens with outer=None, Rounding.NEAREST_EVEN, signs=True"
            refused(where, "quantize_tokens", x, Cast(nm.MXFP8), signs=signs, axis=-2)
        if size != 32:
            slots = torch.zeros(2, 2, dtype=torch.int64)
            said = f"signs has length {size}: this kernel"
            refused(said, "aggregate", x, slots, None, Wire(None, signs), error=NotImplementedError)
            refused(said, "router_gradient", x[:2], x, slots, Wire(None, signs), error=NotImplementedError)
    refused("a Hadamard transform of BF16 rows", "quantize_tokens", x, Cast(None), signs=signs)
    refused("a Hadamard transform of BF16 rows", "down_to_wire", x, x[None], (0, 128), Wire(None, signs))
    narrow, signs = data("normal", 4, 40), nm.hadamard_signs(16, (1, 2))
    refused("rows of 40 values: a Hadamard", "quantize_tokens", narrow, Cast(nm.NVFP4, "row"), signs=signs)
    said = "x has 9 rows: a Hadamard transform of 16 must divide them, or pass groups"
    refused(said, "quantize_tokens", X, Cast(nm.NVFP4, "tensor"), signs=signs, axis=-2)


def test_scopes_without_kernels() -> None:
    stack = data("normal", 2, 4, 64)
    refused("no Triton kernel for outer=32, outer_rounding=None", "quantize_tokens", X, Cast(nm.NVFP4, 32))
    refused("no Triton kernel for outer='rows'", "quantize_tokens", X, Cast(nm.NVFP4, "rows"))
    same("quantize_tokens", X, Cast(nm.NVFP4, "leading"))  # of a matrix: one a row
    said = "no Triton kernel for outer='leading', outer_rounding='pow2'"
    refused(said, "quantize_tokens", stack, Cast(nm.NVFP4, "leading", NEAREST, "pow2"))
    refused("outer='row': MXFP8's rule sets no outer scale", "quantize_tokens", X, Cast(nm.MXFP8, "row"))
    refused("NVFP4 along tokens with outer='row'", "quantize_tokens", X, Cast(nm.NVFP4, "row"), axis=-2)
    refused("NVFP4 along tokens with outer=None", "quantize_tokens", X, Cast(nm.NVFP4), axis=-2)
    refused("NVFP4_46 along tokens", "quantize_tokens", X, Cast(nm.NVFP4_46, "tensor"), axis=-2)
    refused("MXFP4 along tokens", "quantize_tokens", X, Cast(nm.MXFP4), axis=-2)
    refused("NVFP4_2D with Rounding.STOCHASTIC", "quantize_tokens", X, Cast(nm.NVFP4_2D, "tensor", SR), RANDOM)
    refused("NVFP4_2D with outer='row'", "quantize_tokens", X, Cast(nm.NVFP4_2D, "row"))
    refused("groups along features", "quantize_tokens", X, Cast(nm.MXFP8), groups=(0, 32, 96))
    refused("groups along the rows of matrices", "quantize_tokens", stack, Cast(nm.MXFP8), groups=(0, 4), axis=-2)
    runs = nm.quantize(X, nm.NVFP4, outer=32)
    said = "no Triton kernel for outer scales that vary along a row"
    refused(said, "requantize_transpose", runs, Recast(nm.MXFP8, "multiply"))
    refused(said, "aggregate", runs, torch.zeros(2, 2, dtype=torch.int64), None, Wire(nm.NVFP4))
    said = "outer='keep': the outer scale of shape \\(9, 1\\) varies along the rows"
    refused(said, "requantize_transpose", nm.quantize(X, nm.NVFP4, outer="row"), Recast(nm.MXFP8, "keep"))


def test_random_words_that_are_missing() -> None:
    said = "rounding=Rounding.STOCHASTIC with random=None: STOCHASTIC needs random=nm.Random"
    refused(said, "quantize_tokens", X, Cast(nm.MXFP8, None, SR))
    refused(said, "requantize_transpose", X, Recast(nm.MXFP8, "multiply", SR))
    refused(said, "grad_to_wire", X, torch.tensor([1]), torch.ones(1, 1), Cast(nm.NVFP4, "row", SR))
    a, w = nm.quantize(X, nm.MXFP8), nm.quantize(data("normal", 1, 64, 96), nm.MXFP8)
    refused(said, "gate_up_glu", a, w, (0, 9), Cast(nm.MXFP8, None, SR))


def test_arguments_of_other_kinds() -> None:
    index, slots = torch.tensor([0, 1]), torch.tensor([[0, 1]])
    refused("dtype torch.int32", "quantize_tokens", X.int(), Cast(nm.MXFP8), error=TypeError)
    refused("cast", "quantize_tokens", X, nm.MXFP8, error=TypeError)
    refused("x", "quantize_tokens", X.tolist(), Cast(nm.MXFP8), error=TypeError)
    for axis, x in ((0, data("normal", 2, 3, 64)), (5, X), (-3, X), (-1, X[0])):
        refused(f"axis={axis} of x, of shape", "quantize_tokens", x, Cast(nm.MXFP8), axis=axis)
    refused("end at the axis length 9", "quantize_tokens", X, Cast(nm.MXFP8), groups=(0, 4, 8), axis=-2)
    refused("dh has dtype torch.bfloat16", "glu_backward", X.bfloat16(), X.repeat(1, 2).bfloat16(), error=TypeError)
    refused("gate_up has dtype torch.float32", "glu_backward", X, X.repeat(1, 2), error=TypeError)
    refused("gate_up has shape \\(9, 96\\)", "glu_backward", X, X.bfloat16())
    refused("slots reaches from 9 to 9", "aggregate", X, slots * 0 + 9, None, Wire(None))
    refused("slots has dtype torch.float32", "aggregate", X, slots.float(), None, Wire(None), error=TypeError)
    refused("weights", "aggregate", X, slots, torch.ones(1, 3), Wire(None))
    refused("must divide them", "aggregate", X[:, :40], slots, None, Wire(None, nm.hadamard_signs(32, (1, 2))))
    refused("row_weights has shape \\(2,\\)", "grad_to_wire", X, index, torch.ones(2), Cast(nm.MXFP8))
    refused("g has shape \\(2, 96\\)", "router_gradient", X[:2], X, slots, Wire(None))
    refused("rows has shape", "requantize_transpose", X, Recast(nm.MXFP8, "multiply"), rows=torch.ones(9))


def test_experts_that_do_not_match() -> None:
    """Counts of groups, rows and widths, and blocks along the wrong axis."""
    a, w = nm.quantize(X, nm.MXFP8), nm.quantize(data("normal", 3, 64, 96), nm.MXFP8)
    again = nm.quantize(data("normal", 3, 64, 96), nm.MXFP8, -2)
    t = nm.quantize(data("normal", 9, 64), nm.MXFP8, -2, groups=GROUPS)
    for groups, said in (((0, 4, 9), "3 offsets"), ((0, 4, 4, 8), "end at the axis length 9")):
        refused(said, "gate_up_glu", a, w, groups, Cast(None))
        refused(said, "down_to_wire", a, w, groups, Wire(None))
        refused(said, "grad_products", nm.quantize(X[:, :64], nm.MXFP8), t, again, t, groups)
    refused("matrices have their blocks along axis 1", "gate_up_glu", a, again, GROUPS, Cast(None))
    refused(
        "rows have shape \\(9, 96\\)", "gate_up_glu", a, nm.quantize(w.values()[..., :64], nm.MXFP8), GROUPS, Cast(None)
    )
    odd = nm.quantize(data("normal", 3, 63, 96), nm.MXFP8)
    refused("axis 1 stacks gate above up and must be even", "gate_up_glu", a, odd, GROUPS, Cast(None))
    refused("g has shape", "grad_products", a, t, again, t, GROUPS)


COMPILED = """
import torch
import numerics as nm
from hw import ops
from hw.packed import PackedTensor
x, tried = torch.zeros(4, 64), 0
q = nm.quantize(x, nm.NVFP4, outer="row")
slots = torch.zeros(2, 2, dtype=torch.int64)
for call in (
    lambda: ops.quantize_tokens(x, ops.Cast(nm.NVFP4, "row")),
    lambda: ops.quantize_tokens(x, ops.Cast(nm.NVFP4, "tensor")),
    lambda: ops.quantize_tokens(x, ops.Cast(nm.MXFP8)),
    lambda: ops.quantize_tokens(x, ops.Cast(nm.MXFP8), axis=-2),
    lambda: ops.quantize_tokens(x, ops.Cast(nm.NVFP4, "tensor"), axis=-2),
    lambda: ops.quantize_tokens(x, ops.Cast(nm.NVFP4_2D, "tensor")),
    lambda: ops.requantize_transpose(q, ops.Recast(None)),
    lambda: ops.requantize_transpose(q, ops.Recast(nm.MXFP8, "multiply")),
    lambda: ops.gate_up_glu(q, nm.quantize(x[None], nm.NVFP4, outer="row"), (0, 4), ops.Cast(None)),
    lambda: ops.aggregate(x, slots, None, ops.Wire(None)),
    lambda: ops.router_gradient(x[:2], x, slots, ops.Wire(None)),
    lambda: ops.glu_backward(x, torch.zeros(4, 128, dtype=torch.bfloat16)),
    lambda: PackedTensor.of(nm.NVFP4, q.packed(), q.scales, q.outer).rows(slots[0]),
):
    try:
        call()
    except ValueError as error:
        assert "is on cpu: a compiled kernel runs on a CUDA device; move it there, or set TRITON" in str(error)
        tried += 1
print(tried)
"""


def test_compiled_kernels_refuse_a_tensor_of_the_cpu() -> None:
    """In a process where triton compiles: each of the kernels says so, none starts."""
    env = {name: value for name, value in os.environ.items() if name != INTERPRET}
    env["PYTHONPATH"] = f"{HW}{os.pathsep}{ROOT}"
    run = subprocess.run([sys.executable, "-c", COMPILED], cwd=HW, env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split() == ["13"]


# What looks like something that has a kernel, and has none, or another: named after what could go wrong.


def known(reason: str, function: str, *args: Any, **kwargs: Any) -> Any:
    return pytest.param(function, args, kwargs, id=reason)


def along(fmt: nm.BlockFormat) -> nm.BlockTensor:
    return nm.quantize(data("normal", 9, 64), fmt, -2)


STACK = data("normal", 3, 5, 64)
SLOTS = torch.tensor([[0, 3], [8, 8]])
ZERO = nm.Rounding.TOWARD_ZERO
KNOWN = [
    *(
        known(f"{fmt.name} is rounded to nearest, whatever the cast says", "quantize_tokens", X, Cast(fmt, scope, ZERO))
        for fmt, scope in ((nm.NVFP4, "row"), (nm.NVFP4_46, "row"), (nm.MXFP8, None), (nm.MXS2F6, None))
    ),
    known("MXFP8 along tokens is rounded to nearest", "quantize_tokens", X, Cast(nm.MXFP8, None, ZERO), axis=-2),
    known("NVFP4 along tokens is rounded to nearest", "quantize_tokens", X, Cast(nm.NVFP4, "tensor", ZERO), axis=-2),
    known(
        "recasts round to nearest", "requantize_transpose", nm.quantize(X, nm.NVFP4), Recast(nm.MXFP8, "multiply", ZERO)
    ),
    known("stochastic S2F6 is rounded to nearest", "quantize_tokens", X, Cast(nm.MXS2F6, None, SR), RANDOM),
    known("stochastic four-over-six rounds to nearest", "quantize_tokens", X, Cast(nm.NVFP4_46, "row", SR), RANDOM),
    known("an equal format is not the same", "quantize_tokens", X, Cast(copy.deepcopy(nm.NVFP4_46), "row")),
    known("an equal tile is not the same", "quantize_tokens", X, Cast(copy.deepcopy(nm.NVFP4_2D), "tensor")),
    known("tiles know no groups", "quantize_tokens", X, Cast(nm.NVFP4_2D, "tensor"), groups=(0, 4, 9), axis=-2),
    known(
        "MXFP4 along tokens is decoded by E4M3", "requantize_transpose", along(nm.MXFP4), Recast(nm.MXFP8, "multiply")
    ),
    known("MXFP8 along tokens is combined along features", "aggregate", along(nm.MXFP8), SLOTS, None, Wire(nm.MXFP8)),
    known("S2F6 along tokens is combined along features", "aggregate", along(nm.MXS2F6), SLOTS, None, Wire(nm.MXS2F6)),
    known("four axes along tokens", "quantize_tokens", STACK[None], Cast(nm.MXFP8), axis=-2),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), KNOWN)
def test_what_is_asked_is_done_or_refused(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    same_or_refused(function, *args, **kwargs)


def test_outer_scales_of_rows_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **kwargs: empty(*args, **kwargs).fill_(77))
    same("quantize_tokens", X[:, :0], Cast(nm.NVFP4, "row"))


@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.NVFP4_46], ids=lambda fmt: fmt.name)
def test_one_matrix_has_an_outer_scale_of_its_own(fmt: nm.BlockFormat) -> None:
    """A layer of one expert."""
    same("quantize_tokens", STACK[:1], Cast(fmt, "leading"))


@pytest.mark.parametrize("rows", [(0, 2, 5), (0, 5, 2, 9)])
def test_random_rows_that_do_not_fit(rows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"random\.rows"):
        ops.quantize_tokens(X, Cast(nm.NVFP4, "row", SR), nm.Random((1, 2), (3, 4), rows))


def test_random_rows_along_tokens() -> None:
    random = nm.Random((1, 2), (3, 4), (0, 2, 9))
    with pytest.raises(ValueError, match=r"random\.rows"):
        ops.quantize_tokens(X, Cast(nm.MXFP8, None, SR), random, axis=-2)
