"""The explorer page, driven in a headless Chromium: under the marker `browser` (make browser).

Contract: the page opens from a file and asks nobody for anything; whatever is toggled, typed, dragged or linked, it
shows the codes, scales and values of numerics, bit for bit, and says what it did with input that is none; nothing
overflows a phone. Oracle: numerics. Bits are toggled and values typed for all codes of formats of up to 8 bits and
samples of wider ones; all codes of every format go through the page's own functions at once. FOURBIT_SCREENSHOTS names
a folder for pictures of the page.
"""

import base64
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from explorer_cases import SIZE, Case, answer, numbers_for, random_cases, same

import numerics as nm
from notebooks import explorer
from numerics.formats import FORMATS, Format
from numerics.show import code_card

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]

SMALL = [fmt for fmt in FORMATS.values() if fmt.bits <= 8]
WIDE = [fmt for fmt in FORMATS.values() if fmt.bits > 8]
DESKTOP, PHONE = (1280, 900), (375, 740)


@dataclass
class Explorer:
    """An open page, what went wrong in it, and what it asked the network for."""

    page: Any
    address: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, link: str = "") -> None:
        self.page.goto("about:blank")
        self.page.goto(self.address + link)

    def text(self, selector: str) -> str:
        return self.page.text_content(selector)

    def code(self) -> str:
        """What the page tells of the code that it shows, as `fourbit show` does."""
        return self.text("#card")

    def choose(self, fmt: Format) -> None:
        self.page.check(f"#formats input[value={fmt.name}]", force=True)

    def type(self, text: str, place: str = "#number") -> None:
        self.page.fill(place, text)


