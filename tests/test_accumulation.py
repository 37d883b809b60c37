"""The accumulation study: what it compares, that its claims hold on a small sample, and that words follow numbers.

Oracle: the scalar twin of the products, closed forms, identities of squared errors, and for scaled blocks on Hopper the
definition, one block after the other. Tolerances are derived where they stand.
"""

import math

import pandas as pd
import pytest
import torch

import numerics as nm
from numerics import oracle_matmul
from studies import accumulation as study
from studies import accumulation_cases as cases
from studies.accumulation_published import about, published
from studies.interval import Interval

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = study.Size((64, 512), 8, 16, (256,), (0, 1))


@pytest.fixture(scope="module")
def frames(one_thread: None) -> study.Frames:
    return study.measure(SMALL)


def test_every_accumulator_is_covered() -> None:
    """A row of the table that is not measured has the arithmetic of one that is; no two measured ones agree."""
    measured = [cases.arithmetic(name) for name in cases.CASES]
    assert len(set(measured)) == len(measured)
    assert {cases.arithmetic(name) for name in nm.ACCUMULATORS if name != "exact"} == set(measured)


@pytest.mark.parametrize("data", cases.DATA)
def test_data_are_what_they_say(data: str) -> None:
    a, b = (x.double() for x in cases.make(data, 0, 8, 256))
    products = a[:, None] * b[None]
    sizes = products.abs().sum(-1)
    left, half = (float((products[..., :k].sum(-1).abs() / sizes).mean()) for k in (256, 128))
    assert a.shape == b.shape == (8, 256)
    if data == "one sign":
        assert float(products.min()) > 0
    elif data == "random":  # sqrt(2 / pi K) over the mean size (2 / pi): .08
        assert 0.04 < left < 0.15
    else:  # noise of 1/8 in each of K / 2 pairs: about 1/8 / sqrt(2 K)
        assert left < 0.02 and (half > 0.4) == (data == "cancelling, far")


def test_errors_are_those_of_the_scalar_twin(frames: study.Frames) -> None:
    """hopper_fp8 at K = 64 on data of one sign, result by result in rationals: rms, signed error and their names."""
    seed, k = 1, 64
    a, b = (nm.encode(x, nm.E4M3).tolist() for x in cases.make("one sign", seed, SMALL.side, k))
    first, second = ([oracle_matmul.Line(nm.E4M3, codes) for codes in x] for x in (a, b))
    pairs = [(x, y) for x in first for y in second]
    found = [oracle_matmul.dot("hopper_fp8", x, y) for x, y in pairs]
    exact = [oracle_matmul.dot("exact", x, y) for x, y in pairs]
    energy = math.fsum(e * e for e in exact)
    off = [f - e for f, e in zip(found, exact, strict=True)]
    rows = frames["growth"]
    at = (rows.accumulator == "hopper_fp8") & (rows.data == "one sign") & (rows.k == k) & (rows.seed == seed)
    [row] = rows[at].itertuples()
    assert row.n == len(off)
    assert row.rms == pytest.approx(math.sqrt(math.fsum(d * d for d in off) / energy), rel=1e-12)
    assert row.bias == pytest.approx(math.fsum(d * e for d, e in zip(off, exact, strict=True)) / energy, rel=1e-12)
    assert row.bias < 0


def test_fine_products_of_one_sign_lose_what_the_formula_says() -> None:
    """Volta's short steps cut FP16 products of 22 bits as the derivation assumes: within 15 %, for a mean of
    2^e over binades that is not yet reached at one K, and cuts of the step's sum, one for every four products."""
    a, b = cases.make("one sign", 0, 8, 4096)
    x, y = (cases.operand(each, "volta_fp16") for each in (a, b))
    bias = nm.metrics.error(nm.matmul(x, y), nm.matmul(x, y, accumulator="volta_fp16")).bias
    expected = study.expected_loss(4096, 23)
    assert expected == pytest.approx(4096 * 2.0**-24 / (4 * math.log(2)), rel=1e-12)
    assert -bias == pytest.approx(expected, rel=0.15)


def test_the_order_of_accumulators_and_what_promotion_does(frames: study.Frames) -> None:
    rms = frames["growth"].groupby(["accumulator", "data", "k"]).rms.mean()
    for data in cases.DATA:
        order = ["blackwell_nvfp4", "blackwell_fp8", "hopper_bf16", "hopper_fp8"]
        errors = [rms[name, data, 512] for name in order]
        assert errors == sorted(errors) and errors[-1] > 300 * errors[-2]
    assert rms["hopper_fp8", "one sign", 512] > 8 * rms["hopper_fp8", "one sign", 64]
    part = frames["promotion"]
    assert part.split_equals.all()
    mean = part[part.data == "one sign"].groupby("every").rms.mean()
    assert mean.is_monotonic_increasing and mean[4096] > 50 * mean[128] > 50 * mean[32]


