"""NVIDIA's own host code of cuda_fp4.hpp, cuda_fp6.hpp and cuda_fp8.hpp, compiled here, against numerics.

Contract: for every format and rounding mode that the headers define, saturating, `nm.encode` and `nm.ptx` give the
header's codes, and `nm.ptx` its numbers on the way up. By default all bfloat16 and all float16 inputs and every
breakpoint one ulp around in float32 and float64; all 2^32 float32 inputs under the marker `exhaustive`, which writes
records/sweep_headers.json. Bitwise.

Needs g++ and the pip packages nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl; skipped, with a word, without.
"""

import ctypes
import importlib.util
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sweep import assert_clean, breakpoints, differences, record, sweep

import numerics as nm
from numerics import ptx

PACKAGES = "nvidia-cuda-runtime, nvidia-cuda-crt, nvidia-cuda-cccl"
NEEDED = ("cuda_fp4.h", "cuda_fp6.h", "cuda_fp8.h", "crt/host_defines.h", "nv/target")
FORMATS = ["E2M1", "E2M3", "E3M2", "E4M3", "E5M2", "E8M0"]  # in the order of host_oracle.cpp
MODES = ["nearest", "toward zero", "toward positive", "toward negative"]  # in the order of cudaRoundMode
ROUNDINGS = [
    nm.Rounding.NEAREST_EVEN,
    nm.Rounding.TOWARD_ZERO,
    nm.Rounding.TOWARD_POSITIVE,
    nm.Rounding.TOWARD_NEGATIVE,
]
# The instruction of a case, where one exists.
INSTRUCTIONS = {
    (name, mode): f"cvt.{rounding}.satfinite.{name.lower()}x2.f32"
    for name in FORMATS[:5]
    for mode, rounding in (("nearest", "rn"), ("toward zero", "rz"))
    if mode == "nearest" or name not in ("E4M3", "E5M2")  # the header has no fp8 toward zero
}
for _sat, _text in (("", ".satfinite"), (", not saturating", "")):
    for _mode, _rounding in (("toward zero", "rz"), ("toward positive", "rp")):
        INSTRUCTIONS["E8M0", _mode + _sat] = f"cvt.{_rounding}{_text}.ue8m0x2.f32"
CASES = [("E2M1", "nearest"), ("E4M3", "nearest"), ("E5M2", "nearest")]  # the order in which a sweep is worth most
CASES += [case for case in INSTRUCTIONS if case not in CASES]
RECENT = [("E8M0", "nearest"), *((name, mode) for name in FORMATS[:3] for mode in MODES[2:])]  # from CUDA 13.5 on
CASES += RECENT
RECORD = "sweep_headers.json"
ABOUT = "All 2^32 float32 inputs: numerics against NVIDIA's host code in cuda_fp4.hpp, cuda_fp6.hpp, cuda_fp8.hpp"


def include_folders() -> list[str]:
    """Folders that hold the headers, from whichever pip packages of NVIDIA are installed; [] if one is missing."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    found = [folder for root in roots for folder in sorted(root.glob("*/include"))]
    found += [folder / "cccl" for folder in found]
    return [str(f) for f in found] if all(any((f / name).is_file() for f in found) for name in NEEDED) else []


@pytest.fixture(scope="session")
def header(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """host_oracle.cpp as a library, built in a temporary folder."""
    compiler, folders = shutil.which("g++"), include_folders()
    if not compiler:
        pytest.skip("NVIDIA's headers are not compared: there is no g++")
    if not folders:
        pytest.skip(f"NVIDIA's headers are not compared: pip packages {PACKAGES} are not all installed")
    source = Path(__file__).with_name("host_oracle.cpp")
    library = tmp_path_factory.mktemp("headers") / "host_oracle.so"
    includes = [word for folder in folders for word in ("-isystem", folder)]
    command = [compiler, "-std=c++17", "-O3", "-shared", "-fPIC", *includes, str(source), "-o", str(library)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return ctypes.CDLL(str(library))


def run(
    header: ctypes.CDLL, function: str, arguments: list[int], inputs: list[np.ndarray], dtype: type
) -> torch.Tensor:
    """One function of the library on arrays of equal length."""
    inputs = [np.ascontiguousarray(array) for array in inputs]
    out = np.empty(len(inputs[0]), dtype)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs, out)]
    assert getattr(header, function)(*arguments, *pointers, ctypes.c_size_t(len(out))) == 0
    return torch.from_numpy(out)


def selector(name: str, mode: str) -> list[int]:
    """Format, mode and saturation as the library counts them."""
    return [FORMATS.index(name), MODES.index(mode.removesuffix(", not saturating")), "not saturating" not in mode]


def codes(header: ctypes.CDLL, name: str, mode: str, x: torch.Tensor) -> torch.Tensor:
    """The header's codes of float32, float64, float16 or bfloat16 numbers."""
    if header.cuda_version() < 13050 and (name, mode) in RECENT:
        pytest.skip("these headers are older than CUDA 13.5 and do not define this mode")
    function = {
        torch.float32: "from_float",
        torch.float64: "from_double",
        torch.float16: "from_half",
        torch.bfloat16: "from_bfloat16",
    }[x.dtype]
    array = x.view(torch.uint16).numpy() if x.dtype.itemsize == 2 else x.numpy()
    return run(header, function, selector(name, mode), [array], np.uint8)


