"""Class vectors in checkpoints, of one process; `tests/distributed/test_class_shares.py` has those of several."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from pml_ext._errors import UserError
from pml_ext.distributed import PartialFC
from pml_ext.runner.engine.class_shares import CLASSES, read_share, remove_older, take_share, write_share

VECTORS = "losses.CrossEntropyLoss.weight"


def written(folder: Path, step: int, *, classes: int = 11, part: tuple[int, int] = (0, 1)) -> dict[str, Any]:
    """The checkpoint of a rank after a step of Adam."""
    loss = PartialFC(3, classes, part=part)
    optimizer = torch.optim.Adam([loss.weight])
    loss.weight.sin().sum().backward()
    optimizer.step()
    state: dict[str, Any] = {
        "state_dict": {VECTORS: loss.weight}, "optimizer_states": [optimizer.state_dict()], "global_step": step,
    }  # fmt: skip
    rows = take_share(state, VECTORS, loss, optimizer)
    assert optimizer.state[loss.weight].keys() == {"step", "exp_avg", "exp_avg_sq"}, "the optimizer goes on with them"
    write_share({name: value.detach() for name, value in rows.items()}, state[CLASSES], loss, folder, None)
    return state


def test_of_weights_alone_nothing_is_written() -> None:
    loss = PartialFC(3, 11)
    checkpoint = {"state_dict": {VECTORS: loss.weight}}
    assert take_share(checkpoint, VECTORS, loss, torch.optim.SGD([loss.weight])) == {}
    assert checkpoint == {"state_dict": {}}


def test_other_sizes_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, step=5)
    with pytest.raises(ValueError, match=r"classes × embedding size are \(11, 3\); those of the config \(12, 3\)"):
        read_share(checkpoint, VECTORS, PartialFC(3, 12), tmp_path)
    with pytest.raises(ValueError, match=r"are \(11, 3\); those of the config \(11, 4\)"):
        read_share(checkpoint, VECTORS, PartialFC(4, 11), tmp_path)
    checkpoint = written(tmp_path, step=6, part=(1, 2))
    with pytest.raises(ValueError, match=r"class vectors .*classes_6_of_2: .*No such file.*index\.json"):
        read_share(checkpoint, VECTORS, PartialFC(3, 11), tmp_path)


def test_a_damaged_or_foreign_file_is_an_error(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, step=5)
    file, index = (tmp_path / "classes_5_of_1" / name for name in ("0_to_11.safetensors", "index.json"))
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    foreign = save({"weight": torch.zeros(11, 3)})
    for content in (bytes(flipped), whole[:-20], foreign):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"classes_5_of_1: 0_to_11.safetensors is damaged or not its own: its SHA"):
            read_share(checkpoint, VECTORS, PartialFC(3, 11), tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match=r"class vectors .*classes_5_of_1: .*No such file.*0_to_11"):
        read_share(checkpoint, VECTORS, PartialFC(3, 11), tmp_path)
    index.write_text("[[0, 11]]")
    with pytest.raises(ValueError, match=r"class vectors .*classes_5_of_1: "):
        read_share(checkpoint, VECTORS, PartialFC(3, 11), tmp_path)


def test_a_full_disk(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    written(tmp_path, step=4)
    request.getfixturevalue("full_disk")
    with pytest.raises(UserError, match=r"class vectors .*classes_5_of_1 cannot be written; .*rank 0.*too large"):
        written(tmp_path, step=5, classes=2000)


def test_what_a_new_checkpoint_replaces_goes(tmp_path: Path) -> None:
    for step, part in ((4, (0, 2)), (5, (0, 2)), (6, (0, 1))):
        written(tmp_path, step, part=part)
    (tmp_path / "classes_of_mine").touch()
    (tmp_path / "classes_1_of_my").touch()
    remove_older(tmp_path, written(tmp_path, step=5))
    left = ["classes_1_of_my", "classes_5_of_1", "classes_6_of_1", "classes_of_mine"]
    assert sorted(file.name for file in tmp_path.iterdir()) == left
