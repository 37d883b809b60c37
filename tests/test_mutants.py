"""The kill score of `fourbit validate --ops`: each mutant of its operations is killed, by the case of the record.

Contract: a fault is in force while its operation runs and at no other time; each of the table is killed by a case of
`validate --ops`; one that changes nothing survives, and the command then exits with 1. records/mutants_ops.json is
what `fourbit validate --mutants --out tests/records/mutants_ops.json` writes.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import numerics as nm
from hw import cases_edges, kill_score, mutants, validate
from hw.mutants import Mutant
from hw.seam import seam
from numerics import ops, rounding

RECORD = json.loads((Path(__file__).parent / "records" / "mutants_ops.json").read_text("utf-8"))
CASES = {f"{row['operation']}: {row['mutant']}": row["case"] for row in RECORD["cases"]}
# which memory is used again, and so which case first meets a remembered address, is the allocator's choice
BY_CHANCE = "quantize_tokens: a result is remembered by its input's address"
FEW = [mutant for mutant in mutants.mutants() if mutant.key != BY_CHANCE][::9]


@pytest.mark.parametrize("mutant", FEW, ids=lambda mutant: mutant.key)
def test_a_mutant_is_killed_by_its_case(mutant: Mutant) -> None:
    assert kill_score.killed(mutant, CASES[mutant.key], at_once=True).case == CASES[mutant.key]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", mutants.mutants(), ids=lambda mutant: mutant.key)
def test_every_mutant_is_killed(mutant: Mutant) -> None:
    """By the first case of the table that fails, which must be the record's."""
    case = kill_score.killed(mutant, at_once=True).case
    assert case is not None and (case == CASES[mutant.key] or mutant.key == BY_CHANCE)


def test_the_record_is_whole_and_nothing_survived() -> None:
    assert list(CASES) == [mutant.key for mutant in mutants.mutants()]
    assert RECORD["status"] == "passed" and RECORD["killed"] == RECORD["mutants"] == len(CASES) >= 60
    assert all(case is not None and case.startswith(key.split(":")[0]) for key, case in CASES.items())


def test_every_operation_has_mutants_and_every_mutant_is_another_program() -> None:
    """The text of each stands once in its file, in a function, and its replacement compiles to other code."""
    assert {mutant.operation for mutant in mutants.mutants()} == set(seam())
    for mutant in mutants.mutants():
        function, code = mutants._codes(mutant)
        true = function.__code__
        assert (code.co_code, code.co_consts, code.co_names) != (true.co_code, true.co_consts, true.co_names), mutant


def by_name(key: str) -> Mutant:
    return next(mutant for mutant in mutants.mutants() if mutant.key == key)


def test_a_fault_is_in_force_in_its_operation_alone() -> None:
    """And no more after it, also if the operation raises."""
    away = by_name("quantize_tokens: ties away from zero")
    x, cast = torch.tensor([[2.5, 6.0] + [0.0] * 14]), ops.Cast(nm.NVFP4)
    code = rounding._round_scaled.__code__
    assert ops.quantize_tokens(x, cast).codes[0, 0] == 4  # 2
    assert mutants.function(away)(x, cast).codes[0, 0] == 5  # 3
    with pytest.raises(TypeError):
        mutants.function(away)(x.to(torch.int32), cast)
    assert rounding._round_scaled.__code__ is code and ops.quantize_tokens(x, cast).codes[0, 0] == 4


SAME = Mutant(
    "row_scale", "nothing", "ops", "        return q.outer\n    return None", "        return q.outer\n    return  None"
)


def test_what_changes_nothing_survives() -> None:
    kill = kill_score.killed(SAME, "row_scale NVFP4, normal")
    assert (kill.case, kill.failed, kill.cases) == (None, 0, 1)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    wanted = ["--mutants", "--fast", "--only", "row_scale: reciprocal", "glu_backward: dh rounded"]
    assert validate.main([*wanted, "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["row_scale", "glu_backward"]
    assert all("killed by" in line for line in lines[:2]) and lines[2] == "passed: 2 of 2 mutants of the seam killed"
    record = json.loads(out.read_text("utf-8"))
    assert (record["mutants"], record["killed"], record["config"]["only"]) == (2, 2, wanted[3:])
    monkeypatch.setattr(kill_score, "mutants", lambda: (by_name("row_scale: reciprocal"), SAME))
    monkeypatch.setattr(kill_score, "cases", lambda judge, operation: true(judge, operation)[:2])
    assert validate.main(["--mutants"]) == 1
    assert "SURVIVED" in (text := capsys.readouterr().out) and "FAILED: 1 of 2 mutants" in text


true = kill_score.cases


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mutants", "--only", "nothing"], "no mutant has such a name; the first one is 'quantize_tokens: ties away"),
        (["--mutants", "--ops", "emulated"], "ops='emulated' with --mutants: they are different comparisons"),
        (["--mutants", "--products"], "--products with --mutants: they are different comparisons"),
        (["--mutants", "--html", "x.html"], "activations and html belong to --ops"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate.main(arguments)


def test_two_mutants_of_one_name_and_a_text_that_is_gone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants.tomllib, "loads", lambda _: {"row_scale": [vars_of(SAME), vars_of(SAME)]})
    with pytest.raises(ValueError, match="'row_scale: nothing'"):
        mutants.mutants.__wrapped__()
    gone = Mutant("row_scale", "gone", "ops", "no such text", "")
    with pytest.raises(ValueError, match="'no such text' 0 times; quote a text that stands there once"):
        mutants.function(gone)(torch.zeros(1), ops.Recast(None))


def vars_of(mutant: Mutant) -> dict[str, str]:
    return {name: value for name, value in vars(mutant).items() if name != "operation"}


# The data that the mutants asked for.


def test_edges_have_maxima_at_which_scales_turn_and_errors_that_are_equal() -> None:
    x = torch.from_numpy(cases_edges.edges(np.random.default_rng(0), (64, 128)).astype(np.float32)).to(torch.bfloat16)
    blocks = x.float()[:, 32:].unflatten(1, (-1, 16))
    fraction = torch.frexp(blocks[0::2].unflatten(1, (-1, 2)).flatten(2).abs().amax(-1))[0]
    assert set(fraction.flatten().tolist()) == {0.875, 0.75, 127 / 128}  # 448, 6 and 127/64 times powers of two
    odd, one = blocks[1::2].flatten(0, 1), torch.ones(1, 1)
    six, four = (nm.quantize(odd, nm.NVFP4_46, outer=one, rule=f"static_{m}").dequantize() for m in (6, 4))
    exact6, exact4 = ((d.double() - odd).square().sum(-1) for d in (six, four))
    assert bool(((exact6 - exact4).abs() <= 2.0**-50 * exact6).all()) and bool((exact6 > 0).all())
    order = [(d - odd).square() for d in (six, four)]  # float32: now the order of the sum decides
    forward, tree = (torch.stack([f(e) for e in order]) for f in (lambda e: e.cumsum(-1)[:, -1], pairs))
    assert int(((forward[1] < forward[0]) != (tree[1] < tree[0])).sum()) > 3


def pairs(x: torch.Tensor) -> torch.Tensor:
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]
