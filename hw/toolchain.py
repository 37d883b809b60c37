"""Which assembler and disassembler compile kernels ahead of time, and what they are too old for.

ptxas, for sm_100a and sm_103a: TRITON_PTXAS_BLACKWELL_PATH, else that of pip's nvidia-cuda-nvcc, else triton's own. For
sm_90a triton's choice stands (TRITON_PTXAS_PATH, else its own). Triton runs the one that it is told by the same
variables, so a launch on a GPU needs them too.

    form of PTX                                  first ptxas
    cvt to and from e2m1, ue8m0; cvt.rs          12.9 (CUDA 12.9)
    cvt of s2f6x2; e2m1x2 from bf16x2            13.1
    scaled::n2::ue8m0 bf16x2 from e2m1x2, e4m3x2 13.2
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .machine_code import packaged

BLACKWELL_PATH = "TRITON_PTXAS_BLACKWELL_PATH"
HOPPER_PATH = "TRITON_PTXAS_PATH"
ARCHITECTURES = ("sm_103a", "sm_100a", "sm_90a")
REMEDY = (
    "install a newer triton (3.7 has ptxas 13.1), or pip install 'nvidia-cuda-nvcc>=13.1', or name another ptxas in "
    f"{BLACKWELL_PATH}"
)
# the first that fits says what is needed
_FORMS = (
    (r"cvt\.rn\S*\.scaled::n2::ue8m0\.bf16x2\.(?:e2m1x2|e4m3x2)", (13, 2)),
    (r"cvt\.\S*s2f6x2\S*", (13, 1)),
    (r"cvt\.\S*e2m1x2\.bf16x2", (13, 1)),
    (r"cvt\.\S*(?:e2m1x|ue8m0x)\S*", (12, 9)),
    (r"cvt\.rs\.\S*", (12, 9)),
    (r"tcgen05\.mma\S*\.block_scale\.block(?:16|32)", (12, 9)),
    (r"tcgen05\.\S*", (12, 8)),
)


@dataclass(frozen=True)
class Assembler:
    """A ptxas, or nvdisasm: where it is, the toolkit that it is of, as numbers, and its version in words."""

    path: Path
    release: tuple[int, int]
    version: str


def require_architecture(name: str) -> int:
    """The number of an architecture, 103 of "sm_103a".

    Raises: ValueError for those that kernels cannot be compiled for, with the reason.
    """
    if name in ARCHITECTURES:
        return int(name[3:-1])
    why = ""
    if re.fullmatch(r"sm_1[12]\d[af]?", name):
        why = ", and it has no cvt.rs"
    elif re.fullmatch(r"sm_10[03]f?", name):
        why = "; only targets that end in a have cvt.rs and tcgen05"
    elif name == "sm_90":
        why = "; only sm_90a has wgmma"
    raise ValueError(f"arch={name!r}: kernels are compiled for {', '.join(ARCHITECTURES)}{why}; use one of these")


@functools.lru_cache(maxsize=8)
def assembler(path: Path, remedy: str = REMEDY) -> Assembler:
    """Raises: ValueError if it cannot be run, or tells no version."""
    try:
        done = subprocess.run([str(path), "--version"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else "it does not end"
        raise ValueError(f"{path.name} {path} cannot be run ({why}); {remedy}") from error
    told = done.stdout.decode("utf-8", "replace")
    found = re.search(r"release (\d+)\.(\d+), V(\S+)", told)
    if found is None:
        raise ValueError(f"{path} tells no version of CUDA: {told.strip()[:80]!r}; {remedy}")
    return Assembler(path, (int(found[1]), int(found[2])), found[3])


def chosen() -> tuple[Path | None, str]:
    """The ptxas for sm_100a and sm_103a and who it is of; None: triton's own, if it has one.

    Raises: ValueError if the environment names no file.
    """
    named = os.environ.get(BLACKWELL_PATH)
    if named:
        if not Path(named).is_file():
            raise ValueError(f"{BLACKWELL_PATH}={named!r} is no file; name a ptxas of CUDA 13.1 or newer, or unset it")
        return Path(named), BLACKWELL_PATH
    of_pip = packaged("ptxas")
    return (of_pip[0], "pip's nvidia-cuda-nvcc") if of_pip else (None, "triton")


def used(arch: int) -> Assembler:
    """The ptxas that triton, imported here, runs for an architecture.

    Raises: ValueError if there is none, or if the one that the environment names is none: triton would die of it, or
        run its own in silence.
    """
    import triton
    from triton.backends.nvidia.compiler import get_ptxas

    variable = BLACKWELL_PATH if arch >= 100 else HOPPER_PATH
    if named := os.environ.get(variable):
        try:
            assembler(Path(named))
        except ValueError as error:
            raise ValueError(f"unset {variable}, or name a ptxas there: {error}") from error
    try:
        path = Path(get_ptxas(arch).path)
    except (RuntimeError, AttributeError) as error:
        raise ValueError(f"triton {triton.__version__} finds no ptxas for sm_{arch}a ({error}); {REMEDY}") from error
    return assembler(path)


def reader(path: Path, arch: int) -> Assembler:
    """The disassembler at `path`. Raises: ValueError if it is older than the architecture."""
    found = assembler(path, "pip install nvidia-cuda-nvdisasm, or name another in TRITON_NVDISASM_PATH, or unset it")
    least = (12, 9) if arch == 103 else (12, 8) if arch == 100 else (12, 0)
    if found.release < least:
        raise ValueError(
            f"nvdisasm {path} is {found.version} and does not know sm_{arch}a, which {least[0]}.{least[1]} does: "
            "pip install nvidia-cuda-nvdisasm, or name another in TRITON_NVDISASM_PATH"
        )
    return found


def too_old(ptx: str, ptxas: Assembler, arch: int) -> str | None:
    """What of a kernel's PTX an assembler or an architecture does not know, with the remedy; None: nothing known."""
    for pattern, least in _FORMS:
        form = re.search(pattern, ptx)
        if form is not None and arch < 100:
            return f"sm_{arch}a has no {form[0]}: only a branch of NATIVE may have it"
        if form is not None and ptxas.release < least:
            needed = ".".join(map(str, least))
            return f"{form[0]} needs ptxas {needed} or newer, and {ptxas.path} is {ptxas.version}: {REMEDY}"
    return None


def driver() -> tuple[int, int] | None:
    """The newest CUDA that this machine's driver knows, or None without a driver."""
    try:
        library, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        told = library.cuDriverGetVersion(ctypes.byref(number)) == 0
    except (OSError, AttributeError):
        return None
    return (number.value // 1000, number.value % 1000 // 10) if told and number.value else None


def driver_note(version: str) -> str | None:
    """Why this machine's driver cannot run code of a ptxas of `version`, "13.1.80"; None: it can, or there is none."""
    found, needed = driver(), int(version.split(".")[0])
    if found is None or found[0] >= needed:
        return None
    return (
        f"this machine's driver knows CUDA {found[0]}.{found[1]}, and code of ptxas {version} needs one of CUDA "
        f"{needed}{' (580 or newer)' if needed == 13 else ''} to run: update the driver"
    )
