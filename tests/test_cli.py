"""The command line's dispatch: what it hands on, what it says, and how it ends.

Contract: a command gets its arguments and its exit code is returned; a mistake of the user is one sentence on stderr
and exit code 2; a defect keeps its traceback. The folders behind the commands are stand-ins here.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import fourbit

ROOT = Path(fourbit.__file__).resolve().parent

MODULES = {
    "demo": "studies.demo",
    "train": "reference.train",
    "sft": "reference.sft",
    "rl": "reference.rl",
    "pipeline": "studies.pipeline",
    "eval": "reference.evaluate",
    "generate": "reference.generate",
    "export": "reference.export",
    "tokenize": "reference.tokenizing",
    "monitor": "studies.monitor_plot",
    "compare": "studies.compare_runs",
    "recipes": "reference.recipe_table",
    "study": "studies.study",
    "order": "studies.loss_order",
    "validate": "hw.validate",
    "probe": "hw.probe",
    "census": "hw.census",
    "check": "hw.check",
    "dialects": "studies.dialects_table",
    "vectors": "hw.vectors",
    "bench": "hw.bench_numerics",
    "formats": "numerics.show",
    "show": "numerics.show",
    "explorer": "notebooks.explorer",
}


class TrainingStopped(Exception):
    """The trainer's own exception, by its name."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable], None]:
    """Put a function in the place of a command's `main`."""

    def put(name: str, main: Callable) -> None:
        full = MODULES[name]
        folder, leaf = full.split(".")
        package, module = ModuleType(folder), ModuleType(full)
        module.main, module.TrainingStopped = main, TrainingStopped
        module.formats_main = module.show_main = main
        setattr(package, leaf, module)
        monkeypatch.setitem(sys.modules, folder, package)
        monkeypatch.setitem(sys.modules, full, module)

    return put


def raising(error: BaseException) -> Callable:
    """A `main` that raises."""

    def main(*_: object) -> int:
        raise error

    return main


def process(*arguments: str, cwd: Path = ROOT, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with this machine's Python settings replaced by the usual ones."""
    unusual = ("PYTHON", "FOURBIT")  # PYTHONUNBUFFERED would hide what happens at the last flush
    env = {name: value for name, value in os.environ.items() if not name.startswith(unusual)}
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "fourbit", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": env, **options}
    return subprocess.run(command, cwd=cwd, text=True, timeout=60, **options)


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_names_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(argv) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in MODULES)
    assert len(text.splitlines()) == len(MODULES) + 3


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(["--version"]) == 0
    assert capsys.readouterr().out == "fourbit 0.1.0\n"


