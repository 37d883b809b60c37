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
STUDIED = {name for name, d in DIALECTS.items() if set(d.formats) & set(cases.REFERENCES)}


pytestmark = pytest.mark.usefixtures("one_thread")


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
    assert rows.seed.unique().tolist() == [5] and set(rows.dialect) == STUDIED


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
    assert len(result.seeds) >= 5 and set(result.rows.dialect) == STUDIED
    assert len(result.summary) == 13 and not result.rows.isna().any().any()


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
        case, reference = found[key], cases.REFERENCES[key[0]]
        own, gains = part[part.dialect == part.other], part[part.other == reference]
        for told, values in ((case.sqnr, own.groupby("dialect").sqnr), (case.gain, gains.groupby("dialect").gain)):
            means, halves = values.mean(), t * values.std()
            assert {name: each.mean for name, each in told.items()} == pytest.approx(means.to_dict(), abs=1e-12)
            assert {name: each.half for name, each in told.items()} == pytest.approx(halves.to_dict(), abs=1e-12)
        counts = part.groupby(["dialect", "other"])[["differing", "blocks"]].sum()
        for pair, share in (counts.differing / counts.blocks).items():
            assert case.shares.loc[pair] == pytest.approx(share, rel=1e-12)
        means = own.groupby("dialect").sqnr.mean()
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


def sections(finding: str) -> dict[tuple[str, str], str]:
    """The sentence of each format and kind of data."""
    found = {}
    for fmt, following in (("NVFP4", "MXFP4, "), ("MXFP4", "MXFP8, "), ("MXFP8", "the end")):
        text = finding.split(f"{fmt}, ")[1].split(following)[0]
        normal, found[fmt, "tokens"] = text.strip().split(" Tokens: ")
        found[fmt, "normal"] = normal.split(" Normal: ")[1]
    return found


def both(texts: list[str]) -> str:
    """As the finding tells of bfloat16 and float32."""
    return texts[0] if texts[0] == texts[1] else " / ".join(texts)


def test_the_details_state_what_was_measured(result: Result, found: cases.Cases) -> None:
    assert result.summary["details"].startswith(
        "5 seeds, 95 % intervals over seeds; a / b: on bfloat16 / float32 data. "
    )
    assert f"NVFP4, {len(cases.names('NVFP4'))} dialects, 4,096 blocks a seed. " in result.summary["details"]
    rows = result.rows
    for (fmt, kind), text in sections(result.summary["details"]).items():
        two = [found[fmt, kind, dtype] for dtype in cases.DTYPES]
        assert text.startswith(f"byte patterns: {both([str(len(case.classes)) for case in two])}; ")
        least, most = (both([share_text(getattr(case, end)) for case in two]) for end in ("least", "most"))
        assert f"; those that are not alike differ in {least} to {most} of blocks; " in text
        quality, apart = {"best": ([], []), "worst": ([], [])}, []
        for dtype, case in zip(cases.DTYPES, two, strict=True):
            part = rows[(rows.format == fmt) & (rows.kind == kind) & (rows.dtype == dtype)]
            means = part[part.dialect == part.other].groupby("dialect", sort=False).sqnr.mean()  # of equals the first
            for end, name in (("best", means.idxmax()), ("worst", means.idxmin())):
                quality[end][0].append(f"{means[name]:.3f} ± {case.sqnr[name].half:.3f}")
                quality[end][1].append(name)
            apart.append(f"{means.max() - means.min():.3f} ± {case.apart.half:.3f}")
        for end, (numbers, names) in quality.items():
            assert f"; {end} SQNR {both(numbers)} dB ({both(names)}); " in text
        assert f"; {both(apart)} dB apart; " in text


def share_text(found: cases.Disagreement) -> str:
    """A share in percent, with the first number of decimals that gives its half-width two digits; and between whom."""
    mean, half = 100 * found.share.mean, 100 * found.share.half
    digits = next((d for d in range(8) if half * 10**d >= 10), None)
    number = f"{mean:.3g}" if digits is None else f"{mean:.{digits}f} ± {half:.{digits}f}"
    return f"{number} % ({f'{found.pairs} pairs' if found.pairs > 1 else f'{found.dialect} and {found.other}'})"


