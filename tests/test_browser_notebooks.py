"""The notebooks in JupyterLab, driven in a headless Chromium: under the marker `browser` (make browser).

Contract: every notebook runs from top to bottom there without an error or a warning; every control of every panel,
typed into, chosen, toggled or slid, gives the readout and the words that follow from its value, and no input, however
bad, a traceback. Oracle: the same cells, run in this process without JupyterLab, whose panels get the same values; that
their numbers are those of numerics is what the tests of each notebook's module show. FOURBIT_SCREENSHOTS names a folder
for pictures.
"""

import ast
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("one_thread")]

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TOKEN = "fourbit"
SECONDS = 120  # for JupyterLab to start, and for a notebook to run
SETTINGS = {
    "notebook-extension/tracker": '{"windowingMode": "none"}',  # cells out of sight are drawn too
    "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
}
PATIENCE = 20  # seconds, for a panel to follow

TEXTS = ["abc", "", "nan", "inf", "-inf", "1e400", "1e38", "-0", "0x1.8p-3", "<b>7</b>", "\u22125.4", "3"]
CHOICES = 5  # of a long list: its ends and some between


# ---- JupyterLab ------------------------------------------------------------------------------------------------------


@dataclass
class Lab:
    """A running JupyterLab: its address, and where it writes what it has to say."""

    address: str
    log: Path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/api/status?token={TOKEN}", timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text('utf-8')[-2000:]}")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab over copies of the notebooks, with no settings but ours."""
    for name in ("jupyterlab", "ipywidgets"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'fourbit[browser]' (make browser does)")
    folder = tmp_path_factory.mktemp("lab")
    work, log, port = folder / "work", folder / "log.txt", free_port()
    work.mkdir()
    for path in NOTEBOOKS:
        shutil.copy(path, work)
    for name, text in SETTINGS.items():
        settings = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        settings.parent.mkdir(parents=True)
        settings.write_text(text, "utf-8")
    places = {f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    places |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "IPYTHONDIR": str(folder / "ipython")}
    places |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1"]
    command += [f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={work}", "--LabApp.news_url=None"]
    command += [
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    with log.open("w") as out:
        options = {"stdout": out, "stderr": out, "start_new_session": True}
        server = subprocess.Popen(command, cwd=work, env=os.environ | places, **options)
    try:
        wait_for(f"http://127.0.0.1:{port}", server, log)
        yield Lab(f"http://127.0.0.1:{port}", log)
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # its kernels too
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


# ---- the same cells in this process ----------------------------------------------------------------------------------


def panels_in(widget: Any) -> list[Any]:
    """The panels at or below a widget, in the order in which they are seen."""
    from notebooks.panel import Panel

    if isinstance(widget, Panel):
        return [widget]
    return [panel for child in getattr(widget, "children", ()) for panel in panels_in(child)]


@dataclass
class Twin:
    """A panel of this process, and its number among the panels that the notebook makes."""

    panel: Any
    number: int

    def path(self, control: Any) -> list[int]:
        """Where a control stands: the number of the child to go to, level by level."""

        def search(widget: Any) -> list[int] | None:
            if widget is control:
                return []
            found = ((i, search(child)) for i, child in enumerate(getattr(widget, "children", ())))
            return next(([i, *rest] for i, rest in found if rest is not None), None)

        path = search(self.panel)
        assert path, f"{control} is not shown"
        return path

    def names(self) -> list[str]:
        """The controls to try: all, but of many sliders the ends and some between."""
        sliders = [name for name, control in self.panel.controls.items() if type(control).__name__.endswith("Slider")]
        kept = {sliders[k] for k in spread(len(sliders))}
        return [name for name in self.panel.controls if name not in sliders or name in kept]


def twins(path: Path) -> list[Twin]:
    """Run the code cells of a notebook here, in silence; the panels that they show, in order."""
    import nbformat
    from ipywidgets.widgets.widget import _instances

    from notebooks.panel import Panel

    before, shown = set(_instances), []
    space: dict[str, Any] = {"__name__": "__main__", "display": lambda *seen, **_: shown.extend(seen)}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        lines = [line for line in cell.source.splitlines() if not line.lstrip().startswith(("%", "!"))]
        tree = ast.parse("\n".join(lines))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(tree, path.name, "exec"), space)
            if last is not None:
                shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), space))
    made = [w for key, w in _instances.items() if key not in before and isinstance(w, Panel)]
    return [Twin(panel, made.index(panel)) for seen in shown for panel in panels_in(seen)]


# ---- a notebook in the browser ---------------------------------------------------------------------------------------

# of every panel that the kernel made: control -> ["index" of a choice or "value", it]
VALUES = """__import__('json').dumps([
    {name: ['index', c.index] if hasattr(c, 'index') else ['value', c.value] for name, c in w.controls.items()}
    for w in __import__('ipywidgets').widgets.widget._instances.values() if hasattr(w, 'controls')])"""

ASK = """async (expression) => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const options = { code: "", silent: true, store_history: false, user_expressions: { told: expression } };
    const reply = await kernel.requestExecute(options).done;
    return reply.content.user_expressions.told.data["text/plain"];
}"""

READY = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"

# what is under the pictures of panel number i: {readout, note, and the width of the picture}
PANEL = """(i) => {
    const readout = document.querySelectorAll(".jp-Notebook .fourbit-readout")[i];
    const panel = readout.closest(".widget-vbox");
    const text = (node) => node.textContent.replace(/\\s+/g, " ").trim();
    const [image] = panel.querySelectorAll("img");
    return { readout: text(readout), note: text(panel.querySelector(".fourbit-note")), width: image.naturalWidth };
}"""

PLAIN = """(html) => {
    const node = document.createElement("div");
    node.innerHTML = html;
    return node.textContent.replace(/\\s+/g, " ").trim();
}"""

# what cells have written to stderr, or raised
MISHAPS = """() => ["stderr", "error"].flatMap((kind) =>
    [...document.querySelectorAll(`.jp-Notebook [data-mime-type="application/vnd.jupyter.${kind}"]`)],
).map((node) => node.textContent)"""


@dataclass
class Notebook:
    """A notebook that JupyterLab shows."""

    page: Any

    def ask(self, expression: str) -> Any:
        """The JSON that an expression of the kernel gives; it is answered after all that the browser sent before."""
        return json.loads(ast.literal_eval(self.page.evaluate(ASK, expression)))

    def run(self) -> None:
        self.page.wait_for_function(READY, timeout=SECONDS * 1000)
        self.page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells').then(() => null)")
        self.page.wait_for_function(
            "() => ![...document.querySelectorAll('.jp-InputPrompt')].some((p) => p.textContent.includes('*'))",
            timeout=SECONDS * 1000,
        )

    def panel(self, i: int) -> Any:
        return self.page.query_selector_all(".jp-Notebook .fourbit-readout")[i].evaluate_handle(
            "(node) => node.closest('.widget-vbox')"
        )

    def control(self, i: int, path: list[int]) -> Any:
        step = "(node, path) => path.reduce((n, k) => n.children[k], node)"
        return self.panel(i).evaluate_handle(step, path).as_element()

    def plain(self, html: str) -> str:
        return self.page.evaluate(PLAIN, html)


@pytest.fixture
def notebook(chromium: Any, lab: Lab, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    context = chromium.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    page.goto(f"{lab.address}/lab/tree/{request.param.name}?token={TOKEN}&reset")
    shown = Notebook(page)
    shown.run()
    yield shown
    if folder := os.environ.get("FOURBIT_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{request.param.stem}.png")
    assert shown.page.evaluate(MISHAPS) == []
    page.evaluate("jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    context.close()


# ---- driving controls ------------------------------------------------------------------------------------------------


def spread(count: int) -> list[int]:
    """Some of `count` choices: the ends and evenly between."""
    return (
        sorted({round(k * (count - 1) / (CHOICES - 1)) for k in range(CHOICES)})
        if count > CHOICES
        else list(range(count))
    )


ANOTHER = "another value than before"


@dataclass(frozen=True)
class Action:
    """What a user does with a control: what it is called, how, and the control's value then ("index" or "value", it),
    or ANOTHER; None where that depends on the control's own limits."""

    name: str
    do: Callable[[], object]
    gives: list[Any] | str | None = None


