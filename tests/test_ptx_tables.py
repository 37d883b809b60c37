"""The bits of NVIDIA's `cvt` instructions.

Contract: `nm.ptx` gives the published values. Oracles: tables of PTX ISA and of NVIDIA's header emulation, written out;
published read-outs of the random bits on B200; for 16-bit operands all 65,536 words, against torch's casts and the
forms that take float32. Bitwise. tests/test_host_headers.py runs NVIDIA's headers themselves.
"""

import math

import pytest
import torch
from ptx_model import FIELD, FORMAT, INF, INSTRUCTIONS, NAN, NARROW, call, random_float32, unpack

import numerics as nm
from numerics import ptx

# ---- down, to nearest even -------------------------------------------------------------------------------------------

TABLE = {  # by NVIDIA's headers: zero, infinity, NaN, largest, twice that, half the least subnormal, one ulp more
    "e4m3": [0x00, 0x7E, 0x7F, 0x7E, 0x7E, 0x00, 0x01],
    "e5m2": [0x00, 0x7B, 0x7F, 0x7B, 0x7B, 0x00, 0x01],
    "e2m3": [0x00, 0x1F, 0x1F, 0x1F, 0x1F, 0x00, 0x01],
    "e3m2": [0x00, 0x1F, 0x1F, 0x1F, 0x1F, 0x00, 0x01],
    "e2m1": [0x0, 0x7, 0x7, 0x7, 0x7, 0x0, 0x1],
}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m3": 7.5, "e3m2": 28.0, "e2m1": 6.0}
LEAST = {"e4m3": 2.0**-9, "e5m2": 2.0**-16, "e2m3": 0.125, "e3m2": 0.0625, "e2m1": 0.5}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_specials(name: str, sign: int, relu: str):
    """The sign is kept but that of NaN; relu makes every negative number, -0 and -infinity too, +0, and leaves NaN."""
    top, tie = LARGEST[name], LEAST[name] / 2
    numbers = [0.0, INF, NAN, top, 2 * top, tie, tie * (1 + 2.0**-23)]
    minus = {"e2m1": 8, "e2m3": 0x20, "e3m2": 0x20}.get(name, 0x80)
    for number, code in zip(numbers, TABLE[name], strict=True):
        x = math.copysign(number, sign)
        flips = sign < 0 and not math.isnan(number)
        nearest, truncated = code, 0 if number < LEAST[name] else code
        if flips:
            nearest, truncated = (0, 0) if relu else (nearest | minus, truncated | minus)
        assert call(f"cvt.rn.satfinite{relu}.{name}x2.f32", x, x) == nearest * (1 + (1 << FIELD[name])), x
        word = call(f"cvt.rs.satfinite{relu}.{name}x4.f32", x, x, x, x, rbits=0)
        assert unpack(word, f"{name}x4") == [truncated] * 4, x


def test_no_saturation_threshold():
    """A tie beyond the largest number saturates like everything beyond: 464 in e4m3 and 61440 in e5m2."""
    assert call("cvt.rn.satfinite.e4m3x2.f32", 464.0, -465.0) == 0x7EFE
    assert call("cvt.rn.satfinite.e5m2x2.f32", 61440.0, -61440.0) == 0x7BFB
    assert call("cvt.rz.satfinite.e4m3x2.f32", 447.9, -1e9) == 0x7DFE


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("rounding", ["rn", "rz"])
@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_all_halves_equal_the_float32_form(name: str, relu: str, rounding: str, half: str):
    """All 65,536 inputs in each half of the word, against the form that takes the same numbers as float32."""
    word = torch.arange(1 << 16)
    other = (word * 40503 + 1) % (1 << 16)  # an odd multiplier: a permutation
    dtype = torch.float16 if half == "f16" else torch.bfloat16
    a, b = (half.to(torch.uint16).view(dtype).float() for half in (word, other))
    stem = f"cvt.{rounding}.satfinite{relu}.{name}x2"
    assert torch.equal(INSTRUCTIONS[f"{stem}.{half}x2"](word << 16 | other), INSTRUCTIONS[f"{stem}.f32"](a, b))


# ---- packing ---------------------------------------------------------------------------------------------------------


