"""The conformance pack as a FlashInfer-Bench data set: `fourbit vectors --flashinfer`.

    definitions/OPERATION/NAME.json        inputs, outputs, axes and a reference: Python with a function `run`
    workloads/OPERATION/NAME.jsonl         a line for each case: axes, and where its inputs lie
    blob/workloads/OPERATION/NAME.safetensors   the inputs

The format is FlashInfer Trace (github.com/flashinfer-ai/flashinfer-bench, docs/flashinfer_trace). A definition is an
operation with its parameters; cases of the pack that share these, and the axes below, are its workloads.

    axes     An axis of an input varies. An axis of an output alone is a constant, since the schema derives none.
    dtypes   The schema has no unsigned integers: uint8, uint16 and uint32 are int8, int16 and int32 of the same bits.
    NaN      Its evaluator refuses outputs that are not finite, so cases that expect such floats are left out.
    reference   `vectors_kernel`, in numpy and ml_dtypes, on the CPU. It gives every byte of the pack.

    names    Outputs may not be named as inputs are: where they would, "new_" stands before them.

Its evaluator compares with tolerances of 1e-2 as a rule, by which scale bytes 120 and 121 are equal, and takes none of
0: run it with --rtol 1e-300 --atol 1e-300. `differs` here compares bits.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from .vectors_case import Case

SIGNED = {"uint8": "int8", "uint16": "int16", "uint32": "int32"}
INTERFACE = "# The interface of FlashInfer-Bench: torch tensors in the order of the definition, integers signed."
RUN = """
CASE = {case}
INPUTS = {inputs}
OUTPUTS = {outputs}


def run(*tensors):
    import torch

    part = {{}}
    for (name, dtype), x in zip(INPUTS.items(), tensors, strict=True):
        part[name] = x.detach().cpu().numpy().view(dtype).copy()
    found = kernel(CASE, part)
    results = []
    for name, dtype, stored in OUTPUTS:
        x = np.ascontiguousarray(np.asarray(found[name], dtype)).view(stored)
        results.append(torch.from_numpy(x).to(tensors[0].device if tensors else "cpu"))
    return tuple(results) if len(results) > 1 else results[0]
"""


@dataclass(frozen=True)
class Exported:
    """What is written: bytes by path in the folder, how many cases they hold, and which ones are left out."""

    files: dict[str, bytes]
    cases: int
    left_out: list[str]


def _outputs(case: Case) -> dict[str, np.ndarray]:
    """The outputs by their names in the definition."""
    return {f"new_{k}" if k in case.inputs else k: x for k, x in case.outputs.items()}


def _axes(case: Case) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]], dict[str, int]]:
    """(axes of the definition, axis names of each tensor, values of the axes that vary).

    An axis takes the name of an earlier axis of its length, at best one at the same place.
    """
    known: list[tuple[str, int, int]] = []
    axes: dict[str, dict[str, Any]] = {}
    names: dict[str, list[str]] = {}
    values: dict[str, int] = {}
    for part, given in ((case.inputs, True), (_outputs(case), False)):
        for tensor, x in part.items():
            names[tensor] = []
            for place, length in enumerate(x.shape):
                alike = [(at != place, name) for name, n, at in known if n == length]
                name = min(alike)[1] if alike else f"{tensor}_{place}"
                if not alike:
                    known.append((name, length, place))
                    axes[name] = {"type": "var"} if given else {"type": "const", "value": length}
                    values |= {name: length} if given else {}
                names[tensor].append(name)
    return axes, names, values


def _specs(part: dict[str, np.ndarray], names: dict[str, list[str]]) -> dict[str, Any]:
    return {k: {"shape": names[k], "dtype": SIGNED.get(x.dtype.name, x.dtype.name)} for k, x in part.items()}


def _reference(case: Case) -> str:
    """`vectors_kernel` and a `run` around it."""
    text = Path(__file__).with_name("vectors_kernel.py").read_text("utf-8")
    outputs = [(k, x.dtype.name, SIGNED.get(x.dtype.name, x.dtype.name)) for k, x in case.outputs.items()]
    told = {"operation": case.operation, "parameters": case.parameters, "name": case.name}
    return f"{text}\n\n{INTERFACE}\n" + RUN.format(
        case=told, inputs={k: x.dtype.name for k, x in case.inputs.items()}, outputs=outputs
    )


def definition(case: Case, name: str) -> dict[str, Any]:
    """The definition whose workload a case is."""
    axes, names, _ = _axes(case)
    return {
        "name": name,
        "op_type": case.operation,
        "axes": axes,
        "inputs": _specs(case.inputs, names),
        "outputs": _specs(_outputs(case), names),
        "reference": _reference(case),
        "tags": ["fourbit", "bitwise"],
        "description": case.prose,
    }


def _key(case: Case) -> str:
    """What cases of one definition share: everything but the shapes that vary and the reference's name of a case."""
    axes, names, _ = _axes(case)
    dtypes = {k: x.dtype.name for k, x in (case.inputs | _outputs(case)).items()}
    kind = case.name.rsplit("/", 2)[-2:] if case.operation == "matmul" else []
    return json.dumps([case.operation, case.parameters, case.prose, axes, names, dtypes, kind], sort_keys=True)


