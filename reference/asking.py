"""Which problems a run of reinforcement learning asks: those that it learns from, and those that it is judged by.

An environment is drawn from a few hundred times first. If it asks enough different questions, one in ten of them is
held out (`heldout`): what is learned from never asks them, and evaluations ask no others, each once. If nearly all
draws collide, nothing is held out, and evaluations ask other draws of what is learned from.

Exact: everything here is a function of the environment and the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

from .environments import HELD_OUT, Environment, Problem, drawn, problem
from .heldout import content, is_held_out

_DRAWS = 512
_FEWEST = 26  # different questions of which some can be held out


@dataclass(frozen=True, eq=False)
class Asking:
    """What is asked of a seed.

    Attributes:
        judged: the problems of evaluations.
        held_out: whether they are.
        different: questions among the draws that decided it. share: of these draws, of what would be held out.
    """

    environment: Environment
    seed: int
    judged: list[Problem]
    held_out: bool
    different: int
    share: float

    def problem(self, number: int) -> Problem:
        """Problem `number` to learn from, from 0. ValueError as `environments.problem`."""
        return (problem if self.held_out else drawn)(self.environment, self.seed, number)

    @property
    def said(self) -> str:
        """What is held out, as a sentence without its end."""
        if self.held_out:
            return f"{len(self.judged)} different problems are held out"
        return (
            f"nothing is held out: {_DRAWS} draws ask {self.different} different questions (it takes {_FEWEST}), and "
            f"{100 * self.share:.3g} % of them what would be held out (it takes more than 0 %, at most 50 %)"
        )


def asking(environment: Environment, seed: int, count: int) -> Asking:
    """What a run asks, which is judged by at most `count` problems. ValueError as `environments.problem`."""
    asked = [content(drawn(environment, seed, HELD_OUT + i).prompt) for i in range(_DRAWS)]
    different, share = len(set(asked)), sum(map(is_held_out, asked)) / _DRAWS
    held_out = different >= _FEWEST and 0 < share <= 0.5
    ask = problem if held_out else drawn
    judged = [ask(environment, seed, HELD_OUT + i) for i in range(count)]
    if held_out:
        judged = list({content(each.prompt): each for each in judged}.values())
    return Asking(environment, seed, judged, held_out, different, share)
