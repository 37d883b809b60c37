"""Contract of reference.packed: in the layouts of compressed-tensors and modelopt codes and scales are those of the
model's forward, byte for byte; values are those of the dialect's order, and ours outright where the outer scale is a
power of two.

Oracles: what the forward itself multiplies (`ops.quantize_tokens`); the packages' own decompression and conversion,
where they are installed.
"""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from export_models import MODELS, SIZES, loaded
from torch import Tensor

import numerics as nm
from numerics import BlockTensor, ops
from numerics.ops import Cast
from reference.architectures import Place, places
from reference.export import Exported, export
from reference.load import Loaded
from reference.packed import MXFP8, NVFP4, Matrix, kind_of, modelopt_config, scaled


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


def forward(run: Loaded, place: Place) -> tuple[BlockTensor, int]:
    """What the forward multiplies, and which of its matrices the place is in."""
    weight = run.model.state_dict()[place.ours]
    layer = int(place.ours.split(".")[1])
    q = ops.quantize_tokens(weight if weight.ndim == 3 else weight[None], run.model.recipes[layer].weight)
    return q, place.expert or 0


def rows(run: Loaded, place: Place, part: Tensor) -> Tensor:
    return part[place.start : place.stop]


def quantized(run: Loaded, found: Exported) -> list[Place]:
    return [place for place in places(run.model.config) if place.module in found.kinds]


def unpacked(byte: Tensor) -> Tensor:
    """The even index is in the low nibble."""
    return torch.stack([byte & 15, byte >> 4], dim=-1).flatten(-2)


def with_shared(run: Loaded) -> Loaded:
    """The same model with a recipe that quantizes shared experts too."""
    run.model.recipe = replace(run.model.recipe, shared=True)
    return run


