"""Small corpora for the tests of tokens, and a reader of shards that shares nothing with ours: json and numpy alone."""

import hashlib
import json
from pathlib import Path

import numpy as np

WORDS = "the cat sat on a mat; né über 猫 😀 0x1F\n\tif x == 3:  return\r\n".split(" ")


def documents(count: int, seed: int = 0, words: int = 40) -> list[str]:
    """Texts of up to `words` words, of which no two are equal."""
    rng = np.random.default_rng(seed)
    return [f"{i} " + " ".join(rng.choice(WORDS, rng.integers(1, words))) for i in range(count)]


def json_lines(path: Path, texts: list[str], field: str = "text") -> Path:
    """Write JSON Lines; characters beyond ASCII are escaped in every other line."""
    lines = [json.dumps({"n": i, field: text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def held_out(name: str) -> bool:
    """The rule, for corpora of many documents."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) % 13 == 0


def sides(path: Path, texts: list[str]) -> dict[str, list[bytes]]:
    """Which documents of a file of JSON Lines are in which part."""
    named = [(f"{path.name}:{i}", text.encode()) for i, text in enumerate(texts, 1)]
    assert len({held_out(name) for name, _ in named}) == 2
    return {
        "train": [text for name, text in named if not held_out(name)],
        "heldout": [text for name, text in named if held_out(name)],
    }


def alphabet() -> dict[str, int]:
    """The byte of each character of GPT-2's alphabet: printable Latin-1 as it is, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def token_texts(tokenizer: Path, end: str = "<|endoftext|>") -> dict[int, bytes]:
    """The bytes of every token of a byte-level BPE; none for the end."""
    table, vocab = alphabet(), json.loads(tokenizer.read_text("utf-8"))["model"]["vocab"]
    return {i: b"" if token == end else bytes(table[c] for c in token) for token, i in vocab.items()}


def arrays(folder: Path, part: str) -> np.ndarray:
    """All tokens of a part, read file by file."""
    index = json.loads((folder / "shards.json").read_text())
    dtype = {"uint16": "<u2", "uint32": "<u4"}[index["dtype"]]
    return np.concatenate([np.fromfile(folder / entry["file"], dtype) for entry in index["parts"][part]["files"]])


def decoded(folder: Path, part: str) -> list[bytes]:
    """The documents of a part, from its tokens."""
    texts, end = token_texts(folder / "tokenizer.json"), json.loads((folder / "shards.json").read_text())["end"]
    found, now = [], b""
    for token in arrays(folder, part).tolist():
        if token == end:
            found.append(now)
            now = b""
        else:
            now += texts[token]
    assert now == b""
    return found