def _name(members: list[Case], taken: set[str]) -> str:
    """From the operation, the format and the first case; unique."""
    words = [members[0].operation, *members[0].name.split("/")[1:]]
    name = "fourbit_" + "_".join(words).lower().replace(".", "_")
    while name in taken:
        name += "_b"
    taken.add(name)
    return name


def exported(cases: list[Case], safetensors: Callable[[dict[str, np.ndarray]], bytes]) -> Exported:
    """All files of the data set, the same bytes everywhere. safetensors: gives the bytes of such a file."""
    finite = [c for c in cases if all(np.isfinite(x).all() for x in c.outputs.values() if x.dtype.kind == "f")]
    groups: dict[str, list[Case]] = {}
    for case in sorted(finite, key=lambda case: case.name):
        groups.setdefault(_key(case), []).append(case)
    files: dict[str, bytes] = {}
    taken: set[str] = set()
    for members in groups.values():
        name, op = _name(members, taken), members[0].operation
        blob = f"blob/workloads/{op}/{name}.safetensors"
        tensors, lines = {}, []
        for case in members:
            inputs = {k: {"type": "safetensors", "path": blob, "tensor_key": f"{case.name}/{k}"} for k in case.inputs}
            tensors |= {f"{case.name}/{k}": _signed(x) for k, x in case.inputs.items()}
            known = str(uuid.uuid5(uuid.NAMESPACE_URL, f"fourbit/{case.name}"))
            workload = {"axes": _axes(case)[2], "inputs": inputs, "uuid": known}
            lines.append(json.dumps({"definition": name, "workload": workload}))
        files[f"definitions/{op}/{name}.json"] = (json.dumps(definition(members[0], name), indent=1) + "\n").encode()
        files[f"workloads/{op}/{name}.jsonl"] = ("\n".join(lines) + "\n").encode()
        files[blob] = safetensors(tensors)
    left = sorted({case.name for case in cases} - {case.name for case in finite})
    return Exported(files, len(finite), left)


def _signed(x: np.ndarray) -> np.ndarray:
    return x.view(SIGNED.get(x.dtype.name, x.dtype.name))


# Reading it back.

Run = Callable[..., Any]


@dataclass(frozen=True)
class Workload:
    """A workload with its inputs. run: the definition's reference."""

    definition: dict[str, Any]
    uuid: str
    inputs: list[Tensor]
    run: Run


def compiled(source: str) -> Run:
    """The function `run` of a reference or a candidate, Python source."""
    scope: dict[str, Any] = {"__name__": "reference"}
    exec(compile(source, "reference", "exec"), scope)
    run: Run = scope["run"]
    return run


def workloads(folder: Path) -> Iterator[Workload]:
    """Every workload of a data set, by definition."""
    for path in sorted((folder / "definitions").rglob("*.json")):
        about = json.loads(path.read_text("utf-8"))
        run = compiled(about["reference"])
        lines = (folder / "workloads" / about["op_type"] / f"{about['name']}.jsonl").read_text("utf-8").splitlines()
        for line in lines:
            workload = json.loads(line)["workload"]
            held = {path: load_file(folder / path) for path in {s["path"] for s in workload["inputs"].values()}}
            tensors = [held[s["path"]][s["tensor_key"]] for s in (workload["inputs"][k] for k in about["inputs"])]
            yield Workload(about, workload["uuid"], tensors, run)


def outputs(run: Run, workload: Workload) -> list[Tensor]:
    """What a function gives for a workload, on copies of its inputs."""
    found = run(*(x.clone() for x in workload.inputs))
    return [found] if isinstance(found, Tensor) else list(found)


def differs(expected: list[Tensor], found: list[Tensor]) -> bool:
    """Whether a dtype, a shape or a bit differs."""
    if len(expected) != len(found):
        return True
    pairs = zip(expected, found, strict=True)
    return any(
        (e.dtype, e.shape) != (f.dtype, f.shape) or e.numpy().tobytes() != f.contiguous().numpy().tobytes()
        for e, f in pairs
    )