def test_packing_order():
    """a uppermost; 6-bit codes in bytes with two upper bits 0; the upper half of a word goes to the upper field."""
    assert call("cvt.rn.satfinite.e2m1x2.f32", 6.0, 0.5) == 0x71
    assert call("cvt.rn.satfinite.e4m3x2.f32", 1.0, 2.0) == 0x3840
    assert call("cvt.rn.satfinite.e2m3x2.f32", -7.5, 0.125) == 0x3F01
    assert call("cvt.rn.satfinite.e3m2x2.f32", -28.0, 28.0) == 0x3F1F
    assert call("cvt.rn.satfinite.e2m1x2.f16x2", 0x3C00_4600) == 0x27  # 1, 6
    assert call("cvt.rn.satfinite.e4m3x2.bf16x2", 0x3F80_4000) == 0x3840
    assert call("cvt.rn.satfinite.s2f6x2.f32", 1.0, -1.0) == 0x40C0
    assert call("cvt.rn.satfinite.s2f6x2.bf16x2", 0x3F80_BF80) == 0x40C0
    assert call("cvt.rz.satfinite.ue8m0x2.f32", 1.0, 2.0) == 0x7F80
    assert call("cvt.rs.satfinite.e2m1x4.f32", 0.5, 1.0, 1.5, -2.0, rbits=0xFFFFFFFF) == 0x123C
    assert call("cvt.rs.satfinite.e4m3x4.f32", 1.0, 2.0, 4.0, -8.0, rbits=0xFFFFFFFF) == 0x384048D0
    assert call("cvt.rs.satfinite.e2m3x4.f32", -7.5, 1.0, 2.0, -0.125, rbits=0) == 0x3F081021
    assert call("cvt.rs.f16x2.f32", 1.0, -2.0, rbits=0x1FFF1FFF) == 0x3C00C000
    assert call("cvt.rs.bf16x2.f32", 1.0, -2.0, rbits=0xFFFFFFFF) == 0x3F80C000
    assert call("cvt.rn.f16x2.e2m1x2", 0x27) == 0x3C00_4600
    assert call("cvt.rn.bf16x2.e4m3x2", 0x3840) == 0x3F80_4000
    assert call("cvt.rn.bf16x2.ue8m0x2", 0x7F80) == 0x3F80_4000


def test_views_agree_with_words():
    """Neighbours in memory: the even one is the lower half; a result's lowest byte comes first."""
    halves = torch.tensor([6.0, 1.0], dtype=torch.float16)
    assert ptx.cvt_rn_satfinite_e2m1x2_f16x2(halves.view(torch.int32)).tolist() == [0x27]
    words = ptx.cvt_rn_satfinite_e4m3x2_f16x2(halves.view(torch.int32))
    assert torch.equal(words.view(torch.uint8), nm.encode(halves, nm.E4M3))


# ---- random bits -----------------------------------------------------------------------------------------------------

VECTORS = [  # rbits, then the fields of a, b, e, f in 8-bit and in 4-bit elements; read out on a B200
    (0x12345678, (0x2C48, 0x1234, 0x1E6A, 0x5678), (0x6A48, 0x1256, 0x1E2C, 0x3478)),
    (1 << 31, (0x0001, 0x8000, 0, 0), (0x0001, 0x8000, 0, 0)),
    (1 << 8, (0, 0, 0x0080, 0x0100), (0x8000, 0x0001, 0, 0)),
]


@pytest.mark.parametrize(("rbits", "bytewise", "nibbles"), VECTORS)
@pytest.mark.parametrize("name", NARROW)
def test_random_field_of_each_operand(rbits: int, bytewise: tuple, nibbles: tuple, name: str):
    """1 + t 2^-16 of a unit rounds up iff t + field >= 2^16, so over all t the field is the count of round-ups."""
    fmt = FORMAT[name]
    x = 1 + torch.arange(1 << 16) * 2.0 ** -(16 + fmt.mantissa_bits)
    still = torch.ones_like(x)
    one = int(nm.encode(still[:1], fmt))
    for place, field in enumerate(nibbles if name == "e2m1" else bytewise):
        operands = [x if i == place else still for i in range(4)]
        words = INSTRUCTIONS[f"cvt.rs.satfinite.{name}x4.f32"](*operands, rbits).to(torch.int64)
        codes = words >> FIELD[name] * (3 - place) & (1 << FIELD[name]) - 1
        assert int((codes == one + 1).sum()) == field and int((codes == one).sum()) == (1 << 16) - field
        rest = words ^ codes << FIELD[name] * (3 - place)
        assert rest.unique().numel() == 1


