"""What an interrupted `fourbit tokenize` has finished: a note in the folder of shards, rewritten after each file.

A note is taken up by the same job alone, with the tokenizer that made the files, and with the files as they were
written: their sizes and sampled digests are compared, see `shards`.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checkpoint import is_leftover, read_json, write_json
from .shards import PARTS, TOKENIZER, UNFINISHED, Shard, require_file
from .tokenization import Tokenizer


@dataclass
class Job:
    """What has been finished of a job: files of each part, whether their tokens tell their bytes exactly, and the
    sha256 of the tokenizer that made them; None before the first."""

    folder: Path
    job: dict[str, Any]
    shards: dict[str, list[Shard]] = field(default_factory=lambda: {part: [] for part in PARTS})
    lossless: bool = True
    tokenizer: str | None = None

    def save(self) -> None:
        """Note it in the folder."""
        shards = {part: [dataclasses.asdict(shard) for shard in self.shards[part]] for part in PARTS}
        told = {"job": self.job, "lossless": self.lossless, "tokenizer": self.tokenizer, "shards": shards}
        write_json(self.folder / UNFINISHED, told)

    def require(self, tokenizer: Tokenizer) -> None:
        """Raises ValueError unless the finished files are there, as `tokenizer` made them."""
        if self.tokenizer not in (None, tokenizer.sha256):
            raise ValueError(
                f"tokenizer {str(self.folder / TOKENIZER)!r} is not the one that made the shards beside it; restore "
                "it, or name another --out"
            )
        for shard in (*self.shards["train"], *self.shards["heldout"]):
            require_file(self.folder / shard.file, shard, tokenizer.dtype, tokenizer.vocab)


def resumed(folder: Path, job: dict[str, Any]) -> Job:
    """What an interrupted run of this job has finished; a new one is noted, also where another has finished nothing.

    Raises:
        ValueError: the folder holds another job, something else, or a damaged note.
    """
    path = folder / UNFINISHED
    if not path.exists():
        if not all(map(is_leftover, folder.iterdir())):
            raise ValueError(f"out {str(folder)!r} holds files but no shards; name an empty or a new folder")
        Job(folder, job).save()
    found = read_json(path, "job", "shards", "lossless")
    try:
        shards = {part: [Shard(**entry) for entry in found["shards"][part]] for part in PARTS}
    except (KeyError, TypeError, ValueError):
        shards = {}
    if not shards or not isinstance(found["job"], dict) or type(found["lossless"]) is not bool:
        raise ValueError(f"{str(path)!r} is damaged; restore it, or name another --out")
    if found["job"] != job:
        if any(shards.values()) or (folder / TOKENIZER).exists():
            raise other_job(folder, found["job"], job)
        Job(folder, job).save()  # nothing is finished, such as after a mistake in the text: another job may begin
    return Job(folder, job, shards, found["lossless"], found.get("tokenizer"))


def other_job(folder: Path, there: dict[str, Any], job: dict[str, Any]) -> ValueError:
    """The error that names what differs between the job in a folder and the one that was asked for."""
    names = [name for name in {**there, **job} if there.get(name) != job.get(name)]
    told = ", ".join(f"{name} ({there.get(name)!r} there, {job.get(name)!r} now)" for name in names)
    return ValueError(
        f"out {str(folder)!r} holds other shards: {told}; use their values to go on, or name another folder"
    )
