"""Compilation with torch.compile that keeps every bit, and eager execution where nothing can be compiled.

    fast = compiled.compile(function)
    x_q = compiled.quantize_dequantize(x, nm.NVFP4)

The compiler may otherwise change results in three ways, which `OPTIONS` forbids: it divides approximately on CUDA,
it keeps bfloat16 and float16 intermediates in float32, and it flushes denormals. One more is left to the author of a
function: divide tensors by tensors, since a division by a number, or by a tensor made of one (see `outer.constant`),
`1.0 / d` and `d.reciprocal()` become products with rounded reciprocals; and sum in a stated order (`scales.tree`),
since the compiler chooses that of `sum`.

Bit patterns of numbers are computed while the compiler traces. Shapes are static: each new shape is compiled anew.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, library

from . import codes, rounding, swiglu
from .arguments import shown
from .blocks import BlockFormat, BlockTensor
from .formats import Format
from .partition import Partition, partition_of
from .philox import Random, philox_words
from .quantizer import quantize, requantize
from .rounding import Rounding
from .subnormals import kept

F = TypeVar("F", bound=Callable[..., Any])

REQUIRED = "eager_numerics.division_rounding"
OPTIONS = {REQUIRED: True, "emulate_precision_casts": True, "eager_numerics.disable_ftz": True}

RECOMPILE_LIMIT = 128

_ABSENT = ("InvalidCxxCompiler", "CppCompileError", "TritonMissing")  # classes that differ in place between releases
_ABSENT_TEXTS = ("Failed to find C compiler", "Cannot find a working triton installation")
_noticed: list[str] = []
_PARTITION_OF: Callable[..., Partition] = vars(Partition.of)["__wrapped__"]


def options() -> dict[str, Any]:
    """Those of `OPTIONS` that this torch has; the others name changes that its compiler does not make.

    Raises: RuntimeError where torch lacks the option that divides correctly, since CUDA's bits would then differ.
    """
    known = _known_options()
    if REQUIRED not in known:
        raise RuntimeError(
            f"torch {torch.__version__} has no compiler option {REQUIRED!r}: compiled divisions would be approximate; "
            "use torch 2.11 to 2.13, or call the function without compiling it"
        )
    return {name: value for name, value in OPTIONS.items() if name in known}


def _known_options() -> set[str]:
    from torch._inductor import config  # slow to import

    return set(config.get_config_copy())


def compile(function: F) -> F:
    """`function`, compiled at its first call, with the bits of `function` itself.

    Where no working C++ compiler (for CUDA: no Triton) is found, `function` runs as it is, and one line on stderr per
    process says so. Errors of `function` are its own. Not thread-safe during its first call.

    Checks that look at values of tensors (codes in range, a given outer scale) are left out of compiled code.

    Raises: TypeError if `function` is none. RuntimeError at the first call, see `options`.
    """
    if not callable(function):
        raise TypeError(f"function is {shown(function)}: pass a function of tensors")
    state: dict[str, Callable[..., Any]] = {}

    @kept
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if "chosen" not in state:
            _prepare()
            state["chosen"] = torch.compile(function, fullgraph=False, dynamic=False, options=options())
        if state["chosen"] is function:
            return function(*args, **kwargs)
        try:
            with warnings.catch_warnings():
                # memoized functions of ours are pure, so it does no harm that the compiler looks behind the memo
                warnings.filterwarnings("ignore", "Dynamo detected a call to a `functools.lru_cache`")
                return state["chosen"](*args, **kwargs)
        except Exception as error:
            reason = _absent(error)
            if reason is None:
                raise
            _notice(reason)
        state["chosen"] = function
        return function(*args, **kwargs)

    return run  # type: ignore[return-value]


@functools.cache
def _prepare() -> None:
    """Tell the compiler, once, what to take for functions of ours that it cannot look inside, or should not.

    Its bound on how often a function is compiled is raised: each format, dtype and shape is compiled anew.
    """
    torch._dynamo.config.recompile_limit = max(RECOMPILE_LIMIT, torch._dynamo.config.recompile_limit)
    for function in (rounding.pattern, rounding.reciprocal):
        torch.compiler.assume_constant_result(function)
    torch.compiler.substitute_in_graph(codes.decode_tensor)(_decode_by_formula)
    torch.compiler.substitute_in_graph(_PARTITION_OF)(partition_of)
    torch.compiler.substitute_in_graph(philox_words)(_philox_words)
    torch.compiler.substitute_in_graph(swiglu.look_up)(_look_up)
    _register_philox()
    _register_silu()
    _keep_tails()


def _keep_tails() -> None:
    """Keep torch's C++ backend from splitting a loop by a divisor of its index that does not divide its length.

    Seen in torch 2.13: `try_loop_split` replaces such a loop by floor(length / divisor) whole parts and drops the rest,
    so that the last, short block of every line was never written. Triton's backend has no such step.
    """
    from torch._inductor.codegen.cpp import CppScheduling
    from torch.utils._sympy.functions import FloorDiv

    split = CppScheduling.try_loop_split

    def divides(node: Any) -> bool:
        (sizes, _), body, _ = node.node.get_default_sizes_body()
        length = dict(zip(body.iter_vars, sizes, strict=False))  # sums have more variables, and are never split
        found = [d for expr in body.indexing_exprs.values() if hasattr(expr, "find") for d in expr.find(FloorDiv)]
        return all(length.get(d.args[0], 0) % d.args[1] == 0 for d in found if d.args[1].is_Integer)

    def checked(self: Any, nodes: Any) -> Any:
        return split(self, nodes) if all(divides(node) for node in nodes) else nodes

    # kernels that were cached without this are not to be found again
    torch.compiler.config.cache_key_tag += ",tails"
    CppScheduling.try_loop_split = checked  # type: ignore[method-assign]


def _register_philox() -> None:
    """Philox as one operation that compilers do not look into: in theirs signed 64-bit products may not overflow."""

    def run(words: list[Tensor], rounds: int) -> list[Tensor]:
        return [w.contiguous() for w in torch.broadcast_tensors(*philox_words(words[:2], words[2:], rounds))]

    def shapes(words: list[Tensor], rounds: int) -> list[Tensor]:
        whole = torch.broadcast_tensors(*words)[0]
        return [whole.new_empty(whole.shape) for _ in range(4)]

    op = library.custom_op("fourbit::philox_words", run, mutates_args=(), schema=_PHILOX)
    op.register_fake(shapes)


_PHILOX = "(Tensor[] words, int rounds) -> Tensor[]"


def _philox_words(key: Sequence[Any], counter: Sequence[Any], rounds: int = 10) -> tuple[Tensor, ...]:
    """`philox.philox_words` through that operation."""
    device = next(c.device for c in counter if isinstance(c, Tensor))
    words = [torch.as_tensor(w, dtype=torch.int64, device=device) for w in (*key, *counter)]
    return tuple(torch.ops.fourbit.philox_words(words, rounds))


def _register_silu() -> None:
    """The look-up of SiLU as one operation: compilers would compute its table anew, and drop the signs of its zeros."""

    def shape(which: int, x: Tensor) -> Tensor:
        return x.new_empty(x.shape, dtype=(torch.bfloat16, torch.float32)[which])

    op = library.custom_op("fourbit::silu", swiglu.look_up, mutates_args=(), schema="(int which, Tensor x) -> Tensor")
    op.register_fake(shape)


def _look_up(which: int, x: Tensor) -> Tensor:
    """`swiglu.look_up` through that operation."""
    found: Tensor = torch.ops.fourbit.silu(which, x)
    return found


def _decode_by_formula(codes: Tensor, fmt: Format) -> Tensor:
    """`codes.decode_tensor` without a table, which vector units read slowly: the fields of a float32, put together."""
    code, m = codes.to(torch.int32), fmt.mantissa_bits
    if fmt.kind == "fixed":
        return ((code << (32 - fmt.bits)) >> (32 - fmt.bits)).to(torch.float32) * 2.0**-m
    width = fmt.bits - int(fmt.kind == "float" and fmt.signed)
    magnitude = code & ((1 << width) - 1)
    if fmt.kind == "exponent":
        field = magnitude - (fmt.bias - 127)  # 0 and below: float32 subnormals, one bit
        value = torch.where(field > 0, field << 23, 1 << (field + 22).clamp(0, 22)).view(torch.float32)
    elif fmt.exponent_bits == 8 and fmt.specials != "ieee":  # its largest exponent is float32's of infinity and NaN
        exponent = magnitude >> m
        significand = (magnitude & ((1 << m) - 1)) + ((exponent > 0).to(torch.int32) << m)
        power = ((exponent.clamp(min=1).to(torch.int64) + (1023 - fmt.bias - m)) << 52).view(torch.float64)
        value = (significand.to(torch.float64) * power).to(torch.float32)
    else:  # read with float32's bias, subnormals too, and scaled to the format's, exactly
        value = (magnitude << (23 - m)).view(torch.float32) * 2.0 ** min(127 - fmt.bias, 127)
        value = value * 2.0 ** max(-fmt.bias, 0) if fmt.bias < 0 else value
    if fmt.specials != "none":
        infinite = (magnitude == fmt.max_code + 1) & (fmt.specials == "ieee")
        value = torch.where(magnitude > fmt.max_code, torch.where(infinite, torch.inf, torch.nan), value)
    if width == fmt.bits:
        return value
    sign = (code << (31 - width)) & -0x80000000
    return (value.view(torch.int32) | sign).view(torch.float32)


def _absent(error: BaseException | None) -> str | None:
    """Why nothing can be compiled on this machine, if that is what an exception or one of its causes says."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error)
        if type(error).__name__ in _ABSENT or any(part in text for part in _ABSENT_TEXTS):
            return text.strip().splitlines()[0] if text.strip() else type(error).__name__
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return None


