"""What `check` found, in words."""

from __future__ import annotations

from dataclasses import dataclass

from numerics.scales import DIALECTS

DESCRIBED = 6  # dialects of which the report says what they are


@dataclass(frozen=True)
class Report:
    """The answer to a dump; true if it satisfies a contract and nothing is wrong.

    Args:
        format: block format, or what the dump holds. contracts: names of the dialects, or of the bound, that all of it
            satisfies. facts: how it is stored and made. faults: what is wrong, each a sentence. first: the first byte
            that differs from the nearest contract, with its derivation; empty if there is none.
    """

    format: str
    contracts: tuple[str, ...]
    facts: tuple[str, ...]
    faults: tuple[str, ...]
    first: str = ""

    def __bool__(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        head = f"{'FAILED' if self.faults else 'passed'}: {self.format}"
        made = [f"    made by {', '.join(self.contracts)}" + ", but for what is wrong" * bool(self.faults)]
        facts = [*(made if self.contracts else []), *_described(self.contracts)]
        facts += [f"    {fact}" for fact in self.facts]
        lines = [head, *facts, *(f"  ! {fault}" for fault in self.faults)]
        return "\n".join(lines + ([f"    {self.first}"] if self.first and self.faults else []))


def _described(contracts: tuple[str, ...]) -> list[str]:
    """A line of what each of the first dialects is."""
    named = [name for name in contracts if name in DIALECTS]
    return [f"        {name}: {DIALECTS[name].source}" for name in named[:DESCRIBED]]
