"""The rules of the house, read off the source text with `ast`, and where the imported packages lie.

Contract: each check takes a root folder and returns complaints, none for this checkout. Oracle: small trees made for
the purpose, a good one that every check accepts and bad ones of which each breaks one rule.

numerics <- reference <- studies <- notebooks and numerics <- hw <- studies. `fourbit.py` imports all, but late.
"""

import ast
import functools
import graphlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# a folder's imports from the other folders of the project
MAY_IMPORT = {
    "numerics": set(),
    "reference": {"numerics"},
    "hw": {"numerics"},
    "studies": {"numerics", "reference", "hw"},
    "notebooks": {"numerics", "reference", "hw", "studies"},
}
OURS = {*MAY_IMPORT, "fourbit", "tests"}

# Patterns, not words, so that this file does not match itself.
FORBIDDEN = {
    "an absolute path of one machine": r"(?<![\w./~-])/(work|home|root|tmp|Users)(?![\w-])",
    "a folder beside the checkout": r"\.\./shared\b",
    "the address of a package registry": r"pypi\.(org|python|nvidia)|pythonhosted\.org|pytorch\.org|index[-]url",
}


@dataclass(frozen=True)
class Import:
    """One import: `from ..module import names` has level 2; late means inside a function."""

    level: int
    module: str
    names: tuple[str, ...]
    late: bool
    line: int

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


def imports(tree: ast.AST, late: bool = False) -> Iterator[Import]:
    """Every import below `tree`, also under `if TYPE_CHECKING`, and importlib's with a constant name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(0, alias.name, (), late, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.level, node.module or "", tuple(a.name for a in node.names), late, node.lineno)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__") and node.args:
            name = getattr(node.args[0], "value", None)
            if isinstance(name, str):
                yield Import(len(name) - len(name.lstrip(".")), name.lstrip("."), (), late, node.lineno)
        yield from imports(node, late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def called(node: ast.Call) -> str:
    """The last name of what is called: `load` of `torch.load(...)`."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def files(root: Path) -> list[Path]:
    """The files of a checkout, those not yet committed too, without what git ignores; of a tree without git, all."""
    if not (root / ".git").exists():
        return sorted(path for path in root.rglob("*") if path.is_file())
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted({root / name for name in listed.split("\0") if name and (root / name).is_file()})


@functools.cache
def parsed(text: str, name: str) -> ast.Module:
    """Once for all checks, which only read it."""
    return ast.parse(text, name)


def modules(root: Path, *folders: str) -> Iterator[tuple[Path, ast.Module]]:
    """The Python files at or below `folders` as (path relative to the root, parsed file)."""
    for path in files(root):
        relative = path.relative_to(root)
        if relative.suffix == ".py" and relative.parts[0] in folders:
            yield relative, parsed(path.read_text("utf-8"), str(relative))


def source(root: Path) -> Iterator[tuple[Path, ast.Module]]:
    """The modules that users run: the five folders and the command line."""
    return modules(root, *MAY_IMPORT, "fourbit.py")


def direction(root: Path) -> list[str]:
    """Imports go one way between folders, are relative inside one, and numerics needs torch and numpy alone."""
    found = []
    for path, tree in modules(root, *MAY_IMPORT):
        folder = path.parts[0]
        for entry in imports(tree):
            where = f"{path}:{entry.line}"
            if entry.level >= len(path.parts):
                found.append(f"{where}: a relative import leaves {folder}/")
            if entry.level:
                continue
            if entry.top == folder:
                found.append(f"{where}: inside {folder}/ imports are relative: write `from . import ...`")
            elif entry.top in OURS and entry.top not in MAY_IMPORT[folder]:
                found.append(f"{where}: {folder} must not import {entry.top}")
            elif folder == "numerics" and not numerics_may(entry):
                found.append(f"{where}: numerics imports torch and numpy only, not {entry.top}")
    for path, tree in modules(root, "fourbit.py"):
        for entry in imports(tree):
            if not entry.late and entry.top not in sys.stdlib_module_names:
                found.append(f"{path}:{entry.line}: fourbit.py imports {entry.top} late, inside a function")
    return found


