"""Documents of text from files: plain text, JSON Lines and parquet; and which of them are held out.

A text file is one document, named by its path below the folder, glob or file that was asked for. A file that ends in
.jsonl or .ndjson has one document in each line that is not blank, a JSON object with the text in one field; a .parquet
file one in each row of a column, read through pyarrow if that is installed; endings in any case. These are named
"path:number", counted from 1. Files come in the order of their names, empty documents are skipped. Text holds no NUL,
which tells binary files and leaves byte 0 free to end a document.

Held out: a document is when the first 8 bytes of the sha256 of its name are a multiple of 13, one in 13. The name
decides, not the position in the list: adding a file moves no other. A single document is split by position and its last
thirteenth is held out.

Without a path the documents are the source of the running Python's standard library: about 12 MB that every machine
has.
"""

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELD_OUT_ONE_IN = 13
LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
_GLOB = frozenset("*?[")
# Below the standard library but not its source; the prefixes are written when a Python is installed, so they differ
# between equal versions.
_NOT_SOURCE = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test")
_MACHINE_MADE = ("_sysconfigdata", "sitecustomize", "usercustomize", "config-")

Document = tuple[str, bytes]
Advance = Callable[[int], Any]  # told how many bytes of the files have been read since it was called last


@dataclass(frozen=True)
class Source:
    """Files of text.

    Attributes:
        files: (name, path) by name.
        label: what was asked for, as a phrase.
        field: the field of JSON Lines, or the column of parquet, with the text.
    """

    files: tuple[tuple[str, Path], ...]
    label: str
    field: str

    @property
    def records(self) -> bool:
        """Whether a file holds documents with fields."""
        return any(is_records(path) for _, path in self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for _, path in self.files if path.is_file())

    def documents(self, advance: Advance = lambda _: None) -> Iterator[Document]:
        """Yield (name, UTF-8 or other text as bytes), one file in memory at a time, of records one document.

        Raises:
            ValueError: a binary or unreadable file, or a record without text; names the file, the line and the remedy.
        """
        for name, path in self.files:
            if path.suffix.lower() in LINES:
                yield from _lines(name, path, self.field, advance)
            elif path.suffix.lower() == PARQUET:
                yield from _rows(name, path, self.field, advance)
            else:
                if text := read_file(path):
                    yield name, text
                advance(len(text))


def is_records(path: Path) -> bool:
    """Whether a file of this name holds documents with fields."""
    return path.suffix.lower() in (*LINES, PARQUET)


def find(data: str | None, field: str = "text") -> Source:
    """Find the files that `data` names.

    Args:
        data: a file, a folder (read recursively, hidden entries skipped), a glob pattern ("**" descends), or None for
            the running Python's standard library.
        field: with the text of records.

    Raises:
        ValueError: nothing there, a folder that cannot be read, or a `field` where no file has fields.
    """
    root, paths = standard_library() if data is None else _find(data)
    named = {path.relative_to(root).as_posix(): path for path in paths}  # a glob may find one twice
    label = f"standard library of Python {sysconfig.get_python_version()}" if data is None else data
    source = Source(tuple(sorted(named.items())), label, field)
    if field != "text" and not source.records:
        raise ValueError(
            f"text_field {field!r} does nothing here: {label!r} holds no .jsonl, .ndjson or .parquet file; leave it out"
        )
    return source


def chooser(names: Iterable[str]) -> Callable[[str], bool]:
    """The rule that holds documents out, for a corpus of two or more with these names; at least one and never all."""
    low = high = (0, "")
    count = chosen = 0
    for name in names:
        rank = (_rank(name), name)
        low, high = (min(low, rank), max(high, rank)) if count else (rank, rank)
        count, chosen = count + 1, chosen + _by_rank(name)
    if chosen == 0:
        return lambda name: name == low[1]
    if chosen == count:
        return lambda name: name != high[1]
    return _by_rank


