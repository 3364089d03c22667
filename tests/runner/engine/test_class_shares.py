"""Class vectors in checkpoints: any number of ranks reads what another has written."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pml_ext._errors import UserError
from pml_ext.distributed import PartialFC
from pml_ext.runner.engine.class_shares import read_share, remove_older, write_share

CLASSES, VECTORS = 11, "losses.CrossEntropyLoss.weight"


def written(
    folder: Path, ranks: int, step: int, classes: int = CLASSES
) -> tuple[dict[str, Any], list[tuple[PartialFC, torch.optim.Optimizer]]]:
    """The checkpoint of rank 0 after two steps of Adam on each rank; losses and optimizers of all."""
    checkpoints: list[dict[str, Any]] = []
    losses = []
    for rank in range(ranks):
        loss, other = PartialFC(3, classes, part=(rank, ranks)), torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([other, loss.weight])
        for _ in range(2):
            (loss.weight.sin().sum() + other.sum()).backward()
            optimizer.step()
        state = {"other": other, VECTORS: loss.weight}
        checkpoints.append({"state_dict": state, "optimizer_states": [optimizer.state_dict()], "global_step": step})
        write_share(checkpoints[-1], VECTORS, loss, optimizer, folder)
        losses.append((loss, optimizer))
    return checkpoints[0], losses


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4), (4, 1)])
def test_other_ranks_read_them(tmp_path: Path, before: int, after: int) -> None:
    checkpoint, losses = written(tmp_path, before, step=5)
    assert VECTORS not in checkpoint["state_dict"]
    weights, averages = [], []
    for rank in range(after):
        own = {"state_dict": {}, "optimizer_states": [{"state": {}}], "classes": checkpoint["classes"]}
        read_share(own, VECTORS, PartialFC(3, CLASSES, part=(rank, after)), tmp_path)
        weights.append(own["state_dict"][VECTORS])
        averages.append(own["optimizer_states"][0]["state"][1])
        assert averages[-1]["step"] == 2
    assert torch.equal(torch.cat(weights), torch.cat([loss.weight.detach() for loss, _ in losses]))
    expected = torch.cat([optimizer.state[loss.weight]["exp_avg"] for loss, optimizer in losses])
    assert torch.equal(torch.cat([state["exp_avg"] for state in averages]), expected)


def test_a_full_disk_leaves_those_before(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    written(tmp_path, 1, step=4)
    before = [(file, file.read_bytes()) for file in tmp_path.iterdir()]
    request.getfixturevalue("full_disk")
    with pytest.raises(UserError, match=r"class vectors .*classes_5_0_of_1\.pt cannot be written; .*File too large"):
        written(tmp_path, 1, step=5, classes=2000)
    assert [(file, file.read_bytes()) for file in tmp_path.iterdir()] == before


def test_what_a_new_checkpoint_replaces_goes(tmp_path: Path) -> None:
    written(tmp_path, 2, step=4)
    written(tmp_path, 2, step=5)
    checkpoint, _ = written(tmp_path, 1, step=5)
    written(tmp_path, 1, step=6)
    (tmp_path / "classes_of_mine.pt").touch()
    remove_older(tmp_path, checkpoint)
    left = ["classes_5_0_of_1.pt", "classes_6_0_of_1.pt", "classes_of_mine.pt"]
    assert sorted(file.name for file in tmp_path.iterdir()) == left