def numerics_may(entry: Import) -> bool:
    """torch, numpy, the standard library; ml_dtypes for arrays in its types, where one is met."""
    allowed = {"torch", "numpy"} | ({"ml_dtypes"} if entry.late else set())
    return entry.top in allowed | sys.stdlib_module_names


def acyclic(root: Path) -> list[str]:
    """No cycle of relative imports, late ones counted: hiding an import in a function does not undo a cycle."""
    trees = {".".join(path.with_suffix("").parts): tree for path, tree in modules(root, *MAY_IMPORT)}
    graph = {name: set() for name in trees}
    for name, tree in trees.items():
        for entry in imports(tree):
            if not entry.level:
                continue
            base = name.split(".")[: -entry.level] + (entry.module.split(".") if entry.module else [])
            for part in entry.names or ("",):
                # `from .a import b`: b is a module, or a name of module a, or of package a
                candidates = ([*base, part], [*base, part, "__init__"], base, [*base, "__init__"])
                graph[name] |= set([c for c in map(".".join, candidates) if c in graph][:1])
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return ["imports in a circle: " + " -> ".join(error.args[1])]
    return []


def shadows(root: Path) -> list[str]:
    """No file or folder that is imported by name hides a module of the standard library."""
    found = []
    for path in (path.relative_to(root) for path in files(root)):
        parts = {path.stem, *path.parts[:-1]} if path.suffix == ".py" else set()
        found += [f"{path}: {part} is a module of the standard library" for part in parts & sys.stdlib_module_names]
    return found


def packages(root: Path) -> list[str]:
    """What pyproject.toml lists is what is there, and no folder is a package by accident only."""
    listed = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    paths = [path.relative_to(root) for path in files(root) if path.suffix == ".py"]
    there = {
        "packages": {".".join(path.parent.parts) for path in paths if path.name == "__init__.py"},
        "py-modules": {path.stem for path in paths if len(path.parts) == 1},
    }
    found = []
    for key, names in there.items():
        found += [f"pyproject.toml: {key} lacks {name}" for name in names - set(listed[key])]
        found += [f"pyproject.toml: {key} lists {name}, which is not there" for name in set(listed[key]) - names]
    for folder in {path.parent for path in paths if path.parts[0] in MAY_IMPORT}:
        if folder / "__init__.py" not in paths:
            found.append(f"{folder}/ has no __init__.py")
    return found


def docstrings(root: Path) -> list[str]:
    """Every module says what it is for."""
    everything = modules(root, *MAY_IMPORT, "fourbit.py", "tests", "notebooks")
    return [f"{path}: no module docstring" for path, tree in everything if not ast.get_docstring(tree)]


