"""`pml-ext eval --distractors`: a gallery that is read in blocks, against loops."""

from pathlib import Path

import numpy as np
import pytest

from pml_ext.cli import main
from tests.search.test_commands_on_files import failure, metrics


def files(folder: Path, labels: np.ndarray | None, **more: np.ndarray) -> list[str]:
    generator = np.random.default_rng(3)
    people = generator.standard_normal((12, 5))
    x = people[np.arange(24) % 12] + 0.7 * generator.standard_normal((24, 5))
    np.savez(folder / "q.npz", embeddings=x[:12], labels=np.arange(12), **more)
    np.savez(
        folder / "g.npz", embeddings=x[12:22], labels=np.arange(10), **{name: of[:10] for name, of in more.items()}
    )
    others = generator.standard_normal((50, 5))
    np.savez(folder / "d.npz", embeddings=others, **({} if labels is None else {"labels": labels}))
    np.savez(folder / "all.npz", q=x[:12], g=np.concatenate([x[12:22], others]))
    words = ["--embeddings", "q.npz", "--gallery", "g.npz", "--distractors", "d.npz", "--out", ""]
    return [
        "eval",
        *(str(folder / word) if word.endswith((".npz", "")) and word[:2] != "--" else word for word in words),
    ]


@pytest.mark.parametrize("labelled", [False, True])
def test_queries_among_distractors(tmp_path: Path, labelled: bool) -> None:
    labels = np.arange(50) // 2 + 100
    assert main(files(tmp_path, labels if labelled else None)) == 0
    both = np.load(tmp_path / "all.npz")
    q, g = (both[name] / np.linalg.norm(both[name], axis=1, keepdims=True) for name in "qg")
    cosines = q @ g.T
    subject = [*range(10), *(labels if labelled else range(100, 150))]
    places = []
    for row in range(10):  # the last two are not in the gallery
        others = {name: max(cosines[row][i] for i in range(60) if subject[i] == name) for name in subject[10:]}
        others |= {name: cosines[row][name] for name in range(10) if name != row}
        places.append(1 + sum(score >= cosines[row][row] for score in others.values()))
    found = metrics(tmp_path, "q.npz")
    for rank in (1, 5, 10):
        assert found[f"rank_{rank}"] == sum(place <= rank for place in places) / 10
    assert (found["mated"], found["non_mated"]) == (10, 2)
    assert (found["genuine"], found["impostors"]) == (10, 12 * 60 - 10)
    impostors = sorted((cosines[r][c] for r in range(12) for c in range(60) if r != c), reverse=True)
    allowed = impostors[int(0.1 * len(impostors))]  # the first that would be too many
    assert found["tar_at_far_1e-1"] == sum(cosines[r][r] > allowed for r in range(10)) / 10


def test_files_that_do_not_go_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = files(tmp_path, np.arange(50) + 9)
    assert f"error: {tmp_path / 'd.npz'} must have other identities than" in failure(capfd, *words)
    np.savez(tmp_path / "d.npz", embeddings=np.ones((3, 4)))
    assert f"error: {tmp_path / 'd.npz'} must have 5 dimensions" in failure(capfd, *words)
    assert "--distractors goes with --gallery" in failure(capfd, *words[:3], *words[5:])
    words = files(tmp_path, None, cameras=np.arange(12))
    assert "has cameras, which --distractors cannot heed" in failure(capfd, *words)
