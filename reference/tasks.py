"""Small generated tasks with known answers: copying, reversing, counting, closing brackets, the next line of a pattern.

An item is a prompt, four choices of equal length of which one is the answer, and its place. Three solved examples, or
the lines before, are in the prompt. Item i of a task is a function of (seed, task, i), drawn with numpy's Philox, so
more items leave the first ones as they are. Everything is ASCII.

A guess among the four is right in a quarter of all items; one that knows the form of an answer (four different letters,
a digit, ..) completes `guess` of them.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

CHOICES = 4
EXAMPLES = 3


class Draws:
    """Numbers of one item: words of Philox (seed, task * 2^32 + item), each modulo what is asked; the bias is below
    2^-50."""

    def __init__(self, seed: int, task: int, item: int) -> None:
        self._words = np.random.Philox(key=np.array([seed, task * 2**32 + item], dtype=np.uint64))

    def below(self, bound: int) -> int:
        """0 to bound - 1."""
        return int(self._words.random_raw()) % bound

    def some(self, pool: str, count: int) -> str:
        """`count` different characters of `pool`."""
        left, found = list(pool), []
        for _ in range(count):
            found.append(left.pop(self.below(len(left))))
        return "".join(found)


@dataclass(frozen=True)
class Item:
    """`choices[answer]` continues `prompt` rightly, and no other one does."""

    prompt: bytes
    choices: tuple[bytes, ...]
    answer: int


@dataclass(frozen=True)
class Task:
    """A kind of items. `pair`: draws a question, its answer and three wrong ones of the answer's length; `guess`: share
    of the answers that their form alone tells; `line`: how a question begins in its line, None where questions have
    lines of their own."""

    name: str
    pair: Callable[[Draws], tuple[str, str, list[str]]]
    guess: float
    line: str | None

    def item(self, seed: int, number: int) -> Item:
        """Item `number` of the task, from 0."""
        draws = Draws(seed, TASKS.index(self), number)
        text = ""
        if self.line is not None:
            for _ in range(EXAMPLES):
                question, answer, _wrong = self.pair(draws)
                text += f"{self.line} {question}: {answer}\n"
        question, answer, wrong = self.pair(draws)
        prompt = text + (question if self.line is None else f"{self.line} {question}: ")
        choices, place = list(wrong), draws.below(CHOICES)
        choices.insert(place, answer)
        return Item(prompt.encode(), tuple(choice.encode() for choice in choices), place)


def _confused(draws: Draws, answer: str, pool: str) -> list[str]:
    """Three wrong answers: two neighbours swapped, one letter replaced, and another word altogether."""
    at = draws.below(len(answer) - 1)
    swapped = answer[:at] + answer[at + 1] + answer[at] + answer[at + 2 :]
    at, other = draws.below(len(answer)), draws.some("".join(sorted(set(pool) - set(answer))), 1)
    replaced = answer[:at] + other + answer[at + 1 :]
    while (another := draws.some(pool, len(answer))) in (answer, swapped, replaced):
        pass
    return [swapped, replaced, another]


def _copy(draws: Draws) -> tuple[str, str, list[str]]:
    word = draws.some(string.ascii_lowercase, 4)
    return word, word, _confused(draws, word, string.ascii_lowercase)


def _reverse(draws: Draws) -> tuple[str, str, list[str]]:
    word = draws.some(string.ascii_lowercase, 4)
    confused = _confused(draws, word[::-1], string.ascii_lowercase)
    return word, word[::-1], [word, *confused[:2]]


def _count(draws: Draws) -> tuple[str, str, list[str]]:
    number, letter = 1 + draws.below(9), draws.some(string.ascii_lowercase, 1)
    digit = str(number)
    return letter * number, digit, list(draws.some("123456789".replace(digit, ""), 3))


_CLOSING = dict(zip("([{<", ")]}>", strict=True))


def _brackets(draws: Draws) -> tuple[str, str, list[str]]:
    opened = draws.some("([{<", 3)  # different ones, so that the order counts
    answer = "".join(_CLOSING[bracket] for bracket in reversed(opened))
    return opened, answer, [answer[::-1], *_confused(draws, answer, ")]}>")[:2]]


def _pattern(draws: Draws) -> tuple[str, str, list[str]]:
    letter, step, start = draws.some(string.ascii_lowercase, 1), 1 + draws.below(9), 10 + draws.below(40)
    numbers = [start + i * step for i in range(EXAMPLES + 2)]  # at most 49 + 36: two digits
    lines = "".join(f"{letter} = {number}\n" for number in numbers[:-1])
    wrong = [str(numbers[-1] + 1), str(numbers[-1] - 1), str(numbers[-1] + 10)]
    return f"{lines}{letter} = ", str(numbers[-1]), wrong


TASKS = (
    Task("copy", _copy, 1 / (26 * 25 * 24 * 23), "copy"),
    Task("reverse", _reverse, 1 / (26 * 25 * 24 * 23), "reverse"),
    Task("count", _count, 1 / 9, "count"),
    Task("brackets", _brackets, 1 / 24, "close"),
    Task("pattern", _pattern, 1 / 90, None),
)
