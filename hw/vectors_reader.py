"""Read a conformance pack and judge a kernel by it. Needs Python and numpy, nothing else; copy it where you like.

    python vectors_reader.py pack/                              list the cases
    python vectors_reader.py pack/ --kernel mymodule:function   call function(case, inputs) for each case
    the same with --all   list the cases that are not run as well, and count them as failed

`case` is the case's entry of index.json, `inputs` numpy arrays by name. The function returns the outputs by name, with
the dtypes and shapes of the index (an outer may lack axes of length 1), or None: the case is "not run", never passed.
Equality is bitwise, any NaN of a float equals any other. Exit status: 0 if all that ran passed, else 1: also if none
ran or the pack is damaged.
"""

import hashlib
import json
import pkgutil
import sys
from pathlib import Path

import numpy as np

DTYPES = {"U8": "u1", "U16": "<u2", "U32": "<u4", "I64": "<i8", "F32": "<f4"}


class BadPack(Exception):
    """One sentence that names a file and what is wrong with it."""


def tensors(path: Path, entry: dict) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file (8 bytes of header size, JSON header, data), which must be what `entry` says."""
    data = path.read_bytes()
    if len(data) != entry["bytes"]:
        raise BadPack(f"{path} has {len(data)} bytes, the index says {entry['bytes']}: it is truncated or too long")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise BadPack(f"{path} has another sha256 than the index says: it was changed")
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    part = {name: data[start:][slice(*t["data_offsets"])] for name, t in header.items()}
    return {name: np.frombuffer(part[name], DTYPES[t["dtype"]]).reshape(t["shape"]) for name, t in header.items()}


def load(pack: str | Path) -> tuple[list[dict], dict[str, dict[str, np.ndarray]]]:
    """(cases, arrays by file and tensor name) of a pack; BadPack if anything is missing or not as the index says."""
    path = Path(pack) / "index.json"
    try:
        index = json.loads(path.read_bytes())
        files = {name: tensors(path.with_name(name), entry) for name, entry in index["files"].items()}
        for case in index["cases"]:  # a KeyError if anything is missing
            case["name"], case["prose"]
            [files[t["file"]][t["tensor"]] for part in ("inputs", "outputs") for t in case[part].values()]
    except OSError as error:
        raise BadPack(f"{error.filename} cannot be read: {error.strerror}") from None
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise BadPack(f"{path} lacks a key, or is not what a pack holds: {error!r}") from None
    return index["cases"], files


def difference(got: np.ndarray, expected: np.ndarray, inputs: dict, name: str = "") -> str | None:
    """None, or the first difference of one output in words."""
    if name == "outer" and got.squeeze().shape == expected.squeeze().shape:
        got = got.reshape(expected.shape)
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"got {got.dtype} {list(got.shape)}, expected {expected.dtype} {list(expected.shape)}"
    e, g = (np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in (expected, got))
    if len(bad := np.argwhere((e != g) & ((got == got) | (expected == expected)))):
        at, n = tuple(bad[0].tolist()), 2 * e.itemsize
        beside = "".join(f", {name} {x[at]}" for name, x in inputs.items() if x.shape == got.shape)
        pair = f"expected {expected[at]} (0x{e[at]:0{n}X}), got {got[at]} (0x{g[at]:0{n}X}){beside}"
        return f"{len(bad)} of {got.size} differ, first at {list(at)}: {pair}"


def judge(kernel, case: dict, files: dict) -> list[str] | None:
    """None if the kernel does not do this case, else complaints and then the contract, or nothing if it passed."""
    inputs, wanted = ({k: files[t["file"]][t["tensor"]] for k, t in case[p].items()} for p in ("inputs", "outputs"))
    try:
        got = kernel(case, {name: x.copy() for name, x in inputs.items()})
        found = {k: difference(np.asarray(got[k]), x, inputs, k) for k, x in wanted.items() if got is not None}
    except Exception as error:  # of the kernel under test: its other cases still run
        found = {"the kernel raised": repr(error)}
    lines = [f"{name}: {text}" for name, text in found.items() if text]
    return lines + [case["prose"]] * bool(lines) if found else None


def main(pack: str, *options: str) -> bool | None:
    cases, files = load(pack)
    if not options:
        return print(*(f"{c['name']}: {', '.join(c['inputs'])} -> {', '.join(c['outputs'])}" for c in cases), sep="\n")
    sys.path.insert(0, str(Path.cwd()))
    try:
        kernel, count = pkgutil.resolve_name(options[1]), {"passed": 0, "FAILED": 0, "not run": 0}
    except (ImportError, AttributeError, ValueError) as error:
        raise BadPack(f"--kernel {options[1]} cannot be imported: {error}; name mymodule:function") from None
    for case in cases:
        found = judge(kernel, case, files)
        verdict = "not run" if found is None else "FAILED" if found else "passed"
        count[verdict] += 1
        if verdict != "not run" or "--all" in options:
            print(f"{verdict:<8}{case['name']}", *(found or ()), sep="\n    ")
    print(", ".join(f"{n} {verdict}" for verdict, n in count.items()))
    return count["FAILED"] > 0 or not count["passed"] or (count["not run"] > 0 and "--all" in options)


if __name__ == "__main__":
    try:
        pack, *options = sys.argv[1:] or ["--help"]
        if "-h" in sys.argv or "--help" in sys.argv:
            sys.exit(print(__doc__))
        fits = not options or (options[0] == "--kernel" and len(options) > 1 and options[2:] in ([], ["--all"]))
        sys.exit(main(pack, *options) if fits else __doc__)
    except BadPack as problem:
        sys.exit(f"vectors_reader: {problem}")
