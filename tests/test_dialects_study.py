"""The dialects study: bytes and errors compared rightly, and a finding that follows the data.

Contract: a block differs if its scale byte or any of its codes does, and every such block is counted, once; SQNR is
that of each dialect's own decoded values, tokens weighing the same; gains are paired; the finding, the classes and the
figure say what the rows hold. Oracles: `nm.scales.identify`, counts by hand on tensors where dialects are known to
differ, loops over blocks, decoding and errors in numpy, and statistics taken from the rows anew.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import numerics as nm
from studies import dialects as study
from studies import dialects_cases as cases
from studies.result import Result

DIALECTS = nm.scales.DIALECTS


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small operations are fastest on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def result(one_thread: None) -> Result:
    return study.run(fast=True)


@pytest.fixture(scope="module")
def found(result: Result) -> cases.Cases:
    """Every case of the fast run."""
    return cases.summarize(result.rows)


def compare(x: torch.Tensor, fmt: str) -> pd.DataFrame:
    """Rows of one tensor, by (dialect, other)."""
    return cases.compare(x, fmt, lambda name: None).set_index(["dialect", "other"])


def parts(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    """(format, kind, dtype) and its rows."""
    return iter(rows.groupby(["format", "kind", "dtype"], sort=False))


# ---- data ------------------------------------------------------------------------------------------------------------


def test_tensors_are_those_of_their_seed() -> None:
    for make in cases.KINDS.values():
        x = make(3, 4, 64)
        assert x.shape == (4, 64) and x.dtype == torch.float32
        assert torch.equal(x, make(3, 4, 64)) and not torch.equal(x, make(4, 4, 64))
        assert bool(torch.isfinite(x).all()) and bool((x != 0).all())


def test_tokens_have_the_scales_and_the_tails_that_are_stated() -> None:
    """Token i of T is exp(2 z) times Student's t, z at (i + 1/2) / T; quartiles and tails of t are scipy's.

    The density of |t| at its median is .56, so the median of 4096 has a standard deviation of .5 / (64 * .56), 2 % of
    it: 10 % are five. Of 32,768 values a share of .011 beyond 4 has one of .0006: .003 are five.
    """
    x = cases.heavy_tokens(0, 8, 4096).double().numpy()
    scale = np.exp(2 * stats.norm.ppf((np.arange(8) + 0.5) / 8))
    unit = np.abs(x) / scale[:, None]
    assert np.median(unit, axis=1) == pytest.approx(stats.t.ppf(0.75, 5), rel=0.1)
    assert (unit > 4).mean() == pytest.approx(2 * stats.t.sf(4, 5), abs=0.003)


def test_both_dtypes_hold_the_same_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    compared = cases.compare
    monkeypatch.setattr(cases, "compare", lambda x, fmt, done: seen.append((x, fmt)) or compared(x, fmt, done))
    rows = cases.measure(2, 64, (5,))
    assert [fmt for _, fmt in seen] == ["NVFP4", "MXFP4", "MXFP8"] * 4
    for kind, (low, high) in zip(cases.KINDS.values(), (seen[:6:3], seen[6::3]), strict=True):
        x = kind(5, 2, 64)
        assert torch.equal(low[0], x.to(torch.bfloat16)) and torch.equal(high[0], x)
    assert rows.seed.unique().tolist() == [5] and rows.dialect.nunique() == len(DIALECTS)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def known() -> torch.Tensor:
    """bfloat16, with zero blocks and blocks whose scales are subnormal or underflow."""
    x = torch.randn(16, 128, generator=torch.Generator().manual_seed(5))
    x[0, 16:48] = 0
    x[2] *= 3e-6
    x[3] *= 2e-7
    return x.bfloat16()


@pytest.mark.parametrize("fmt", cases.REFERENCES)
def test_dialects_that_identify_takes_for_each_other_agree_and_no_others(fmt: str) -> None:
    x = known()
    rows = compare(x, fmt)
    agreed = 0
    for name in cases.names(fmt):
        q = DIALECTS[name].quantize(x, fmt)
        for verdict in nm.scales.identify(x, q.codes, q.scales, fmt=fmt):
            other = verdict.dialect.name
            assert (rows.differing[name, other] == 0) == verdict.same
            # a differing scale is a differing block
            assert verdict.scales <= rows.differing[name, other] <= verdict.scales + verdict.codes
            agreed += verdict.same and other != name
    assert agreed > 0


@pytest.mark.parametrize("fmt", cases.REFERENCES)
def test_counts_are_those_of_a_loop_over_blocks(fmt: str) -> None:
    x, block = known(), cases.BLOCKS[fmt]
    rows = compare(x, fmt)
    assert rows.blocks.unique().tolist() == [x.numel() // block] and block == getattr(nm, fmt).block
    names = cases.names(fmt)[::3]
    made = {name: DIALECTS[name].quantize(x, fmt) for name in names}
    for a, b in itertools.product(names, names):
        count = 0
        for token, start in itertools.product(range(16), range(0, 128, block)):
            at, part = (token, start // block), (token, slice(start, start + block))
            codes = made[a].codes[part].tolist() != made[b].codes[part].tolist()
            count += codes or int(made[a].scales[at]) != int(made[b].scales[at])
        assert rows.differing[a, b] == count


def test_one_byte_makes_a_block_differ() -> None:
    """Four blocks; the last code of block 1, the scale of block 2, and both of block 3 are changed."""
    codes, scales = torch.arange(64, dtype=torch.uint8).reshape(2, 32) % 16, torch.full((2, 2), 9, dtype=torch.uint8)
    other, others = codes.clone(), scales.clone()
    other[0, 31] ^= 1
    others[1, 0] ^= 0x80
    other[1, 16], others[1, 1] = 3, 7
    made = torch.stack([cases.words(codes, scales, 16), cases.words(other, others, 16)])
    assert made.shape == (2, 4, 3)
    assert cases.differing(made).tolist() == [[0, 3], [3, 0]]


def test_zero_blocks_by_hand() -> None:
    """Of eight blocks three are zero: 0x00 in te, 0x08 in torchao, 0x38 in modelopt; the others are all alike."""
    x = torch.ones(2, 64)
    x[0, 16:48], x[1, 48:] = 0, 0
    rows = compare(x, "NVFP4").differing
    assert (rows["te", "torchao"], rows["te", "modelopt"], rows["torchao", "modelopt"]) == (3, 3, 3)
    assert (rows["te", "te_kernel"], rows["modelopt", "quartet_ii_torch"]) == (0, 0)


def test_a_scale_and_codes_by_hand() -> None:
    """Published: b = .76171875, A = 1.015625 is a tie of the scale, which te rounds up and exact to even. And four
    elements above 6 with a subnormal scale: fouroversix makes -0 of them, with the same scale."""
    x = torch.zeros(2, 32)
    x[:, 0], x[:, 16] = 0.76171875, 1.015625
    rows = compare(x, "NVFP4").differing
    assert rows["te", "exact"] == 2 and rows["te", "tetrajet_v2"] == 0
    x = torch.ones(1, 32)
    x[0, :5] = 6.4e-6 * torch.tensor([1, -0.97, 0.9, -0.8, 0.7])
    x[0, 5:16] = 0
    assert compare(x, "NVFP4").differing["te", "fouroversix_static_6"] == 1


# ---- errors ----------------------------------------------------------------------------------------------------------

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
ONE, SIXES = np.float32(1), np.float32(2688)
ORDERS = {  # q, s, A, all float32
    "te": lambda q, s, a: q * ((s * a) * (ONE / SIXES)),
    "torchao": lambda q, s, a: q * (s * (a / SIXES)),
    "fouroversix_static_6": lambda q, s, a: ((q * s) * a) / SIXES,
    "fourbit": lambda q, s, a: (q * s) * (a / SIXES),
    "flashinfer": lambda q, s, a: (q * s) * (ONE / ((ONE / a) * SIXES)),
    "torchao_one_level": lambda q, s, a: q * s,
}


def e4m3(code: int) -> float:
    exponent, mantissa = code >> 3, code & 7
    return math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)


SCALES = np.array([e4m3(code) for code in range(127)], np.float32)


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("name", ORDERS)
def test_sqnr_is_that_of_numpy(name: str, kind: str) -> None:
    """Decoded in numpy, errors in float64; 1e-11 dB is far below any change of a value, above the order of sums."""
    x = cases.KINDS[kind](1, 32, 256)
    q = DIALECTS[name].quantize(x, "NVFP4")
    scales = np.repeat(SCALES[q.scales.numpy()], 16, axis=1)
    decoded = ORDERS[name](E2M1[q.codes.numpy()], scales, np.abs(x.numpy()).max())
    exact = x.numpy().astype(np.float64)
    error = np.mean(((decoded.astype(np.float64) - exact) ** 2).sum(1) / (exact**2).sum(1))
    assert compare(x, "NVFP4").sqnr[name].unique() == pytest.approx([-10 * np.log10(error)], abs=1e-11)


def test_sqnr_of_mx_is_that_of_numpy() -> None:
    x = cases.normal(1, 32, 256)
    q = DIALECTS["rceil"].quantize(x, "MXFP4")
    decoded = E2M1[q.codes.numpy()] * np.repeat(np.ldexp(1.0, q.scales.numpy().astype(int) - 127), 32, axis=1)
    exact = x.numpy().astype(np.float64)
    error = np.mean(((decoded - exact) ** 2).sum(1) / (exact**2).sum(1))
    assert compare(x, "MXFP4").sqnr["rceil"].unique() == pytest.approx([-10 * np.log10(error)], abs=1e-11)


def test_every_token_weighs_the_same() -> None:
    """Relative errors 1/4 and 1/100 of tokens of energies 4 and 10^6: mean .13, 8.860566 dB."""
    x, x_q = torch.tensor([[2.0, 0.0], [0.0, 1000.0]]), torch.tensor([[1.0, 0.0], [0.0, 900.0]])
    assert cases.sqnr(x, x_q) == pytest.approx(8.860566, abs=1e-6)
    assert cases.sqnr(x, x) == math.inf


def test_on_normal_data_it_is_nearly_the_sqnr_of_the_tensor() -> None:
    """Energies of tokens of 1024 values spread by sqrt(2 / 1024) = 4.4 %; of weights that vary so much the mean over
    512 tokens moves by less than 1 %, .04 dB."""
    x = cases.normal(0, 512, 1024)
    x_q = DIALECTS["te"].dequantize(DIALECTS["te"].quantize(x))
    assert cases.sqnr(x, x_q) == pytest.approx(nm.metrics.error(x, x_q).qsnr, abs=0.04)


# ---- rows and cases --------------------------------------------------------------------------------------------------


def test_the_fast_run_is_complete(result: Result) -> None:
    pairs = sum(len(cases.names(fmt)) ** 2 for fmt in cases.REFERENCES)
    assert len(result.rows) == pairs * len(cases.KINDS) * len(cases.DTYPES) * len(result.seeds)
    assert len(result.seeds) >= 5 and set(result.rows.dialect) == set(DIALECTS)
    assert len(result.summary) == 12 and not result.rows.isna().any().any()


def test_matrices_are_symmetric_with_a_zero_diagonal(result: Result, found: cases.Cases) -> None:
    assert (result.rows.differing[result.rows.dialect == result.rows.other] == 0).all()
    for _, part in parts(result.rows):
        for seed in result.seeds:
            one = part[part.seed == seed].pivot(index="dialect", columns="other", values="differing")
            assert one.index.tolist() == one.columns.tolist() and np.array_equal(one, one.T)
    for case in found.values():
        shares = case.shares.to_numpy()
        assert np.array_equal(shares, shares.T) and not np.diag(shares).any() and 0 < shares.max() <= 1


def test_gains_are_paired(result: Result) -> None:
    rows = result.rows
    keys = ["format", "kind", "dtype", "seed"]
    own = rows[rows.dialect == rows.other].set_index([*keys, "dialect"]).sqnr
    both = rows.set_index([*keys, "dialect"]).sqnr, rows.set_index([*keys, "other"]).index
    assert np.array_equal(rows.gain, both[0].to_numpy() - own.loc[both[1]].to_numpy())
    assert np.array_equal(both[0].to_numpy(), own.loc[both[0].index].to_numpy())


def test_cases_are_statistics_of_the_rows(result: Result, found: cases.Cases) -> None:
    """Means and Student's half-widths, t(.975, n - 1) s / sqrt n, from the rows anew."""
    t = stats.t.ppf(0.975, len(result.seeds) - 1) / math.sqrt(len(result.seeds))
    for key, part in parts(result.rows):
        case, reference = cases.summarize(result.rows)[key], cases.REFERENCES[key[0]]
        for name in cases.names(key[0]):
            mine = part[part.dialect == name]
            for found, column, other in ((case.sqnr, "sqnr", name), (case.gain, "gain", reference)):
                values = mine[mine.other == other][column].to_numpy()
                assert found[name].mean == pytest.approx(values.mean(), abs=1e-12)
                assert found[name].half == pytest.approx(t * values.std(ddof=1), abs=1e-12)
            for other in cases.names(key[0]):
                both = mine[mine.other == other]
                assert case.shares.loc[name, other] == pytest.approx(
                    both.differing.sum() / both.blocks.sum(), rel=1e-12
                )
        means = part[part.dialect == part.other].groupby("dialect").sqnr.mean()
        assert means[case.best] == means.max() and means[case.worst] == means.min()
        apart = part[(part.dialect == case.best) & (part.other == case.worst)].gain
        assert case.apart.mean == pytest.approx(apart.mean()) and case.apart.half == pytest.approx(t * apart.std())