def pickles(root: Path) -> list[str]:
    """Nothing is stored as, or loaded from, a format that can run code."""
    found = []
    for path, tree in source(root):
        for entry in imports(tree):
            if entry.top in {"pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}:
                found.append(f"{path}:{entry.line}: {entry.top} runs what it loads; use safetensors or JSON")
            if entry.module == "torch" and {"save", "load"} & set(entry.names):
                found.append(f"{path}:{entry.line}: torch.save and torch.load pickle; use safetensors")
        for node in ast.walk(tree):
            text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if text in {"torch.save", "torch.load"} or text.endswith((".to_pickle", ".read_pickle")):
                found.append(f"{path}:{node.lineno}: {text} pickles; use safetensors, JSON or CSV")
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                found.append(f"{path}:{node.value.lineno}: allow_pickle runs what it loads")
    return found


def logarithms(root: Path) -> list[str]:
    """numerics finds exponents by their bits: a logarithm is wrong just below most powers of two. One function imitates
    quantizers that take it all the same."""
    found = []
    for path, tree in modules(root, "numerics"):
        kept = [n for n in tree.body if getattr(n, "name", "") != "rounded_logarithm"]
        for node in (node for statement in kept for node in ast.walk(statement)):
            word = getattr(node, "attr", getattr(node, "id", getattr(node, "name", "")))
            if isinstance(node, (ast.Attribute, ast.Name, ast.alias)) and word.startswith("log2"):
                found.append(f"{path}:{node.lineno}: {word}; read the exponent's bits instead")
    return found


def words(root: Path) -> list[str]:
    """No file names a place that other machines do not have."""
    found = []
    for path in files(root):
        try:
            lines = path.read_text("utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # not text
        for number, line in enumerate(lines, 1):
            for what, pattern in FORBIDDEN.items():
                if hit := re.search(pattern, line):
                    found.append(f"{path.relative_to(root)}:{number}: {hit[0]!r} is {what}")
    return found


CHECKS: list[Callable[[Path], list[str]]] = [
    direction,
    acyclic,
    shadows,
    packages,
    docstrings,
    pickles,
    logarithms,
    words,
]

GOOD = {
    "pyproject.toml": '[tool.setuptools]\npackages = ["numerics", "reference", "hw", "studies"]\n'
    'py-modules = ["fourbit"]\n',
    "fourbit.py": '"""Dispatch."""\nimport sys\ndef train():\n    from hw import ops\n    return ops, sys\n',
    "numerics/__init__.py": '"""Exact."""\nfrom .formats import A\nfrom . import codes\n',
    "numerics/formats.py": '"""Formats, without log2(x)."""\nimport math\nimport torch\nA = 1\n',
    "numerics/codes.py": '"""Codes."""\nimport numpy as np\nfrom .formats import A\ndef f():\n    import ml_dtypes\n',
    "reference/__init__.py": '"""The trainer."""\nimport tqdm\nimport numerics as nm\nfrom numerics.codes import f\n',
    "hw/__init__.py": '"""Kernels."""\nfrom . import ops\n',
    "hw/ops.py": '"""The seam."""\nimport triton\nimport numerics\n',
    "studies/__init__.py": '"""Questions."""\nimport hw, numerics, reference\n',
    "tests/test_all.py": '"""Everything."""\nimport fourbit, numerics, reference, hw, studies\n',
    "README.md": "docs/home.md, framework/work, and/or; see https://example.org/home/page and ~/data\n",
}

# the check that must complain, the files that make it, and a part of the complaint
DOC = '"""Doc."""\n'
BAD = [
    (direction, {"numerics/a.py": DOC + "import reference"}, "numerics must not import reference"),
    (direction, {"numerics/a.py": DOC + "def f():\n    from hw.ops import g"}, "numerics must not import hw"),
    (direction, {"numerics/a.py": DOC + "from scipy import stats"}, "torch and numpy only, not scipy"),
    (direction, {"numerics/a.py": DOC + "import ml_dtypes"}, "torch and numpy only, not ml_dtypes"),
    (direction, {"numerics/a.py": DOC + "from numerics import codes"}, "inside numerics/ imports are relative"),
    (direction, {"numerics/a.py": DOC + "from ..hw import ops"}, "a relative import leaves numerics/"),
    (direction, {"reference/a.py": DOC + "if 1:\n    import hw.ops"}, "reference must not import hw"),
    (direction, {"reference/a.py": DOC + "import importlib\nimportlib.import_module('hw.ops')"}, "must not import hw"),
    (direction, {"reference/a.py": DOC + "import studies"}, "reference must not import studies"),
    (direction, {"hw/a.py": DOC + "import reference"}, "hw must not import reference"),
    (direction, {"studies/a.py": DOC + "import fourbit"}, "studies must not import fourbit"),
    (direction, {"fourbit.py": DOC + "import hw"}, "fourbit.py imports hw late"),
    (direction, {"fourbit.py": DOC + "import torch"}, "fourbit.py imports torch late"),
    (acyclic, {"numerics/formats.py": DOC + "from .codes import f"}, "numerics.formats"),
    (acyclic, {"numerics/formats.py": DOC + "def f():\n    from . import codes"}, "numerics.formats"),
    (acyclic, {"hw/ops.py": DOC + "from . import name_of_the_package"}, "hw.__init__"),
    (acyclic, {"hw/sub/__init__.py": DOC + "from ..ops import f", "hw/ops.py": DOC + "from .sub import g"}, "hw.sub"),
    (shadows, {"numerics/random.py": DOC}, "random is a module of the standard library"),
    (shadows, {"hw/copy/__init__.py": DOC}, "copy is a module of the standard library"),
    (packages, {"extra/__init__.py": DOC}, "packages lacks extra"),
    (packages, {"hw/kernels/__init__.py": DOC}, "packages lacks hw.kernels"),
    (packages, {"hw/kernels/a.py": DOC}, "hw/kernels/ has no __init__.py"),
    (packages, {"helper.py": DOC}, "py-modules lacks helper"),
    (packages, {"hw/__init__.py": None, "hw/ops.py": None}, "packages lists hw, which is not there"),
    (docstrings, {"hw/a.py": "x = 1"}, "hw/a.py: no module docstring"),
    (docstrings, {"tests/test_a.py": "x = 1"}, "tests/test_a.py: no module docstring"),
    (pickles, {"studies/a.py": DOC + "import pickle"}, "pickle runs what it loads"),
    (pickles, {"studies/a.py": DOC + "import torch\ntorch.save({}, 'x')"}, "torch.save pickles"),
    (pickles, {"studies/a.py": DOC + "from torch import load"}, "torch.load pickle"),
    (pickles, {"studies/a.py": DOC + "import pandas\npandas.read_pickle('x')"}, "pandas.read_pickle pickles"),
    (pickles, {"studies/a.py": DOC + "import numpy\nnumpy.load('x', allow_pickle=True)"}, "allow_pickle"),
    (logarithms, {"numerics/a.py": DOC + "import torch\ny = torch.log2(x)"}, "log2; read"),
    (logarithms, {"numerics/a.py": DOC + "y = x.log2_()"}, "log2_; read"),
    (logarithms, {"numerics/a.py": DOC + "def f():\n    return rounded_logarithm(x.log2())"}, "log2; read"),
    (logarithms, {"numerics/a.py": DOC + "from math import log2 as f"}, "log2; read"),
    (words, {"README.md": f"cd /{'home'}/ann/fourbit"}, "an absolute path"),
    (words, {"hw/a.py": f"x = '/{'work'}'"}, "an absolute path"),
    (words, {"README.md": f"see ..{'/shared'}/notes"}, "a folder beside"),
    (words, {"Makefile": f"pip install --{'index'}-url x"}, "a package registry"),
    (words, {".ci/run": f"curl https://{'pypi'}.org"}, "a package registry"),
]


def plant(root: Path, *trees: dict[str, str | None]) -> None:
    """Write the files of `trees`, later ones over earlier ones; None removes."""
    for name, text in {name: text for tree in trees for name, text in tree.items()}.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, "utf-8")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_this_checkout_keeps_the_rule(check: Callable[[Path], list[str]]) -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_good_tree_is_accepted(check: Callable[[Path], list[str]], tmp_path: Path) -> None:
    plant(tmp_path, GOOD)
    assert check(tmp_path) == []


@pytest.mark.parametrize(("check", "change", "complaint"), BAD, ids=[f"{c.__name__}-{t}" for c, _, t in BAD])
def test_a_broken_rule_is_told(
    check: Callable[[Path], list[str]], change: dict[str, str | None], complaint: str, tmp_path: Path
) -> None:
    plant(tmp_path, GOOD, change)
    found = check(tmp_path)
    assert len(found) == 1 and complaint in found[0]


def test_every_check_has_a_bad_tree() -> None:
    assert {check for check, _, _ in BAD} == set(CHECKS)


def test_files_of_a_checkout_are_those_that_git_does_not_ignore(tmp_path: Path) -> None:
    plant(tmp_path, {".gitignore": "/results/\n", "a.py": "", "results/b.py": ""})
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert [path.name for path in files(tmp_path)] == [".gitignore", "a.py"]


def test_numerics_is_the_one_of_this_checkout() -> None:
    import numerics

    assert Path(numerics.__file__).resolve().parent == ROOT / "numerics"


def test_the_environment_points_at_this_checkout(tmp_path: Path) -> None:
    """Seen from another folder. An environment copied along with a checkout would run the old one."""
    names = ["fourbit", *MAY_IMPORT]
    code = f"import importlib.util as u\nfor n in {names}: print(getattr(u.find_spec(n), 'origin', '?'))"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    origins = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=env, text=True).splitlines()
    if origins[0] == "?":
        pytest.skip("fourbit is not installed in this environment")
    assert [Path(origin).resolve().parent for origin in origins] == [ROOT, *(ROOT / name for name in MAY_IMPORT)]