@pytest.mark.parametrize(("name", "width"), [("f16", 13), ("bf16", 16)])
@pytest.mark.parametrize("rbits", [0x12345678, 0x1FFF0001, 0x00010000, 0x0ABC1DEF])
def test_random_field_of_each_half(name: str, width: int, rbits: int):
    """Straight, not reversed; 13 of 16 bits for float16."""
    fmt = FORMAT[name]
    x = 1 + torch.arange(1 << width) * 2.0 ** -(width + fmt.mantissa_bits)
    one = int(nm.encode(torch.ones(1), fmt).to(torch.int32))
    for shift in (16, 0):
        operands = [x if shift else torch.ones_like(x), torch.ones_like(x) if shift else x]
        words = INSTRUCTIONS[f"cvt.rs.{name}x2.f32"](*operands, rbits).to(torch.int64)
        ups = int(((words >> shift & 0xFFFF) == one + 1).sum())
        assert ups == (rbits >> shift) & (1 << width) - 1


@pytest.mark.parametrize("name", NARROW)
def test_stochastic_ends(name: str):
    """No random bits truncate, exact values never move, far too small ones vanish, the largest stays the largest."""
    stem = INSTRUCTIONS[f"cvt.rs.satfinite.{name}x4.f32"]
    truncating = INSTRUCTIONS[f"cvt.rz.satfinite.{name}x2.f32"]
    x = random_float32(5000, 3)
    ours = stem(x, x, x, x, 0).to(torch.int64)
    theirs = truncating(x, x).to(torch.int64)
    assert torch.equal(ours & (1 << 2 * FIELD[name]) - 1, theirs)
    exact = FORMAT[name].values()
    assert torch.equal(
        stem(exact, exact, exact, exact, 0xFFFFFFFF).to(torch.int64) & (1 << 2 * FIELD[name]) - 1,
        truncating(exact, exact).to(torch.int64),
    )
    # the field starts right below the least subnormal: 2^-17 of it is beyond the field's last bit
    tiny = torch.full((1,), LEAST[name] * 2.0**-17)
    assert int(stem(tiny, tiny, tiny, tiny, 0xFFFFFFFF).to(torch.int64)) == 0
    assert int(stem(2 * tiny, 2 * tiny, 2 * tiny, 2 * tiny, 0xFFFFFFFF).to(torch.int64)) > 0


def test_stochastic_halves_saturate_or_overflow():
    top = float.fromhex("0x1.fffffep127")
    assert call("cvt.rs.satfinite.f16x2.f32", 65505.0, -INF, rbits=0x1FFF1FFF) == 0x7BFFFBFF
    assert call("cvt.rs.f16x2.f32", 65505.0, -INF, rbits=0x1FFF1FFF) == 0x7C00FC00
    assert call("cvt.rs.f16x2.f32", 65505.0, 70000.0, rbits=0) == 0x7BFF7C00
    assert call("cvt.rs.satfinite.bf16x2.f32", top, -INF, rbits=0xFFFFFFFF) == 0x7F7FFF7F
    assert call("cvt.rs.bf16x2.f32", top, -INF, rbits=0xFFFFFFFF) == 0x7F80FF80
    assert call("cvt.rs.bf16x2.f32", top, NAN, rbits=0) == 0x7F7F7FFF
    assert call("cvt.rs.relu.bf16x2.f32", -0.0, -INF, rbits=0) == 0
    assert call("cvt.rs.satfinite.bf16x2.f32", 1e-45, -1e-45, rbits=0xFFFFFFFF) == 0x00018001  # subnormals take part


# ---- up --------------------------------------------------------------------------------------------------------------


def every_word(name: str) -> torch.Tensor:
    """All packed pairs of legal codes, int64: 65,536 for 8-bit types, 4,096 and 256 for the narrower ones."""
    code = torch.arange(1 << FORMAT[name].bits)
    return (code.view(-1, 1) << FIELD[name] | code).flatten()


