"""NVIDIA's `cvt` instructions by name.

Contract: `nm.ptx` has every form of PTX ISA 9.4 "cvt" between float32, float16, bfloat16 and the narrower types, each
with its operands, manual page, errors and open questions, and gives the bits of the scalar model in ptx_model.py.
Sampled with every special value. Bitwise. tests/test_ptx_tables.py checks the bits against published tables.
"""

import dataclasses
import inspect
import itertools

import numpy as np
import pytest
import torch
from ptx_model import FIELD, INF, INSTRUCTIONS, NAN, NARROW, call, elements, inputs, model, random_float32

from numerics import ptx

# ---- every form ------------------------------------------------------------------------------------------------------


def grammar() -> set[str]:
    """The forms of PTX ISA 9.4, "cvt", by its syntax lines; .pzo, .scaled::n1 and ue5m3 left out."""

    def forms(rounding: str, optional: str, types: list[str]) -> set[str]:
        choices = [("", f".{q}") for q in optional.split()]
        return {f"cvt.{rounding}{''.join(q)}.{t}" for q in itertools.product(*choices) for t in types}

    down = [f"{d}x2.{s}" for d in NARROW for s in ("f32", "f16x2", "bf16x2")]
    to_s2f6 = ["s2f6x2.f32", "s2f6x2.bf16x2"]
    to_ue8m0 = ["ue8m0x2.f32", "ue8m0x2.bf16x2"]
    scale = "scaled::n2::ue8m0"
    found = forms("rn", "relu", [f"f16x2.{s}x2" for s in NARROW])
    found |= forms("rn", f"satfinite relu {scale}", [f"bf16x2.{s}x2" for s in (*NARROW, "s2f6")])
    found |= forms("rs.satfinite", "relu", [f"{d}x4.f32" for d in NARROW])
    found |= forms("rs", "satfinite relu", ["f16x2.f32", "bf16x2.f32"])
    found |= {"cvt.rn.bf16x2.ue8m0x2"}
    for rounding in ("rn", "rz"):
        found |= forms(rounding + ".satfinite", "relu", down)
        found |= forms(rounding + ".satfinite", f"relu {scale}", to_s2f6)
    for rounding in ("rz", "rp"):
        found |= forms(rounding, "satfinite", to_ue8m0)
    return found


def test_every_form_of_the_grammar_has_its_function_and_no_other():
    assert set(INSTRUCTIONS) == grammar()
    assert len(INSTRUCTIONS) == 161


@pytest.mark.parametrize("instruction", sorted(grammar()))
def test_random_operands_equal_the_scalar_model(instruction: str):
    n = 400
    operands, extra = inputs(instruction, n)
    ours = INSTRUCTIONS[instruction](*operands, **extra)
    rows = zip(*(operand.tolist() for operand in operands), strict=True)
    words = [dict(zip(extra, row, strict=True)) for row in zip(*(t.tolist() for t in extra.values()), strict=True)]
    theirs = [model(instruction, list(row), **word) for row, word in zip(rows, words or [{}] * n, strict=True)]
    assert ours.tolist() == theirs
    name, count = elements(instruction.split(".")[-2])
    assert ours.dtype == {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}[FIELD[name] * count]


@pytest.mark.parametrize("instruction", sorted(grammar()))
def test_signature_and_manual(instruction: str):
    """The operands of the instruction by its names; a page that says where the bits lie and what it takes to run it."""
    function = INSTRUCTIONS[instruction]
    names = list(inspect.signature(function).parameters)
    *_, destination, source = instruction.split(".")
    wanted = ["a"] if source != "f32" else ["a", "b", "e", "f"][: elements(destination)[1]]
    assert names == wanted + ["scale"] * ("scaled" in instruction) + ["rbits"] * (".rs." in instruction)
    assert function is getattr(ptx, function.__name__) and function.__module__ == "numerics.ptx"
    page = inspect.getdoc(function)
    assert page.startswith(instruction + " d, ") and "PTX ISA" in page and "sm_" in page and "Raises:" in page
    for name, question in ptx.OPEN_QUESTIONS.items():
        assert (name in page) == question.touches(instruction)


