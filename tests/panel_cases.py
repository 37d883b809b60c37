"""What the tests of panels share: one panel for a module, and how a mistake of the user must be met."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from notebooks.figure_data import figure_data
from notebooks.panel import Panel


def plain(readout: str) -> str:
    """HTML without how it looks."""
    return re.sub(r' style="[^"]*"', "", readout)


def fixtures(make: Callable[[], Panel]) -> tuple[Any, Any]:
    """The fixtures `one` and `panel` of a module."""

    @pytest.fixture(scope="module")
    def one(one_thread: None) -> tuple[Panel, dict, dict]:
        """A panel, its controls' values and its picture's data: drawing takes most of the time of these tests."""
        made = make()
        return made, made.values(), figure_data(made.picture.figure)

    @pytest.fixture
    def panel(one: tuple[Panel, dict, dict]) -> Panel:
        """The panel, its controls as at the start; the picture is that of the test before."""
        one[0].hold_drawing(one[1])
        return one[0]

    return one, panel


def require_told(panel: Panel, control: str, text: str, told: str) -> None:
    """Type bad text: it is told, and the picture stays."""
    before = panel.picture
    panel.controls[control].value = text
    assert told in panel._note.value.replace("&#x27;", "'") and panel.picture is before