def leaves(control: Any) -> list[Any]:
    """What a user touches of a control that is made of several; itself otherwise."""
    parts = getattr(control, "children", None)
    if parts is None:
        return [control]
    touched = [leaf for part in parts for leaf in leaves(part) if hasattr(leaf, "disabled")]
    return [touched[k] for k in spread(len(touched))]


def actions(control: Any, node: Any) -> Iterator[Action]:
    """What to do with a control, whose element is `node`, by its kind; where that is easy, it ends as it began."""
    import ipywidgets as w

    def typed(text: str) -> None:
        field = node.query_selector("input, textarea")
        field.fill(text)
        field.press("Tab")

    if isinstance(control, w.Text | w.Textarea):
        for text in [*TEXTS, control.value]:
            yield Action(f"type {text!r}", partial(typed, text), ["value", text])
    elif isinstance(control, w.IntText | w.FloatText | w.BoundedIntText | w.BoundedFloatText):
        for text in ("3", "0", "-1", "1000000", str(control.value)):
            yield Action(f"type {text}", partial(typed, text))
    elif isinstance(control, w.Dropdown | w.Select):
        for k in [*spread(len(control.options)), control.index]:
            choose = node.query_selector("select").select_option
            yield Action(f"choose number {k}", partial(choose, index=k), ["index", k])
    elif isinstance(control, w.ToggleButtons | w.RadioButtons):
        for k in [*spread(len(control.options)), control.index]:
            yield Action(f"press number {k}", node.query_selector_all("button, input")[k].click, ["index", k])
    elif isinstance(control, w.ToggleButton | w.Checkbox):
        for value in (not control.value, control.value):
            yield Action("toggle", (node.query_selector("input") or node).click, ["value", value])
    elif isinstance(control, w.IntSlider | w.FloatSlider | w.FloatLogSlider | w.SelectionSlider):
        for key in ("ArrowRight", "End", "Home", "ArrowRight"):
            yield Action(f"slide by {key}", partial(node.query_selector(".noUi-handle").press, key))
    else:
        pytest.fail(f"{type(control).__name__}: teach this test how a user changes it")