def _notice(reason: str) -> None:
    if not _noticed:
        print(f"fourbit: nothing is compiled, same bits, more time: {reason}", file=sys.stderr)
    _noticed.append(reason)


def fallback() -> str | None:
    """Why a function of this process that should be compiled runs as it is; None if none does."""
    return _noticed[0] if _noticed else None


@compile
def quantize_dequantize(x: Tensor, fmt: BlockFormat, outer: str | int | Tensor | None = "format") -> Tensor:
    """`nm.quantize(x, fmt, outer=outer).dequantize()`, compiled: float32 like `x`."""
    return quantize(x, fmt, outer=outer).dequantize()


@compile
def requantize_dequantize(
    codes: Tensor,
    scales: Tensor,
    first: BlockFormat,
    second: BlockFormat,
    random: Random | None = None,
) -> Tensor:
    """Values of a tensor in `first`, blocks along its last axis, after requantization to `second` along axis -2.

    Args: codes, scales: as in BlockTensor; its outer scale stays outside. random: None rounds to nearest.
    Returns: float32 like `codes`, compiled.
    """
    mode = Rounding.NEAREST_EVEN if random is None else Rounding.STOCHASTIC
    q = BlockTensor(codes, scales, None, first, first.rule.name, codes.ndim - 1)
    return requantize(q, second, -2, rounding=mode, random=random).dequantize()
