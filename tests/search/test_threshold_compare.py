"""`pml-ext threshold --compare`: files of several models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pml_ext.cli import main

LABELS = np.arange(200) % 50


def file(folder: Path, name: str, spread: float, **arrays: Any) -> str:
    people = np.random.default_rng(0).standard_normal((50, 8))[LABELS]
    x = people + spread * np.random.default_rng(1).standard_normal((200, 8))
    np.savez(folder / name, **({"embeddings": x.astype(np.float32), "labels": LABELS} | arrays))
    return str(folder / name)


def test_three_models_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [file(tmp_path, f"{name}.npz", spread) for name, spread in (("a", 0.4), ("b<i>", 0.4), ("c", 0.8))]
    assert main(["threshold", "--compare", *files, "--far", "0.01", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "no difference between b<i>.npz and a.npz can be told" in shown and "c.npz misses more than a.npz" in shown
    page = (tmp_path / "out" / "models.html").read_text(encoding="utf-8")
    assert "classes that lose most with c.npz" in page and "c.npz misses more than a.npz" in page
    assert "b&lt;i&gt;.npz" in page and "<i>" not in page
    assert (
        main(["threshold", "--compare", *files[:2], "--fpir", "0.1", "--gallery-size", "20", "--out", str(tmp_path)])
        == 0
    )
    assert "FNIR" in (tmp_path / "models.html").read_text(encoding="utf-8")


def test_what_cannot_be_compared_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = file(tmp_path, "a.npz", 0.4)
    two = file(tmp_path, "b.npz", 0.4, labels=np.roll(LABELS, 1))
    three = file(tmp_path, "c.npz", 0.4)

    def failure(*words: str) -> str:
        assert main(["threshold", *words]) == 2
        shown = capfd.readouterr().err
        assert shown.count("\n") == 1
        return shown

    told = failure("--compare", one, two, "--far", "0.01")
    assert "b.npz must hold the samples of" in told and "their labels differ" in told
    assert "needs two or more different files" in failure("--compare", one, "--far", "0.01")
    assert "--compare needs --far RATE" in failure("--compare", one, three, "--frr", "0.1")
    assert "--groups do not go with --compare" in failure("--compare", one, three, "--far", "0.1", "--groups", "sex")
    assert "give --embeddings FILE, or --compare" in failure("--far", "0.1")
    assert "give --embeddings FILE, or --compare" in failure(
        "--embeddings", one, "--compare", one, three, "--far", "0.1"
    )
    assert not (tmp_path / "models.html").exists()
