"""The conformance pack as a FlashInfer-Bench data set: its schema, its references, and what its workloads find.

Contract: files of the published schema, which flashinfer-bench itself loads where it is installed; a reference gives
the pack's bytes; each fault of vectors_mutants.toml, a text of the reference replaced by another, fails a workload.
"""

import json
import tomllib
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch

from hw import vectors, vectors_flashinfer
from hw.vectors_case import Case
from hw.vectors_flashinfer import Workload, differs, outputs

pytest.importorskip("ml_dtypes", reason="not run: ml_dtypes is not installed")

MUTANTS = tomllib.loads(Path(__file__).with_name("vectors_mutants.toml").read_text("utf-8"))["mutant"]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [case for make in vectors.FAMILIES.values() for case in make()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pack") / "flashinfer"
    vectors.write_flashinfer(out)
    return out


@pytest.fixture(scope="module")
def loaded(folder: Path) -> list[Workload]:
    """All but products, whose exact sums take a second each."""
    return [w for w in vectors_flashinfer.workloads(folder) if w.definition["op_type"] != "matmul"]


@pytest.fixture(scope="module")
def expected(loaded: list[Workload]) -> list[list[torch.Tensor]]:
    return [outputs(w.run, w) for w in loaded]


def identity(case: Case) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"fourbit/{case.name}"))


def test_a_reference_gives_the_bytes_of_the_pack(
    cases: list[Case], loaded: list[Workload], expected: list[list[torch.Tensor]]
) -> None:
    """Of every case whose outputs are finite, under the schema's dtypes."""
    wanted = {identity(case): case for case in cases}
    assert len(loaded) > 260 and len({w.uuid for w in loaded}) == len(loaded)
    for workload, found in zip(loaded, expected, strict=True):
        case = wanted[workload.uuid]
        assert [name.removeprefix("new_") for name in workload.definition["outputs"]] == list(case.outputs)
        for x, y in zip(case.outputs.values(), found, strict=True):
            assert (tuple(y.shape), y.numpy().tobytes()) == (x.shape, x.tobytes()), case.name
    left = {case.name for case in cases if case.operation != "matmul"} - {wanted[w.uuid].name for w in loaded}
    assert left == {f"decode/{fmt}" for fmt in ("E4M3", "E5M2", "E8M0")} | {
        f"dequantize/{fmt}/not_finite" for fmt in ("NVFP4", "NVFP4_46", "MXFP8", "MXFP4", "MXS2F6")
    }


def source_of(old: str, new: str) -> str:
    text = Path(vectors_flashinfer.__file__).with_name("vectors_kernel.py").read_text("utf-8")
    assert text.count(old) == 1, old
    return text.replace(old, new)


def killer(old: str, new: str, loaded: list[Workload], expected: list[list[torch.Tensor]]) -> str | None:
    """The definition of the first workload that a candidate with the fault fails; None: it passes all."""
    scope: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source_of(old, new), "candidate", "exec"), scope)
    for workload, true in zip(loaded, expected, strict=True):
        exec(workload.definition["reference"].partition(vectors_flashinfer.INTERFACE)[2], scope)
        try:
            if differs(true, outputs(scope["run"], workload)):
                return str(workload.definition["name"])
        except Exception:  # of a candidate: an error is a failure
            return str(workload.definition["name"])
    return None


def test_the_workloads_kill_every_mutant(loaded: list[Workload], expected: list[list[torch.Tensor]]) -> None:
    """The kill score: 40 of 40."""
    survived = [m["name"] for m in MUTANTS if killer(m["text"], m["replacement"], loaded, expected) is None]
    assert survived == [] and len(MUTANTS) == 40


def test_definitions_keep_the_schema(folder: Path) -> None:
    """Names are unique and lie where they should, axes are defined, dtypes are the schema's."""
    dtypes = {"float32", "int64", "int32", "int16", "int8"}
    names = [path.stem for path in (folder / "definitions").rglob("*.json")]
    assert len(set(names)) == len(names) > 100
    for path in (folder / "definitions").rglob("*.json"):
        d = json.loads(path.read_text("utf-8"))
        assert (d["name"], d["op_type"]) == (path.stem, path.parent.name)
        assert not d["inputs"].keys() & d["outputs"].keys() and d["outputs"]
        for spec in [*d["inputs"].values(), *d["outputs"].values()]:
            assert spec["dtype"] in dtypes and set(spec["shape"]) <= d["axes"].keys()
        given = {axis for spec in d["inputs"].values() for axis in spec["shape"]}
        assert {name for name, axis in d["axes"].items() if axis["type"] == "var"} <= given
        for line in (folder / "workloads" / d["op_type"] / f"{d['name']}.jsonl").read_text("utf-8").splitlines():
            workload = json.loads(line)
            assert workload["definition"] == d["name"] and workload["workload"]["inputs"].keys() == d["inputs"].keys()


def test_flashinfer_bench_loads_it(folder: Path) -> None:
    """Its models accept every file, and it reads every tensor with the shape and dtype of the definition."""
    data = pytest.importorskip("flashinfer_bench.data", reason="not run: flashinfer-bench is not installed")
    bench = pytest.importorskip("flashinfer_bench.bench.utils")
    found = data.TraceSet.from_path(str(folder))
    assert set(found.definitions) == {path.stem for path in (folder / "definitions").rglob("*.json")}
    count = 0
    for name, traces in found.workloads.items():
        for trace in traces:
            assert trace.is_workload_trace()
            tensors = bench.load_safetensors(found.definitions[name], trace.workload, folder)
            inputs = bench.gen_inputs(found.definitions[name], trace.workload, "cpu", tensors)
            assert len(inputs) == len(found.definitions[name].inputs)
            count += 1
    assert count == 280


def test_the_evaluators_usual_tolerance_passes_a_wrong_scale_byte() -> None:
    """Why the command asks for tolerances of 1e-300."""
    bench = pytest.importorskip("flashinfer_bench.bench.utils", reason="not run: flashinfer-bench is not installed")
    from flashinfer_bench.bench.config import BenchmarkConfig

    true, wrong = torch.tensor([120], dtype=torch.int8), torch.tensor([121], dtype=torch.int8)
    assert not bench.compute_error_stats(wrong, true, BenchmarkConfig())[2]
    assert bench.compute_error_stats(wrong, true, BenchmarkConfig(rtol=1e-300, atol=1e-300))[2]
    assert differs([true], [wrong])