@pytest.mark.parametrize("argv", [["trian"], ["--nonsense"], ["Demo"], [""]])
def test_an_unknown_command_is_one_sentence_with_the_known_ones(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fourbit.main(argv) == 2
    out, err = capsys.readouterr()
    known = (
        "the known ones are demo, train, sft, rl, pipeline, eval, generate, export, tokenize, monitor, compare, "
        "recipes, study, order, validate, probe, census, check, dialects, vectors, bench, formats, show, explorer"
    )
    assert (out, err) == ("", f"fourbit: error: unknown command {argv[0]!r}; {known}\n")


@pytest.mark.parametrize(
    "name",
    [
        "demo",
        "recipes",
        "study",
        "order",
        "validate",
        "probe",
        "census",
        "check",
        "dialects",
        "vectors",
        "bench",
        "formats",
        "show",
        "explorer",
    ],
)
def test_a_command_gets_its_arguments_and_its_exit_code_is_returned(name: str, stand_in: Callable) -> None:
    seen = []
    stand_in(name, lambda argv: seen.append(argv) or 7)
    assert fourbit.main([name, "run", "--x=1"]) == 7
    assert seen == [["run", "--x=1"]]


@pytest.mark.parametrize(
    ("word", "module"),
    [
        ("matmul", "hw.bench_matmul"),
        ("hw", "hw.bench_hw"),
        ("experts", "hw.bench_experts"),
        ("training", "studies.bench_training"),
        ("decode", "studies.bench_decode"),
    ],
)
def test_a_bench_gets_its_own_arguments(
    word: str, module: str, stand_in: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setitem(MODULES, "bench", module)
    stand_in("bench", lambda argv: seen.append(argv) or 7)
    assert fourbit.main(["bench", word, "--x=1"]) == 7
    assert seen == [["--x=1"]] and word in fourbit.COMMANDS["bench"].summary


def test_the_trainer_is_told_how_operations_are_chosen(stand_in: Callable) -> None:
    seen = []
    stand_in("train", lambda argv, operations: seen.append((argv, operations("emulated", "cpu").__name__)) or 0)
    assert fourbit.main(["train", "--steps", "3"]) == 0
    assert seen == [(["--steps", "3"], "numerics.ops")]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("steps = 0:\n  it must be positive"), "steps = 0: it must be positive"),
        (FileNotFoundError("data = 'x': no such file; name a file"), "data = 'x': no such file; name a file"),
        (FileNotFoundError(2, "No such file or directory", "a b"), "No such file or directory: a b; name another path"),
        (TrainingStopped("loss is NaN at step 7"), "loss is NaN at step 7"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence(
    error: Exception,
    sentence: str,
    stand_in: Callable,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FOURBIT_TRACEBACK", raising=False)
    stand_in("train", raising(error))
    assert fourbit.main(["train"]) == 2
    assert capsys.readouterr() == ("", f"fourbit: error: {sentence}\n")


def test_the_traceback_is_shown_on_request(
    stand_in: Callable, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOURBIT_TRACEBACK", "1")
    stand_in("demo", raising(ValueError("steps = 0")))
    assert fourbit.main(["demo"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.endswith("fourbit: error: steps = 0\n")


@pytest.mark.parametrize("error", [AssertionError("bug"), RuntimeError("bug"), KeyError("bug"), ImportError("bug")])
def test_a_defect_is_not_caught(error: Exception, stand_in: Callable) -> None:
    stand_in("study", raising(error))
    with pytest.raises(type(error), match="bug"):
        fourbit.main(["study"])


def test_an_interrupt_is_one_sentence(stand_in: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in("demo", raising(KeyboardInterrupt()))
    assert fourbit.main(["demo"]) == 130
    assert capsys.readouterr() == (
        "",
        "fourbit: interrupted; the same command continues a run from its last checkpoint, if there is one\n",
    )


@pytest.mark.parametrize("code", [0, 2])
def test_the_end_of_an_argument_parser_is_kept(code: int, stand_in: Callable) -> None:
    stand_in("train", raising(SystemExit(code)))
    with pytest.raises(SystemExit) as end:
        fourbit.main(["train", "--help"])
    assert end.value.code == code


def test_help_loads_no_folder() -> None:
    code = "import sys, fourbit; fourbit.main([]); print(sorted({'torch', 'numerics', 'studies'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_a_process_ends_with_the_code_and_without_a_traceback() -> None:
    run = process("nonsense")
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.startswith("fourbit: error: unknown command 'nonsense'") and run.stderr.count("\n") == 1


# a short text meets the closed pipe at the last flush, a long one while it is being written, help as its parser ends
BODIES = {"short": "print('x')", "long": "print('x\\n' * 100_000)", "parser": "print('x'); raise SystemExit(0)"}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_closed_pipe_is_silent(body: str, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "__init__.py").touch()
    (tmp_path / "studies" / "study.py").write_text(f"def main(argv):\n    {body}\n    return 0\n")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        run = process("study", cwd=tmp_path, stdout=writer)
    finally:
        os.close(writer)
    assert (run.returncode, run.stderr) == (141, "")


@pytest.mark.every(3)
@pytest.mark.parametrize("arguments", [("show", "E4M3", "0x6C"), ("formats",), ("train", "--help")])
def test_short_commands_do_not_import_the_compiler(arguments: tuple[str, ...]) -> None:
    """torch's compiler takes 0.7 s to import, more than everything else of ours."""
    code = (
        "import contextlib, sys, fourbit\n"
        f"with contextlib.suppress(SystemExit): fourbit.main({list(arguments)})\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