def opened(browser: Any, file: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Explorer:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    explorer = Explorer(context.new_page(), file.as_uri())
    explorer.page.on("pageerror", lambda error: explorer.errors.append(str(error)))
    explorer.page.on("console", lambda line: explorer.errors.append(line.text) if line.type == "error" else None)
    explorer.page.on("request", lambda request: explorer.requests.append(request.url))
    explorer.open()
    return explorer


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explorer") / "explorer.html"
    assert explorer.main(["--out", str(out)]) == 0
    return out


@pytest.fixture
def shown(chromium: Any, file: Path) -> Iterator[Explorer]:
    """The page at its start; nothing may have gone wrong, or been asked for, when a test ends."""
    explorer = opened(chromium, file)
    yield explorer
    asked = {url.partition("#")[0] for url in explorer.requests} - {"about:blank"}
    explorer.page.context.close()
    assert explorer.errors == []
    assert asked <= {file.as_uri()}


# ---- bits ------------------------------------------------------------------------------------------------------------


def test_it_opens_from_a_file(shown: Explorer) -> None:
    assert shown.page.title() == "fourbit explorer"
    assert shown.code() == code_card(nm.E4M3, 0x6C)  # 100, a tie
    assert "100 becomes 96: an error of \u22124, 4 % of the number. It lies halfway" in shown.text("#became")
    assert shown.requests == [shown.address]


def test_every_code_of_every_format_at_once(shown: Explorer) -> None:
    """Decoding all codes, and encoding values, midpoints and what lies beside them, by the functions of the page."""
    shown.page.evaluate("""() => {
        window.tables = formats.read(document.getElementById("data").textContent).formats;
        window.pack = (array) => {
            let text = "";
            const bytes = new Uint8Array(array.buffer);
            for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
            return btoa(text);
        };
        window.unpack = (text) => new Float64Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
    }""")
    decode = """(name) => {
        const fmt = tables[name];
        return pack(Float64Array.from({ length: 2 ** fmt.bits }, (_, code) => formats.decode(fmt, code)));
    }"""
    encode = "([name, text]) => pack(unpack(text).map((x) => formats.encode(tables[name], x)))"
    for name, fmt in FORMATS.items():
        values = np.frombuffer(base64.b64decode(shown.page.evaluate(decode, name)))
        assert same(values, nm.decode(torch.arange(1 << fmt.bits, dtype=torch.int32), fmt).double().numpy()), name
        asked = numbers_for(fmt)
        for part in np.array_split(asked, math.ceil(len(asked) / 500_000)):
            told = shown.page.evaluate(encode, [name, base64.b64encode(part.tobytes()).decode()])
            expected = nm.encode(torch.from_numpy(part), fmt).numpy().astype(np.float64)
            assert np.array_equal(np.frombuffer(base64.b64decode(told)), expected), name


def gray(bits: int) -> Iterator[int]:
    """Which bit to toggle next, so that all codes are passed once, from 0."""
    for step in range(1, 1 << bits):
        yield (step & -step).bit_length() - 1


def read_bits(shown: Explorer, fmt: Format) -> dict[str, Any]:
    """What the page shows, in one question."""
    return shown.page.evaluate("""() => ({
        card: document.getElementById("card").textContent,
        number: document.getElementById("number").value,
        value: document.getElementById("value").textContent,
        bits: [...document.querySelectorAll(".bit")].map((b) => b.textContent).join(""),
        pressed: [...document.querySelectorAll(".bit")].map((b) => (b.ariaPressed === "true" ? 1 : 0)).join(""),
    })""")


def check_bits(shown: Explorer, fmt: Format, code: int) -> None:
    told = read_bits(shown, fmt)
    assert told["card"] == code_card(fmt, code)
    assert told["bits"] == told["pressed"] == f"{code:0{fmt.bits}b}"
    assert same([float(told["number"])], [fmt.value(code)])
    assert told["value"].startswith(f"0x{code:0{-(-fmt.bits // 4)}X} = ")


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_bits_are_toggled_through_all_codes(shown: Explorer, fmt: Format) -> None:
    shown.open(f"#format={fmt.name}&code=0")
    code = 0
    check_bits(shown, fmt, code)
    for bit in gray(fmt.bits):
        shown.page.click(f".bit[data-bit='{bit}']")
        code ^= 1 << bit
        check_bits(shown, fmt, code)


@pytest.mark.parametrize("fmt", WIDE, ids=lambda fmt: fmt.name)
def test_bits_of_a_wide_format_are_toggled(shown: Explorer, fmt: Format) -> None:
    shown.open(f"#format={fmt.name}&code=0")
    random, code = np.random.default_rng(6), 0
    edges = [1, fmt.max_code, fmt.max_code + 1, fmt.nan_code, (1 << fmt.bits) - 1, 1 << (fmt.bits - 1)]
    for wanted in [*edges, *random.integers(0, 1 << fmt.bits, 15).tolist()]:
        for bit in range(fmt.bits):
            if (code ^ wanted) >> bit & 1:
                shown.page.click(f".bit[data-bit='{bit}']")
        code = wanted
        check_bits(shown, fmt, code)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_numbers_are_typed(shown: Explorer, fmt: Format) -> None:
    """Every value of a small format, and of every format a sample of values, midpoints and what lies beside them."""
    shown.choose(fmt)
    asked = numbers_for(fmt)
    values = fmt.values().double().numpy() if fmt.bits <= 8 else []
    asked = np.concatenate([values, np.random.default_rng(7).choice(asked, 150), asked[-15:]])
    codes = nm.encode(torch.from_numpy(asked), fmt).tolist()
    for number, code in zip(asked.tolist(), codes, strict=True):
        shown.type(repr(number))
        assert shown.code() == code_card(fmt, code), number
        assert read_bits(shown, fmt)["number"] == repr(number)  # what was typed stays


def test_the_keyboard_is_enough(shown: Explorer) -> None:
    """From the top: to a format by arrow keys, along the bits, to a neighbour, to the other view."""
    page = shown.page
    page.focus("#formats input:checked")
    page.keyboard.press("ArrowRight")  # from E4M3 to E5M2, which keeps the number
    assert shown.code() == code_card(nm.E5M2, int(nm.encode(torch.tensor(100.0), nm.E5M2)))
    page.focus(".bit[data-bit='7']")
    page.keyboard.press("Space")
    assert shown.code().startswith("E5M2 0xD6")
    for _ in range(7):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert shown.code().startswith("E5M2 0xD7")
    page.focus("#above")
    page.keyboard.press("Enter")
    assert shown.code().startswith("E5M2 0xD6")
    page.focus("#tab-bits")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#block") and not page.is_visible("#bits")
    assert page.evaluate("document.activeElement.id") == "tab-block"


def test_neighbours_lead_along_the_line(shown: Explorer) -> None:
    """From the least value of E2M1 to the largest by the button, both zeros being one step; then no further."""
    shown.open("#format=E2M1&code=0xF")
    values = []
    while True:
        values.append(float(shown.page.input_value("#number")))
        if shown.page.is_disabled("#above"):
            break
        shown.page.click("#above")
    assert values == nm.E2M1.values().tolist()


BAD_NUMBERS = [
    "",
    "  ",
    "abc",
    "1,5",
    "5.4.3",
    "--1",
    "0x",
    "1e",
    "<img src=x onerror=alert(1)>",
    "\u221e",
    "9" * 300 + "x",
]


def test_what_is_no_number_is_told_and_changes_nothing(shown: Explorer) -> None:
    before = shown.code()
    for text in BAD_NUMBERS:
        shown.type(text)
        note = shown.text("#bits-note")
        assert "is no number: type 5.4, -1e-3, 0x1.8p-3, nan or inf. The last number stays." in note, text
        assert note.startswith("An empty text" if not text.strip() else '"')
        assert shown.page.get_attribute("#number", "aria-invalid") == "true"
        assert shown.code() == before
    shown.type("6")
    assert shown.text("#bits-note") == "" and shown.page.get_attribute("#number", "aria-invalid") == "false"
    assert shown.code() == code_card(nm.E4M3, 0x4C)


def test_special_numbers_are_told(shown: Explorer) -> None:
    for name, text, words in [
        ("E4M3", "nan", "NaN becomes NaN: NaN becomes the format's NaN."),
        ("E2M1", "nan", "NaN becomes 6: no NaN in this format: it becomes +max."),
        ("E4M3", "-inf", "\u2212inf becomes \u2212448: beyond the range \u2212448 to 448: it saturates."),
        ("E2M1", "1e38", "The reason: beyond the range \u22126 to 6: it saturates."),
        ("UE4M3", "-1", "no negative numbers in this format: they become NaN"),
        ("E8M0", "0", "no zero in this format, and nothing below 2\u2212127: it becomes that"),
        ("FP16", "-0", "\u22120 becomes \u22120, without error."),
    ]:
        shown.choose(FORMATS[name])
        shown.type(text)
        assert words in shown.text("#became"), (name, text)
    shown.type("1e400")
    assert shown.text("#bits-note") == "1e400 is beyond float64: it is read as inf"


# ---- blocks ----------------------------------------------------------------------------------------------------------


def read_blocks(shown: Explorer) -> dict[str, Any]:
    """Every card: its facts by name, its codes, its values with all their digits, its remarks."""
    return shown.page.evaluate("""() => Object.fromEntries([...document.querySelectorAll(".card")].map((card) => {
        const names = [...card.querySelectorAll("dt")].map((dt) => dt.textContent);
        const told = (dd) => [dd.firstElementChild?.dataset.value ?? null, dd.textContent];
        const facts = [...card.querySelectorAll("dd")].map(told);
        const rows = [...card.querySelectorAll("tbody tr")].map((row) => [...row.cells]);
        return [card.id.slice(5), {
            facts: Object.fromEntries(names.map((name, i) => [name, facts[i]])),
            x: rows.map((cells) => cells[0].dataset.value),
            codes: rows.map((cells) => Number(cells[1].dataset.code)),
            bits: rows.map((cells) => cells[1].textContent),
            values: rows.map((cells) => cells[3].dataset.value),
            remarks: [...card.querySelectorAll("li")].map((li) => li.textContent),
        }];
    }))""")


def check_blocks(shown: Explorer, case: Case) -> dict[str, Any]:
    told = read_blocks(shown)
    assert list(told) == list(explorer.BLOCKS)
    for name, card in told.items():
        expected, fmt = answer(case, name), nm.BLOCK_FORMATS[name]
        scale, words = card["facts"]["block scale"]
        assert f"(0x{expected.scale_code:02X} = 0b{expected.scale_code:08b})" in words, (name, case)
        assert same([float(scale)], [fmt.scale.value(expected.scale_code)]), (name, case)
        outer, words = card["facts"]["outer scale"]
        assert words == "none" if expected.outer is None else float(outer) == expected.outer, (name, case)
        assert card["codes"] == expected.codes, (name, case)
        assert card["bits"] == [f"{code:04b}" for code in expected.codes]
        assert same([float(v) for v in card["values"]], expected.values), (name, case)
        if np.isfinite(expected.values).all() and np.abs(case.values).max() < 1e30:
            x = torch.tensor([float(v) for v in card["x"]], dtype=torch.float64)
            error = nm.metrics.error(x, torch.from_numpy(expected.values))
            # two sums of sixteen squares and a quotient: less than 40 roundings of 2^-53 between the two orders
            told_error = float(card["facts"]["relative"][0])
            assert told_error == pytest.approx(error.rel_mse, rel=40 * 2.0**-53, nan_ok=True), (name, case)
            assert float(card["facts"]["largest error"][0]) == error.max_error
    return told


def ask(shown: Explorer, case: Case) -> None:
    shown.page.select_option("#outer-kind", case.kind)
    if case.kind != "auto":
        shown.type(repr(case.outer), "#outer-value")
    shown.type(", ".join(map(repr, case.values.tolist())), "#list")


def test_a_thousand_random_blocks(shown: Explorer) -> None:
    shown.page.click("#tab-block")
    for case in random_cases(1000, seed=8):
        ask(shown, case)
        assert shown.text("#block-note") == ""
        check_blocks(shown, case)


def cells(shown: Explorer) -> np.ndarray:
    texts = shown.page.evaluate("[...document.querySelectorAll('#cells input')].map((input) => input.value)")
    return np.array([float.fromhex(text) if "0x" in text else float(text) for text in texts])


def test_presets(shown: Explorer) -> None:
    shown.page.click("#tab-block")
    check_blocks(shown, Case(cells(shown), "auto", 1.0))
    for name in ("outlier", "gaussian", "zeros"):
        shown.page.click(f"[data-preset={name}]")
        told = check_blocks(shown, Case(cells(shown), "auto", 1.0))
    assert told["NVFP4"]["remarks"] == ["All values are zero, and stay zero."]
    shown.page.click("[data-preset=tens]")
    assert cells(shown).tolist() == [10, 20, 30, 40] * 4
    told = check_blocks(shown, Case(cells(shown), "given", 1.0))
    assert told["NVFP4_46"]["remarks"] == ["The largest magnitude is mapped to 4: squared error 69.25 for 6, 0 for 4."]
    assert told["NVFP4"]["facts"]["block scale"][1].startswith("6.5 (")


def test_one_value_is_typed(shown: Explorer) -> None:
    shown.page.click("#tab-block")
    wanted = cells(shown)
    for index, text in [(0, "0x1.8p3"), (7, "-1e-30"), (15, "200"), (3, "nan"), (3, "-0"), (6, "1e400"), (6, "0.25")]:
        shown.page.fill(f"#cells input >> nth={index}", text)
        wanted[index] = float.fromhex(text) if "0x" in text else float(text)
        assert same(cells(shown), wanted)
        assert same([float(v) for v in shown.page.input_value("#list").split()], wanted)
        check_blocks(shown, Case(wanted, "auto", 1.0))


def test_bars_are_dragged(shown: Explorer) -> None:
    """Linear and logarithmic: the bar under the pointer takes the height of the pointer, within a step of the axis."""
    shown.page.click("#tab-block")
    shown.page.click("[data-preset=gaussian]")
    page = shown.page
    for axis in ("linear", "log"):
        page.check(f"#axis input[value={axis}]", force=True)
        for index, height in [(0, 0.9), (5, -0.5), (15, 0.25), (9, 0.0)]:
            before = cells(shown)
            bar = page.locator(f"#bars [data-index='{index}']")
            top = float(bar.get_attribute("aria-valuemax"))
            box = bar.locator(".column").bounding_box()
            x, middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            page.mouse.move(x, middle)
            page.mouse.down()
            page.mouse.move(x + 200, middle - 20)  # wherever it goes sideways, the bar is the one that was pressed
            page.mouse.move(x, middle - height * (box["height"] / 2 - 8))
            page.mouse.up()
            after = cells(shown)
            reach = math.copysign(top * 10 ** (3 * abs(height) - 3), height) if height else 0.0
            wanted, slack = (height * top, top / 50) if axis == "linear" else (reach, abs(reach) / 10)
            assert after[index] == pytest.approx(wanted, abs=slack + 1e-12), (axis, height)
            assert same(np.delete(after, index), np.delete(before, index))
            check_blocks(shown, Case(after, "auto", 1.0))


def test_the_axis_stays_while_a_bar_is_held(shown: Explorer) -> None:
    shown.page.click("#tab-block")
    shown.type("9" + 15 * " 0", "#list")
    shown.page.check("#axis input[value=linear]", force=True)
    bar = shown.page.locator("#bars [data-index='0']")
    top, box = float(bar.get_attribute("aria-valuemax")), bar.locator(".column").bounding_box()
    x, middle, reach = box["x"] + 5, box["y"] + box["height"] / 2, box["height"] / 2 - 8
    shown.page.mouse.move(x, middle - reach / 4)
    shown.page.mouse.down()
    for part in (0.2, 0.15, 0.1):  # the block's only value shrinks
        shown.page.mouse.move(x, middle - reach * part)
        assert bar.get_attribute("aria-valuemax") == f"{top:g}"
        assert cells(shown)[0] == pytest.approx(part * top, abs=top / 50)
    shown.page.mouse.up()
    assert float(bar.get_attribute("aria-valuemax")) < top


def test_bars_are_moved_with_keys(shown: Explorer) -> None:
    shown.page.click("#tab-block")
    shown.type(" ".join(["1"] * SIZE), "#list")
    page = shown.page
    page.check("#axis input[value=linear]", force=True)
    bar = page.locator("#bars [data-index='4']")
    assert bar.get_attribute("role") == "slider" and bar.get_attribute("aria-label") == "value 5"
    bar.focus()
    page.keyboard.press("ArrowUp")
    assert 1 < cells(shown)[4] <= 1.02
    for key in ("PageDown", "ArrowDown", "PageUp", "End", "Home"):
        before = cells(shown)[4]
        page.keyboard.press(key)
        assert cells(shown)[4] != before
        assert page.evaluate("document.activeElement.dataset.index") == "4"
        check_blocks(shown, Case(cells(shown), "auto", 1.0))
    page.keyboard.press("0")
    assert cells(shown)[4] == 0 and bar.get_attribute("aria-valuetext") == "0"
    page.check("#axis input[value=log]", force=True)
    page.locator("#bars [data-index='2']").focus()
    page.keyboard.press("ArrowUp")
    assert cells(shown)[2] == 1.1


def test_what_is_no_block_is_told_and_changes_nothing(shown: Explorer) -> None:
    shown.page.click("#tab-block")
    before = read_blocks(shown)
    for text, words in [
        ("", "An empty block: there is nothing to quantize; type up to sixteen numbers. The last block stays."),
        (" ,; ", "An empty block"),
        ("1 2 abc", '"abc" is no number: type 5.4, -1e-3, 0x1.8p-3, nan or inf. The last block stays.'),
        ("1 2 3-", '"3-" is no number'),
    ]:
        shown.type(text, "#list")
        assert words in shown.text("#block-note")
        assert shown.page.get_attribute("#list", "aria-invalid") == "true"
        assert read_blocks(shown) == before
    shown.page.fill("#cells input >> nth=2", "x")
    assert '"x" is no number' in shown.text("#block-note") and read_blocks(shown) == before
    shown.page.select_option("#outer-kind", "given")
    before = read_blocks(shown)
    for text in ("0", "-1", "nan", "inf", "1e-39", "1e39", "", "one"):
        shown.type(text, "#outer-value")
        words = "is no number" if text in ("", "one") else "does not do: type a finite one of at least 2^-128"
        assert words in shown.text("#block-note") and read_blocks(shown) == before, text
    shown.page.select_option("#outer-kind", "amax")
    shown.type("-3", "#outer-value")
    assert "A largest magnitude of -3 does not do: type a finite number, 0 or more" in shown.text("#block-note")
    shown.type("2", "#outer-value")
    assert shown.text("#block-note") == ""


def test_unusual_blocks_are_told(shown: Explorer) -> None:
    shown.page.click("#tab-block")
    shown.type("[1, 2, 3]", "#list")
    assert shown.text("#block-note") == "3 of sixteen values: the others are 0"
    check_blocks(shown, Case(np.array([1, 2, 3] + 13 * [0.0]), "auto", 1.0))
    shown.type(" ".join(map(str, range(20))), "#list")
    assert shown.text("#block-note") == "20 values: a block holds sixteen, the first ones are taken"
    check_blocks(shown, Case(np.arange(16.0), "auto", 1.0))
    shown.type("1 nan 3 -inf 1e400", "#list")
    assert "1e400 is beyond float64: it is read as inf" in shown.text("#block-note")
    told = check_blocks(shown, Case(np.array([1, np.nan, 3, -np.inf, np.inf] + 11 * [0.0]), "auto", 1.0))
    assert "scale is NaN (0x7F) and every value decodes to NaN" in told["NVFP4"]["remarks"][0]
    assert "scale is NaN (0xFF)" in told["MXFP4"]["remarks"][0]
    values = np.full(SIZE, 1e-9)
    ask(shown, Case(values, "amax", 1.0))
    told = check_blocks(shown, Case(values, "amax", 1.0))
    assert told["NVFP4"]["remarks"] == ["The block's scale underflows to 0: every value decodes to zero."]
    values = np.full(SIZE, 4000.0)
    ask(shown, Case(values, "given", 1.0))
    told = check_blocks(shown, Case(values, "given", 1.0))
    assert told["NVFP4"]["remarks"] == ["The largest value is 6 \u00d7 scale: 16 values lie beyond it and saturate."]


# ---- links -----------------------------------------------------------------------------------------------------------


def test_links_open_what_they_name(shown: Explorer) -> None:
    for link, fmt, code in [
        ("#format=E4M3&code=0x6C", nm.E4M3, 0x6C),
        ("#format=e2m1&code=0b0111", nm.E2M1, 7),
        ("#format=TF32&code=524287", nm.TF32, 524287),
        ("#format=S2F6&number=-1.3", nm.S2F6, int(nm.encode(torch.tensor(-1.3, dtype=torch.float64), nm.S2F6))),
        ("#format=E5M2&number=inf", nm.E5M2, nm.E5M2.max_code),
    ]:
        shown.open(link)
        assert shown.code() == code_card(fmt, code), link
        assert shown.text("#bits-note") == ""
    shown.open("#block=10,20,30,40&outer=1")
    assert shown.page.is_visible("#block")
    check_blocks(shown, Case(np.array([10.0, 20, 30, 40] + 12 * [0.0]), "given", 1.0))
    shown.open("#block=1,nan,-inf&amax=100&axis=log")
    check_blocks(shown, Case(np.array([1.0, np.nan, -np.inf] + 13 * [0.0]), "amax", 100.0))


def test_links_that_name_nothing_are_told(shown: Explorer) -> None:
    for link, place, words in [
        ("#format=E9M9&code=1", "#bits-note", "asks for the format E9M9, which is unknown"),
        ("#format=E2M1&code=0x10", "#bits-note", "asks for code 0x10: E2M1 has codes 0x0 to 0xF"),
        ("#format=E2M1&code=-1", "#bits-note", "asks for code -1"),
        ("#format=E2M1&number=abc", "#bits-note", '"abc" is no number'),
        ("#block=", "#block-note", "An empty block"),
        ("#block=1,x", "#block-note", '"x" is no number'),
        ("#block=1&outer=0", "#block-note", "An outer scale of 0 does not do"),
        ("#format=%E0%A4%A&code=1", "#bits-note", ""),
        ("#constructor=1&format=constructor", "#bits-note", "which is unknown"),
    ]:
        shown.open(link)
        assert words in shown.text(place), link


def test_the_address_follows_and_leads_back(shown: Explorer) -> None:
    page = shown.page
    steps = [
        ("#format=E5M2&number=100", lambda: shown.choose(nm.E5M2)),
        ("#format=E5M2&code=0xD6", lambda: page.click(".bit[data-bit='7']")),
        ("#format=E5M2&number=1e22", lambda: shown.type("1e22")),
        ("#block=10,20,30,40,10,20,30,40,10,20,30,40,10,20,30,40&outer=1",
         lambda: (page.click("#tab-block"), page.click("[data-preset=tens]"))),
        ("#block=1,nan,inf,-0,1e300&outer=1", lambda: shown.type("1 nan inf -0 1e300", "#list")),
    ]  # fmt: skip
    for link, act in steps:
        act()
        page.wait_for_function("(link) => location.hash === link", arg=link, timeout=5000)
        before = (shown.code(), read_blocks(shown)) if link.startswith("#block") else shown.code()
        other = opened(page.context.browser, Path(shown.address.removeprefix("file://")))
        other.open(link)
        after = (shown.code(), read_blocks(other)) if link.startswith("#block") else other.code()
        other.page.context.close()
        assert before == after and other.errors == []
    page.evaluate("location.hash = '#format=INT4&code=0x9'")
    page.wait_for_function("document.getElementById('card').textContent.startsWith('INT4 0x9')", timeout=5000)


# ---- looks -----------------------------------------------------------------------------------------------------------

STATES = [
    "",
    "#format=TF32&number=0.1",
    "#format=E8M0&code=0xFE",
    "#format=BF16&number=-1e38",
    "#format=E2M1&number=100",
]
STATES += ["#block=1,2,3&outer=1", "#block=1e38,-1e-30,5&axis=log", "#block=nan,inf"]


# pairs of texts in one drawing whose boxes overlap by more than the room above and below letters
TOUCHING = """() => [...document.querySelectorAll("main > section:not([hidden]) svg")].flatMap((svg) => {
    const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    const beside = (a, b) => a.right <= b.left || b.right <= a.left;
    const above = (a, b) => a.bottom - 3 <= b.top || b.bottom - 3 <= a.top;
    const hit = ([, a], [, b]) => !beside(a, b) && !above(a, b);
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => hit(a, b)).map((b) => [a[0], b[0]]));
})"""

NAMELESS = """() => [...document.querySelectorAll("button, input, select, [role=slider]")].filter((node) => {
    const text = node.localName === "button" ? node.textContent : node.labels?.[0]?.textContent;
    return !node.getAttribute("aria-label") && !text?.trim();
}).map((node) => node.outerHTML)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, (768, 1024), PHONE], ids=["desktop", "tablet", "phone"])
def test_nothing_overflows_and_no_labels_touch(chromium: Any, file: Path, size: tuple[int, int], scheme: str) -> None:
    shown = opened(chromium, file, size, scheme)
    for link in STATES:
        shown.open(link)
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= size[0], link
        touching = shown.page.evaluate(TOUCHING)
        assert touching == [], link
        if folder := os.environ.get("FOURBIT_SCREENSHOTS"):
            name = f"explorer_{STATES.index(link)}_{size[0]}_{scheme}.png"
            shown.page.screenshot(path=Path(folder) / name, full_page=True)
        background = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 150) == (scheme == "dark")
    shown.page.context.close()
    assert shown.errors == []


def test_every_control_has_a_name(shown: Explorer) -> None:
    assert shown.page.evaluate(NAMELESS) == []


def test_a_narrower_window_is_drawn_anew(shown: Explorer) -> None:
    shown.page.set_viewport_size({"width": 400, "height": 800})
    shown.page.wait_for_function("document.querySelector('#line svg').viewBox.baseVal.width < 400", timeout=5000)
