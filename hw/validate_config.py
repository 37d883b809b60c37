"""The arguments of `fourbit validate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .record import require_writable

_OF_OPS = ("only", "activations", "html", "own_random", "huge")


@dataclass(frozen=True)
class ValidateConfig:
    """Compare the arithmetic of a device with the CPU's, bit for bit; the exit status is 0 if all of it is equal."""

    device: str = "cuda"
    """What to compare with the CPU: cuda or cuda:1; with cpu, 1 thread is compared with several."""
    rows: int | None = None
    """Rows of each input; 384, or 160 with --fast; with --ops 96, or 40; with --products 256."""
    seeds: tuple[int, ...] = (0, 1)
    """Each draws all inputs anew."""
    compiled: bool = False
    """Compile what runs on the device; cases of `cases_compiled`. With cpu, eager is compared with compiled."""
    fast: bool = False
    """Fewer rows, the first seed and, of each operation, the first dtype only; of each conversion, 2^24 inputs; with
    --ops, few kinds of data and ways to pass it but for NVFP4; with --products K up to 128."""
    conversions: bool = False
    """Instead, compare the GPU's own cvt instructions with the emulator, over all 2^32 inputs."""
    products: bool = False
    """Instead, compare the sums of the GPU's tensor cores, c + a @ b.T in five formats, with their model."""
    vectors: Path | None = None
    """With --products: an npz file for corners of the products, operands and results of the hardware."""
    mutants: bool = False
    """Instead, the kill score of --ops: faults are put into its operations one by one on the CPU, and its cases must
    find each. --only chooses by "operation: fault"; with --fast a fault is left at its first failing case."""
    ops: str | None = None
    """Instead, judge an implementation of the operations of `numerics.ops`: emulated, triton, blackwell,
    blackwell-library, or yours: an importable module such as mykernels.ops, or a .py file, with any of these functions
    under the same signatures."""
    own_random: bool = False
    """With --ops: its random words are its own. Codes that are rounded stochastically need not be the contract's, but
    neighbours of their elements, and many draws are judged: bias, resolution, independence (`draws`)."""
    huge: bool = False
    """With --ops: tensors of more than 2^31 elements too, on a GPU with 100 GiB."""
    only: tuple[str, ...] = ()
    """With --ops: only the cases whose "operation, data" contains one of these texts, such as 'aggregate NVFP4'."""
    activations: Path | None = None
    """With --ops: recorded activations, a safetensors file of floating tensors under any names, as one more kind of
    data; each is cut or repeated to a case's shape. `fourbit train --activations FILE` writes one."""
    html: Path | None = None
    """With --ops: one page of results, complete in itself."""
    out: Path | None = None
    """JSON file for versions, device, date and the count of every case."""

    def check(self) -> None:
        """Raises ValueError for what cannot be used together, or not written."""
        theirs = [name for name in _OF_OPS if getattr(self, name) != getattr(ValidateConfig, name)]
        theirs = [name for name in theirs if not (name == "only" and self.mutants)]
        others = [name for name in ("compiled", "conversions", "products", "mutants") if getattr(self, name)]
        if self.ops is None and theirs:
            raise ValueError(
                f"only, activations and html belong to --ops, own_random and huge too ({theirs[0]} is given); name an "
                "implementation, such as --ops emulated"
            )
        if self.ops is not None and others:
            raise ValueError(f"ops={self.ops!r} with --{others[0]}: they are different comparisons; give one of them")
        if len(others) > 1:
            raise ValueError(f"--{others[0]} with --{others[1]}: they are different comparisons; give one of them")
        if self.vectors is not None and not (self.products and 0 in self.seeds):
            raise ValueError("vectors belong to --products and come from seed 0; give both")
        if self.rows is not None and not 16 <= self.rows <= 8192:
            raise ValueError(f"rows={self.rows} cannot be used; use 16 to 8192")
        if not self.seeds or min(self.seeds) < 0:
            raise ValueError(f"seeds={self.seeds} cannot be used; name one or more integers from 0")
        if self.conversions and (self.rows is not None or self.seeds != ValidateConfig.seeds):
            raise ValueError("rows and seeds draw inputs, and --conversions takes all there are; leave them out")
        require_writable(self.out)
        require_writable(self.html, "html")
        require_writable(self.vectors, "vectors")

    def asked(self) -> dict[str, Any]:
        """What a record says was asked: everything but where it is written; what belongs to --ops with it alone."""
        own = {"ops", *_OF_OPS} - ({"only"} if self.mutants else set())
        left_out = {"out", "html", "vectors"} | (own if self.ops is None else {"products"})
        left_out |= set() if self.mutants else {"mutants"}
        asked = {name: value for name, value in asdict(self).items() if name not in left_out}
        return {name: str(value) if isinstance(value, Path) else value for name, value in asked.items()}
