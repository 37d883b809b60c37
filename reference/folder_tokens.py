"""The tokenizer of a folder of `transformers`, written so that AutoTokenizer reads the tokens of a run, and read back.

    tokenizer.json           the run's own; of a run on bytes a BPE without merges whose token i is the byte i
    tokenizer_config.json    its class, PreTrainedTokenizerFast, which takes tokenizer.json as it is; without it the
                             library takes the class of config.json's model_type and replaces parts of the file

What a run never did is left out of tokenizer.json: tokens around a text (`post_processor`), cutting and padding. A text
that spells the name of a special token is that token to AutoTokenizer and its characters to a run, as everywhere;
`split_special_tokens=True` makes it characters there too.

Sources: transformers 5.24, models/auto/tokenization_auto.py; tokenizers 0.23.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .alphabet import Alphabet, Tokens
from .checkpoint import read_json
from .config import TrainConfig
from .data import tokenizer_file
from .folder_config import configuration
from .tokenization import BYTE_CHARACTERS, Tokenizer, named, read_tokenizer

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
# what tokenizers are kept in without tokenizer.json
_OTHERS = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tekken.json", "*.tiktoken")


def tokenizer_contents(alphabet: Alphabet, sequence: int) -> dict[str, bytes]:
    """The two files of a run's tokens, by their names. sequence: tokens that the model sees."""
    contents = alphabet.tokenizer.contents if isinstance(alphabet, Tokens) else _dumped(_of_bytes(alphabet.end))
    tree = json.loads(contents)
    odd = [name for name in ("post_processor", "truncation", "padding") if _changes(tree.get(name))]
    if not tree.get("decoder") and isinstance(alphabet, Tokens) and alphabet.tokenizer.token_bytes is not None:
        tree["decoder"] = _LEVEL | {"use_regex": True}
        odd.append("decoder")
    if odd:
        contents = _dumped(tree | {name: None for name in odd if name != "decoder"})
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": sequence,
    }
    ends = [entry["content"] for entry in tree.get("added_tokens") or () if entry["id"] == alphabet.end]
    if ends:  # the library makes it special, which a token of the vocabulary alone must not become: it cuts words
        config["eos_token"] = ends[0]
    return {TOKENIZER: contents, TOKENIZER_CONFIG: _dumped(config)}


@dataclass(frozen=True)
class FolderTokens:
    """A folder's tokens. file: the tokenizer's; None if they are bytes. end_token: the name of its end, if it is not
    found by the usual ones."""

    file: Path | None
    end_token: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Of a configuration that trains on these tokens."""
        return {"tokenizer": self.file, "end_token": self.end_token}


def tokens_of(folder: Path) -> FolderTokens | None:
    """What a folder's tokens are; None if it does not say.

    Raises:
        ValueError: its tokenizer is damaged, or kept in other files than tokenizer.json.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        others = sorted(found.name for pattern in _OTHERS for found in folder.glob(pattern))
        if others:
            raise ValueError(
                f"init_from {str(folder)!r} has {others[0]} and no {TOKENIZER}; write that with "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        # an export of a run on bytes had no tokenizer in earlier versions
        return FolderTokens(None) if "fourbit" in configuration(folder) else None
    tree = read_json(path, "model")
    if _is_of_bytes(tree):
        return FolderTokens(None)
    ids = named(path.read_bytes(), str(path))
    end = next((name for name in _ends(folder, ids) if name in ids), None)
    return FolderTokens(path, None if end is None or _usual_end(path) == ids[end] else end)


def require_tokens(config: TrainConfig) -> None:
    """Raises ValueError if the tokens that a run trains on are not those of the folder that it starts from."""
    folder = config.init_from
    if folder is None:
        return
    theirs, ours = tokens_of(folder), tokenizer_file(config.data, config.tokenizer, config.end_token)
    told = f"init_from {str(folder)!r}"
    if theirs is None:
        if ours is None and config.model.vocab != 256:
            raise ValueError(
                f"{told} has {config.model.vocab} tokens and no {TOKENIZER} that says which; give --tokenizer, or put "
                "the file there"
            )
    elif theirs.file is None:
        if ours is not None:
            raise ValueError(f"{told} has bytes for tokens, and the data those of {str(ours[1])!r}; give text instead")
    elif ours is None:
        raise ValueError(f"{told} has a tokenizer, and the data is read as bytes; give --tokenizer {theirs.file}")
    else:
        _require_same(ours[0], ours[1], theirs.file, told)


def _require_same(ours: Tokenizer, path: Path, file: Path, told: str) -> None:
    """Raises ValueError for a token that means something else to the model."""
    if ours.contents == file.read_bytes():
        return
    theirs = {i: name for name, i in named(file.read_bytes(), str(file)).items()}
    for name, i in named(ours.contents, str(path)).items():
        if theirs.get(i) != name:
            raise ValueError(
                f"token {i} is {name!r} to {str(path)!r} and {theirs.get(i)!r} to {told}; give --tokenizer {file}, or "
                f"tokenize with it, or take {TOKENIZER} out of the folder"
            )


def _ends(folder: Path, ids: dict[str, int]) -> list[str]:
    """Names of the token that ends a text, first what AutoTokenizer takes, then what config.json has."""
    path, names = folder / TOKENIZER_CONFIG, {i: name for name, i in ids.items()}
    entry = read_json(path).get("eos_token") if path.is_file() else None
    entry = entry.get("content") if isinstance(entry, dict) else entry
    end = configuration(folder).get("eos_token_id")
    found = [entry, *(names.get(i) for i in (end if isinstance(end, list) else [end]) if isinstance(i, int))]
    return [name for name in found if isinstance(name, str)]


def _usual_end(path: Path) -> int | None:
    try:
        return read_tokenizer(path).end
    except ValueError:
        return None


_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def _of_bytes(end: int | None) -> dict[str, Any]:
    """A tokenizer whose token i is the byte i. end: a byte that no text holds, by itself a special token."""
    vocab = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
    added = []
    if end is not None:
        vocab = {(chr(end) if byte == end else character): byte for character, byte in vocab.items()}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added = [{"id": end, "content": chr(end), **flags, "special": True}]
    fields = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    flags = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None},
        **{"pre_tokenizer": _LEVEL, "post_processor": None, "decoder": _LEVEL},
        "model": {"type": "BPE", **fields, **flags, "vocab": vocab, "merges": []},
    }


def _is_of_bytes(tree: dict[str, Any]) -> bool:
    """Whether token i of a tokenizer is the byte i, however its file is laid out."""
    wanted = [_of_bytes(None)["model"]["vocab"], *(_of_bytes(end)["model"]["vocab"] for end in range(32))]
    step, model = tree.get("pre_tokenizer") or {}, tree["model"]
    return (
        (step.get("type"), step.get("add_prefix_space")) == ("ByteLevel", False)
        and tree.get("normalizer") is None
        and not model.get("merges")
        and model.get("vocab") in wanted
    )


def _changes(part: Any) -> bool:
    """Whether a part of a tokenizer changes which tokens a text has; a post-processor of byte level does not."""
    return part is not None and part.get("type") != "ByteLevel"


def _dumped(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()
