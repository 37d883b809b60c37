"""One deliberate fault in every file of kernels, and in those that start them: the tests of that file must fail.

Contract: each fault is caught by the tests that belong to its file, in the interpreter. A fault is a text of the file
replaced by another, in a copy of the package `hw` that a process of its own imports. records/hw_mutations.json keeps
which test caught which fault; the runs under the marker `exhaustive` write it, a row each.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hw.device import INTERPRET

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "records" / "hw_mutations.json"
ABOUT = "a text of a file of hw replaced by another, and the test that failed then; test_hw_mutations.py makes it"


@dataclass(frozen=True)
class Fault:
    """file: of `hw`. text: stands there once. tests: the module that must fail."""

    file: str
    text: str
    replacement: str
    tests: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.text, self.replacement


_FACTORS = "gate, up = gate * factor[:, None], up"
FAULTS = [
    Fault("kernel_casts.py", "a + (MAGIC + 2.0)", "a + (MAGIC + 1.0)", "test_hw_nvfp4"),
    Fault("kernel_casts.py", "bits + 0x7FFFF + ((bits >> 20) & 1)", "bits + 0x80000", "test_hw_mx"),
    Fault("kernel_casts.py", "tl.where(bits < 0x800000, 0x7F0000, 0x7E0000)", "0x7E0000", "test_hw_mx"),
    Fault("kernel_casts.py", "(bits_of(a) + (field << 6)) >> 22", "(bits_of(a) + (field << 5)) >> 22", "test_hw_nvfp4"),
    Fault("kernel_nvfp4.py", "use4 = e4 < e6", "use4 = e4 <= e6", "test_hw_nvfp4"),
    Fault(
        "kernel_nvfp4.py",
        "decode = _per_block(tl.div_rn(1.0, inverse), ROWS, WIDTH)",
        "decode = outer",
        "test_hw_nvfp4",
    ),
    Fault("kernel_nvfp4.py", "((blocks + 3) // 4)", "(blocks // 4)", "test_hw_nvfp4"),
    Fault(
        "kernel_nvfp4.py",
        "row // span, mask=inside, other=1.0)\n        encode",
        "row * 0, mask=inside, other=1.0)\n        encode",
        "test_hw_nvfp4",
    ),
    Fault("kernel_mx.py", "place * 2 + 1, N", "place * 2, N", "test_hw_mx"),
    Fault("kernel_mx.py", "0x7E7E7E7E", "0x7F7F7F7F", "test_hw_mx"),
    Fault("kernel_tokens.py", "block + 3) * 2 + g)", "block + 3) + g)", "test_hw_tokens"),
    Fault("kernel_tokens.py", "if outer > 1e15:", "if outer > 1e39:", "test_hw_tokens"),
    Fault("kernel_tokens.py", "tl.max(power, 0) >= 246", "tl.max(power, 0) >= 248", "test_hw_tokens"),
    Fault("kernel_tokens_nvfp4.py", "block + 3) + (column", "block + 2) + (column", "test_hw_tokens"),
    Fault("kernel_tokens_nvfp4.py", "b * tl.load(signs + 8 + i)", "b * tl.load(signs + i)", "test_hw_tokens"),
    Fault("kernel_both.py", "(width // 32) + place[None, :], stored", "(width // 32), stored", "test_hw_both"),
    Fault("kernel_both.py", "table + 4 * block + 1)", "table + 4 * block + 1) + 1", "test_hw_both"),
    Fault("kernel_tiles.py", "tl.program_id(2) * tl.num_programs(0) + ", "", "test_hw_tokens"),
    Fault("kernel_tiles.py", "& 8), 7)", "& 8), 15)", "test_hw_tokens"),
    Fault("kernel_amax.py", "most < INFINITY_BITS", "most <= INFINITY_BITS", "test_hw_tokens"),
    Fault("kernel_decode.py", "bits_of(y) & 0xFFFF, 0)", "bits_of(y) & 0x7FFF, 0)", "test_hw_decode"),
    Fault("kernel_decode.py", "(line * columns)[:, None]", "(row * columns)[:, None]", "test_hw_decode"),
    Fault("kernel_decode_nvfp4.py", "scales + word // 2", "scales + word", "test_hw_decode"),
    Fault("kernel_pieces.py", f"{_FACTORS} * factor[:, None]", _FACTORS, "test_hw_nvfp4"),
    Fault("kernel_pieces.py", "return near_bf16(silu * up)", "return silu * up", "test_hw_mx"),
    Fault("kernel_rows.py", "piece % (width // 8)", "piece % (width // 4)", "test_hw_rows"),
    Fault(
        "kernel_rows.py", "mask=inside, other=0.0) if FACTOR", "mask=inside, other=0.0) * 2 if FACTOR", "test_hw_rows"
    ),
    Fault("kernel_blocks32.py", "a + c, b + d, a - c, b - d", "a + c, b + d, a - c, d - b", "test_hw_mx"),
    Fault("kernel_aggregate.py", "ta * w, tb * w, tc * w, td * w", "ta * w, tb * w, tc * w, td", "test_hw_aggregate"),
    Fault(
        "kernel_router.py",
        "total = a * _piece(row, column, width, inside, 0)",
        "total = a * _piece(row, column, width, inside, 1)",
        "test_hw_router",
    ),
    Fault(
        "kernel_glu_backward.py",
        "(g * up) * tl.load(slope + pattern)",
        "g * (up * tl.load(slope + pattern))",
        "test_hw_glu_backward",
    ),
    Fault("kernel_permute.py", "program - first_y, ROWS_Y", "program, ROWS_Y", "test_hw_permute"),
    Fault("kernel_swizzle.py", "byte // 4 % 4 * 32", "byte // 4 % 4 * 16", "test_hw_swizzle"),
    Fault("kernel_swizzle.py", "(line < lines) & (column < width)", "column < width", "test_hw_swizzle"),
    Fault("kernel_swizzle.py", "before.to(tl.int64) * count", "before.to(tl.int64)", "test_hw_swizzle"),
    Fault("kernel_product.py", "b.load([expert, n * 128, k", "b.load([0, n * 128, k", "test_hw_product"),
    Fault("kernel_product.py", "(0, 3, 2, 1, 4)", "(0, 2, 3, 1, 4)", "test_hw_product"),
    Fault(
        "kernel_product.py", "(row < count)[:, None]", "(row < count + (expert == 0) * n)[:, None]", "test_hw_product"
    ),
    Fault("kernel_product.py", "a_atoms.load([tile, k", "a_atoms.load([expert, k", "test_hw_product"),
    Fault("kernel_product.py", "expert * wide + n, k", "expert * wide, k", "test_hw_product"),
    Fault(
        "kernel_product.py",
        "(1, bk, TILE) if across else (1, TILE, step)",
        "(1, bk, TILE) if across else (1, TILE, step // 2)",
        "test_hw_product",
    ),
    Fault("kernel_product_ragged.py", "[count, columns], [", "[count + 128, columns], [", "test_hw_product_ragged"),
    Fault("kernel_product_ragged.py", "[count, width], [", "[count + 128, width], [", "test_hw_product_ragged"),
    Fault("kernel_product_ragged.py", "before * wide + m * steps", "before * wide + m", "test_hw_product_ragged"),
    Fault("kernel_product_ragged.py", "expert.to(tl.int64) * columns", "entry * columns", "test_hw_product_ragged"),
    Fault("interpret_products.py", "E4M3 if narrow else E8M0)", "E8M0)", "test_hw_products_native"),
    Fault("products_native.py", "or b.shape[2] % 16", "or False", "test_hw_products_native"),
    Fault("philox.py", "c0 = high1 ^ c1 ^ k0", "c0 = high1 ^ c1 ^ k1", "test_hw_philox"),
    Fault("philox.py", "reverse32(pair) >> 16", "reverse32(pair) & 0xFFFF", "test_hw_mx"),
    Fault("sources.py", " - starts[group.long()]", "", "test_hw_mx"),
    Fault(
        "packed.py",
        "q.codes[..., 0::2] | (q.codes[..., 1::2] << 4)",
        "q.codes[..., 1::2] | (q.codes[..., 0::2] << 4)",
        "test_hw_ops",
    ),
    Fault("casts.py", "1536.0 if cast.fmt == nm.NVFP4_46 else 2688.0", "2688.0", "test_hw_ops"),
    Fault("grouped.py", "return first * second", "return first", "test_hw_ops"),
    Fault("ops.py", 'and recast.outer != "multiply"', 'and recast.outer == "keep"', "test_hw_ops"),
]


def name(fault: Fault) -> str:
    return f"{fault.file}: {fault.replacement[:40]}"


def mutated(fault: Fault) -> str:
    text = (ROOT / "hw" / fault.file).read_text("utf-8")
    assert text.count(fault.text) == 1, f"{fault.file} has {fault.text!r} {text.count(fault.text)} times"
    return text.replace(fault.text, fault.replacement)


def run(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """The tests of a module, up to the first that fails, with the package `hw` of `folder`."""
    env = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", INTERPRET: "1", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    command = [sys.executable, "-m", "pytest", *options, str(ROOT / "tests" / f"{tests}.py")]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def copied(folder: Path) -> Path:
    shutil.copytree(ROOT / "hw", folder / "hw", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "hw"


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS, ids=name)
def test_a_fault_is_caught(fault: Fault, tmp_path: Path) -> None:
    """By a test that fails, not by one that cannot be collected."""
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    (copied(tmp_path) / fault.file).write_text(mutated(fault), "utf-8")
    done = run(tmp_path, fault.tests)
    failed = re.search(r"^FAILED \S*?tests/(\w+\.py::\w+)", done.stdout, re.MULTILINE)
    assert done.returncode == 1 and failed is not None, f"{fault}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    record(fault, failed[1])


@pytest.mark.exhaustive
def test_the_copy_is_what_runs_and_passes_without_a_fault(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
    marker = tmp_path / "imported"
    init = copied(tmp_path) / "__init__.py"
    init.write_text(f"{init.read_text('utf-8')}\nopen({str(marker)!r}, 'w').close()\n", "utf-8")
    done = run(tmp_path, "test_hw_permute")
    assert done.returncode == 0 and marker.exists(), done.stdout[-2000:]


def record(fault: Fault, caught_by: str) -> None:
    """Replace the fault's row; rows of faults that are no more go."""
    rows = json.loads(RECORD.read_text("utf-8"))["rows"] if RECORD.exists() else []
    kept = {(row["file"], row["text"], row["replacement"]): row for row in rows}
    file, text, replacement = fault.key
    kept[fault.key] = {"file": file, "text": text, "replacement": replacement, "caught": True, "by": caught_by}
    ordered = [kept[other.key] for other in FAULTS if other.key in kept]
    RECORD.write_text(json.dumps({"about": ABOUT, "rows": ordered}, indent=1) + "\n", "utf-8")


def test_every_file_of_kernels_has_a_fault_and_every_fault_its_place() -> None:
    files = {path.name for path in (ROOT / "hw").glob("kernel_*.py")}
    assert files <= {fault.file for fault in FAULTS}
    assert len({fault.key for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        compile(mutated(fault), fault.file, "exec")
        assert (ROOT / "tests" / f"{fault.tests}.py").exists()


def test_the_record_is_whole() -> None:
    """A row a fault, each of them caught by a test that exists."""
    rows = json.loads(RECORD.read_text("utf-8"))["rows"]
    assert [(row["file"], row["text"], row["replacement"]) for row in rows] == [fault.key for fault in FAULTS]
    for row, fault in zip(rows, FAULTS, strict=True):
        file, _, test = row["by"].partition("::")
        assert row["caught"] is True and file == f"{fault.tests}.py"
        assert f"def {test}(" in (ROOT / "tests" / file).read_text("utf-8")