def test_parts_add_up(frames: study.Frames) -> None:
    """|t + a|^2 = |t|^2 + |a|^2 + 2 t a, to rounding in float64."""
    rows = frames["recipe"]
    total = rows.quantization + rows.accumulation + rows.cross
    assert total.tolist() == pytest.approx(rows.total.tolist(), rel=1e-10)
    assert rows.share.tolist() == pytest.approx((rows.accumulation / rows.total).tolist(), rel=1e-12)
    assert (rows[rows["product"] != "plain FP8"].share < 1e-3).all()
    true, exact, found = torch.tensor([4.0, 0.0]), torch.tensor([4.0, 1.0]), torch.tensor([4.0, -1.0])
    known = {"total": 1 / 16, "quantization": 1 / 16, "accumulation": 4 / 16, "cross": -4 / 16, "share": 4.0}
    assert cases.parts(true, exact, found) == known | {"increase": 0.0}


@pytest.mark.parametrize("product", cases.PRODUCTS)
def test_routes_take_the_operands_values(product: str) -> None:
    """With few products BF16 sums are near the exact ones; those of scaled FP8 blocks are the definition's."""
    a, b, true = cases._PRODUCTS[product](*cases.make("random", 5, 8, 64), 5)
    dense = a.dequantize().double() @ b.dequantize().double().mT
    bound = 1e-6 * float(dense.abs().max())  # 64 products, each cut at 2^-25 of the largest
    assert float((cases.summed(a, b, cases.HOPPER_BF16).double() - dense).abs().max()) < bound
    assert nm.metrics.error(true, dense).rel_mse < 0.05
    if product == "forward":
        return
    found = cases.summed(a, b, cases.BACKWARD_ROUTES[2])
    for i, j in ((0, 0), (3, 7)):
        register = 0.0
        for k in (slice(0, 32), slice(32, 64)):
            elements = [nm.decode(x.codes[r : r + 1, k], nm.E4M3).float() for x, r in ((a, i), (b, j))]
            block = float(nm.matmul(*elements, accumulator="hopper_fp8"))
            for x, r in ((a, i), (b, j)):
                block *= float(nm.decode(x.scales[r, k.start // 32], nm.E8M0))
            register = float(torch.tensor(register) + torch.tensor(block))
        outer = torch.tensor(1.0) if b.outer is None else b.outer.flatten()[0]
        assert float(found[i, j]) == float(torch.tensor(register) * outer)


def test_the_published_table(frames: study.Frames) -> None:
    frame = published(frames).frame.set_index("quantity")
    assert frame.verdict["bits that Hopper's FP8 register keeps"] == "agrees"
    assert cases.significant_bits("blackwell_fp8") == 19  # all that were tried
    assert (frame[frame.index.str.startswith("2^23")].verdict == "agrees").all()
    assert frame.index.str.startswith("hopper_fp8, K = 4096").sum() == 9
    other = frames | {"largest": frames["largest"].assign(of_rms=0.02, of_largest=0.02, of_result=0.02)}
    assert "is met by 9 of 9 readings" in about(other) and "is 2 to 2 % on data of both" in about(other)


def test_words_follow_numbers(frames: study.Frames) -> None:
    found = " ".join(study.find(frames))
    assert "hardly matters there" in found and "the same bits as promotion" in found
    assert "All" not in found and "err no more than FP32 sums" in found
    rows = frames["growth"].assign(rms=1.0, bias=0.5)
    rows.loc[rows.accumulator == "fp32", "rms"] = 0.5
    recipe = frames["recipe"].assign(share=0.4, increase=0.001)
    assert "the accumulator matters there" in " ".join(study.find(frames | {"recipe": recipe}))
    recipe = frames["recipe"].assign(share=1e-4, increase=0.7)
    promotion = frames["promotion"].assign(split_equals=False)
    other = " ".join(study.find(frames | {"growth": rows, "recipe": recipe, "promotion": promotion}))
    assert "No tensor core errs no more than FP32" in other and "are exact at every K" not in other
    assert "not always short, significantly so under 0 of 9" in other
    assert "the accumulator matters there" in other and "by 70.000 ± 0.000 %" in other
    assert "gives other bits than promotion" in other


def test_numbers_in_words() -> None:
    assert study.scientific(Interval(0.0, 0.0)) == "0"
    assert study.scientific(Interval(-1.234e-4, 5e-6)) == "-1.23e-4 ± 0.05e-4"
    rows = pd.DataFrame({"seed": [0, 0, 1, 1], "k": [64, 256, 64, 256], "rms": [1.0, 4.0, 1.0, 4.0]})
    exponent = study.growth_exponent(rows)
    assert exponent is not None and exponent.mean == pytest.approx(1)
    assert study.growth_exponent(rows.assign(rms=0.0)) is None
