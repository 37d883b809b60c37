"""Contract: notebook 6's panels draw any two presets and any recipe that their fields can make; a recipe that
contradicts itself is told and the last picture stays; tiny runs train by the trainer's entry point. Oracle: the table
that `fourbit recipes` prints, recipes made by hand, a run of the trainer made here.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ipywidgets")

from matplotlib.figure import Figure

import numerics as nm
from notebooks import recipe_panels, tiny_runs
from notebooks.figure_data import figure_data
from numerics import ops
from numerics.ops import Cast, Recast
from reference.ablations import fourbit
from reference.presets import preset
from reference.recipe_table import roles, table
from reference.train import Result, train

BASE = fourbit()


def cells(readout: str) -> list[str]:
    return [re.sub("&#x27;", "'", cell) for cell in re.findall(r"<t[hd](?: [^>]*)?>([^<]*)<", readout)]


def test_a_recipe_is_told_role_by_role():
    panel = recipe_panels.chooser("fourbit")
    told = cells(panel.picture.readout)
    assert told == ["role", "fourbit", *(word for role in roles(BASE).items() for word in role)]
    assert "The article&#x27;s recipe" in panel.picture.readout


@pytest.mark.parametrize(("one", "other"), [("fourbit", "mxfp8"), ("nvfp4_nvidia", "quartet2")])
def test_differences_are_those_of_the_command(one, other):
    """The command prints a role, and below it a line for each of the two."""
    lines = [line.strip() for line in table([one, other]).splitlines()]
    rows = recipe_panels.differences(preset(one), preset(other))
    flat = [line for role, a, b in rows for line in (role.strip(), f"{one}: {a}", f"{other}: {b}")]
    assert flat == lines and len(rows) > 3


def test_each_control_changes_the_picture():
    panel = recipe_panels.chooser("fourbit")
    seen = [figure_data(panel.picture.figure)]
    for name, value in (("which", "forward"), ("other", "mxfp8"), ("layer", "last"), ("name", "fp8_deepseek")):
        panel.controls[name].value = value
        seen.append(figure_data(panel.picture.figure))
        assert seen[-1] not in seen[:-1], name
        assert panel._note.value == ""


def test_nothing_to_compare_is_told():
    panel = recipe_panels.chooser("mxfp8", "mxfp8", "forward")
    assert "mxfp8 and mxfp8 differ in nothing." in panel.picture.readout and "<table" not in panel.picture.readout
    panel.set(layer="last")
    assert panel.picture.readout.count("No layer of mxfp8 follows its field last.") == 2
    panel.set(name="fourbit")
    assert panel.picture.readout.count("No layer of") == 1


STOCHASTIC = nm.Rounding.STOCHASTIC
MADE = [
    ({"activations": "NVFP4, outer per token"}, {"input": Cast(nm.NVFP4, "row"), "hidden": Cast(nm.NVFP4, "row")}),
    ({"weights": "NVFP4 in 16x16 tiles, outer per expert"}, {"weight": Cast(nm.NVFP4_2D, "leading")}),
    ({"gradients": "MXFP8, stochastic"}, {"grad": Cast(nm.MXFP8, None, STOCHASTIC)}),
    ({"saved_input": "MXFP8 stochastic, outer to the gradient"},
     {"saved_input": Recast(nm.MXFP8, "gradient", STOCHASTIC)}),
    ({"saved_weight": "MXFP8 stochastic, outer multiplied in"},
     {"saved_weight": Recast(nm.MXFP8, "multiply", STOCHASTIC)}),
    ({"rotation": "RHT-64"}, {"wgrad_hadamard": 64}),
    ({"combine": "MXFP8"}, {"combine_fmt": nm.MXFP8, "combine_hadamard": None}),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "fields"), MADE, ids=[next(iter(m[0])) for m in MADE])
def test_the_bench_makes_what_its_labels_say(labels, fields):
    expected = replace(BASE, experts=replace(BASE.experts, **fields))
    assert recipe_panels.made(BASE, labels) == expected
    panel = recipe_panels.bench(BASE, **labels)
    assert cells(panel.picture.readout)[:3] == ["role", "fourbit", "mine"]
    words = {a for role in recipe_panels.differences(BASE, expected) for a in role}
    assert words <= set(cells(panel.picture.readout))


def test_every_choice_of_the_bench_is_drawn_or_refused(monkeypatch):
    """All single choices; what is refused is what `replace` refuses, in its words, and the picture stays."""
    drawn = []  # instead of pictures, which other tests draw
    monkeypatch.setattr(recipe_panels.diagram, "draw", lambda *args: drawn.append(args) or Figure(figsize=(1, 1)))
    panel = recipe_panels.bench(BASE)
    refused = 0
    for key, (_, _, options) in recipe_panels.FIELDS.items():
        for label in options:
            panel.hold_drawing({key: "as in fourbit"})
            before = panel.picture
            panel.controls[key].value = label
            try:
                recipe_panels.made(replace(BASE, name="mine"), {key: label})
            except ValueError as error:
                refused += 1
                assert panel.picture is before
                assert str(error).replace("'", "&#x27;") in panel._note.value and "stays" in panel._note.value
            else:
                assert panel._note.value == "" and drawn[-1][0] == BASE
        panel.set(**{key: "as in fourbit"})
    assert refused >= 4
    panel.set(claim="not claimed", saved_input="MXFP8 to nearest, outer multiplied in")
    assert panel._note.value == "" and "not claimed" in panel.picture.readout


def test_tiny_runs_are_those_of_the_trainer(tmp_path):
    heard = []
    found = tiny_runs.runs(["bf16", "fourbit"], 2, heard.append)
    again = "fourbit, rate + 0.01 %"
    assert list(found) == ["bf16", "fourbit", again] and heard == ["bf16"] * 2 + ["fourbit"] * 2 + [again] * 2
    data = tmp_path / "t.txt"
    data.write_text(tiny_runs.text())
    assert tiny_runs.text().startswith("2 times 2 is 4\n2 times 3 is 6\n")
    config = tiny_runs.configuration(tmp_path / "run", data, "fourbit", 2)
    assert train(config, ops).train_losses == found["fourbit"].train_losses
    config = replace(config, out=tmp_path / "again", lr=config.lr * (1 + tiny_runs.NUDGE))
    assert train(config, ops).train_losses == found[again].train_losses
    # the first step's loss is that of equal weights on an equal batch: no recipe trained yet, only rounded
    assert found["fourbit"].train_losses[0] == found[again].train_losses[0] != found["bf16"].train_losses[0]


@pytest.mark.parametrize(("recipes", "words"), [
    ([], "name one or more"), (["bf16", "bf16"], "each once"), (["bf61"], "preset='bf61' is unknown"),
    (["quartet2"], "blocks of 128"),
])  # fmt: skip
def test_runs_that_cannot_be_are_told(recipes, words):
    with pytest.raises(ValueError, match=words):
        tiny_runs.runs(recipes, 1, lambda name: None)


def test_curves_and_table_show_the_losses(tmp_path):
    def result(losses: list[float]) -> Result:
        return Result(len(losses), tuple(losses), (), losses[-1], 0.0, 0.0, tmp_path, 0)

    base, other = [3.0, 2.0, *[1.0] * 6], [3.5, 2.0, 1.25, 1.0, 1.0, 1.0, 1.0, 0.15]
    shown = tiny_runs.picture({"a": result(base), "b": result(other)})
    axes = figure_data(shown.figure)["axes"]
    assert [ax["title"] for ax in axes] == ["Training loss", "Difference to a"]
    left, right = np.array(axes[0]["lines"][1]), np.array(axes[1]["lines"][0])
    assert left.tolist() == [[i + 1, loss] for i, loss in enumerate(other)]
    assert np.allclose(right[:, 1], np.array(other) - np.array(base))
    # last six: 0.25 - 0.85 over 6 = -0.1
    assert cells(shown.readout)[4:] == ["a", "1.0000", "", "", "b", "0.9000", "-0.1000", "0.8500"]
