"""Names of tensors that `fourbit check` knows, and what it takes from them.

Contract: dumps under the names of ModelOpt, compressed-tensors, Transformer Engine, vLLM, DeepSeek pass as they are; a
name that says how the outer is stored, or how scales lie, is held to it. Oracle: the libraries' shapes, built here.
"""

from collections.abc import Callable

import pytest
import torch
from layout_dumps import EIGHT, FT, Dump, Q, X, pack, padded, te, tiled
from torch import Tensor

import numerics as nm
from hw.check import check
from numerics.scales import DIALECTS


def padded_as_te(x: Tensor, name: str, fmt: str = "NVFP4") -> Dump:
    """Transformer Engine's tensors: scales in the padded matrix of the swizzle, row-major."""
    q = DIALECTS[name].quantize(x, fmt)
    scales = q.scales if fmt == "NVFP4" else tiled(q.scales, len(x))
    grid = padded(scales, -(-len(x) // 128) * 128, -(-scales.shape[1] // 4) * 4)
    assert q.outer is not None
    return {"_rowwise_data": pack(q.codes), "_rowwise_scale_inv": grid, "_amax_rowwise": q.outer.reshape(-1)}


def rows_of_te(x: Tensor, name: str) -> Dump:
    """The same with an amax for each row."""
    parts = [padded_as_te(row, name) for row in x.split(1)]
    codes, amax = (torch.cat([part[key] for part in parts]) for key in ("_rowwise_data", "_amax_rowwise"))
    scales = torch.cat([part["_rowwise_scale_inv"][:1] for part in parts])
    return {"_rowwise_data": codes, "_rowwise_scale_inv": padded(scales, 128, scales.shape[1]), "_amax_rowwise": amax}


def columns_of_te(x: Tensor, name: str) -> Dump:
    return {key.replace("rowwise", "columnwise"): t for key, t in rows_of_te(x.T.contiguous(), name).items()}


Y = X[:64]  # 64 rows: 4 scales a column
NAMES: dict[str, tuple[Callable[[], Dump], dict]] = {
    "ModelOpt": (
        lambda: (
            {"weight": pack((q := DIALECTS["modelopt"].quantize(X)).codes), "weight_scale": q.scales.view(torch.uint8)}
            | {"x": X, "weight_scale_2": q.outer, "input_scale": torch.ones(())}
        ),
        {"contract": "modelopt"},
    ),
    "compressed-tensors": (
        lambda: (
            {"model.layers.0.weight_packed": pack((q := DIALECTS["compressed_tensors"].quantize(X)).codes)}
            | {"model.layers.0.weight_scale": q.scales.view(torch.float8_e4m3fn), "input": X}
            | {"model.layers.0.weight_global_scale": q.outer.flatten(), "model.layers.0.input_global_scale": q.outer}
        ),
        {"contract": "compressed_tensors"},
    ),
    "Transformer Engine": (lambda: {"x": X} | padded_as_te(X, "te"), {"contract": "te"}),
    "its tiles": (lambda: {"x": X[:96]} | padded_as_te(X[:96], "te", "NVFP4_2D"), {"contract": "te"}),
    "its rows": (lambda: {"x": X} | rows_of_te(X, "te"), {"contract": "te"}),
    "its columns, four over six": (
        lambda: {"x": Y} | columns_of_te(Y, "te_46") | padded_as_te(Y, "te"),
        {"axis": -2, "contract": "te_46"},
    ),
    "vLLM": (
        lambda: (
            {"w13_weight": pack(Q.codes), "w13_blockscale_swizzled": nm.layout.swizzle_scales(Q.scales).view(128, 8)}
            | {"x": X, "w13_weight_scale_2": Q.outer.float() / 2688, "w13_input_scale": torch.ones(())}
        ),
        {},
    ),
    "DeepSeek": (
        lambda: {
            "original": EIGHT,
            "weight": FT.codes.view(torch.float8_e4m3fn),
            "weight_scale_inv": FT.scales,
        },
        {"fmt": "fp8_128x128"},
    ),
    "a weight and its codes": (lambda: {"weight": X, "weight_packed": pack(Q.codes), "sf": Q.scales}, {}),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_libraries_are_known(name: str):
    make, how = NAMES[name]
    report = check(make(), **how)
    assert report and report.contracts, str(report)


FACTOR = X.abs().max() / 2688


@pytest.mark.parametrize("called", ["weight_scale_2", "weight_global_scale", "global_sf", "amax", "per_tensor_scale"])
@pytest.mark.parametrize("stored", ["multiply by", "divide by", "largest magnitude"])
def test_a_name_says_in_which_direction_an_outer_is_stored(called: str, stored: str):
    """The same codes and scales, beside an outer in each direction under each name."""
    said = {"weight_global_scale": "divide by", "global_sf": "divide by", "amax": "largest magnitude"}
    numbers = {"multiply by": FACTOR, "divide by": 1 / FACTOR, "largest magnitude": FACTOR * 2688}
    report = check({"x": X, "codes": Q.codes, "scales": Q.scales, called: numbers[stored]})
    right = said.get(called, "multiply by")
    assert bool(report) == (stored == right), str(report)
    if not report:
        words = f"the outer scale is called {called!r}, "
        assert words in report.faults[0] and right in report.faults[0] and f"{stored} is stored" in report.faults[0]
    assert check({"x": X, "codes": Q.codes, "scales": Q.scales, "outer": numbers[stored]})


def test_a_padded_matrix_is_a_fault_only_where_nothing_says_so():
    d = te(scales=padded(Q.scales, 128, 8))
    assert "the scales are not swizzled" in check(d).faults[0] and check(d, scale_layout="row-major")
