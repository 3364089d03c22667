"""Compiling the counting loops, and every way that can fail."""

import logging
import sys

import numpy as np
import pytest

from pml_ext.functional.operating_points.counting import compiled_count_rows

numba = pytest.importorskip("numba")
# With numba as it is, before a test replaces parts of it.
pytest.importorskip("pml_ext.functional.operating_points.counting_kernel")

TYPES = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int32)


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    compiled_count_rows.cache_clear()
    yield
    compiled_count_rows.cache_clear()


def test_compiles_once_per_process_and_type():
    assert compiled_count_rows(*TYPES) is not None
    assert compiled_count_rows(*TYPES) is compiled_count_rows(*TYPES)


def test_missing_numba_is_silent(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert compiled_count_rows(*TYPES) is None
    assert not caplog.records


def test_a_broken_numba_warns_once(monkeypatch, caplog, tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 9 or less.')\n")
    monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.WARNING, "pml_ext"):
        assert compiled_count_rows(*TYPES) is None
        assert compiled_count_rows(*TYPES) is None
    assert [r.getMessage() for r in caplog.records] == [
        "pairs are counted without numba, which does not work here: Numba needs NumPy 9 or less."
    ]


def without_llvm(*_):
    raise OSError("no LLVM here\nand a second line")


@pytest.mark.parametrize(
    ("compiled", "reasons"),
    [
        (without_llvm, ["no LLVM here"]),
        (lambda *_: None, ["one pair was counted as 0 and 0"]),
        (None, []),  # compilation is disabled: the function itself
    ],
)
def test_failed_compilation_falls_back_to_search(compiled, reasons, monkeypatch, caplog):
    monkeypatch.setattr(numba, "njit", lambda **options: lambda function: compiled or function)
    with caplog.at_level(logging.WARNING, "pml_ext"):
        assert compiled_count_rows(*TYPES) is None
    assert [r.getMessage().rsplit(": ")[-1] for r in caplog.records] == reasons


def test_without_a_cache_folder_each_process_compiles(monkeypatch, caplog):
    compiled_count_rows(*TYPES)  # loads those parts of numba that it compiles with a cache
    compiled_count_rows.cache_clear()
    compile_with, asked = numba.njit, []

    def njit(cache=False, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compile_with(**options)

    monkeypatch.setattr(numba, "njit", njit)
    count_rows = compiled_count_rows(*TYPES)
    assert count_rows is not None and not caplog.records
    assert asked[-2:] == [True, False]
