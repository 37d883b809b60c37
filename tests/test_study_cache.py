"""Contract: `cache.part` measures once for equal inputs and sources, gives back the same bits, and keeps what is done.

Oracle: a counter of calls, and the frame itself.
"""

import numpy as np
import pandas as pd
import pytest

from studies import cache

calls: list[dict[str, object]] = []


def measured(**inputs: object) -> pd.DataFrame:
    calls.append(inputs)
    values = np.random.default_rng(0).standard_normal(5) * 10.0 ** np.arange(-150, 150, 60)
    return pd.DataFrame(
        {
            "value": values,
            "count": range(5),
            "absent": [1.5, np.nan] + [2.0] * 3,
            "name": ["", "a,b", 'x"y', "NA", "None"],
            "good": [True] * 5,
        }
    )


@pytest.fixture(autouse=True)
def _no_calls():
    calls.clear()


def test_without_a_folder_everything_is_measured():
    for _ in range(2):
        cache.part(measured, seed=1)
    assert len(calls) == 2


def test_equal_inputs_are_measured_once_and_read_back_to_the_same_bits(tmp_path):
    with cache.using(tmp_path / "kept"):
        first, again = cache.part(measured, seed=1, sizes=[1, 2]), cache.part(measured, sizes=[1, 2], seed=1)
        assert len(calls) == 1
        cache.part(measured, seed=2, sizes=[1, 2])
        assert len(calls) == 2
    pd.testing.assert_frame_equal(first, measured(), check_exact=True)
    pd.testing.assert_frame_equal(again, first, check_exact=True)


def test_a_change_of_the_sources_measures_anew(tmp_path, monkeypatch):
    with cache.using(tmp_path):
        cache.part(measured, seed=1)
        monkeypatch.setattr(cache, "sources", lambda module: "other")
        cache.part(measured, seed=1)
    assert len(calls) == 2


def test_a_failure_keeps_nothing_of_its_own(tmp_path):
    def failing(seed: int) -> pd.DataFrame:
        raise KeyboardInterrupt

    with cache.using(tmp_path / "kept"), pytest.raises(KeyboardInterrupt):
        cache.part(failing, seed=1)
    assert not (tmp_path / "kept").exists()
    with pytest.raises(TypeError, match="part is a DataFrame"):
        cache.part(lambda: 3)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data.replace(b"1.5", b"1.6"), lambda data: b"\xff"]
)
def test_a_damaged_part_is_measured_again(tmp_path, damage):
    with cache.using(tmp_path):
        cache.part(measured, seed=1)
        (path,) = tmp_path.iterdir()
        whole = path.read_bytes()
        assert damage(whole) != whole
        path.write_bytes(damage(whole))
        pd.testing.assert_frame_equal(cache.part(measured, seed=1), measured(), check_exact=True)
        assert path.read_bytes() == whole


def test_sources_are_the_module_and_what_it_imports_of_its_folder(tmp_path):
    texts = {
        "a": "from . import b, plots_of_none\nfrom json import loads",
        "b": "from .c import x",
        "c": "x = 1",
        "d": "",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert [path.stem for path in cache.files(tmp_path / "a.py")] == ["a", "b", "c"]
    before = cache.sources(tmp_path / "a.py")
    (tmp_path / "d.py").write_text("y = 2")
    cache.sources.cache_clear()
    assert cache.sources(tmp_path / "a.py") == before
    (tmp_path / "c.py").write_text("x = 2")
    cache.sources.cache_clear()
    assert cache.sources(tmp_path / "a.py") != before