def test_classes_are_the_dialects_without_a_differing_block(result: Result, found: cases.Cases) -> None:
    for key, part in parts(result.rows):
        case, names = found[key], cases.names(key[0])
        differ = part.groupby(["dialect", "other"]).differing.sum().to_dict()
        of = {name: i for i, members in enumerate(case.classes) for name in members}
        assert sorted(of) == sorted(names) and sum(map(len, case.classes)) == len(names)
        assert all((of[a] == of[b]) == (differ[a, b] == 0) for a, b in itertools.product(names, names))
        unlike = {pair: n for pair in itertools.combinations(names, 2) if (n := differ[pair])}
        blocks = int(part.blocks.iloc[0]) * len(result.seeds)
        for told, end in ((case.least, min(unlike.values())), (case.most, max(unlike.values()))):
            at = [pair for pair, n in unlike.items() if n == end]
            assert (told.dialect, told.other, told.pairs) == (*at[0], len(at))
            assert told.share.mean == pytest.approx(end / blocks, rel=1e-12)
        assert any(len(members) > 1 for members in case.classes)


def test_in_the_order_classes_are_neighbours_and_the_best_come_first(found: cases.Cases) -> None:
    for fmt, kind in itertools.product(cases.REFERENCES, cases.KINDS):
        order, case = cases.order(found, fmt, kind), found[fmt, kind, "float32"]
        assert sorted(order) == sorted(cases.names(fmt))
        for members in case.classes:
            places = [order.index(name) for name in members]
            assert max(places) - min(places) == len(members) - 1
        # those alike differ by the order of products alone, 1e-6 dB
        sqnr = [case.sqnr[name].mean for name in order]
        assert all(b <= a + 1e-5 for a, b in itertools.pairwise(sqnr))
        assert sqnr[0] - sqnr[-1] == pytest.approx(case.apart.mean, abs=1e-5)