@pytest.mark.parametrize("to", ["compressed-tensors", "modelopt"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("preset", ["fourbit", "fourbit_2d_weights", "nvfp4_46"])
def test_codes_and_scales_are_the_forwards(preset: str, kind: str, to: Any) -> None:
    run = loaded(preset, MODELS[kind])
    found = export(run, to)
    seen = set()
    for place in quantized(run, found):
        q, expert = forward(run, place)
        part = {
            name.removeprefix(f"{place.module}."): t for name, t in found.tensors.items() if place.module + "." in name
        }
        seen.add(found.kinds[place.module])
        packed = part.get("weight_packed", part.get("weight"))
        four = q.fmt.element is nm.E2M1
        assert packed is not None and packed.dtype == (torch.uint8 if four else torch.float8_e4m3fn)
        codes = unpacked(packed) if four else packed.view(torch.uint8)
        assert torch.equal(codes, rows(run, place, q.codes[expert]))
        scales = q.scales[expert].repeat_interleave(q.fmt.tile, 0)
        assert part["weight_scale"].dtype == (torch.float8_e4m3fn if four else torch.uint8)
        assert torch.equal(part["weight_scale"].view(torch.uint8), rows(run, place, scales))
        if four and to == "modelopt":
            assert part["weight_scale_2"] == q.outer.expand(len(q.codes), 1, 1)[expert]
        elif four:
            assert part["weight_global_scale"] == torch.ones(1) / q.outer.expand(len(q.codes), 1, 1)[expert, 0]
        assert len(part) == (3 if four else 2)
    layers = 6 - MODELS[kind].dense_layers
    assert len(quantized(run, found)) == layers * 4 * 3
    assert seen == ({NVFP4} if preset == "nvfp4_46" else {NVFP4, MXFP8})


@pytest.mark.parametrize("kind", ["qwen2_moe", "glm4_moe"])
def test_shared_experts_follow_a_recipe_that_says_so(kind: str) -> None:
    """The factor of two of a gate that is 1/2 goes to the outer scale, or the exponents of scales."""
    run = with_shared(loaded("fourbit", MODELS[kind]))
    found = export(run, "modelopt")
    factor = 2 if kind == "qwen2_moe" else 1
    shared = [place for place in quantized(run, found) if "shared" in place.theirs]
    assert len(shared) == 3 * (6 - MODELS[kind].dense_layers)
    for place in shared:
        (q, _), down = forward(run, place), place.module.endswith("down_proj")
        scale = found.tensors[f"{place.module}.weight_scale"].view(torch.uint8)
        by = factor if down else 1
        if q.outer is not None:
            assert found.tensors[f"{place.module}.weight_scale_2"] == q.outer[0] * by
        assert torch.equal(scale, rows(run, place, q.scales[0]) + (by - 1 if q.outer is None else 0))


# ---- compressed-tensors ----------------------------------------------------------------------------------------------


def decompressed(found: Exported) -> dict[str, Tensor]:
    """By the package: what its configuration targets, decompressed to BF16; the rest as it is."""
    reason = "pip install compressed-tensors"
    registry = pytest.importorskip("compressed_tensors.compressors", reason=reason).BaseCompressor
    matching = pytest.importorskip("compressed_tensors.utils.match", reason=reason)
    quantization = pytest.importorskip("compressed_tensors.quantization", reason=reason)
    config = quantization.QuantizationConfig.model_validate(found.config["quantization_config"])
    tensors, plain = dict(found.tensors), {}
    for group in config.config_groups.values():
        compressor = registry.get_value_from_registry(group.format)
        names = compressor.compression_param_names(group)
        hits = list(matching.match_quantizable_tensors(tensors, config.ignore, group.targets, param_targets=[names[0]]))
        for module, _ in hits:
            state = {name: tensors.pop(f"{module}.{name}") for name in names if f"{module}.{name}" in tensors}
            plain[f"{module}.weight"] = compressor.decompress(state, group)["weight"]
    return plain | tensors


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("preset", ["fourbit_pow2_outer", "fourbit", "mxfp8"])
def test_compressed_tensors_decompresses_the_same_values(preset: str, kind: str) -> None:
    run = loaded(preset, MODELS[kind])
    found = export(run, "compressed-tensors")
    plain = decompressed(found)
    assert set(plain) == set(export(run, "bf16").tensors)
    for place in quantized(run, found):
        q, expert = forward(run, place)
        value = rows(run, place, q.dequantize()[expert])
        if q.outer is not None and preset != "fourbit_pow2_outer":
            factor = nm.decode(q.scales[expert], nm.E4M3) / (torch.ones(()) / q.outer[expert])
            value = nm.decode(q.codes[expert], nm.E2M1) * factor.repeat_interleave(16, -1)
            value = rows(run, place, value).to(torch.bfloat16).to(torch.float32)
        assert plain[place.theirs].dtype == torch.bfloat16
        assert torch.equal(plain[place.theirs].to(torch.float32), value)


@pytest.mark.parametrize("kind", MODELS)
def test_every_quantized_module_is_the_target_of_one_group_and_no_other_is(kind: str) -> None:
    run = with_shared(loaded("fourbit", MODELS[kind])) if kind != "mixtral" else loaded("fourbit", MODELS[kind])
    found = export(run, "compressed-tensors")
    groups = found.config["quantization_config"]["config_groups"].values()
    assert found.config["quantization_config"]["format"] == "mixed-precision"
    for place in places(run.model.config):
        patterns = [(g["format"], t.removeprefix("re:")) for g in groups for t in g["targets"]]
        formats = [name for name, pattern in patterns if re.match(pattern, place.module)]
        kinds = found.kinds.get(place.module)
        assert formats == ([] if kinds is None else [kinds.compressed])


# ---- modelopt --------------------------------------------------------------------------------------------------------


def test_compressed_tensors_converts_the_modelopt_layout_into_its_own() -> None:
    """Its own converter gives the tensors of the other layout: one outer scale, told twice."""
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters", reason="optional")
    run = loaded("nvfp4_all", SIZES)
    converter = converters.ModelOptNvfp4Converter(targets=[r"re:.*\.experts\..*"])
    converted = converter.process(dict(export(run, "modelopt").tensors))
    ours = export(run, "compressed-tensors").tensors
    assert set(converted) == set(ours)
    for name, tensor in ours.items():
        same = converted[name].view(tensor.shape)  # their global scale has no dimension
        assert same.dtype == tensor.dtype and torch.equal(same.view(torch.uint8), tensor.view(torch.uint8))


def test_modelopt_decodes_the_same_values() -> None:
    """In its order, code x (scale x outer), and MXFP8 outright."""
    module = pytest.importorskip("modelopt.torch.quantization.qtensor", reason="pip install 'fourbit[peers]'")
    run = loaded("fourbit", SIZES)
    found = export(run, "modelopt")
    for place in quantized(run, found)[::5]:
        q, expert = forward(run, place)
        part = {
            name: found.tensors.get(f"{place.module}.{name}") for name in ("weight", "weight_scale", "weight_scale_2")
        }
        shape = rows(run, place, q.codes[expert]).shape
        if found.kinds[place.module] is NVFP4:
            tensor = module.NVFP4QTensor(shape, torch.float32, part["weight"])
            value = tensor.dequantize(
                torch.float32, scale=part["weight_scale"], double_scale=part["weight_scale_2"], block_sizes={-1: 16}
            )
            factor = nm.decode(q.scales[expert], nm.E4M3) * q.outer[expert]
            own = nm.decode(q.codes[expert], nm.E2M1) * factor.repeat_interleave(16, -1)
        else:
            tensor = module.MXFP8QTensor(shape, torch.float32, part["weight"])
            value, own = tensor.dequantize(torch.float32, scale=part["weight_scale"]), q.dequantize()[expert]
        assert torch.equal(value, rows(run, place, own))


def test_modelopts_configuration_lists_layers_where_formats_differ() -> None:
    run = loaded("fourbit", SIZES)
    details = export(run, "modelopt").modelopt["quantization"]
    assert details["quant_algo"] == "MIXED_PRECISION" and len(details["quantized_layers"]) == 6 * 4 * 3
    algorithms = {name.split(".")[2]: layer["quant_algo"] for name, layer in details["quantized_layers"].items()}
    assert algorithms == {str(i): "MXFP8" if i == 5 else "W4A16_NVFP4" for i in range(6)}
    one = export(loaded("nvfp4_all", SIZES), "modelopt")
    assert one.config["quantization_config"]["quant_algo"] == "W4A16_NVFP4"
    assert "lm_head" in one.config["quantization_config"]["ignore"]
    assert one.modelopt == modelopt_config(one.kinds, one.modelopt["quantization"]["exclude_modules"], "0.1.0")


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cast, dialect, told",
    [
        (Cast(nm.FP8_128X128), "compressed-tensors", "weights in FP8_128X128 have no place"),
        (Cast(nm.NVINT4, "leading"), "modelopt", "weights in NVINT4 have no place"),
        (Cast(nm.IF4, "leading"), "modelopt", "weights in IF4 have no place"),
        (Cast(nm.MXFP4), "modelopt", "weights in MXFP4 have no place in a modelopt export; export --to bf16"),
        (Cast(nm.NVFP4, 128), "modelopt", "weights with an outer scale per 128 have no place in a modelopt export"),
        (Cast(nm.NVFP4, "row"), "compressed-tensors", "weights with an outer scale per 'row' have no place"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_formats_that_a_layout_lacks_are_refused(cast: Cast, dialect: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        kind_of(cast, dialect)


def test_scales_that_cannot_double_are_refused() -> None:
    codes, scales = torch.zeros(2, 32, dtype=torch.uint8), torch.full((2, 1), 254, dtype=torch.uint8)
    with pytest.raises(ValueError, match=re.escape("scales of a.down_proj reach 2^127")):
        scaled(Matrix(MXFP8, codes, scales, torch.ones(())), 2.0, "a.down_proj")
    assert scaled(Matrix(MXFP8, codes, scales - 1, torch.ones(())), 2.0, "a").scales[0] == 254
