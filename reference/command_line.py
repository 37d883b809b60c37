"""The words of `fourbit train`: how they become a configuration, and which words would give a configuration.

`--dial 12` sets every size of the model that goes with a depth of 12 (`ModelConfig.dial`), `--init-from FOLDER` those
of the folder, and its tokenizer; a field that is given beside it stands, whatever its value. A run is named by its
sizes, so it does not matter how they were said.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from dataclasses import dataclass
from typing import Any

import tyro

from .config import TrainConfig
from .data import is_tokenized, tokenizer_file
from .folder_config import sizes_of
from .folder_tokens import tokens_of
from .model import ModelConfig

PROGRAM = "fourbit train"


@dataclass(frozen=True)
class Arguments(TrainConfig):
    """Train a small mixture-of-experts language model on text; the same command in the same folder resumes."""

    dial: int | None = None
    """Depth from which all sizes of the model follow, a multiple of 6 from 6 (1.3 million weights) to 54 (0.9 billion);
    fields of the model that are given stand."""


def parse(argv: list[str]) -> TrainConfig:
    """The configuration that the words name.

    Raises:
        ValueError: a dial that is no multiple of 6 from 6 to 54, or a folder that `pretrained` refuses.
        SystemExit: help was asked for, or a word cannot be read; it has been told.
    """
    found = tyro.cli(Arguments, args=argv, prog=PROGRAM)
    sizes, fields = ModelConfig() if found.dial is None else ModelConfig.dial(found.dial), {}
    if found.init_from is None:
        sizes = dataclasses.replace(sizes, vocab=_vocabulary(found, sizes.vocab))
    else:
        if found.dial is not None:
            raise ValueError(f"dial {found.dial} and init_from {str(found.init_from)!r} both give sizes; leave one out")
        tokens = tokens_of(found.init_from)
        fields = {} if found.tokenizer or is_tokenized(found.data) or tokens is None else tokens.fields
        sizes = ModelConfig(**sizes_of(found.init_from))
    if sizes != ModelConfig() or fields:
        # read once more over these sizes, so that what is given is told from what is left out
        default = Arguments(found.out, model=sizes, **fields)
        found = tyro.cli(Arguments, args=argv, prog=PROGRAM, default=default)
    return TrainConfig(**{f.name: getattr(found, f.name) for f in dataclasses.fields(TrainConfig)})


def _vocabulary(found: Arguments, bytes_alone: int) -> int:
    """How many tokens the text has: those of its shards or of the tokenizer, if there are any."""
    known = tokenizer_file(found.data, found.tokenizer, found.end_token)
    return bytes_alone if known is None else max(bytes_alone, known[0].vocab)


def exact(argv: list[str]) -> str:
    """The command that was given, quoted for a shell; of several ranks, torchrun's, as it was for this machine."""
    given, here = os.environ.get("WORLD_SIZE"), os.environ.get("LOCAL_WORLD_SIZE")
    if given is None or here is None or not (given.isdigit() and here.isdigit() and int(here)):
        return f"{PROGRAM} {shlex.join(argv)}"
    nodes = f" --nnodes {int(given) // int(here)}" if given != here else ""
    return f"torchrun{nodes} --nproc-per-node {here} -m {PROGRAM} {shlex.join(argv)}"


def command_of(config: TrainConfig) -> str:
    """A command that gives `config`, quoted for a shell: the fields that are not at their defaults."""
    words = _option("out", config.out)
    for f in dataclasses.fields(TrainConfig):
        value = getattr(config, f.name)
        if f.name == "model":
            plain = ModelConfig()
            for size in dataclasses.fields(ModelConfig):
                if getattr(value, size.name) != getattr(plain, size.name):
                    words += _option(f"model.{size.name}", getattr(value, size.name))
        elif f.name != "out" and value != (f.default if f.default_factory is dataclasses.MISSING else {}):
            words += _option(f.name, value)
    return exact(words)


def _option(name: str, value: Any) -> list[str]:
    """The words of one field."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, dict):
        return [f"--{flag}", *(str(word) for pair in value.items() for word in pair)]
    text = str(value)
    return [f"--{flag}={text}"] if text.startswith("-") or not text else [f"--{flag}", text]
