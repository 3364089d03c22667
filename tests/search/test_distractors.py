"""`pml-ext eval --distractors`: a gallery that is read in blocks, against loops."""

from pathlib import Path

import numpy as np
import pytest

from pml_ext.cli import main
from tests.search.test_commands_on_files import failure, metrics


def files(folder: Path, labels: np.ndarray | None, cameras: np.ndarray | None = None) -> list[str]:
    """labels: of the distractors; cameras: of 12 queries and 10 gallery rows."""
    generator = np.random.default_rng(3)
    people = generator.standard_normal((12, 5))
    x = people[np.arange(24) % 12] + 0.7 * generator.standard_normal((24, 5))
    for name, rows, ids in (("q", slice(12), 12), ("g", slice(12, 22), 10)):
        more = {} if cameras is None else {"cameras": cameras[rows]}
        np.savez(folder / f"{name}.npz", embeddings=x[rows], labels=np.arange(ids), **more)
    others = generator.standard_normal((50, 5))
    np.savez(folder / "d.npz", embeddings=others, **({} if labels is None else {"labels": labels}))
    np.savez(folder / "all.npz", q=x[:12], g=np.concatenate([x[12:22], others]))
    words = ["--embeddings", "q.npz", "--gallery", "g.npz", "--distractors", "d.npz", "--out", ""]
    return [
        "eval",
        *(str(folder / word) if word.endswith((".npz", "")) and word[:2] != "--" else word for word in words),
    ]


@pytest.mark.parametrize(("labelled", "same_camera"), [(False, ()), (True, ()), (True, (3, 8))])
def test_queries_among_distractors(tmp_path: Path, labelled: bool, same_camera: tuple[int, ...]) -> None:
    labels, cameras = np.arange(50) // 2 + 100, np.arange(22) // 12 + 5
    cameras[[12 + row for row in same_camera]] = 5  # their only match does not count
    assert main(files(tmp_path, labels if labelled else None, cameras if same_camera else None)) == 0
    mated = [row for row in range(10) if row not in same_camera]
    both = np.load(tmp_path / "all.npz")
    q, g = (both[name] / np.linalg.norm(both[name], axis=1, keepdims=True) for name in "qg")
    cosines = q @ g.T
    subject = [*range(10), *(labels if labelled else range(100, 150))]
    places = []
    for row in mated:  # the last two are not in the gallery
        others = {name: max(cosines[row][i] for i in range(60) if subject[i] == name) for name in subject[10:]}
        others |= {name: cosines[row][name] for name in range(10) if name != row}
        places.append(1 + sum(score >= cosines[row][row] for score in others.values()))
    found = metrics(tmp_path, "q.npz")
    for rank in (1, 5, 10):
        assert found[f"rank_{rank}"] == sum(place <= rank for place in places) / len(mated)
    assert (found["mated"], found["non_mated"]) == (len(mated), 12 - len(mated))
    assert (found["genuine"], found["impostors"]) == (len(mated), 12 * 60 - 10)
    impostors = sorted((cosines[r][c] for r in range(12) for c in range(60) if r != c), reverse=True)
    allowed = impostors[int(0.1 * len(impostors))]  # the first that would be too many
    assert found["tar_at_far_1e-1"] == sum(cosines[r][r] > allowed for r in mated) / len(mated)


def test_files_that_do_not_go_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = files(tmp_path, np.arange(50) + 9)
    assert f"error: {tmp_path / 'd.npz'} must have other identities than" in failure(capfd, *words)
    np.savez(tmp_path / "d.npz", embeddings=np.ones((3, 4)))
    assert f"error: {tmp_path / 'd.npz'} must have 5 dimensions" in failure(capfd, *words)
    assert "--distractors goes with --gallery" in failure(capfd, *words[:3], *words[5:])