# ---- the finding and the figure --------------------------------------------------------------------------------------


def sections(finding: str) -> dict[tuple[str, str, str], str]:
    """The sentence of each (format, kind, dtype)."""
    found = {}
    for fmt, following in (("NVFP4", "MXFP4, "), ("MXFP4", "MXFP8, "), ("MXFP8", "the end")):
        text = finding.split(f"{fmt}, ")[1].split(following)[0]
        for kind, dtype in itertools.product(cases.KINDS, cases.DTYPES):
            rest = text.split(f"{kind.capitalize()}, {dtype}: ")[1]
            found[fmt, kind, dtype] = rest.split(" Normal, ")[0].split(" Tokens, ")[0]
    return found


def test_the_finding_states_what_was_measured(result: Result, found: cases.Cases) -> None:
    assert result.finding.startswith("5 seeds, 95 % intervals over seeds.")
    assert "NVFP4, 30 dialects, 4,096 blocks a seed: " in result.finding
    told, rows = sections(result.finding), result.rows
    for key, case in found.items():
        text = told[key]
        assert text.startswith(f"{len(case.classes)} byte pattern")
        for end in (case.least, case.most):
            pairs = f"{end.pairs} pairs" if end.pairs > 1 else f"{end.dialect} and {end.other}"
            assert any(f" {share} % ({pairs})" in text for share in share_texts(end))
        part = rows[(rows.format == key[0]) & (rows.kind == key[1]) & (rows.dtype == key[2])]
        means = part[part.dialect == part.other].groupby("dialect", sort=False).sqnr.mean()  # of equals the first
        assert f"best SQNR {means.idxmax()} {means.max():.3f} ± " in text
        assert f"worst {means.idxmin()} {means.min():.3f} ± " in text
        assert f", {means.max() - means.min():.3f} ± {case.apart.half:.3f} dB apart" in text