@pytest.mark.parametrize(
    ("instruction", "version", "target"),
    [
        ("cvt.rn.satfinite.e4m3x2.f32", "7.8", "sm_89"),
        ("cvt.rn.satfinite.relu.e5m2x2.f16x2", "7.8", "sm_90"),
        ("cvt.rn.satfinite.e4m3x2.bf16x2", "9.1", "sm_100f"),
        ("cvt.rn.satfinite.e2m1x2.f32", "8.6", "sm_100a"),
        ("cvt.rn.satfinite.e2m3x2.f16x2", "9.1", "sm_110f"),
        ("cvt.rn.satfinite.e3m2x2.bf16x2", "9.1", "sm_120f"),
        ("cvt.rz.satfinite.e4m3x2.f32", "9.4", "sm_107f"),
        ("cvt.rz.satfinite.s2f6x2.f32", "9.4", "sm_107a"),
        ("cvt.rn.f16x2.e4m3x2", "7.8", "sm_89"),
        ("cvt.rn.relu.f16x2.e3m2x2", "8.6", "sm_120a"),
        ("cvt.rn.bf16x2.e5m2x2", "9.2", "sm_100f"),
        ("cvt.rn.satfinite.relu.scaled::n2::ue8m0.bf16x2.e2m1x2", "9.2", "sm_120f"),
        ("cvt.rs.satfinite.e2m1x4.f32", "8.7", "sm_103a"),
        ("cvt.rs.bf16x2.f32", "8.7", "sm_100a"),
        ("cvt.rn.satfinite.s2f6x2.bf16x2", "9.1", "sm_121a"),
        ("cvt.rn.bf16x2.s2f6x2", "9.1", "sm_103a"),
        ("cvt.rp.satfinite.ue8m0x2.f32", "8.6", "sm_110a"),
        ("cvt.rn.bf16x2.ue8m0x2", "8.6", "sm_100f"),
    ],
)
def test_version_and_targets(instruction: str, version: str, target: str):
    page = inspect.getdoc(INSTRUCTIONS[instruction])
    assert f"\nPTX ISA {version}; " in page and target in page


# ---- open questions --------------------------------------------------------------------------------------------------


def answered(monkeypatch: pytest.MonkeyPatch, name: str, reading: str) -> None:
    monkeypatch.setitem(ptx.OPEN_QUESTIONS, name, dataclasses.replace(ptx.OPEN_QUESTIONS[name], assumption=reading))


S2F6, TO_S2F6 = "cvt.rn.satfinite.s2f6x2.f32", "cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2."
UP = "cvt.rn.scaled::n2::ue8m0.bf16x2."
RS6, RS8, RS16 = "cvt.rs.satfinite.e2m3x4.f32", "cvt.rs.satfinite.e4m3x4.f32", "cvt.rs.f16x2.f32"
FOUR, NANS, TOPS = (1.0625, 1.0625, 1.0, 1.0), (-NAN, NAN, 1.0, 1.0), (2.0**127, 1.0)
ANSWERS = [  # question, other reading, instruction, operands, scale or rbits, result as assumed, with the other
    ("s2f6 negative saturation", "0x81", S2F6, (-9.0, -2.0), {}, 0x8080, 0x8181),
    ("s2f6 NaN scale", "2^128", TO_S2F6 + "f32", TOPS, {"scale": 0xFFFF}, 0x7F7F, 0x2000),
    ("s2f6 subnormal operand", "flushed", TO_S2F6 + "bf16x2", (0x00400080,), {"scale": 0x0001}, 0x4040, 0x0040),
    ("6-bit random bits", "straight", RS6, FOUR, {"rbits": 1 << 31}, 0x08090808, 0x09090808),
    ("rs NaN sign", "kept", RS8, NANS, {"rbits": 0}, 0x7F7F3838, 0xFF7F3838),
    ("f16x2 spare random bits", "added", RS16, (1.0, 65504.0), {"rbits": 0x60002000}, 0x3C007BFF, 0x3C037C00),
    ("rs overflow", "largest", "cvt.rs.bf16x2.f32", (INF, -1.0), {"rbits": 0}, 0x7F80BF80, 0x7F7FBF80),
    ("NaN of a scaled product", "0x7FC0", UP + "e2m1x2", (0x22,), {"scale": 0xFF7F}, 0x7FFF3F80, 0x7FC03F80),
    ("underflow of a scaled product", "flushed", UP + "e4m3x2", (0xB0B8,), {"scale": 0}, 0x80208040, 0x80008000),
]