def test_the_details_name_what_is_not_significant(result: Result, found: cases.Cases) -> None:
    for (fmt, kind), text in sections(result.summary["details"]).items():
        reference = cases.REFERENCES[fmt]
        low, high = (
            {name for name, gain in found[fmt, kind, dtype].gain.items() if abs(gain.mean) <= gain.half} - {reference}
            for dtype in cases.DTYPES
        )
        assert low | high  # torchao_floor has the values of ocp_floor
        told = text.split(f"no significant difference to {reference}: ")[1].split("; a significant one")[0].rstrip(".")
        places = {"both": low & high, "bfloat16": low - high, "float32": high - low}
        named = {place: set() for place in places}
        for dtype in ("float32", "bfloat16"):
            told, _, alone = told.partition(f"on {dtype} alone ")
            named[dtype] = set(alone.replace(" and ", ", ").split(", ")) - {""}
        named["both"] = set(told.replace(" and ", ", ").strip(", ").split(", ")) - {""}
        assert named == places


def test_the_details_say_which_are_alike_on_all_data(result: Result) -> None:
    for fmt, rows in result.rows.groupby("format"):
        texts = []
        for dtype in cases.DTYPES:
            differ = rows[rows.dtype == dtype].groupby(["dialect", "other"]).differing.sum()
            left, shared = cases.names(fmt), []
            while left:
                alike = [name for name in left if differ[left[0], name] == 0]
                left = [name for name in left if name not in alike]
                shared += [f"({', '.join(alike[:-1])} and {alike[-1]})"] * (len(alike) > 1)
            texts.append(", ".join(shared))
        told = f"{fmt}, {rows.dialect.nunique()} dialects, {rows.blocks.iloc[0]:,} blocks a seed. Alike on all data: "
        assert f"{told}{both(texts)}. Normal: " in result.summary["details"]


@pytest.mark.exhaustive
def test_other_data_give_other_details(result: Result) -> None:
    """Without a differing block and with equal errors, and with another worst one far below, the words say so."""
    rows = result.rows.assign(differing=0, sqnr=20.0, gain=0.0)
    found = study.details(rows)
    assert found.count("byte patterns: 1; best SQNR 20.000 ± 0.000 dB (te); ") == 2 and "not alike differ" not in found
    assert found.count("; 0.000 ± 0.000 dB apart; ") == 6 and "a significant one" not in found
    assert study.draw(rows).axes
    rows = result.rows.assign(differing=result.rows.differing * 10)  # so that no pair differs in fewer than te will
    bad = (rows.dialect == "te") & (rows.dtype == "float32"), (rows.other == "te") & (rows.dtype == "float32")
    rows.loc[bad[0], ["sqnr", "gain"]] -= 7
    rows.loc[bad[1], "gain"] += 7
    rows.loc[(bad[0] | bad[1]) & (rows.dialect != rows.other), "differing"] = 1
    found, before = (sections(text)["NVFP4", "normal"] for text in (study.details(rows), result.summary["details"]))
    assert "dB (fouroversix_static_4); " in before and "dB (fouroversix_static_4 / te); " in found
    count = int(before.split("; ")[0].split(" / ")[1])
    # one block of 4,096, in all seeds
    assert f" / {count + 1}; " in found and f" / 0.0244 % ({len(cases.names('NVFP4')) - 1} pairs) to " in found
    assert "on bfloat16 alone te" in found


