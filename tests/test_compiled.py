"""Compiled functions: the bits of eager ones, one notice and the same bits without a compiler, the options required.

Oracle: eager execution, compared as integers; any NaN equals any NaN. Data holds what compilers are known to change:
ties, both zeros, denormals, values at the ends of the range, NaN and Inf.
"""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import numerics as nm
from numerics import compiled

FORMATS = [nm.NVFP4, nm.NVFP4_46, nm.MXFP8, nm.MXS2F6]
DEFAULT = [(nm.NVFP4_46, torch.float32), (nm.MXFP8, torch.bfloat16)]
ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def missing() -> str | None:
    """Why nothing can be compiled here, or None."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:
        return str(error).splitlines()[0]
    return None


@pytest.fixture
def compiler() -> None:
    if missing():
        pytest.skip(f"no C++ compiler: {missing()}")


def data(dtype: torch.dtype) -> Tensor:
    """(144, 96): rows from 2^-140 to 2^120, and rows of special values."""
    generator = torch.Generator().manual_seed(5)
    ordinary = torch.randn(96, 96, generator=generator)
    ordinary *= torch.ldexp(torch.ones(96), torch.linspace(-140, 120, 96).to(torch.int32))[:, None]
    ties = torch.randint(-48, 49, (32, 96), generator=generator) / 8.0  # halves of every step of E2M1, and beyond
    ties[:, ::16] = 6.0
    special = torch.randn(16, 96, generator=generator)
    special[0] = 0.0
    special[1] = -0.0
    special[2] *= 2.0**-130  # float32 denormals
    special[3], special[3, 7] = 0.0, 2.0**-149
    special[4, 3] = torch.nan
    special[5, 40], special[5, 41] = torch.inf, -torch.inf
    special[6] = torch.finfo(dtype).max
    special[7, ::2] = -0.0
    return torch.cat((ordinary, ties, special)).to(dtype)


def bits(x: Tensor) -> Tensor:
    """Integers that are equal where floats are the same, signs of zero told apart, NaNs not."""
    if not x.dtype.is_floating_point:
        return x
    return torch.where(x.isnan(), torch.iinfo(torch.int32).min + 7, x.view(torch.int32))


def assert_equal(got: tuple[Tensor | None, ...], expected: tuple[Tensor | None, ...]) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype == b.dtype and torch.equal(bits(a), bits(b)), (bits(a) != bits(b)).sum()


def parts(x: Tensor, fmt: nm.BlockFormat) -> tuple[Tensor | None, ...]:
    q = nm.quantize(x, fmt)
    return q.codes, q.scales, q.outer, q.dequantize()


# compiling takes long: every other pair is left to the exhaustive run
PAIRS = [
    pytest.param(
        fmt, dtype, id=f"{fmt.name}-{str(dtype)[6:]}", marks=() if (fmt, dtype) in DEFAULT else pytest.mark.exhaustive
    )
    for fmt in FORMATS
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.mark.every(99)
@pytest.mark.parametrize(("fmt", "dtype"), PAIRS)
def test_compiled_equals_eager(fmt: nm.BlockFormat, dtype: torch.dtype, compiler: None) -> None:
    x = data(dtype)
    # small values apart: beside 2^120 an outer scale of the whole tensor leaves nothing of them
    whole, small = parts(x, fmt), parts(x[96:], fmt)
    fast = compiled.compile(parts)
    assert_equal(fast(x, fmt), whole)
    assert_equal(fast(x[96:], fmt), small)
    assert not compiled._noticed


def test_the_formula_decodes_every_code() -> None:
    own = (nm.Format("E8M3", "float", 12, 8, 3, 130), nm.Format("E3M1", "float", 5, 3, 1, -9))
    for fmt in (*nm.FORMATS.values(), *own):
        codes = torch.arange(1 << fmt.bits, dtype=torch.int32)
        assert_equal((compiled._decode_by_formula(codes, fmt),), (nm.decode(codes, fmt),))


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP8], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("shape", [(40,), (3, 24, 40), (7, 250)])
def test_ragged_blocks_and_other_shapes(shape: tuple[int, ...], fmt: nm.BlockFormat, compiler: None) -> None:
    """The last, short block of every row is there; also where more is computed from the values."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def more(x: Tensor) -> tuple[Tensor | None, ...]:
        found = parts(x, fmt)
        assert found[3] is not None
        return (*found, found[3] * 2 - x)

    assert_equal(compiled.compile(more)(x), more(x))