def deeds(notebook: Notebook, twin: Twin, place: int, name: str) -> Iterator[Action]:
    """Everything to do with the control of this name, part by part."""
    control = twin.panel.controls[name]
    for leaf in leaves(control):
        if getattr(leaf, "disabled", False):
            continue
        for action in actions(leaf, notebook.control(place, twin.path(leaf))):
            yield action if leaf is control else replace(action, gives=action.gives and ANOTHER)


def settled(notebook: Notebook, twin: Twin, place: int, name: str, gives: list[Any] | str | None) -> None:
    """Wait until the kernel's control has the value that it should have, give it to the twin, and wait until the
    browser shows what the twin says."""
    until, told, wanted, shown = time.monotonic() + PATIENCE, None, {}, {}
    control = twin.panel.controls[name]
    before = ["index", control.index] if hasattr(control, "index") else ["value", control.value]
    came = False
    while time.monotonic() < until:
        told = notebook.ask(VALUES)[twin.number][name]
        came = came or gives is None or (told != before if gives is ANOTHER else told == gives)
        if came:
            setattr(control, *told)
            said = {"readout": twin.panel.picture.readout, "note": twin.panel._note.value}
            wanted = {key: notebook.plain(html) for key, html in said.items()}
            shown = notebook.page.evaluate(PANEL, place)
            if wanted.items() <= shown.items() and shown["width"] > 0:
                return
        time.sleep(0.05)
    assert came, f"{name} has not become {gives}: it is {told}"
    assert shown == wanted | {"width": shown["width"]}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem, indirect=True)
def test_every_control_of_every_panel(notebook: Notebook, request: pytest.FixtureRequest) -> None:
    path = ROOT / "notebooks" / f"{request.node.callspec.id}.ipynb"
    expected = twins(path)
    notebook.page.wait_for_function(
        "(n) => document.querySelectorAll('.jp-Notebook .fourbit-readout').length === n", arg=len(expected)
    )
    assert expected, "no panel in this notebook"
    for place, twin in enumerate(expected):
        moved = False
        for name in twin.names():
            settled(notebook, twin, place, name, None)
            start = twin.panel.picture.readout
            for action in deeds(notebook, twin, place, name):
                action.do()
                if action.gives is None:
                    time.sleep(0.2)  # for the browser to tell the kernel
                settled(notebook, twin, place, name, action.gives)
                assert "Traceback" not in notebook.page.evaluate(PANEL, place)["note"], (name, action.name)
                moved = moved or twin.panel.picture.readout != start
        assert moved, f"panel {place}: no control changes its readout"
