"""`fourbit explorer`: the page as a file, and its arithmetic without a browser.

Contract: equal tables give equal pages, which load nothing; the tables are those of numerics; and the page's own
JavaScript, run by node where there is one, decodes and encodes every code of every format, tells of a code what
`fourbit show` tells, and quantizes blocks as numerics.quantize does. Oracle: numerics, bit for bit.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from explorer_cases import SIZE, SPECIAL, Case, answer, numbers_for, random_cases, same

import fourbit
import numerics as nm
from notebooks import explorer
from numerics.formats import FORMATS
from numerics.show import code_card, exact, rounding_rows, value_card

pytestmark = pytest.mark.usefixtures("one_thread")

LIMIT = 1_500_000  # bytes


@pytest.fixture(scope="module")
def page() -> str:
    return explorer.page()


def script(page: str, name: str) -> str:
    """The contents of a script element of the page."""
    return re.search(rf'<script[^>]* id="{name}">(.*?)</script>', page, re.DOTALL)[1]


# ---- the file --------------------------------------------------------------------------------------------------------


def test_pages_are_equal_and_small(page: str) -> None:
    assert explorer.page() == page
    assert len(page.encode()) < LIMIT
    assert "{{" not in page and "}}}}" not in page


def test_the_page_loads_nothing(page: str) -> None:
    """No address but the name of SVG, no reference but to places of the page itself, no way to ask for one."""
    assert set(re.findall(r"\w+://[^\s\"'`<>]+", page)) == {"http://www.w3.org/2000/svg"}
    assert {*re.findall(r'\b(?:src|href|action|data)="([^"]*)"', page)} <= {"data:,"}
    code = script(page, "arithmetic") + script(page, "views")
    for way in (r"\bfetch\(", "XMLHttpRequest", "WebSocket", r"\bimport\b", "importScripts", "sendBeacon", r"\beval\("):
        assert not re.search(way, code), way
    assert not re.search(r"@import|url\(", page)


def test_tables_are_those_of_numerics(page: str) -> None:
    text = script(page, "data")
    data = json.loads(text)
    assert hashlib.sha256(text.encode()).hexdigest() in page.rpartition("<footer>")[2]
    assert list(data["formats"]) == list(FORMATS)
    for name, fmt in FORMATS.items():
        told = data["formats"][name]
        assert all(told[key] == getattr(fmt, key) for key in told if key != "table"), name
        assert ("table" in told) == (fmt.bits <= 8)
        if "table" in told:
            assert same([float(v) for v in told["table"]], fmt.table().double().numpy())
    for name, told in data["blocks"].items():
        fmt = nm.BLOCK_FORMATS[name]
        assert (told["element"], told["scale"], told["rule"]) == (fmt.element.name, fmt.scale.name, fmt.rule.name)
        assert told["outer_max"] == fmt.rule.outer_max(fmt.element)
        assert told["reciprocal"] == float(np.float32(1) / np.float32(6))
    assert [data["blocks"][name]["outer_max"] for name in ("NVFP4", "NVFP4_46", "MXFP4")] == [2688, 1536, None]
    assert (data["float32_max"], data["least_outer"]) == (float(np.finfo(np.float32).max), 2.0**-128)


def test_a_part_may_not_end_its_element(monkeypatch: pytest.MonkeyPatch) -> None:
    read = explorer._read
    monkeypatch.setattr(explorer, "_read", lambda name: read(name) + ("'</script>'" if name == "bits.js" else ""))
    with pytest.raises(ValueError, match="views of the page holds the end of an element"):
        explorer.page()


def test_every_part_is_in_the_page_and_in_the_package() -> None:
    used = {*explorer.ARITHMETIC, *explorer.VIEWS, "page.html", "page.css"}
    assert {path.name for path in explorer.PARTS.iterdir()} == used
    listed = (Path(fourbit.__file__).parent / "pyproject.toml").read_text("utf-8")
    assert 'notebooks = ["explorer_page/*"]' in listed


def test_it_needs_neither_widgets_nor_figures() -> None:
    unwanted = "{'ipywidgets', 'IPython', 'matplotlib', 'playwright'}"
    code = f"import sys; from notebooks import explorer; print(sorted({unwanted} & set(sys.modules)))"
    root = Path(fourbit.__file__).parent
    assert subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True) == "[]\n"


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page(page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bits and blocks.html"
    assert fourbit.main(["explorer", "--out", str(out)]) == 0
    assert out.read_text("utf-8") == page
    assert capsys.readouterr().out == f"{out}: {len(page.encode()) / 1000:.0f} kB; open it in a browser\n"


def test_without_out_it_is_explorer_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fourbit.main(["explorer"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["explorer.html"]


def test_paths_that_cannot_be_written_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "no such folder" / "page.html"
    for path, words in ((tmp_path, "Is a directory"), (missing, "No such file or directory")):
        assert fourbit.main(["explorer", "--out", str(path)]) == 2
        assert capsys.readouterr() == ("", f"fourbit: error: {words}: {path}; name another path\n")


def test_an_unknown_argument_is_the_parsers_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        fourbit.main(["explorer", "--format", "E4M3"])
    assert end.value.code == 2 and "unrecognized arguments" in capsys.readouterr().err


# ---- the arithmetic, under node --------------------------------------------------------------------------------------

DRIVER = """
const fs = require("fs"), [folder, job] = process.argv.slice(2);
const load = (name) => fs.readFileSync(`${folder}/${name}`);
const doubles = (name) => new Float64Array(Uint8Array.from(load(name)).buffer);
const keep = (name, array) => fs.writeFileSync(`${folder}/${name}`, Buffer.from(array.buffer));
const parts = new Function(load("arithmetic.js") + "; return { numbers, formats, card, blocks };");
const { numbers, formats, card, blocks } = parts(), data = formats.read(load("data.json").toString());
%s
"""


@pytest.fixture(scope="module")
def node(page: str, tmp_path_factory: pytest.TempPathFactory):
    """Run JavaScript with the page's pure part in scope; a test hands arrays over in files. Returns what it prints."""
    if not shutil.which("node"):
        pytest.skip("node is not installed: the page's arithmetic is tested in a browser only (make browser)")
    folder = tmp_path_factory.mktemp("node")
    (folder / "arithmetic.js").write_text(script(page, "arithmetic"), "utf-8")
    (folder / "data.json").write_text(script(page, "data"), "utf-8")

    def run(code: str, **arrays: np.ndarray) -> str:
        for name, array in arrays.items():
            (folder / name).write_bytes(np.ascontiguousarray(array, dtype=np.float64).tobytes())
        (folder / "driver.js").write_text(DRIVER % code, "utf-8")
        command = ["node", str(folder / "driver.js"), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def result(name: str) -> np.ndarray:
        return np.fromfile(folder / name, dtype=np.float64)

    run.result = result
    return run


def test_every_code_has_its_value(node) -> None:
    node("""
    for (const fmt of Object.values(data.formats)) {
      const codes = Array.from({ length: 2 ** fmt.bits }, (_, code) => code);
      keep(fmt.name, Float64Array.from(codes, (code) => formats.decode(fmt, code)));
      keep(fmt.name + ".formula", Float64Array.from(codes, (code) => formats.value(fmt, code)));
    }""")
    for fmt in FORMATS.values():
        values = nm.decode(torch.arange(1 << fmt.bits, dtype=torch.int32), fmt).double().numpy()
        assert same(node.result(fmt.name), values), fmt.name
        assert same(node.result(fmt.name + ".formula"), values), fmt.name


def test_every_number_gets_the_code_of_numerics(node) -> None:
    """Values, midpoints and what lies beside them, for all codes of every format; specials."""
    asked = {f"{fmt.name}.numbers": numbers_for(fmt) for fmt in FORMATS.values()}
    node(
        """
    for (const fmt of Object.values(data.formats))
      keep(fmt.name, doubles(fmt.name + ".numbers").map((x) => formats.encode(fmt, x)));""",
        **asked,
    )
    for fmt in FORMATS.values():
        expected = nm.encode(torch.from_numpy(asked[f"{fmt.name}.numbers"]), fmt).numpy().astype(np.float64)
        wrong = np.flatnonzero(node.result(fmt.name) != expected)
        assert len(wrong) == 0, (fmt.name, asked[f"{fmt.name}.numbers"][wrong[:3]])


def test_a_code_is_told_as_by_show(node) -> None:
    """All codes of formats of up to 8 bits; of wider ones the ends of every field and a sample."""
    random = np.random.default_rng(3)
    codes = {}
    for name, fmt in FORMATS.items():
        count = 1 << fmt.bits
        edges = {c + d for c in (0, fmt.max_code, 1 << (fmt.bits - 1), 1 << fmt.mantissa_bits) for d in (-1, 0, 1)}
        some = {c % count for c in edges} | {count // 2 + fmt.max_code, *random.integers(0, count, 60).tolist()}
        codes[name] = list(range(count)) if count <= 256 else sorted(some)
    told = node(f"""
    const codes = {json.dumps(codes)};
    const tell = (name, list) => list.map((code) => card.text(data.formats[name], code));
    const cards = Object.entries(codes).map(([name, list]) => [name, tell(name, list)]);
    console.log(JSON.stringify(Object.fromEntries(cards)));""")
    for name, cards in json.loads(told).items():
        for code, text in zip(codes[name], cards, strict=True):
            assert text == code_card(FORMATS[name], code)


def test_what_a_number_became_is_explained_as_by_show(node) -> None:
    asked = [0.0, -0.0, 5.4, -5.4, 1e9, -1e9, 1e-50, float("nan"), float("inf"), float("-inf"), 593.7, 2.0**-127]
    told = node(
        """
    const list = doubles("asked");
    const tell = (fmt) => Array.from(list, (x) => card.policy(fmt, x));
    console.log(JSON.stringify(Object.values(data.formats).map(tell)));""",
        asked=np.array(asked),
    )
    for fmt, policies in zip(FORMATS.values(), json.loads(told), strict=True):
        for value, policy in zip(asked, policies, strict=True):
            rows = [line for line in value_card(fmt, value).partition("\n\n")[0].splitlines() if "policy" in line]
            assert policy == (rows[0].partition("policy")[2].strip() if rows else ""), (fmt.name, value)


def test_texts_of_numbers(node) -> None:
    """Exact texts, Python's general format to 1 to 17 digits with its ties, and reading back what was written."""
    random = np.random.default_rng(4)
    ties = [0.5, 1.5, 2.5, 1.015625, 0.0078125, 1.0000005, 123456.5, 1234575.0, 2.0**-1074, 9.5, 99.5, 1e15, 1e16]
    some = random.standard_normal(200) * 10.0 ** random.integers(-300, 300, 200)
    dyadic = random.integers(1, 1 << 20, 300) / 2.0 ** random.integers(0, 30, 300)
    asked = np.concatenate([ties, some, dyadic, [0.0, -0.0, np.nan, np.inf, -np.inf]])
    told = node(
        """
    const list = Array.from(doubles("asked"));
    const digits = [1, 3, 6, 9, 17];
    keep("again", Float64Array.from(list, (x) => numbers.parse(numbers.plain(x)).value));
    console.log(JSON.stringify(list.map((x) => [numbers.exact(x), ...digits.map((d) => numbers.general(x, d))])));""",
        asked=asked,
    )
    assert same(node.result("again"), asked)
    for x, (exactly, *rounded) in zip(asked.tolist(), json.loads(told), strict=True):
        assert exactly == exact(x)
        assert rounded == [f"{x:.{digits}g}" for digits in (1, 3, 6, 9, 17)], x


def test_texts_are_read_as_by_python(node) -> None:
    good = [
        "5.4",
        " -1e-3 ",
        "+.5",
        "5.",
        "0x1.8p-3",
        "-0x10",
        "0x1p-1074",
        "0x1.0000000000001p-1070",
        "1e400",
        "-1e400",
    ]
    good += ["nan", "-nan", "inf", "+Infinity", "-INF", "\u22122", "1e-400", "0x1.fffffffffffff8p0", "0x.8", "-0"]
    bad = [
        "",
        " ",
        "abc",
        "1,5",
        "1e",
        "--1",
        "0x",
        "0xg",
        "1 2",
        "e5",
        "5.4.3",
        "infinit",
        "\u00bd",
        "0x1p",
        "<b>1</b>",
    ]
    read = node(f'console.log(JSON.stringify({json.dumps(good + bad)}.map((t) => numbers.parse(t).error ?? "")))')
    errors = json.loads(read)
    assert errors[: len(good)] == [""] * len(good)
    assert all("no number: type 5.4" in error for error in errors[len(good) :])
    node(f"keep('read', Float64Array.from({json.dumps(good)}.map((t) => numbers.parse(t).value)))")
    texts = [text.replace("\u2212", "-").strip() for text in good]
    expected = [float.fromhex(text) if "0x" in text else float(text) for text in texts]
    assert same(node.result("read"), np.array(expected))


BLOCK_JOB = """
const values = doubles("values"), outers = doubles("outers"), kinds = %s;
const answers = kinds.map((kind, i) => Object.keys(data.blocks).map((name) => {
  const block = Array.from(values.slice(16 * i, 16 * i + 16));
  const made = blocks.quantize(block, name, { kind, value: outers[i] }, data), error = blocks.error(made);
  const tried = made.candidates && made.finite ? made.candidates.map((c) => c.error) : [0, 0];
  const errors = [error.mean, error.relative, error.largest, error.vanished];
  return [made.scaleCode, made.outer ?? -1, ...tried, ...errors, ...made.codes, ...made.values];
}));
keep("answers", Float64Array.from(answers.flat(2)));
"""


def test_blocks_are_those_of_numerics(node) -> None:
    """Codes, scales, outer scales and values of 300 blocks in three formats; the errors that four-over-six compares."""
    cases = random_cases(300, seed=5)
    worked = np.tile([10.0, 20.0, 30.0, 40.0], 4)
    cases += [Case(worked, "given", 1.0), Case(worked, "auto", 1.0), Case(np.zeros(SIZE), "auto", 1.0)]
    # where amax * (s_enc * (1/6)) and (amax * s_enc) * (1/6) round to different scales
    cases.append(Case(np.full(SIZE, 2.74658203125e-4), "amax", 1.5))
    # 6, 3 and 0.75 times the rounded product of scale 9 and outer; of the product itself 0.75 would not be a tie
    tie = np.array([54.89249038696289, *[27.446245193481445] * 14, 6.861561298370361])
    cases.append(Case(tie, "given", 1.0165276527404785))
    values = np.concatenate([case.values for case in cases])
    kinds = json.dumps([case.kind for case in cases])
    node(BLOCK_JOB % kinds, values=values, outers=np.array([case.outer for case in cases]))
    told = node.result("answers").reshape(len(cases), 3, 8 + 2 * SIZE)
    for case, rows in zip(cases, told, strict=True):
        for name, row in zip(explorer.BLOCKS, rows, strict=True):
            expected = answer(case, name)
            head, errors, codes, decoded = row[:4], row[4:8], row[8 : 8 + SIZE], row[8 + SIZE :]
            where = (name, case)
            assert head[0] == expected.scale_code, where
            assert head[1] == (-1 if expected.outer is None else expected.outer), where
            assert same(head[2:], expected.candidates or (0.0, 0.0)), where
            assert codes.tolist() == expected.codes, where
            assert same(decoded, expected.values), where
            assert same(errors, errors_of(case, expected.values)), where


def errors_of(case: Case, decoded: np.ndarray) -> list[float]:
    """The page's error measures by their definition: mean square, relative, largest, number of values that vanish."""
    top = float(np.finfo(np.float32).max)
    clipped = np.where(np.isfinite(case.values), np.clip(case.values, -top, top), case.values)
    with np.errstate(invalid="ignore"):
        x = clipped.astype(np.float32).astype(np.float64)
        difference = decoded - x
        square = energy = 0.0
        for d, v in zip(difference.tolist(), x.tolist(), strict=True):  # in the page's order
            square, energy = square + d * d, energy + v * v
        largest = float(np.max(np.abs(difference)))
        relative = float(np.float64(square) / np.float64(energy)) if energy else float("nan")
    return [square / SIZE, relative, largest, float(np.sum((x != 0) & (decoded == 0)))]


def test_the_worked_example_of_four_over_six(node) -> None:
    """[10, 20, 30, 40] under outer 1 (arXiv 2512.02010): scale 6.5 gives 26 for 30; scale 10 loses nothing."""
    told = node("""
    const made = (name) => blocks.quantize([10, 20, 30, 40], name, { kind: "given", value: 1 }, data);
    const [plain, both, mx] = ["NVFP4", "NVFP4_46", "MXFP4"].map(made);
    console.log(JSON.stringify([plain.scale, plain.values.slice(0, 4), both.scale, both.values.slice(0, 4),
                                both.candidates.map((c) => c.error), mx.scale, mx.values.slice(0, 4)]));""")
    assert json.loads(told) == [6.5, [9.75, 19.5, 26, 39], 10, [10, 20, 30, 40], [17.3125, 0], 8, [8, 16, 32, 32]]


def test_an_outer_scale_that_numerics_refuses_is_refused(node) -> None:
    asked = [0.0, -1.0, 2.0**-129, 2.0**-128, float("nan"), float("inf"), 1e39, 3e38, 1.0]
    told = node(
        """
    const list = Array.from(doubles("asked"));
    console.log(JSON.stringify(list.map((value) => blocks.outerMistake({ kind: "given", value }, data) === "")));""",
        asked=np.array(asked),
    )
    x = torch.ones(SIZE)
    for outer, taken in zip(asked, json.loads(told), strict=True):
        try:
            nm.quantize(x, nm.NVFP4, outer=torch.tensor([outer], dtype=torch.float32))
            assert taken, outer
        except ValueError:
            assert not taken, outer


def test_every_rounding_of_a_number_is_as_show_prints_it(node) -> None:
    """Values, midpoints and what lies beside them of the narrow formats, a sample of the wide; specials and -0."""
    random = np.random.default_rng(6)
    asked = {}
    for name, fmt in FORMATS.items():
        every = numbers_for(fmt) if fmt.bits <= 6 else random.choice(numbers_for(fmt), 24)
        asked[name] = np.concatenate([random.choice(every, min(len(every), 40)), SPECIAL, [-0.3, 0.3, 1.999, -1.0]])
    told = node(
        """
    const each = (fmt) => Array.from(doubles(fmt.name), (x) => card.roundingRows(fmt, x, data.roundings));
    console.log(JSON.stringify(Object.values(data.formats).map(each)));""",
        **asked,
    )
    for (name, fmt), rows in zip(FORMATS.items(), json.loads(told), strict=True):
        for x, mine in zip(asked[name].tolist(), rows, strict=True):
            expected = rounding_rows(fmt, x)
            if "stochastic, 50.00% of draws" in {row[0] for row in expected}:  # two equal chances have no order
                mine, expected = sorted(mine), sorted(map(list, expected))
            assert [tuple(row) for row in mine] == [tuple(row) for row in expected], (name, x)


OWN = ["E3M2FN", "e3m4", "UE5M3FN", "E5M0FNU", "E3M0", "E4M3FN", "E8M0FNU", "UE4M3", "INT6", "INT2", "S3F4", "E1M2"]
NO_FORMATS = ["", "fp4", "E4M3FNUZ", "E4M3FNU", "UE5M0FNU", "E9M1", "INT40", "E8M24", "E2M1 FN", "INT1"]


def test_formats_of_ones_own_are_those_of_numerics(node) -> None:
    told = node(f"""
    const kept = (name) => formats.named(name, data.formats) && {{ ...formats.named(name, data.formats) }};
    const found = {json.dumps(OWN + NO_FORMATS)}.map(kept);
    for (const fmt of found) if (fmt) delete fmt.table;
    console.log(JSON.stringify(found));""")
    found = json.loads(told)
    for name, mine in zip(OWN, found, strict=False):
        expected = explorer.described(nm.format_named(name))
        assert mine == {key: value for key, value in expected.items() if key != "table"}, name
    assert found[len(OWN) :] == [None] * len(NO_FORMATS)
    for name in NO_FORMATS:
        with pytest.raises(ValueError):
            nm.format_named(name)


def test_the_first_block_shows_what_four_over_six_gains(node, page: str) -> None:
    """The block that the page opens with: 6 is mapped to 4, and fewer values are off."""
    first = json.loads(re.search(r"crowd: (\[[^\]]*\])", page)[1])
    assert "values: PRESETS.crowd" in page
    six, both = (nm.quantize(torch.tensor(first), fmt) for fmt in (nm.NVFP4, nm.NVFP4_46))
    assert not torch.equal(six.dequantize(), both.dequantize())
    told = node(f"""
    const made = (name) => blocks.quantize({first}, name, {{ kind: "auto", value: 1 }}, data).values;
    console.log(JSON.stringify([made("NVFP4"), made("NVFP4_46")]));""")
    assert json.loads(told) == [six.dequantize().tolist(), both.dequantize().tolist()]


def test_a_block_scale_can_be_given(node) -> None:
    """Rounded to the scale's format, then used as it is: x / (scale * outer), or x times its reciprocal (NVFP4)."""
    x = torch.linspace(-7, 9, SIZE)
    for given in (0.7, 6.5, 3.0, 1e-3, 460.0, 2.0**-130):
        told = json.loads(
            node(f"""
        const made = (name) => {{
          const outer = {{ kind: "given", value: 0.75 }}, scale = {{ kind: "given", value: {given!r} }};
          const {{ scaleCode, codes, values }} = blocks.quantize({x.tolist()}, name, outer, data, scale);
          return [scaleCode, codes, values];
        }};
        console.log(JSON.stringify(Object.keys(data.blocks).map(made)));""")
        )
        for (name, fmt), (scale_code, codes, values) in zip(explorer.BLOCKS.items(), told, strict=True):
            code = nm.encode(torch.tensor([given]), fmt.scale)
            scale, outer = nm.decode(code, fmt.scale), torch.tensor([0.75 if fmt.outer else 1.0])
            step = scale * outer
            if name == "NVFP4":
                inverse = (torch.ones(1) / (scale * (torch.ones(1) / (torch.ones(1) / outer)))).clamp(
                    max=torch.finfo(torch.float32).max
                )
                scaled = x * inverse
            else:
                scaled = x / torch.where(step == 0, torch.inf, step)
            expected = nm.encode(scaled, nm.E2M1)
            assert scale_code == int(code) and codes == expected.tolist(), (name, given)
            assert values == ((nm.decode(expected, nm.E2M1) * scale) * outer).tolist(), (name, given)
