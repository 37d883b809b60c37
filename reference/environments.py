"""Problems whose answers can be checked: what `fourbit rl` learns from, and the default examples of `fourbit sft`.

An environment is a function `Draws -> Problem`: it draws a prompt and gives the function that scores a completion, from
0 to 1 by custom. Problem number i of a seed is drawn with words of numpy's Philox (seed, i), so it is the same whenever
and wherever it is asked for. Another one than these is named by its import path, `module:function`.

Numbers below 2^31 are of problems to learn from, those from there on of problems that are held out. A problem is drawn
again until its prompt is on the side of its number, see `heldout`: no prompt that is held out is ever learned from.

    arithmetic   7+8=                  15       two digits, + or -
    countdown    make 19 of 8 3 5=     8*3-5    three digits, each used at most once, with + - and *
    reversal     reverse abcd=         dcba     three to five letters
    copying      copy abcd=            abcd
    sorting      sort dbca=            abcd

The last two have no name at `fourbit rl`. Everything is ASCII.
"""

from __future__ import annotations

import ast
import importlib
import math
import operator
import os
import string
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from .heldout import content, is_held_out
from .tasks import Draws

HELD_OUT = 1 << 31  # number of the first problem that is held out
_OWN = 1 << 16  # among the words of `tasks`, which number theirs from 0
_AGAIN = 1 << 9  # times that a problem is drawn, at most
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_LARGEST = 2.0**40  # of a score: the squares of a group still add up in float32
FAULTS = (Exception, SystemExit)  # of code that is the user's; not an interrupt, which is of the user himself
_LONGEST = 64  # characters of an expression that is read: a deeper one could exhaust the parser


@dataclass(frozen=True)
class Problem:
    """`prompt`: what the model continues. `score`: of the text that it wrote, its end left out. `solution`: a text of
    the highest score, None if none is known; examples are made of these."""

    prompt: str
    score: Callable[[str], float]
    solution: str | None = None


Environment = Callable[[Draws], Problem]


def exactly(solution: str) -> Callable[[str], float]:
    """1 for `solution` itself, else 0."""
    return lambda text: float(text == solution)


def arithmetic(draws: Draws) -> Problem:
    """Two single digits, added or subtracted."""
    a, b, sign = draws.below(10), draws.below(10), "+-"[draws.below(2)]
    answer = str(a + b if sign == "+" else a - b)
    return Problem(f"{a}{sign}{b}=", exactly(answer), answer)


def countdown(draws: Draws) -> Problem:
    """An expression of three digits that has a value; the one that the value was drawn with is a solution."""
    digits = [1 + draws.below(9) for _ in range(3)]
    signs = ["+-*"[draws.below(3)] for _ in range(2)]
    solution = f"{digits[0]}{signs[0]}{digits[1]}{signs[1]}{digits[2]}"
    target = _value(solution, digits)
    assert target is not None
    shown = list(digits)
    order = " ".join(str(shown.pop(draws.below(len(shown)))) for _ in digits)
    return Problem(f"make {target} of {order}=", lambda text: float(_value(text, digits) == target), solution)


def reversal(draws: Draws) -> Problem:
    """A word backwards."""
    word = draws.some(string.ascii_lowercase, 3 + draws.below(3))
    return Problem(f"reverse {word}=", exactly(word[::-1]), word[::-1])


def copying(draws: Draws) -> Problem:
    """A word once more."""
    word = draws.some(string.ascii_lowercase, 3 + draws.below(3))
    return Problem(f"copy {word}=", exactly(word), word)


def sorting(draws: Draws) -> Problem:
    """A word's letters in order."""
    word = draws.some(string.ascii_lowercase, 3 + draws.below(3))
    return Problem(f"sort {word}=", exactly("".join(sorted(word))), "".join(sorted(word)))


ENVIRONMENTS: dict[str, Environment] = {f.__name__: f for f in (arithmetic, countdown, reversal)}
EXERCISES: tuple[Environment, ...] = (arithmetic, countdown, reversal, copying, sorting)


def environment_of(name: str) -> Environment:
    """The environment called `name`, or at the import path `module:function`; modules of the working folder count.

    Raises:
        ValueError: neither, or the module cannot be imported.
    """
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"environment {name!r} is unknown: use one of {', '.join(ENVIRONMENTS)}, or module:function")
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function, None)
    except FAULTS as error:  # whatever the user's module does
        raise ValueError(
            f"environment {name!r} cannot be imported ({type(error).__name__}: {error}); correct {module}"
        ) from error
    finally:
        sys.path[:] = before
    if not callable(found):
        raise ValueError(f"environment {name!r}: {module} has no function {function}; name one of it")
    environment: Environment = found
    return environment


def problem(environment: Environment, seed: int, number: int) -> Problem:
    """Problem `number` of a seed, from 0, below 2^32: one to learn from, or from 2^31 on one that is held out.

    Raises:
        ValueError: the environment raises, gives something else, or asks nothing that is on that side.
    """
    for again in range(_AGAIN):
        found = drawn(environment, seed, number, again)
        if is_held_out(content(found.prompt)) == (number >= HELD_OUT):
            return found
    other = "learned from" if number >= HELD_OUT else "held out"
    raise ValueError(
        f"environment: problem {number} of seed {seed}, drawn {_AGAIN} times, is always one that is {other}; ask more "
        "different questions"
    )


def drawn(environment: Environment, seed: int, number: int, again: int = 0) -> Problem:
    """What the environment draws as number `number`, whichever side it is on. again: how often it has been drawn.

    Raises:
        ValueError: the environment raises, or gives something else.
    """
    try:
        found = environment(Draws(seed, _OWN + again, number))
    except FAULTS as error:
        raise ValueError(
            f"environment: problem {number} of seed {seed} cannot be made ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(found, Problem):
        raise ValueError(f"environment: problem {number} is a {type(found).__name__}; return a Problem")
    if not isinstance(found.prompt, str) or not callable(found.score):
        raise ValueError(f"environment: problem {number} needs a prompt that is text and a score that is a function")
    return found


@dataclass
class Scorer:
    """Scores completions. A score that raises, or that is no number of at most 2^40 either way, counts as 0 and as a
    failure; the first of them is told to `show`."""

    show: Callable[[str], None]
    failures: int = field(default=0)

    def __call__(self, asked: Problem, text: str) -> float:
        try:
            score = float(asked.score(text))
            what = f"gave {score}"
        except FAULTS as error:  # the user's code: whatever it raises
            score, what = math.nan, f"raised {type(error).__name__}: {error}"
        if abs(score) <= _LARGEST:
            return score
        if self.failures == 0:
            self.show(
                f"environment: the score of {text!r} after {asked.prompt!r} {what}; it counts as 0, and so will the "
                "next ones without a word: `failures` in the log counts them"
            )
        self.failures += 1
        return 0.0


def _value(text: str, digits: list[int]) -> int | None:
    """The value of an expression of some of `digits`; None for anything else."""
    if len(text) > _LONGEST or not set(text) <= set("0123456789+-*()"):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    left = list(digits)

    def value(node: ast.expr) -> int | None:
        if isinstance(node, ast.Constant) and node.value in left:
            left.remove(node.value)
            return int(node.value)
        if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATIONS:
            return None
        a, b = value(node.left), value(node.right)
        return None if a is None or b is None else int(_OPERATIONS[type(node.op)](a, b))

    return value(tree)
