"""The conformance pack as a FlashInfer-Bench data set: its schema, its references, and what its workloads find.

Contract: files of the published schema, which flashinfer-bench itself loads where it is installed; a reference gives
the pack's bytes; each fault of MUTANTS, a text of the reference replaced by another, fails a workload.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hw import vectors, vectors_flashinfer
from hw.vectors_case import Case
from hw.vectors_flashinfer import Workload, differs, outputs

pytest.importorskip("ml_dtypes", reason="not run: ml_dtypes is not installed")

# name, text of hw/vectors_kernel.py, replacement
MUTANTS = [
    ("ties away from zero", "codes = inside.astype(TYPES[fmt])", "codes = np.nextafter(inside, np.copysign(F32(np.inf), inside)).astype(TYPES[fmt])"),
    ("ties toward zero", "codes = inside.astype(TYPES[fmt])", "codes = np.nextafter(inside, F32(0)).astype(TYPES[fmt])"),
    ("rounded through BF16", "codes = inside.astype(TYPES[fmt])", "codes = inside.astype(ml_dtypes.bfloat16).astype(F32).astype(TYPES[fmt])"),
    ("NaN becomes 0", "np.where(np.isnan(x), np.uint8(NAN[fmt]), codes)", "codes"),
    ("no saturation of the negative side", "-2 if fmt == \"S2F6\" else -MAX[fmt]", "-2 if fmt == \"S2F6\" else -2 * MAX[fmt]"),
    ("S2F6 never below -127/64", "F32(-2 if fmt", "F32(-127 / 64 if fmt"),
    ("sign of zero lost", "y = np.copysign(y, folded)\n", "y = y + F32(0)\n"),
    ("stochastic: truncated", "astype(np.int64) + r) >> 16", "astype(np.int64) + 0 * r) >> 16"),
    ("stochastic: one too many", "astype(np.int64) + r) >> 16", "astype(np.int64) + r + 1) >> 16"),
    ("stochastic: nearest", "n = (np.floor(np.ldexp(magnitude, 16 - q)).astype(np.int64) + r) >> 16", "n = np.rint(np.ldexp(magnitude, -q)).astype(np.int64)"),
    ("random bits cut to 8", "split(words, p[\"element_bits\"])", "split(words, p[\"element_bits\"]) & 0xFF00"),
    ("random words: nine rounds", "for _ in range(10):", "for _ in range(9):"),
    ("one scale for two blocks", "bmax = np.where(finite, np.abs(folded).max(-1, keepdims=True), F32(0))", "bmax = np.where(finite, np.abs(folded).max(-1, keepdims=True), F32(0))\n    bmax = np.maximum(bmax, np.roll(bmax, 1, -2))"),
    ("scale of the neighbour block", "np.moveaxis(scales[..., 0], -1, p[\"axis\"])", "np.moveaxis(np.roll(scales[..., 0], 1, -1), -1, p[\"axis\"])"),
    ("a NaN spreads into the outer scale", "np.where(finite, np.abs(folded).max(-1, keepdims=True), F32(0))", "np.abs(folded).max(-1, keepdims=True)"),
    ("outer scale without a floor", "outer = np.maximum(amax / F32(limit), F32(2.0**-128))", "outer = amax / F32(limit)"),
    ("outer scale of zeros is 0", "np.where(amax == 0, F32(1), outer)", "np.where(amax == 0, F32(0), outer)"),
    ("encode scale not capped", "s_enc = np.minimum(F32(limit) / amax, FLT_MAX)", "s_enc = F32(limit) / amax"),
    ("outer scale from 2688 for four-over-six", "\"four_over_six\": 1536", "\"four_over_six\": 2688"),
    ("one outer scale for all rows", "\"row\": (-2, -1)", "\"row\": tuple(range(bmax.ndim))"),
    ("NVFP4: divided by 6", "cast(bmax * (s_enc * F32(1 / 6)), \"E4M3\")", "cast(bmax * s_enc / F32(6), \"E4M3\")"),
    ("NVFP4: division by the step", "element(x * np.minimum(F32(1) / (decode(scales, \"E4M3\") * (F32(1) / s_enc)), FLT_MAX))", "element(x / (decode(scales, \"E4M3\") * (F32(1) / s_enc)))"),
    ("four-over-six: a tie takes 4", "np.where(error4 < error6, scale4, scale6), np.where(error4 < error6,", "np.where(error4 <= error6, scale4, scale6), np.where(error4 <= error6,"),
    ("four-over-six: always 6", "np.where(error4 < error6, scale4, scale6), np.where(error4 < error6,", "np.where(error4 < 0, scale4, scale6), np.where(error4 < 0,"),
    ("four-over-six: error by magnitude", "tree(difference * difference)", "tree(np.abs(difference))"),
    ("four-over-six: sum from left to right", "tree(difference * difference)", "np.cumsum(difference * difference, -1, dtype=F32)[..., -1:]"),
    ("four-over-six: product with the reciprocal", "F32(0), x / step)", "F32(0), x * (F32(1) / step))"),
    ("subnormal scales rounded to nearest", "(t < 2.0**-6) & (decode(scales", "(t < 0) & (decode(scales"),
    ("power of two rounded down", "return (exponent + 127).astype(np.uint8), element(", "exponent = exponent - 1\n    return (exponent + 127).astype(np.uint8), element("),
    ("power of two raised at equality", "(np.ldexp(MAX[p[\"element\"]], exponent) < bmax)", "(np.ldexp(MAX[p[\"element\"]], exponent) <= bmax)"),
    ("power of two never below 2^-126", "exponent = np.full(bmax.shape, -127)", "exponent = np.full(bmax.shape, -126)"),
    ("blocks straddle groups", "p.get(\"groups\") or [0, x.shape[p[\"axis\"]]]", "[0, x.shape[p[\"axis\"]]]"),
    ("padding is not zero", "[(0, 0)] * (x.ndim - 1) + [(0, padding)])", "[(0, 0)] * (x.ndim - 1) + [(0, padding)], mode=\"constant\", constant_values=3)"),
    ("lost outer scale", "return values if outer is None else", "return values if True else"),
    ("outer scale before the block scale", "values = np.clip(back(decode(folded, p[\"element\"]) * scale[..., None]), -largest, largest)\n    return values if outer is None else np.clip(values * outer,", "values = back(decode(folded, p[\"element\"]))\n    scale = back(np.broadcast_to(scale[..., None], folded.shape))\n    return np.clip(values * scale, -largest, largest) if outer is None else np.clip(values * outer * scale,"),
    ("nibbles swapped", "codes[..., 0::2] | codes[..., 1::2] << 4", "codes[..., 1::2] | codes[..., 0::2] << 4"),
    ("swizzled scales: rows first", "r % 32 * 16 + r % 128 // 32 * 4", "r % 128 // 32 * 128 + r % 32 * 4"),
    ("Hadamard: missing factor", "return y * F32(n**-0.5)", "return y"),
    ("Hadamard: difference reversed", "(u + v, u - v)", "(u + v, v - u)"),
    ("weighted in the order of rows", "zip(part[\"slots\"].T, part[\"weights\"].T, strict=True)", "zip(part[\"slots\"].T[::-1], part[\"weights\"].T[::-1], strict=True)"),
]  # fmt: skip


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


def names_of(case: Case) -> str:
    return str(vectors_flashinfer.uuid.uuid5(vectors_flashinfer.uuid.NAMESPACE_URL, f"fourbit/{case.name}"))


def test_a_reference_gives_the_bytes_of_the_pack(
    cases: list[Case], loaded: list[Workload], expected: list[list[torch.Tensor]]
) -> None:
    """Of every case whose outputs are finite, under the schema's dtypes."""
    wanted = {names_of(case): case for case in cases}
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


def killers(old: str, new: str, loaded: list[Workload], expected: list[list[torch.Tensor]]) -> str | None:
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
    survived = [name for name, old, new in MUTANTS if killers(old, new, loaded, expected) is None]
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