@pytest.mark.exhaustive
def test_ready_made_functions(compiler: None) -> None:
    x = data(torch.float32)[96:]
    assert_equal((compiled.quantize_dequantize(x, nm.NVFP4),), (nm.quantize(x, nm.NVFP4).dequantize(),))
    assert_equal(
        (compiled.quantize_dequantize(x, nm.NVFP4, None),), (nm.quantize(x, nm.NVFP4, outer=None).dequantize(),)
    )
    outer = torch.full((1, 1), 0.75)
    assert_equal(
        (compiled.quantize_dequantize(x, nm.NVFP4, outer),), (nm.quantize(x, nm.NVFP4, outer=outer).dequantize(),)
    )
    q = nm.quantize(x, nm.NVFP4, outer=None)
    random = nm.Random((3, 4), (5, 6))
    for words, rounding in ((random, nm.Rounding.STOCHASTIC), (None, nm.Rounding.NEAREST_EVEN)):
        got = compiled.requantize_dequantize(q.codes, q.scales, nm.NVFP4, nm.MXFP8, words)
        assert_equal((got,), (nm.requantize(q, nm.MXFP8, rounding=rounding, random=words).dequantize(),))


@pytest.mark.exhaustive
def test_groups_too(compiler: None) -> None:
    x = data(torch.bfloat16)[96:]

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        q = nm.quantize(x, nm.MXFP8, axis=0, groups=(0, 5, 5, 48))
        return q.codes, q.scales

    assert_equal(compiled.compile(run)(x), run(x))


def stochastic(x: Tensor) -> Tensor:
    return nm.requantize(nm.quantize(x, nm.NVFP4), nm.MXFP8, random=nm.Random((0, 1))).dequantize()


GRAPHS = {
    "four over six": lambda x: parts(x, nm.NVFP4_46),
    "groups": lambda x: nm.quantize(x, nm.MXFP8, 0, groups=(0, 5, 5, 32)).dequantize(),
    "runs": lambda x: nm.quantize(x, nm.NVFP4, outer=32).dequantize(),
    "stochastic": stochastic,
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_quantizer_is_one_graph(name: str, compiler: None) -> None:
    """What makes it fast: no step leaves the compiled code."""
    compiled._prepare()
    explained = torch._dynamo.explain(GRAPHS[name])(torch.randn(32, 64))
    assert (explained.graph_count, explained.graph_break_count) == (1, 0), explained.break_reasons


FALLBACK = """
import sys, warnings
warnings.simplefilter("error", UserWarning)
import torch, numerics as nm
from numerics import compiled
x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
for fmt in (nm.NVFP4, nm.MXFP8):
    fast = compiled.compile(lambda x: nm.quantize(x, fmt).codes)
    for _ in range(2):
        assert torch.equal(fast(x), nm.quantize(x, fmt).codes)
    assert torch.equal(compiled.quantize_dequantize(x, fmt), nm.quantize(x, fmt).dequantize())
print("equal")
"""


def test_without_a_compiler_one_notice_and_the_same_bits(tmp_path: Path) -> None:
    env = {"CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FALLBACK]
    run = subprocess.run(command, env=os.environ | env, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stdout) == (0, "equal\n"), run.stderr
    assert run.stderr.startswith("fourbit: nothing is compiled, same bits, more time: ")
    assert run.stderr.count("\n") == 1 and "no-such-compiler" in run.stderr


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="function is 5"):
        compiled.compile(5)  # type: ignore[type-var]


def test_errors_of_the_function_are_its_own() -> None:
    calls = []

    def wrong(x: Tensor) -> Tensor:
        calls.append(1)
        raise ValueError("x is wrong")

    with pytest.raises(ValueError, match="x is wrong"):
        compiled.compile(wrong)(torch.ones(2))
    assert len(calls) == 1 and not compiled._noticed


def test_this_torch_has_every_option() -> None:
    assert compiled.options() == compiled.OPTIONS


def test_division_is_never_lost_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    known = compiled._known_options() - {compiled.REQUIRED}
    monkeypatch.setattr(compiled, "_known_options", lambda: known)
    with pytest.raises(RuntimeError, match=r"no compiler option 'eager_numerics\.division_rounding'"):
        compiled.compile(lambda x: x + 1)(torch.ones(2))
    monkeypatch.setattr(compiled, "_known_options", lambda: {compiled.REQUIRED})
    assert compiled.options() == {compiled.REQUIRED: True}