@pytest.mark.parametrize(("name", "reading", "instruction", "operands", "extra", "ours", "theirs"), ANSWERS)
def test_an_answer_changes_the_bits(monkeypatch, name, reading, instruction, operands, extra, ours, theirs):
    assert call(instruction, *operands, **extra) == ours
    answered(monkeypatch, name, reading)
    assert call(instruction, *operands, **extra) == theirs


@pytest.mark.parametrize("name", ptx.OPEN_QUESTIONS)
def test_an_answer_changes_only_the_forms_it_touches(monkeypatch, name: str):
    """Every alternative reading moves some result of some form it names, and none of any other form."""
    question = ptx.OPEN_QUESTIONS[name]
    assert question.assumption not in question.alternatives and question.alternatives and question.source
    assert {case[0] for case in ANSWERS if case[1] in question.alternatives} >= {name}
    before = {i: INSTRUCTIONS[i](*(data := inputs(i, 2000))[0], **data[1]) for i in INSTRUCTIONS}
    for reading in question.alternatives:
        answered(monkeypatch, name, reading)
        moved = set()
        for instruction, old in before.items():
            operands, extra = inputs(instruction, 2000)
            if not torch.equal(INSTRUCTIONS[instruction](*operands, **extra), old):
                moved.add(instruction)
        touched = {i for i in INSTRUCTIONS if question.touches(i)}
        assert moved and moved <= touched


# ---- operands, errors ------------------------------------------------------------------------------------------------


def test_any_shape_and_device_layout():
    x = random_float32(24, 5).view(2, 3, 4)
    d = ptx.cvt_rn_satfinite_e4m3x2_f32(x, -x)
    assert d.shape == (2, 3, 4)
    assert torch.equal(ptx.cvt_rn_satfinite_e4m3x2_f32(x.mT, -x.mT), d.mT)
    assert ptx.cvt_rn_satfinite_e4m3x2_f32(x[:0], x[:0]).shape == (0, 3, 4)
    assert ptx.cvt_rs_satfinite_e2m1x4_f32(*[torch.tensor(1.0)] * 4, 0).shape == ()
    assert ptx.cvt_rn_bf16x2_e2m1x2(torch.zeros(0, dtype=torch.uint8)).shape == (0,)


def test_numpy_comes_back_as_numpy():
    x = random_float32(64, 6)
    ours = ptx.cvt_rn_satfinite_e2m1x2_f32(x.numpy(), -x.numpy())
    assert isinstance(ours, np.ndarray) and ours.dtype == np.uint8
    assert np.array_equal(ours, ptx.cvt_rn_satfinite_e2m1x2_f32(x, -x).numpy())


