"""The safetensors files of a checkpoint folder: which tensor lies where, and what is lost between index and shards.

    file = 8 bytes: n, little-endian | n bytes: JSON, name -> dtype, shape, offsets | data

The header is read here, not by the library, which refuses a truncated file as a whole: the report then has the names
of the tensors that are lost. Data are read row by row, so that memory holds no more than what is asked for.
"""

from __future__ import annotations

import json
import math
import struct
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .check_folder_report import Finding

SUFFIX, INDEX, ONE = ".safetensors", ".safetensors.index.json", "model.safetensors"
DTYPES = {
    **{"U8": torch.uint8, "I8": torch.int8, "BOOL": torch.bool, "I16": torch.int16, "I32": torch.int32},
    **{"I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu},
}
FLOATS = ("BF16", "F16", "F32", "F64")


class Unreadable(ValueError):
    """A file whose header cannot be read."""


@dataclass(frozen=True)
class Entry:
    """A tensor of a file. dtype: as safetensors spells it; E2M1 pairs ("F4") count as bytes. start: its first byte in
    the file; size: its bytes."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    def read(self, first: int = 0, last: int | None = None, rows: int = 1) -> Tensor:
        """The tensor; or of `rows` equal parts of it, those from `first` to `last`, flat."""
        part = self.size // rows
        last = rows if last is None else min(last, rows)
        raw = np.fromfile(self.file, np.uint8, part * (last - first), offset=self.start + first * part)
        flat = torch.from_numpy(raw).view(DTYPES[self.dtype])
        return flat.reshape(self.shape) if rows == 1 else flat

    @property
    def numel(self) -> int:
        """Its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Shelf:
    """A folder's tensors by name, those that can be read. size: of its files, bytes. files: how many. metadata: what
    the files' headers say besides."""

    folder: Path
    entries: dict[str, Entry]
    files: int
    size: int
    metadata: dict[str, str]


@dataclass(frozen=True)
class Header:
    """What a file lists. size: that the file must have, bytes."""

    entries: dict[str, Entry]
    size: int
    metadata: dict[str, str]


def header(path: Path) -> Header:
    """What a file lists.

    Raises: Unreadable. OSError if it cannot be opened.
    """
    with path.open("rb") as file:
        head = file.read(8)
        n = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
        if not 0 < n <= path.stat().st_size - 8:
            raise Unreadable(f"{path.name} is cut off within its header")
        try:
            listed: dict[str, Any] = json.loads(file.read(n))
            found = {name: _entry(path, name, e, 8 + n) for name, e in listed.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unreadable(f"{path.name} has a header that is no list of tensors ({error})") from None
        metadata = listed.get("__metadata__")
    size = max((e.start + e.size for e in found.values()), default=8 + n)
    return Header(found, size, metadata if isinstance(metadata, dict) else {})


def _entry(path: Path, name: str, told: dict[str, Any], data: int) -> Entry:
    dtype, shape = str(told["dtype"]), tuple(int(n) for n in told["shape"])
    start, stop = (int(n) for n in told["data_offsets"])
    if dtype == "F4":  # two to a byte
        dtype, shape = "U8", (*shape[:-1], shape[-1] // 2)
    wanted = math.prod(shape) * DTYPES[dtype].itemsize if dtype in DTYPES else stop - start
    if wanted != stop - start:
        raise ValueError(f"{name}: {list(shape)} of {dtype} take {wanted} bytes, not {stop - start}")
    return Entry(name, path, dtype, shape, data + start, stop - start)


def shelf_of(folder: Path) -> tuple[Shelf, list[Finding]]:
    """The tensors of a folder, and what is wrong with its files.

    Raises: ValueError for a folder without safetensors.
    """
    paths = sorted(folder.glob("*" + SUFFIX))
    if not paths:
        deeper = sorted({str(p.parent.relative_to(folder)) for p in folder.glob("*/*" + SUFFIX)})
        remedy = f"name one of its folders: {', '.join(deeper)}" if deeper else "name a folder that holds a checkpoint"
        raise ValueError(f"{folder} holds no {SUFFIX} file; {remedy}")
    of: dict[str, dict[str, Entry]] = {}
    findings, metadata = [], {}
    for path in paths:
        head, found = _file(path)
        of[path.name] = head.entries
        metadata |= head.metadata
        findings += found
    index, found = _index(folder)
    findings += found
    if index is None:
        findings += _numbered([p.name for p in paths])
    else:
        findings += _against_index(index, of)
    entries, found = _merged(of, index or {})
    size = sum(path.stat().st_size for path in paths)
    return Shelf(folder, entries, len(paths), size, metadata), findings + found


def _file(path: Path) -> tuple[Header, list[Finding]]:
    """What a file holds, of its tensors those that are whole; and what is wrong with it."""
    try:
        head = header(path)
    except Unreadable as error:
        return Header({}, 0, {}), [Finding("file", f"{error}: every tensor in it is lost", (path.name,))]
    size, count = path.stat().st_size, len(head.entries)
    lost = tuple(e.name for e in head.entries.values() if e.start + e.size > size)
    if lost:
        text = f"{path.name} is truncated: {size:,} of {head.size:,} bytes; {len(lost)} of its {count} tensors are lost"
        whole = {name: e for name, e in head.entries.items() if name not in lost}
        return replace(head, entries=whole), [Finding("truncated file", text, lost)]
    if size > head.size:
        text = f"{path.name} has {size - head.size:,} bytes behind its last tensor"
        return head, [Finding("file", text, (path.name,))]
    return head, []


def _index(folder: Path) -> tuple[dict[str, str] | None, list[Finding]]:
    """The folder's index, tensor -> file, or None."""
    paths = sorted(folder.glob("*" + INDEX))
    if not paths:
        return None, []
    path = next((p for p in paths if p.name == "model" + INDEX), paths[0])
    try:
        index = json.loads(path.read_bytes())["weight_map"]
        found = {str(name): str(file) for name, file in index.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return None, [Finding("index", f"{path.name} is no index: {type(error).__name__} {error}", (path.name,))]
    if (folder / ONE).is_file() and ONE not in found.values():
        text = f"{ONE} lies beside {path.name}, which does not name it: transformers reads it and none of the shards"
        return found, [Finding("index", text, (ONE,))]
    return found, []


def _against_index(index: dict[str, str], of: dict[str, dict[str, Entry]]) -> list[Finding]:
    """What an index and its files disagree about."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for name, file in index.items():
        by_file[file].append(name)
    findings = []
    for file, names in by_file.items():
        if file not in of:
            text = f"the index names {file}, which is not there: {len(names):,} tensors are lost"
            findings.append(Finding("missing shard", text, tuple(names)))
            continue
        lacking = tuple(name for name in names if of[file] and name not in of[file])
        if lacking:
            elsewhere = sorted({f for f in of for name in lacking if name in of[f]})
            where = f"; {', '.join(elsewhere)} has such names" if elsewhere else ""
            text = f"the index says that {file} holds them, and it does not{where}"
            findings.append(Finding("index", text, lacking))
    for file, listed in of.items():
        strange = tuple(name for name in listed if name not in index)
        if file not in by_file and listed and file != ONE:
            text = f"{file} is not in the index: a reader of the index leaves its {len(listed):,} tensors out"
            findings.append(Finding("extra shard", text, tuple(listed)))
        elif file in by_file and strange:
            findings.append(Finding("index", f"they lie in {file}, and the index does not name them", strange))
    return findings


def _numbered(names: list[str]) -> list[Finding]:
    """Shards without an index whose own names say that some are missing."""
    sets: dict[tuple[str, str], set[int]] = defaultdict(set)
    for name in names:
        head, _, total = name.removesuffix(SUFFIX).rpartition("-of-")
        stem, _, number = head.rpartition("-")
        if total.isdigit() and number.isdigit():
            sets[stem, total].add(int(number))
    findings = []
    for (stem, total), there in sets.items():
        missing = [n for n in range(1, int(total) + 1) if n not in there and 0 not in there]
        if missing:
            text = f"{len(missing)} of {int(total)} shards {stem}-*-of-{total}{SUFFIX} are not there"
            findings.append(Finding("missing shard", text, tuple(f"{stem}-{n:05d}-of-{total}" for n in missing)))
        if len(there) > 1:
            findings.append(Finding("index", f"shards {stem}-*-of-{total}{SUFFIX} have no index", (stem,)))
    return findings


def _merged(of: dict[str, dict[str, Entry]], index: dict[str, str]) -> tuple[dict[str, Entry], list[Finding]]:
    """Every tensor once: from the file that the index names, else from the last that has it."""
    entries: dict[str, Entry] = {}
    twice: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for file, listed in of.items():
        for name, entry in listed.items():
            first = entries.get(name)
            if first is not None:
                twice[first.file.name, file, _same(first, entry)].append(name)
            if first is None or index.get(name, file) == file:
                entries[name] = entry
    findings = []
    for (one, other, same), names in twice.items():
        what = "the same bytes in both" if same else "and the bytes differ"
        findings.append(Finding("duplicate", f"they lie in {one} and in {other}, {what}", tuple(names)))
    return entries, findings


def _same(a: Entry, b: Entry) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(
        *(e.read().reshape(-1).view(torch.uint8) for e in (a, b))
    )