def expected_halves(numbers: torch.Tensor, dtype: torch.dtype, relu: bool, satfinite: bool) -> torch.Tensor:
    """Codes of float64 numbers that `dtype` holds exactly, or that overflow, or NaN; torch's own cast does the rest."""
    nan = torch.isnan(numbers)
    numbers = numbers.clamp(min=0.0) + 0.0 if relu else numbers
    halves = numbers.to(dtype)
    if satfinite:
        halves = halves.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    codes = halves.view(torch.uint16).to(torch.int64)
    return torch.where(nan, 0x7FFF, codes)


@pytest.mark.parametrize("name", [*NARROW, "s2f6", "ue8m0"])
def test_all_packed_words_go_up(name: str):
    """Every 16-bit word (8-bit in e2m1) through every unscaled form to float16 and bfloat16."""
    word = every_word(name)
    codes = [word >> FIELD[name], word & (1 << FIELD[name]) - 1]
    numbers = [nm.decode(code, FORMAT[name]).double() for code in codes]
    forms = [i for i in INSTRUCTIONS if i.endswith(f"f16x2.{name}x2") and "scaled" not in i]
    assert len(forms) == {"s2f6": 4, "ue8m0": 1}.get(name, 6)
    for instruction in forms:
        dtype = torch.bfloat16 if ".bf16x2." in instruction else torch.float16
        relu, satfinite = ".relu" in instruction, ".satfinite" in instruction
        upper, lower = (expected_halves(x, dtype, relu, satfinite) for x in numbers)
        assert torch.equal(INSTRUCTIONS[instruction](word), (upper << 16 | lower).to(torch.uint32)), instruction


@pytest.mark.parametrize("name", [*NARROW, "s2f6"])
@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
def test_all_codes_times_all_scales(name: str, relu: str, satfinite: str):
    """Every code with every scale byte, in both fields. e4m3 and e5m2 products below bfloat16 round to nearest even."""
    code = torch.arange(1 << FORMAT[name].bits).view(-1, 1).expand(-1, 256).flatten()
    byte = torch.arange(256).repeat(1 << FORMAT[name].bits)
    power = torch.tensor([2.0 ** (b - 127) for b in range(255)] + [NAN], dtype=torch.float64)
    product = nm.decode(code, FORMAT[name]).double() * power[byte]
    wanted = expected_halves(product, torch.bfloat16, bool(relu), bool(satfinite))
    function = INSTRUCTIONS[f"cvt.rn{satfinite}{relu}.scaled::n2::ue8m0.bf16x2.{name}x2"]
    one = int(nm.encode(torch.ones(1), FORMAT[name]))
    upper = function(code << FIELD[name] | one, byte << 8 | 0x80)
    lower = function(one << FIELD[name] | code, 0x8000 | byte)
    assert torch.equal(upper, (wanted << 16 | 0x4000).to(torch.uint32))
    assert torch.equal(lower, (wanted | 0x4000 << 16).to(torch.uint32))


def test_up_specials():
    """NaN is 0x7FFF whatever its sign, relu leaves it; -0 stays unless relu; infinity of e5m2 saturates if asked to."""
    assert call("cvt.rn.f16x2.e4m3x2", 0xFF80) == 0x7FFF8000
    assert call("cvt.rn.relu.f16x2.e4m3x2", 0xFF80) == 0x7FFF0000
    assert call("cvt.rn.f16x2.e5m2x2", 0x7CFC) == 0x7C00FC00
    assert call("cvt.rn.relu.f16x2.e5m2x2", 0x7DFC) == 0x7FFF0000
    assert call("cvt.rn.bf16x2.e5m2x2", 0x7CFC) == 0x7F80FF80
    assert call("cvt.rn.satfinite.bf16x2.e5m2x2", 0x7CFC) == 0x7F7FFF7F
    assert call("cvt.rn.bf16x2.ue8m0x2", 0x00FF) == 0x00407FFF
    assert call("cvt.rn.bf16x2.ue8m0x2", 0x01FE) == 0x00807F00
    scaled = "cvt.rn{}.scaled::n2::ue8m0.bf16x2.e2m1x2"
    assert call(scaled.format(""), 0x7F, scale=0xFEFF) == 0x7F807FFF  # 6 x 2^127, -6 x NaN
    assert call(scaled.format(".satfinite"), 0x7F, scale=0xFEFE) == 0x7F7FFF7F
    assert call(scaled.format(""), 0x19, scale=0x0000) == 0x00208020  # 0.5 x 2^-127 is exact