def test_word_types_are_one():
    """uint32, int32 as bits, int64; likewise 16 and 8 bits; an int serves every element."""
    word = torch.tensor([0xBF803F80, 0x00010203, 0xFFFFFFFF])
    d = ptx.cvt_rn_satfinite_e4m3x2_bf16x2(word)
    for dtype in (torch.uint32, torch.int32):
        assert torch.equal(ptx.cvt_rn_satfinite_e4m3x2_bf16x2(word.to(dtype)), d)
    word = torch.tensor([0xFF01, 0x3840])
    d = ptx.cvt_rn_f16x2_e4m3x2(word)
    for dtype in (torch.uint16, torch.int16, torch.int32, torch.uint32):
        assert torch.equal(ptx.cvt_rn_f16x2_e4m3x2(word.to(dtype)), d)
    word = torch.tensor([0xF1, 0x12])
    for dtype in (torch.uint8, torch.int8):
        assert torch.equal(ptx.cvt_rn_f16x2_e2m1x2(word.to(dtype)), ptx.cvt_rn_f16x2_e2m1x2(word))
    x = random_float32(400, 7)
    rbits = torch.full((400,), 0xDEADBEEF)
    for instruction in (i for i in INSTRUCTIONS if ".rs." in i):  # each splits the word in its own way
        operands = [x] * elements(instruction.split(".")[-2])[1]
        d = INSTRUCTIONS[instruction](*operands, rbits)
        assert torch.equal(INSTRUCTIONS[instruction](*operands, 0xDEADBEEF), d)
        assert torch.equal(INSTRUCTIONS[instruction](*operands, rbits.to(torch.int32)), d)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not compared: torch finds no CUDA device")
def test_gpu_gives_the_same_bits():
    for instruction, function in INSTRUCTIONS.items():
        operands, extra = inputs(instruction, 20_000, seed=11)
        there = {name: word.cuda() for name, word in extra.items()}
        assert torch.equal(function(*(x.cuda() for x in operands), **there).cpu(), function(*operands, **extra))


def test_input_is_left_alone():
    x, rbits = random_float32(256, 8), torch.randint(0, 1 << 32, (256,))
    word = rbits.clone()
    before = x.clone().view(torch.int32)
    ptx.cvt_rs_satfinite_relu_e4m3x4_f32(x, x, x, x, rbits)
    ptx.cvt_rs_f16x2_f32(x, x, rbits)
    ptx.cvt_rp_ue8m0x2_f32(x, x)
    assert torch.equal(x.view(torch.int32), before) and torch.equal(word, rbits)


def test_errors():
    x, word = torch.ones(3), torch.zeros(3, dtype=torch.int64)
    for wrong in (x.double(), x.half(), x.to(torch.bfloat16), word, [1.0, 1.0, 1.0], 1.0):
        with pytest.raises(TypeError, match=r"^a (has dtype|is )"):
            ptx.cvt_rn_satfinite_e4m3x2_f32(wrong, x)
    with pytest.raises(TypeError, match=r"b has dtype torch.float64.*cvt.rn.satfinite.e4m3x2.f32 takes float32"):
        ptx.cvt_rn_satfinite_e4m3x2_f32(x, x.double())
    with pytest.raises(ValueError, match=r"f has shape \(2,\): a has \(3,\)"):
        ptx.cvt_rs_satfinite_e2m1x4_f32(x, x, x, x[:2], word)
    with pytest.raises(ValueError, match=r"rbits has shape \(1,\): a has \(3,\)"):
        ptx.cvt_rs_satfinite_e2m1x4_f32(x, x, x, x, word[:1])
    with pytest.raises(TypeError, match=r"rbits has dtype torch.float32"):
        ptx.cvt_rs_f16x2_f32(x, x, x)
    for bad in (-1, 1 << 32):
        with pytest.raises(ValueError, match=r"rbits reaches from .* 32-bit words, 0 to 4294967295"):
            ptx.cvt_rs_bf16x2_f32(x, x, bad)
    with pytest.raises(ValueError, match=r"scale reaches from 65536"):
        ptx.cvt_rn_satfinite_scaled_n2_ue8m0_s2f6x2_f32(x, x, 0x10000)
    with pytest.raises(ValueError, match=r"a reaches from 0 to 256: pass 8-bit words"):
        ptx.cvt_rn_f16x2_e2m1x2(torch.tensor([0, 256]))
    for bad in (0x4000, 0x0080):
        with pytest.raises(ValueError, match=r"a has bits above its (upper|lower) 6-bit code"):
            ptx.cvt_rn_f16x2_e2m3x2(torch.tensor([bad]))
    with pytest.raises(TypeError, match=r"a has dtype torch.float16: pass 32-bit words"):
        ptx.cvt_rn_satfinite_e4m3x2_f16x2(torch.ones(2, dtype=torch.float16))
    with pytest.raises(TypeError, match=r"rbits"):
        ptx.cvt_rs_bf16x2_f32(x, x)