def share_texts(found: cases.Disagreement) -> list[str]:
    """The ways to write a share in percent with a half-width of two digits, from its numbers."""
    mean, half = 100 * found.share.mean, 100 * found.share.half
    if half == 0:
        return [f"{mean:.3g}"]
    return [f"{mean:.{digits}f} ± {half:.{digits}f}" for digits in range(1, 6) if 10 <= round(half * 10**digits) <= 100]


def test_the_finding_names_classes_and_what_is_not_significant(result: Result, found: cases.Cases) -> None:
    """In full where they are told first; later ones of the same names refer to that."""
    told = sections(result.finding)
    case, text = found["NVFP4", "normal", "float32"], told["NVFP4", "normal", "float32"]
    shared = [members for members in case.classes if len(members) > 1]
    assert "alike: " + "; ".join(", ".join(m[:-1]) + " and " + m[-1] for m in shared) + ")" in text
    case, text = found["NVFP4", "normal", "bfloat16"], told["NVFP4", "normal", "bfloat16"]
    same = [n for n, gain in case.gain.items() if n != "exact" and abs(gain.mean) <= gain.half]
    assert len(same) > 1 and "fourbit_46" not in same
    assert f"no significant difference to exact: {', '.join(same[:-1])} and {same[-1]}" in text
    together = cases.classes(
        result.rows[result.rows.format == "MXFP4"].groupby(["dialect", "other"], sort=False).differing.sum().unstack()
    )
    assert f"MXFP4, 7 dialects, 2,048 blocks a seed: {len(together)} byte patterns (alike: " in result.finding