def test_default_scale_is_one():
    word = every_word("s2f6")
    assert torch.equal(ptx.cvt_rn_scaled_n2_ue8m0_bf16x2_s2f6x2(word), ptx.cvt_rn_bf16x2_s2f6x2(word))
    x = random_float32(1000, 1)
    scaled = ptx.cvt_rn_satfinite_scaled_n2_ue8m0_s2f6x2_f32
    assert torch.equal(scaled(x, -x), ptx.cvt_rn_satfinite_s2f6x2_f32(x, -x))
    assert torch.equal(scaled(x, -x, 0x7F7F), scaled(x, -x))


# ---- s2f6 and ue8m0 --------------------------------------------------------------------------------------------------


def test_s2f6_down():
    down = "cvt.rn.satfinite{}.s2f6x2.f32"
    assert call(down.format(""), 1.984375, -2.0) == 0x7F80
    assert call(down.format(""), 9.0, NAN) == 0x7F7F
    assert call(down.format(""), INF, -INF) == 0x7F80
    assert call(down.format(""), 1 / 128, 3 / 128) == 0x0002  # ties to even
    assert call(down.format(""), -0.0, -1 / 64) == 0x00FF
    assert call(down.format(".relu"), -1.0, NAN) == 0x007F
    assert call("cvt.rz.satfinite.s2f6x2.f32", 1.99, -1 / 65) == 0x7F00
    scaled = down.format(".scaled::n2::ue8m0")
    assert call(scaled, 64.0, -32.0, scale=0x8580) == 0x4080  # 64/64, -32/2
    assert call(scaled, 1.0, 1.0, scale=0xFF7E) == 0x7F7F  # NaN; 1/0.5 saturates
    assert call(scaled, 2.0**-127, 2.0**127, scale=0x00FE) == 0x4040


def test_s2f6_reads_an_int8_back():
    """Scale bytes 0x85, 2^6, make the conversion the exact cast of an int8."""
    byte = torch.arange(256)
    words = ptx.cvt_rn_scaled_n2_ue8m0_bf16x2_s2f6x2(byte << 8 | byte, 0x8585)
    wanted = byte.to(torch.uint8).view(torch.int8).to(torch.bfloat16)
    assert torch.equal(words.view(torch.bfloat16).view(-1, 2), wanted.view(-1, 1).expand(-1, 2))


UE8M0 = [  # x; rz.satfinite, rz, rp.satfinite, rp
    (0.0, 0x00, 0x00, 0x00, 0x00),
    (1e-45, 0x00, 0x00, 0x00, 0x00),
    (2.0**-127, 0x00, 0x00, 0x00, 0x00),
    (1.5 * 2.0**-127, 0x00, 0x00, 0x01, 0x01),
    (2.0**-126, 0x01, 0x01, 0x01, 0x01),
    (1.0, 0x7F, 0x7F, 0x7F, 0x7F),
    (1 + 2.0**-23, 0x7F, 0x7F, 0x80, 0x80),
    (1.5, 0x7F, 0x7F, 0x80, 0x80),
    (2.0**127, 0xFE, 0xFE, 0xFE, 0xFE),
    (2.0**127 * (1 + 2**-23), 0xFE, 0xFE, 0xFE, 0xFF),
    (INF, 0xFE, 0xFF, 0xFE, 0xFF),
    (NAN, 0xFF, 0xFF, 0xFF, 0xFF),
]


@pytest.mark.parametrize("row", UE8M0, ids=lambda row: row[0])
@pytest.mark.parametrize("sign", [1, -1])
def test_ue8m0_table(row: tuple, sign: int):
    """NVIDIA's header emulation; the sign is ignored."""
    x = math.copysign(row[0], sign)
    for qualifiers, code in zip(("rz.satfinite", "rz", "rp.satfinite", "rp"), row[1:], strict=True):
        assert call(f"cvt.{qualifiers}.ue8m0x2.f32", x, 1.0) == code << 8 | 0x7F
        half = torch.tensor([x]).to(torch.bfloat16)
        if math.isnan(x) or float(half) == x:
            word = int(half.view(torch.uint16).to(torch.int64)) << 16 | 0x3F80
            assert call(f"cvt.{qualifiers}.ue8m0x2.bf16x2", word) == code << 8 | 0x7F