def test_the_finding_states_what_was_measured(result: Result, found: cases.Cases) -> None:
    """Patterns counted from the rows; cost and names from the cases, which the tests above derive again."""
    most = max(len(case.classes) for (fmt, *_), case in found.items() if fmt == "NVFP4")
    assert len(result.tables[0].frame) == 12
    assert f"{len(cases.names('NVFP4'))} dialects of NVFP4 make {most}" in result.finding
    for fmt, rows in result.rows.groupby("format"):
        count, patterns, costs = rows.dialect.nunique(), [], []
        for kind in ("normal", "tokens"):
            two, numbers = [found[fmt, kind, dtype] for dtype in cases.DTYPES], []
            for dtype in cases.DTYPES:
                part = rows[(rows.kind == kind) & (rows.dtype == dtype)]
                differ = part.groupby(["dialect", "other"]).differing.sum().unstack().to_numpy()
                numbers.append(str(len({tuple(line == 0) for line in differ})))
            patterns.append(f"{both(numbers)} on {kind} data")
            names = both([f"{case.best} to {case.worst}" for case in two])
            texts = [share_text(cases.Disagreement("", "", scaled(case.apart), 2)).split(" %")[0] for case in two]
            costs.append(f"{both(texts)} dB on {kind} ({names})")
        told = f"{count} dialects of {fmt} make {' and '.join(patterns)} different byte patterns (bfloat16 / float32); "
        assert f"{told}best to worst cost {' and '.join(costs)}; " in " ".join((result.finding, *result.details))
        reference = cases.REFERENCES[fmt]
        same = [
            {name for name, gain in case.gain.items() if abs(gain.mean) <= gain.half and name != reference}
            for (of, *_), case in found.items()
            if of == fmt
        ]
        always = len(set.intersection(*same))
        have = "has" if always == 1 else "have"
        assert f"; {always} of the other {count - 1} {have} no significant difference to {reference} on" in " ".join(
            (result.finding, *result.details)
        )
    assert " ".join((result.finding, *result.details)).endswith("5 seeds of 65,536 values, 95 % intervals over seeds.")


def scaled(value: study.Interval) -> study.Interval:
    """What `share_text`, which tells percent, shows as the value itself."""
    return study.Interval(value.mean / 100, value.half / 100)


def test_other_data_give_another_finding(result: Result) -> None:
    found = " ".join(study.find(result.rows.assign(differing=0, sqnr=20.0, gain=0.0)))
    others = len(cases.names("NVFP4")) - 1
    assert f"{others + 1} dialects of NVFP4 make 1 on normal data and 1 on tokens data different byte patterns" in found
    assert f"{others} of the other {others} have no significant difference to exact" in found and found != " ".join(
        (result.finding, *result.details)
    )


def test_differences_are_significant_or_not_by_their_interval() -> None:
    gains = {"exact": 0.0, "a": 0.01, "b": -0.009, "c": 0.011, "d": 0.5}
    made = {name: study.Interval(mean, 0.01) for name, mean in gains.items()}
    made |= {"small": study.Interval(-1e-4, 1e-5), "large": study.Interval(-1e-3, 1e-5)}
    assert study._insignificant(made, "exact") == ["a", "b"] and study._tiny(made, "exact") == ["small"]
    told = study._shared_names({"bfloat16": ["a", "b", "c"], "float32": ["d", "b"]})
    assert told == "b, on bfloat16 alone a and c, on float32 alone d"
    assert study._shared_names({"bfloat16": [], "float32": []}) == "none"


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
        [image] = axes.images
        shown = image.get_array()
        for (i, a), (j, b) in itertools.product(enumerate(order), enumerate(order)):
            share = found[fmt, kind, "bfloat16" if i > j else "float32"].shares.loc[a, b]
            assert bool(np.ma.getmaskarray(shown)[i, j]) == (share == 0) and (share == 0 or shown[i, j] == share)


def test_rows_keep_their_bits_in_a_file(result: Result, tmp_path: Path) -> None:
    result.rows.to_csv(tmp_path / "rows.csv", index=False)
    read = pd.read_csv(tmp_path / "rows.csv", dtype=str)
    for name, column in result.rows.items():
        assert [type(value)(text) for text, value in zip(read[name], column.tolist(), strict=True)] == column.tolist()