def test_other_data_give_another_finding(result: Result) -> None:
    """Without a differing block and with equal errors, and with another worst one far below, the words say so."""
    rows = result.rows.assign(differing=0, sqnr=20.0, gain=0.0)
    found = study.find(rows)
    assert found.count("1 byte pattern (alike: te, te_kernel, ") == 1 and found.count("1 byte pattern (as on ") == 12
    assert "unlike" not in found and "0.000 ± 0.000 dB apart" in found and "significant one" not in found
    assert study.draw(rows).axes
    rows = result.rows.copy()
    bad = rows.dialect == "te"
    rows.loc[bad, ["sqnr", "gain"]] -= 7
    rows.loc[rows.other == "te", "gain"] += 7
    rows.loc[(bad | (rows.other == "te")) & (rows.dialect != rows.other), "differing"] = 1
    found = sections(study.find(rows))["NVFP4", "normal", "float32"]
    assert "worst te 1" in found and "significant difference to exact: te_kernel, " in found
    assert "alike: te_kernel, " in found and f"{1 / 4096:.2%}"[:-1].rstrip("0") in found
    assert study.find(rows) != study.find(result.rows)


def test_differences_are_significant_or_not_by_their_interval() -> None:
    def about(**gains: float) -> str:
        made = {name: study.Interval(mean, 0.01) for name, mean in gains.items()}
        return study._significance(made | {"small": study.Interval(-1e-4, 1e-5)}, "exact", "here", {})

    told = "no significant difference to exact: a and b; a significant one below 0.001 dB: small"
    assert about(exact=0.0, a=0.01, b=-0.009, c=0.011) == told
    assert about(exact=0.0, c=0.5) == "a significant one below 0.001 dB: small"
    large = {"exact": study.Interval(0, 0), "c": study.Interval(1, 0.1)}
    assert study._significance(large, "exact", "here", {}) == "all differ significantly from exact"


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (0.12345, 0.00678, "12.35 ± 0.68"),
        (0.00019, 0.0041, "0.02 ± 0.41"),
        (0.5, 0.2, "50 ± 20"),
        (1.0, 0.0, "100"),
        (1.9e-9, 4.1e-9, "1.9e-07 ± 4.1e-07"),
    ],
)
def test_two_digits_of_the_half_width(mean: float, half: float, text: str) -> None:
    assert study._two_digits(study.Interval(mean, half), 100) == text


def test_the_figure_shows_the_matrices(result: Result, found: cases.Cases) -> None:
    """Below the diagonal bfloat16, above it float32, nothing where dialects are alike; names down the side."""
    matrices = {axes.get_title(loc="left"): axes for axes in result.figure.axes if axes.get_title(loc="left")}
    assert len(matrices) == 6
    for title, axes in matrices.items():
        fmt, kind = title.split(", ")
        order = cases.order(found, fmt, kind)
        assert [label.get_text().split()[0] for label in axes.get_yticklabels()] == order
        [mesh] = axes.collections
        shown = mesh.get_array()
        for (i, a), (j, b) in itertools.product(enumerate(order), enumerate(order)):
            share = found[fmt, kind, "bfloat16" if i > j else "float32"].shares.loc[a, b]
            assert bool(np.ma.getmaskarray(shown)[i, j]) == (share == 0) and (share == 0 or shown[i, j] == share)


def test_rows_keep_their_bits_in_a_file(result: Result, tmp_path: Path) -> None:
    result.rows.to_csv(tmp_path / "rows.csv", index=False)
    read = pd.read_csv(tmp_path / "rows.csv", dtype=str)
    for name, column in result.rows.items():
        assert [type(value)(text) for text, value in zip(read[name], column.tolist(), strict=True)] == column.tolist()
