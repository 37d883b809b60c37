"""Settings of every test run and of every worker of a parallel one; and fixtures that several modules use.

`make test` spreads the tests over processes (pytest-xdist) by whole modules: what a module's tests share is made once,
and its records have one writer. `pytest` without `-n` runs in one process.
"""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

# Every worker imports torch, 0.4 to 1 GB of memory; and the longest module bounds what more of them gain.
MOST_WORKERS = 8

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def pytest_configure(config: pytest.Config) -> None:
    """Make a run depend less on the machine. The settings reach the processes that tests start."""
    # FP32 sums depend on the number of threads: the same one everywhere; more only wait for each other in small tests.
    # Where a test asks for more they must not spin while they wait: with other work on the cores that takes minutes.
    # Both are read when torch is loaded, hence its late import.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # a shell's background ignores Ctrl-C, which tests send
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # draw figures without a window
    os.environ["MPLBACKEND"] = "Agg"
    import torch

    # without a GPU Triton's kernels run in its interpreter, which is chosen before triton is imported
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`@pytest.mark.every(n)`: of a family of cases on a device, the default run takes each n-th."""
    seen: Counter[tuple[object, ...]] = Counter()
    for item in items:
        mark = item.get_closest_marker("every")
        if mark is not None:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            family = item.path, item.originalname, str(parameters.get("device"))
            if seen[family] % mark.args[0]:
                item.add_marker("exhaustive")
            seen[family] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Workers of `-n auto`: one for each core that this process may use, none (no other process) for a single core."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if cores == 1 else min(cores, MOST_WORKERS)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch on one thread while a module's tests run: small operations are fastest so."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """A headless Chromium of this machine, for tests under the marker `browser`; skips where something is missing.

    FOURBIT_CHROMIUM names the program, where it is not one of the usual names. A module's own, since Playwright keeps
    an event loop running, in which notebooks could not be executed.
    """
    reason = "playwright is not installed: pip install 'fourbit[browser]' (make browser does)"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    program = os.environ.get("FOURBIT_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(names)} is installed: install Chromium, or name it in FOURBIT_CHROMIUM")
    # the sandbox refuses to run as root, where a container's tests often run
    sandbox = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=sandbox)
        yield browser
        browser.close()