def cut_of(name: str, text: bytes, characters: bool) -> int:
    """Where a single document is split. ValueError for one byte. `characters`: not inside one of UTF-8."""
    cut = len(text) - max(1, len(text) // HELD_OUT_ONE_IN)
    while characters and cut > 0 and text[cut] & 0xC0 == 0x80:
        cut -= 1
    if cut == 0:
        raise ValueError(
            f"data: file {name!r} has {len(text)} byte{'s' * (len(text) > 1)}, too few to hold a part out; use more "
            "text"
        )
    return cut


def read_file(path: Path) -> bytes:
    """Read a text file. ValueError for one that cannot be read, is no file, or is binary."""
    try:
        if not path.is_file():
            raise ValueError(f"data: {str(path)!r} is neither a file nor a folder; name text files")
        text = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    if b"\0" in text:
        raise ValueError(
            f"data: file {str(path)!r} is binary (it has NUL bytes); name text files only, for example with a glob"
        )
    return text


def _rank(name: str) -> int:
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big")


def _by_rank(name: str) -> bool:
    return _rank(name) % HELD_OUT_ONE_IN == 0


def _unreadable(path: Path, error: OSError) -> ValueError:
    return ValueError(
        f"data: file {str(path)!r} cannot be read ({error.strerror or error}); change its permissions or leave it out"
    )


def _lines(name: str, path: Path, field: str, advance: Advance) -> Iterator[Document]:
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip() and (text := _text_of_line(path, number, line, field)):
                    yield f"{name}:{number}", text
                advance(len(line))
    except OSError as error:
        raise _unreadable(path, error) from None


def _text_of_line(path: Path, number: int, line: bytes, field: str) -> bytes:
    where = f"data: file {str(path)!r}, line {number},"
    try:
        record = json.loads(line.rstrip().decode("utf-8-sig" if number == 1 else "utf-8"))
    except RecursionError:
        raise ValueError(f"{where} is nested too deep; correct the line or leave it out") from None
    except ValueError as error:  # of JSON and of UTF-8
        # JSON's own words count lines too, of this one line
        told = f"{error.msg}, column {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
        raise ValueError(f"{where} is not JSON ({told}); correct the line or leave it out") from None
    if not isinstance(record, dict):
        raise ValueError(
            f"{where} holds a {type(record).__name__}, not an object; write one object with the field {field!r} a line"
        )
    if field not in record:
        raise ValueError(
            f"{where} has no field {field!r}, only {_shown(record)}; name the one with the text with --text-field"
        )
    return _checked(where, record[field], field)


def _rows(name: str, path: Path, field: str, advance: Advance) -> Iterator[Document]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(
            f"data: file {str(path)!r} is parquet, which needs pyarrow; pip install 'fourbit[data]', or use JSON Lines"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if field not in columns:
                raise ValueError(
                    f"data: file {str(path)!r} has no column {field!r}, only {_shown(columns)}; name the one with the "
                    "text with --text-field"
                )
            size, rows, number = path.stat().st_size, max(1, file.metadata.num_rows), 0
            for part in file.iter_batches(batch_size=1024, columns=[field]):
                for value in part.column(0):
                    number += 1
                    where = f"data: file {str(path)!r}, row {number},"
                    if text := _checked(where, _python(where, value, field), field):
                        yield f"{name}:{number}", text
                advance(size * number // rows - size * (number - len(part)) // rows)
    except ArrowException as error:
        raise ValueError(
            f"data: file {str(path)!r} cannot be read as parquet ({error}); restore it, or leave it out"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _python(where: str, value: Any, field: str) -> object:
    """A value of parquet. ValueError for text that is not UTF-8, which parquet does not check."""
    try:
        found: object = value.as_py()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 in {field!r} ({error.reason}, byte {error.start}); correct the row or leave it out"
        ) from None
    return found


def _checked(where: str, value: object, field: str) -> bytes:
    """The text of a record's field as UTF-8."""
    if not isinstance(value, str):
        raise ValueError(
            f"{where} has a {type(value).__name__} in {field!r}, not text; leave it out, or name another with "
            "--text-field"
        )
    try:
        text = value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} has half a surrogate pair in {field!r} ({error}); correct the line") from None
    if b"\0" in text:
        raise ValueError(f"{where} has a NUL character in {field!r}; leave it out")
    return text


def _shown(names: Iterable[str]) -> str:
    """A few names for a message."""
    names = list(names)
    return ", ".join(map(repr, names[:8])) + ", ..." * (len(names) > 8) if names else "nothing"


def standard_library() -> tuple[Path, list[Path]]:
    """The folder of the running Python's standard library, and its files of source. ValueError without any."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in _walk(root, _NOT_SOURCE, (".", *_MACHINE_MADE)) if path.suffix == ".py"]
    if not paths:
        raise ValueError(
            f"data: this Python keeps no standard-library source in {str(root)!r}; give --data a text "
            "file, folder or glob"
        )
    return root, paths


def _walk(root: Path, skip: tuple[str, ...] = (), skip_prefixes: tuple[str, ...] = (".",)) -> list[Path]:
    """List the files below `root`, without folders named in `skip` and entries that begin with a skipped prefix."""

    def blocked(error: OSError) -> None:
        raise ValueError(
            f"data: folder {error.filename!r} cannot be read ({error.strerror}); change its permissions or leave it out"
        )

    found = []
    for folder, folders, files in os.walk(root, onerror=blocked):
        folders[:] = [name for name in folders if name not in skip and not name.startswith(skip_prefixes)]
        found += [Path(folder, name) for name in files if not name.startswith(skip_prefixes)]
    return found


def _find(data: str) -> tuple[Path, list[Path]]:
    """Resolve a path or glob to (folder that names are relative to, files)."""
    path = Path(data)
    if data and os.path.isdir(path):
        root, found, what = path, _walk(path), "folder"
    elif data and os.path.exists(path):
        root, found, what = path.parent, [path], "file"
    elif set(data) & _GLOB:
        first = next(i for i, part in enumerate(path.parts) if set(part) & _GLOB)
        hits = [Path(hit) for hit in glob.glob(data, recursive=True)]
        root, found, what = Path(*path.parts[:first]), [hit for hit in hits if hit.is_file()], "glob"
    else:
        raise ValueError(
            f"data {data!r} cannot be found; name a text file, a folder or a glob, or leave it out to use "
            "Python's standard library"
        )
    if not found:
        raise ValueError(
            f"data {data!r} is a {what} with no file in it; name a text file, a folder or a glob that matches files"
        )
    return root, found