WRONG_WORDS = [
    (None, TypeError, r"is None \(NoneType\): pass {width}-bit words"),
    (1.0, TypeError, r"is 1.0 \(float\): pass {width}-bit words"),
    (True, TypeError, r"is True \(bool\): pass {width}-bit words"),
    ("1", TypeError, r"is '1' \(str\): pass {width}-bit words"),
    ([0, 0, 0], TypeError, r"is \[0, 0, 0\] \(list\): pass {width}-bit words"),
    (np.zeros(3, bool), TypeError, r"is a numpy bool array .*: pass {width}-bit words"),
    (torch.zeros(3, dtype=torch.bool), TypeError, r"has dtype torch.bool: pass {width}-bit words"),
    (torch.zeros(3, dtype=torch.float8_e4m3fn), TypeError, r"has dtype torch.float8_e4m3fn: pass {width}-bit words"),
    (-1, ValueError, r"reaches from -1 to -1: pass {width}-bit words, 0 to"),
    (2**70, ValueError, r"reaches from 1180591620717411303424 to .*: pass {width}-bit words, 0 to"),
    (np.full(3, 2**63, np.uint64), ValueError, r"reaches from 9223372036854775808 to 9223372036854775808: pass"),
    (torch.full((3,), 2**40), ValueError, r"reaches from 1099511627776 to 1099511627776: pass"),
    (torch.zeros(3, dtype=torch.int64, device="meta"), ValueError, r"is on meta: a is on cpu; move one of them"),
    (torch.zeros(2, dtype=torch.int64), ValueError, r"has shape \(2,\): a has \(3,\); make them equal"),
]
WRONG_NUMBERS = [
    (None, TypeError, r"is None \(NoneType\): pass a torch tensor or a numpy array"),
    (1.0, TypeError, r"is 1.0 \(float\): pass a torch tensor or a numpy array"),
    (torch.ones(3, dtype=torch.float64), TypeError, r"has dtype torch.float64: .* takes float32; convert it first"),
    (torch.ones(3, dtype=torch.bool), TypeError, r"has dtype torch.bool: .* takes float32; convert it first"),
]


@pytest.mark.parametrize("instruction", sorted(grammar()))
def test_every_operand_of_every_form_is_checked(instruction: str):
    function = INSTRUCTIONS[instruction]
    number, word = torch.ones(3), torch.zeros(3, dtype=torch.int64)
    takes_numbers = instruction.endswith("f32")
    names = list(inspect.signature(function).parameters)
    good = {n: number if takes_numbers and n not in ("scale", "rbits") else word for n in names}
    function(**good)
    for name in names:
        source = instruction.split(".")[-1]
        width = {"scale": 16, "rbits": 32}.get(name) or FIELD.get(source[:-2], 16) * 2
        for value, kind, message in WRONG_NUMBERS if good[name] is number else WRONG_WORDS:
            if isinstance(value, int) and name == "a" and not isinstance(value, bool):
                continue  # one int for all elements has no shape, which `a` gives
            if name == "a" and ("make them equal" in message or "move one" in message):
                continue
            with pytest.raises(kind, match=f"^{name} " + message.replace("{width}", str(width))):
                function(**good | {name: value})
    for value in (number.to("meta"), number[:2]):
        if takes_numbers:
            with pytest.raises(ValueError, match=r"^b (is on meta: a is on cpu|has shape \(2,\): a has \(3,\))"):
                function(**good | {"b": value})


def test_an_int_of_any_kind_is_a_word():
    x = torch.ones(3)
    expected = ptx.cvt_rs_satfinite_e2m1x4_f32(x, x, x, x, 77)
    for word in (np.int64(77), np.uint8(77)):
        assert torch.equal(ptx.cvt_rs_satfinite_e2m1x4_f32(x, x, x, x, word), expected)