@pytest.mark.parametrize("name", ["numerics", "reference.train", "hw.a.b", "studies", "fourbit"])
def test_a_warning_of_our_own_is_an_error(name: str) -> None:
    with pytest.raises(UserWarning, match="careful"):
        exec("import warnings; warnings.warn('careful')", {"__name__": name})


@pytest.mark.parametrize("name", ["numericsx", "other.numerics", "hwloc"])
def test_a_warning_of_others_is_none(name: str) -> None:
    with warnings.catch_warnings():  # on top of pytest's filters: keeps this warning out of the report
        warnings.filterwarnings("ignore", "careful", append=True)
        exec("import warnings; warnings.warn('careful')", {"__name__": name})


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this checkout's Makefile in `folder`, an empty one but for an empty pyproject.toml."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    if not (folder / "pyproject.toml").exists():
        plant(folder, {"pyproject.toml": ""})
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-f", str(ROOT / "Makefile"), *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_make_tells_in_one_sentence_that_no_python_fits(tmp_path: Path) -> None:
    run = make(tmp_path, "demo", "PYTHON=no-such-python false")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.splitlines()[0].startswith("make: none of (no-such-python false) is a Python 3.11 to 3.14")
    assert not (tmp_path / ".venv").exists()


def test_make_passes_over_a_python_that_does_not_run_and_keeps_no_stamp_of_a_failure(tmp_path: Path) -> None:
    """A shim may be found and not run. The one that fits here then fails to make an environment: no stamp is left."""
    plant(tmp_path, {"shim": "#!/bin/sh\nexit 127\n"})
    # fits when asked with -c, fails when asked for an environment with -m
    plant(tmp_path, {"fit": '#!/bin/sh\nmkdir -p .venv && [ "$1" = -c ] && echo fit\n'})
    for name in ("shim", "fit"):
        (tmp_path / name).chmod(0o755)
    run = make(tmp_path, "demo", f"PYTHON={tmp_path}/shim {tmp_path}/fit {tmp_path}/shim")
    assert run.returncode == 2
    assert run.stdout == "Making .venv with fit\n"
    assert list((tmp_path / ".venv").iterdir()) == []


