"""`fourbit vectors`: write the conformance pack, golden vectors that anyone checks a kernel with, without fourbit.

    pack/index.json            every case: name, operation, contract in prose, parameters, tensors with their sha256
    pack/*.safetensors         the tensors; equal ones of a file are stored once
    pack/vectors_reader.py     judges a kernel with numpy alone (a copy of `hw.vectors_reader`)

The pack's hash is the sha256 over index.json and the tensor files in the order of their names, as

    cat pack/index.json pack/*.safetensors | sha256sum

prints it; the reader does not count. Every machine writes the same bytes: inputs are bit patterns and Philox words, the
files hold no time, path or library version. VERSION and HASH belong together: whatever changes a byte of the index or
of a tensor is a new version, and the old number is never used for it.

The safetensors format (a little-endian 64-bit header size, a JSON header padded with spaces, the data) is written
here, because a library may order or pad it differently from release to release.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from . import vectors_blocks, vectors_casts, vectors_flashinfer, vectors_products, vectors_random, vectors_wire
from .vectors_case import Case

VERSION = 2
HASH = "1a6324188fa2f89c9bea72090ff2af75aa6a674da7a29db00e9baedd841044aa"

INDEX, READER, FLASHINFER = "index.json", "vectors_reader.py", "flashinfer"
FAMILIES = {
    "blocks": vectors_blocks.cases,
    "casts": vectors_casts.cases,
    "products": vectors_products.cases,
    "random": vectors_random.cases,
    "wire": vectors_wire.cases,
}
RULE = "A pack that differs in one byte of the index or of a tensor file has another version."
EQUALITY = "bitwise; any NaN of a float32 output equals any other"
NOTES = (
    "float32 arrays also carry BF16 numbers, whose low 16 bits are 0. Nothing is flushed: subnormal numbers count. "
    "PTX is NVIDIA's PTX ISA; fl(x) is x rounded to float32. Where prose says that no public source settles a bit, the "
    "expected one is this project's reading."
)
_DTYPES = {"uint8": "U8", "uint16": "U16", "uint32": "U32", "int64": "I64", "float32": "F32"}
_DTYPES |= {"int8": "I8", "int16": "I16", "int32": "I32"}  # of `vectors_flashinfer` alone


@dataclass(frozen=True)
class VectorsConfig:
    """Write the conformance pack: golden vectors with their contracts, and a reader that needs numpy alone."""

    out: Path = Path("pack")
    """Folder to write: a new one, an empty one, or an older pack, which is replaced."""
    flashinfer: bool = False
    """Write the folder `flashinfer` in it as well: the same cases as definitions and workloads of FlashInfer-Bench."""


def safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file, wide dtypes first, so that every tensor is aligned.

    Raises: ValueError for a dtype that a pack does not hold.
    """
    header: dict[str, Any] = {}
    data, offset = [], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)):
        x = tensors[name]
        if x.dtype.name not in _DTYPES:
            raise ValueError(f"tensor {name} has dtype {x.dtype}: a pack holds {', '.join(_DTYPES)}")
        raw = little_endian(x)
        header[name] = {
            "dtype": _DTYPES[x.dtype.name],
            "shape": list(x.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        data.append(raw)
        offset += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def little_endian(x: np.ndarray) -> bytes:
    """The bytes of an array in row-major order."""
    return x.astype(x.dtype.newbyteorder("<")).tobytes()


def family(file: str, cases: list[Case]) -> tuple[bytes, list[dict[str, Any]]]:
    """A tensor file, and the index entries of its cases. A tensor is named after the case that first has it."""
    tensors: dict[str, np.ndarray] = {}
    known: dict[tuple[Any, ...], str] = {}

    def entry(full: str, x: np.ndarray) -> dict[str, Any]:
        digest = hashlib.sha256(little_endian(x)).hexdigest()
        name = known.setdefault((digest, x.dtype.name, x.shape), full)
        tensors[name] = x
        return {"file": file, "tensor": name, "dtype": x.dtype.name, "shape": list(x.shape), "sha256": digest}

    entries = [
        {
            "name": case.name,
            "operation": case.operation,
            "prose": case.prose,
            "parameters": case.parameters,
            "inputs": {key: entry(f"{case.name}/in/{key}", x) for key, x in case.inputs.items()},
            "outputs": {key: entry(f"{case.name}/out/{key}", x) for key, x in case.outputs.items()},
            "equality": EQUALITY,
        }
        for case in cases
    ]
    return safetensors(tensors), entries


def build() -> dict[str, bytes]:
    """Every counted file of the pack by name: the index, then the tensor files in the order of their names.

    Raises: ValueError for two cases of one name.
    """
    files, entries = {}, []
    for name in sorted(FAMILIES):
        file = f"{name}.safetensors"
        files[file], listed = family(file, FAMILIES[name]())
        entries += listed
    names = [entry["name"] for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError(f"case names {sorted({n for n in names if names.count(n) > 1})} come twice: rename one")
    index = {
        "pack": "fourbit conformance vectors",
        "version": VERSION,
        "rule": RULE,
        "notes": NOTES,
        "files": {file: {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()} for file, raw in files.items()},
        "cases": sorted(entries, key=lambda entry: entry["name"]),
    }
    return {INDEX: (json.dumps(index, indent=1) + "\n").encode(), **files}


def digest(files: dict[str, bytes]) -> str:
    """The hash of a pack, as `build` gives it."""
    return hashlib.sha256(b"".join(files.values())).hexdigest()


def write(out: Path) -> dict[str, bytes]:
    """Write the pack and a copy of the reader into `out`; returns `build()`.

    Raises: ValueError if `out` is a file, or a folder that holds other things than a pack.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out={out} is a file: name a folder")
    ours = {INDEX, READER, FLASHINFER, "__pycache__", *(f"{name}.safetensors" for name in FAMILIES)}
    others = sorted({path.name for path in out.glob("*")} - ours) if out.exists() else []
    if others:
        raise ValueError(f"out={out} holds {others[0]}, which belongs to no pack: name a new folder")
    files = build()
    out.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        (out / name).write_bytes(raw)
    shutil.copyfile(Path(__file__).with_name(READER), out / READER)
    return files


def write_flashinfer(out: Path) -> None:
    """Write the data set of `vectors_flashinfer` into `out`, in the place of an older one, and print what it holds."""
    made = vectors_flashinfer.exported([case for name in sorted(FAMILIES) for case in FAMILIES[name]()], safetensors)
    shutil.rmtree(out, ignore_errors=True)
    for name, raw in made.files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(raw)
    count = sum(name.startswith("definitions/") for name in made.files)
    print(f"{out}: {count} definitions, {made.cases} workloads; run flashinfer-bench with --rtol 1e-300 --atol 1e-300")
    print(f"left out, since outputs are not finite: {len(made.left_out)} cases, {', '.join(made.left_out)}")


def main(argv: list[str]) -> int:
    """`fourbit vectors`: write the pack and print its hash; 1 if these are not the bytes of this version."""
    config = tyro.cli(VectorsConfig, args=argv, prog="fourbit vectors")
    files = write(config.out)
    if config.flashinfer:
        write_flashinfer(config.out / FLASHINFER)
    found, count = digest(files), len(json.loads(files[INDEX])["cases"])
    size = sum(map(len, files.values())) / 1e6
    print(f"{config.out}: {count} cases, {size:.1f} MB, version {VERSION}, sha256 {found}")
    if found != HASH:
        print(f"fourbit: these are not the vectors of version {VERSION}, whose sha256 is {HASH}", file=sys.stderr)
        return 1
    print(f"python {config.out / READER} {config.out} --kernel mymodule:function   judges a kernel")
    return 0
