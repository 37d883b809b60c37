"""Messages in the words of the command line: `--eval-every`, where the code says `eval_every`.

Errors name arguments as Python has them. A command's `main` reads them through `named_flags`, which writes the flag

    of the argument that a message begins with                            steps 0 cannot be used
    of a name with an underscore, or of a size of the model, anywhere     give model.window; monitor_every 0
    of a name with its value, or after a word such as "use" or "more"     a multiple of grain 4; use another out

and leaves paths, quoted text and everything else alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import typing
from collections.abc import Iterator

# the word before a name that can be an ordinary word too
_BEFORE = (
    "use|give|another|lower|longer|smaller|larger|narrower|more|less|fewer|multiple of|divisor of|divides|with|without"
    "|at|or"
)
_WORDS = ("step",)  # such as "the checkpoint of step 9": flags at the beginning alone


@contextlib.contextmanager
def named_flags(config: type, **others: str) -> Iterator[None]:
    """Inside, messages of ValueError and of a stopped run name the flags of a command; a decorator of `main` too.

    Args: config: what the command reads its words into. others: flags by names that are no fields of it.
    """
    try:
        yield
    except Exception as error:
        # an exception of another kind has more to it than its message
        if type(error) is ValueError or type(error).__name__ == "TrainingStopped":
            error.args = (in_flags(str(error), config, others),)
        raise


def in_flags(message: str, config: type, others: dict[str, str] | None = None) -> str:
    """`message` with the flags of the fields of `config`, a dataclass that tyro reads, and `others` by name."""
    flags, choices = _flags(config)
    flags |= others or {}
    quoted: list[str] = []

    def put_away(found: re.Match[str]) -> str:
        quoted.append(found[0])
        return f"\0{len(quoted) - 1}\0"

    message = re.sub(r"(?<!\w)'[^']*'|(?<!\w)\"[^\"]*\"", put_away, message)
    for pattern in _patterns(flags, choices):
        message = re.sub(pattern, lambda found: found["before"] + flags[found["name"]], message)
    return re.sub(r"\0(\d+)\0", lambda found: quoted[int(found[1])], message)


def _patterns(flags: dict[str, str], choices: list[str]) -> list[str]:
    """Where names stand that are to be flags, each with what is `before` it."""
    names = sorted(flags, key=len, reverse=True)
    kinds = names, [n for n in names if n not in _WORDS], [n for n in names if "_" in n or "." in n]
    first, plain, odd = ("|".join(map(re.escape, found)) for found in kinds)
    alone = r"(?<![\w./-])(?P<name>{})(?![\w./-])"
    values = "|".join(map(re.escape, choices)) or "None"
    return [
        rf"^(?P<before>)(?P<name>{first})(?=[ =:,])",
        rf"(?P<before>){alone.format(odd or '(?!)')}",
        rf"(?P<before>)(?<!\d ){alone.format(plain)}(?=[ =](?:\d|\0|None\b|(?:{values})\b)| \([^()]* there, )",
        rf"\b(?P<before>(?:{_BEFORE}) ){alone.format(plain)}",
    ]


def _flags(config: type) -> tuple[dict[str, str], list[str]]:
    """The flag of each name, a size of the model with and without its prefix; and the words that are values."""
    hints = typing.get_type_hints(config)
    found: dict[str, str] = {}
    words: list[str] = []
    for f in dataclasses.fields(config):
        if "Positional" in str(f.type):
            continue
        hint = hints[f.name]
        if dataclasses.is_dataclass(hint):
            own, more = _flags(hint)  # type: ignore[arg-type]
            dotted = {f"{f.name}.{name}": f"--{f.name}.{flag[2:]}" for name, flag in own.items()}
            found |= {name: dotted[f"{f.name}.{name}"] for name in own if name not in found} | dotted
            words += more
            continue
        found[f.name] = f"--{f.name.replace('_', '-')}"
        if typing.get_origin(hint) is typing.Literal:
            words += [value for value in typing.get_args(hint) if isinstance(value, str)]
    return found, words
