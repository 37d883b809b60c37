"""Golden vectors of random words: Philox-4x32-10, the fields that elements take of a word, Hadamard signs."""

from __future__ import annotations

import numpy as np
import torch

import numerics as nm

from .vectors_case import Case, array, case, element_fields, words

PHILOX = """Philox-4x32-10 (Salmon et al., 2011): a round maps counter words (c0, c1, c2, c3) under the key (k0, k1) to
    (high(c2 * 0xCD9E8D57) ^ c1 ^ k0, low(c2 * 0xCD9E8D57), high(c0 * 0xD2511F53) ^ c3 ^ k1, low(c0 * 0xD2511F53)), high
    and low the halves of 64-bit products; before each round but the first k0 += 0x9E3779B9 and k1 += 0xBB67AE85,
    modulo 2^32; ten rounds."""

SPLIT = """16 elements take 16 bits each of four 32-bit words: word w serves elements 4w to 4w+3, which are the operands
    f, e, b, a of one cvt.rs..x4. {fields} Element 4w (f) has L, 4w+1 (e) the 16 bits of L in reverse order, 4w+2 (b)
    has H, 4w+3 (a) the bits of H in reverse order."""
FIELDS = {
    4: "For elements of 4 bits L = {word[23:16], word[7:0]} and H = {word[31:24], word[15:8]}.",
    8: "For elements of 6 and 8 bits L = word[15:0] and H = word[31:16].",
}


def cases() -> list[Case]:
    """All of this module."""
    return [_philox(), *_splits(), *_elements(), *_signs()]


def _unsigned(x: torch.Tensor) -> np.ndarray:
    return array(x).astype(np.uint32)


def _philox() -> Case:
    """The three published known answers of Random123 come first, then single bits, then arbitrary ones."""
    full = 0xFFFFFFFF
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
    known = torch.tensor([[0] * 6, [full] * 6, pi])  # counter, then key
    single = torch.stack([torch.tensor([1 << j if i == k else 0 for k in range(6)]) for i in range(6) for j in (0, 31)])
    rows = torch.cat((known, single, words(6 * 49, 80).view(49, 6)))
    counter, key = rows[:, :4], rows[:, 4:]
    inputs = {"key": _unsigned(key), "counter": _unsigned(counter)}
    return case("philox/words", "philox", PHILOX, {"rounds": 10}, inputs, {"words": _unsigned(nm.philox(key, counter))})


def _splits() -> list[Case]:
    """From words to fields; the words are those of `Random`, whose counters are (c0, c1 + expert, line, group)."""
    listed = []
    group = torch.arange(40)
    key, counter = (123, 456), (789, 0)
    full = torch.stack((torch.full_like(group, 789), 0 * group, 2 + 0 * group, group), -1)
    drawn = nm.philox(list(key), full)
    for bits in (4, 8):
        fields = nm.Random(key, counter).fields(0, torch.full_like(group, 2), group, bits)
        prose = SPLIT.format(fields=FIELDS[bits])
        outputs = {"random_bits": array(fields).astype(np.uint16)}
        name = f"random_bits/split_{bits}"
        listed.append(
            case(name, "random_bits_split", prose, {"element_bits": bits}, {"words": _unsigned(drawn)}, outputs)
        )
    return listed


def _elements() -> list[Case]:
    """From a key and a counter to the bits of a matrix's elements, along features and along grouped rows."""
    listed = []
    for bits in (4, 8):
        random = nm.Random((5, 6), (64 * 2 + 1, 8))
        prose = f"""The 16 random bits of every element of a matrix of the parameter shape, quantized along the
            parameter axis. The counter of an element is (counter[0], counter[1] + expert, line, p // 16) under the
            parameter key. Axis 1: expert 0, line the row, p the column. Axis 0 with groups: expert the group of the
            row, line the column, p the row counted from the start of its group. {PHILOX}
            {SPLIT.format(fields=FIELDS[bits])} The element's place among the 16 is p % 16."""
        facts = {"element_bits": bits, "key": [5, 6], "counter": [129, 8]}
        along = element_fields(random, 0, torch.arange(3)[:, None], torch.arange(40), bits)
        parameters = {**facts, "shape": [3, 40], "axis": 1}
        listed.append(
            case(f"random_bits/features_{bits}", "random_bits", prose, parameters, {}, {"random_bits": along})
        )
        offsets = (0, 20, 20, 57)
        expert, position = grouped_rows(offsets)
        rows = element_fields(random, expert[:, None], torch.arange(6), position[:, None], bits)
        parameters = {**facts, "shape": [57, 6], "axis": 0, "groups": list(offsets)}
        listed.append(case(f"random_bits/groups_{bits}", "random_bits", prose, parameters, {}, {"random_bits": rows}))
    return listed


def grouped_rows(offsets: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The group of each row and its index in the group, int64."""
    sizes = torch.tensor(offsets).diff()
    group = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    return group, torch.arange(offsets[-1]) - torch.tensor(offsets)[group]


def _signs() -> list[Case]:
    prose = f"""Signs of a randomized Hadamard transform, float32: sign i is -1 where bit i % 32 of word i // 32 is set,
        of the four Philox words of counter (0, 0, 0, 0) under the parameter key, else +1. {PHILOX}"""
    return [
        case(f"hadamard_signs/{size}", "hadamard_signs", prose, {"size": size, "key": [1, 2]}, {}, {"signs": signs})
        for size in (32, 128)
        for signs in [nm.hadamard_signs(size, (1, 2))]
    ]