def test_make_does_nothing_twice(tmp_path: Path) -> None:
    """`make test` installs when pyproject.toml is newer than the stamps, and else only lints and tests."""

    def steps() -> list[str]:
        return make(tmp_path, "-n", "test").stdout.splitlines()

    first = steps()
    assert any("-m pip install" in step for step in first)
    stamps = set(re.findall(r"\.venv/stamp-\w+-\w+", "\n".join(first)))
    assert {stamp.split("-")[-1] for stamp in stamps} == {"venv", "base", "dev"}
    plant(tmp_path, {stamp: "" for stamp in sorted(stamps, key=lambda stamp: not stamp.endswith("venv"))})
    assert [step.split()[:3] for step in steps()] == [
        [".venv/bin/python", "-m", tool] for tool in ("ruff", "ruff", "mypy", "pytest")
    ]
    os.utime(tmp_path / "pyproject.toml", (time.time() + 60,) * 2)
    assert any("-m pip install" in step for step in steps())


def test_the_hooks_before_a_commit_are_the_checks_before_the_tests() -> None:
    """From the same environment, so nothing is fetched; but `ruff format` formats there, and only checks here."""
    config = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    recipe = re.search(r"^test:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    steps = [line.strip().removesuffix(" --check") for line in recipe[1].splitlines()]
    assert re.findall(r"entry: (.*)", config) == [step for step in steps if "pytest" not in step]
    assert re.findall(r"repo: (.*)", config) == ["local"]


def test_no_division_by_a_tensor_made_of_a_number() -> None:
    """A compiler folds such a divisor into a product with its reciprocal: `outer.constant` makes one that it cannot."""
    made = re.compile(r"/\s*\(?\s*(torch\.|\w+\.)?(new_tensor|new_full|full_like|full|tensor)\(")
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "numerics").glob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if made.search(line)
    ]
    assert found == []