def expected(name: str, mode: str, x: torch.Tensor) -> torch.Tensor:
    """Ours: the instruction if there is one and x is float32 of even length, else `nm.encode`.

    E8M0 has no sign: the header rounds the magnitude. E5M2's NaN is 0x7F to the header, 0x7E to nm.encode.
    """
    instruction = INSTRUCTIONS.get((name, mode))
    fmt, rounding = nm.FORMATS[name], ROUNDINGS[selector(name, mode)[1]]
    if instruction and x.dtype == torch.float32:
        upper, lower = x.tensor_split(2)
        words = ptx.instructions()[instruction](upper, lower)
        field = 4 if name == "E2M1" else 8
        if field == 8:  # bytes of a word lie lowest first
            pair = words.view(torch.uint8).view(-1, 2)
            return torch.cat((pair[:, 1], pair[:, 0]))
        return torch.cat((words >> 4, words & 15))
    ours = nm.encode(x.abs() if name == "E8M0" else x, fmt, rounding)
    if name == "E5M2":
        ours = ours.masked_fill(torch.isnan(x), 0x7F)
    if mode.endswith("not saturating"):
        top = x.abs() > fmt.max if "positive" in mode else torch.isinf(x)
        ours = ours.masked_fill(top, 0xFF)
    return ours


def assert_equal(x: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    counts = differences(x, ours, theirs, {})
    assert not counts, f"{counts} of {len(x)}"


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_all_16_bit_inputs(header: ctypes.CDLL, name: str, mode: str):
    """bfloat16 and float16 as themselves, as float32 and as float64. From float64 the header keeps the sign of an FP8
    NaN and the payload of E5M2's, which no instruction reads: those are left out."""
    for dtype in (torch.bfloat16, torch.float16):
        half = torch.arange(1 << 16).to(torch.uint16).view(dtype)
        x = half.float()
        assert_equal(x, expected(name, mode, x), codes(header, name, mode, x))
        if name != "E8M0" or dtype == torch.bfloat16:  # the header has no float16 to E8M0
            assert_equal(x, expected(name, mode, half), codes(header, name, mode, half))
        number = x[~torch.isnan(x)].double()
        assert_equal(number, expected(name, mode, number), codes(header, name, mode, number))


@pytest.mark.parametrize(("name", "mode"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_breakpoints_one_ulp_around(header: ctypes.CDLL, name: str, mode: str, dtype: type):
    x = torch.from_numpy(breakpoints(nm.FORMATS[name], dtype))
    assert_equal(x, expected(name, mode, x), codes(header, name, mode, x))


@pytest.mark.parametrize(("name", "mode"), [case for case in CASES if case in INSTRUCTIONS])
def test_packed_pairs(header: ctypes.CDLL, name: str, mode: str):
    """Operand a of the instruction is the header's y, the upper field."""
    y = torch.from_numpy(breakpoints(nm.FORMATS[name], np.float32))
    x = y.flip(0)
    theirs = run(header, "pairs", selector(name, mode), [x.numpy(), y.numpy()], np.uint16)
    ours = ptx.instructions()[INSTRUCTIONS[name, mode]](y, x)
    assert torch.equal(ours.to(torch.int64), theirs.to(torch.int64))


@pytest.mark.parametrize(("name", "half"), [*((f, "half") for f in FORMATS[:5]), *((f, "bfloat16") for f in FORMATS)])
def test_all_packed_words_go_up(header: ctypes.CDLL, name: str, half: str):
    """Every pair of codes, in E2M1 256 words, else up to 65,536; the bits above 6-bit codes are kept 0."""
    if half == "bfloat16" and name != "E8M0" and header.cuda_version() < 13040:
        pytest.skip("these headers are older than CUDA 13.4: they do not convert to bfloat16")
    code = torch.arange(1 << nm.FORMATS[name].bits)
    words = (code.view(-1, 1) << (4 if name == "E2M1" else 8) | code).flatten()
    theirs = run(header, f"to_{half}", [FORMATS.index(name)], [words.to(torch.uint16).numpy()], np.uint32)
    source = "ue8m0x2" if name == "E8M0" else f"{name.lower()}x2"
    ours = ptx.instructions()[f"cvt.rn.{'f' if half == 'half' else 'bf'}16x2.{source}"](words)
    assert torch.equal(ours, theirs)


def test_the_comparison_sees_one_wrong_code(header: ctypes.CDLL):
    x = torch.tensor([0.25, 0.26, -5.0, 7.0])
    assert codes(header, "E2M1", "nearest", x).tolist() == [0, 1, 14, 7]
    counts = differences(x, torch.tensor([0, 2, 14, 7]), codes(header, "E2M1", "nearest", x), {})
    assert counts["differing"] == counts["unexplained"] == 1


def compare(header: ctypes.CDLL, name: str, mode: str) -> Callable[[torch.Tensor], Counter[str]]:
    return lambda x: differences(x, expected(name, mode, x), codes(header, name, mode, x), {})


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_all_float32_inputs(header: ctypes.CDLL, name: str, mode: str):
    found = sweep(compare(header, name, mode), f"{name} {mode}, headers")
    version = header.cuda_version()
    row = {"format": name, "mode": mode, "ours": INSTRUCTIONS.get((name, mode), "nm.encode")}
    record(RECORD, ABOUT, CASES, row, found, cuda=f"{version // 1000}.{version % 1000 // 10}")
    assert not found[0]["unexplained"], found[0]


def test_kept_record():
    assert_clean(RECORD, CASES)
