import hashlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from pml_ext._errors import UserError
from pml_ext._files import require_recorded_sha256
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.engine.checkpoints import BackgroundCheckpoints, WholeCheckpoints, check_resumable
from pml_ext.runner.modeling.weights.read import read_state_dict


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = tmp_path / "folder" / "last.ckpt"
    WholeCheckpoints().save_checkpoint({"x": torch.ones(3)}, file)
    request.getfixturevalue("full_disk")
    with pytest.raises(
        UserError, match=r"last\.ckpt cannot be written; the one before is kept as it was: .*File too large"
    ):
        WholeCheckpoints().save_checkpoint({"x": torch.ones(10_000)}, file)
    torch.testing.assert_close(torch.load(file, weights_only=True)["x"], torch.ones(3))
    require_recorded_sha256(file)
    assert sorted(path.name for path in file.parent.iterdir()) == ["last.ckpt", "last.ckpt.sha256"]
    with pytest.raises(UserError, match=r"first\.ckpt cannot be written; there is none before it: "):
        WholeCheckpoints().save_checkpoint({"x": torch.ones(10_000)}, tmp_path / "first.ckpt")


def test_a_changed_checkpoint_is_not_loaded_and_a_copy_without_a_record_is(tmp_path: Path) -> None:
    file, copy = tmp_path / "last.ckpt", tmp_path / "copy.ckpt"
    WholeCheckpoints().save_checkpoint({"x": torch.ones(3)}, file)
    shutil.copyfile(file, copy)
    assert torch.equal(read_state_dict(copy)["x"], torch.ones(3))
    WholeCheckpoints().save_checkpoint({"x": torch.zeros(3)}, file)
    said = file.with_name("last.ckpt.sha256").read_text()
    assert said == f"{hashlib.sha256(file.read_bytes()).hexdigest()}  last.ckpt\n", "as sha256sum --check reads it"
    assert torch.equal(read_state_dict(file)["x"], torch.zeros(3))
    flipped = bytearray(file.read_bytes())
    flipped[-1] ^= 1  # the length of a comment, which zip's own checksums do not see
    for content in (bytes(flipped), copy.read_bytes()):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"last\.ckpt is damaged or not the file that was written: its SHA-256"):
            read_state_dict(file)


def test_a_thread_writes_what_there_was_and_its_error_is_raised(tmp_path: Path) -> None:
    checkpoints, weights = BackgroundCheckpoints(), torch.ones(3)
    checkpoints.save_checkpoint({"x": weights}, tmp_path / "last.ckpt")
    weights += 1
    checkpoints.teardown()
    assert torch.equal(torch.load(tmp_path / "last.ckpt", weights_only=True)["x"], torch.ones(3))
    checkpoints.save_checkpoint({}, tmp_path / "last.ckpt" / "no folder")
    with pytest.raises(UserError, match="cannot be written; there is none before it"):
        checkpoints.teardown()
    checkpoints.save_checkpoint({"x": weights}, tmp_path / "last.ckpt")
    checkpoints.teardown()
    assert torch.equal(torch.load(tmp_path / "last.ckpt", weights_only=True)["x"], weights)


def test_a_checkpoint_of_files_that_failed_is_not_written(tmp_path: Path) -> None:
    checkpoints, goes_on, given = BackgroundCheckpoints(), threading.Event(), torch.ones(3)

    def fail(content: dict[str, torch.Tensor], place: str) -> None:
        assert goes_on.wait(60) and torch.equal(content["x"], torch.ones(3))
        raise UserError(f"no space in {place}")

    checkpoints.submit({"x": given}, fail, "here")
    given += 1
    checkpoints.save_checkpoint({"names": "here"}, tmp_path / "last.ckpt")
    goes_on.set()
    with pytest.raises(UserError, match="no space in here"):
        checkpoints.teardown()
    with pytest.raises(UserError, match="no space in here"):
        checkpoints.teardown()
    assert not (tmp_path / "last.ckpt").exists()


def test_two_checkpoints_at_most_wait_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, returned, written = threading.Event(), threading.Event(), list[Path]()

    def write(_: Any, __: Any, path: Path) -> None:
        assert goes_on.wait(60)
        written.append(path)

    monkeypatch.setattr(WholeCheckpoints, "save_checkpoint", write)
    checkpoints, files = BackgroundCheckpoints(), [tmp_path / name for name in "abc"]

    def save_all() -> None:
        for file in files:
            checkpoints.save_checkpoint({}, file)
            if file == files[1]:
                both_wait.set()
        returned.set()

    both_wait = threading.Event()
    saving = threading.Thread(target=save_all)
    saving.start()
    assert both_wait.wait(60) and not returned.wait(0.2)
    goes_on.set()
    saving.join(60)
    checkpoints.teardown()
    assert returned.is_set() and written == files


def resumable(folder: Path, before: list[Any], now: list[Any], *, epochs: int = 3, steps: int = 0) -> tuple[int, int]:
    """What a run with the keys `now` finds in a checkpoint of a run with the keys `before`."""
    cfgs = [get_cfg(), get_cfg()]
    for cfg, changes in zip(cfgs, (before, now), strict=True):
        cfg.merge_from_list(changes)
    progress = {
        "epoch_progress": {"current": {"started": epochs + bool(steps), "processed": epochs}},
        "epoch_loop.batch_progress": {"current": {"processed": steps}},
    }
    torch.save({"loops": {"fit_loop": progress}, "config": cfgs[0].dump()}, folder / "last.ckpt")
    return check_resumable(cfgs[1], folder / "last.ckpt")


def test_a_checkpoint_says_where_its_run_was(tmp_path: Path) -> None:
    free = ["SOLVER.MAX_EPOCH", 200, "SOLVER.CHECKPOINT_PERIOD", 1, "MODEL.LOSSES.CE.EPSILON", 0.1]
    assert resumable(tmp_path, [], [*free, "SOLVER.IMS_PER_BATCH", 32]) == (3, 0)
    assert resumable(tmp_path, [], free, steps=5) == (3, 5)


@pytest.mark.parametrize(
    ("before", "now", "steps", "lines"),
    [
        ([], ["SOLVER.OPT", "SGD", "SOLVER.BASE_LR", 0.5], 0, ["SOLVER.OPT = 'SGD': was 'Adam'", "BASE_LR = 0.5: was"]),
        ([], ["MODEL.LOSSES.NAME", ("CITLoss",)], 0, [r"MODEL\.LOSSES\.NAME = \['CITLoss'\]: was"]),
        ([], ["SOLVER.IMS_PER_BATCH", 32], 5, ["SOLVER.IMS_PER_BATCH = 32: was 64"]),
        (
            ["SOLVER.SCHED", "OneCycleLR"],
            ["SOLVER.SCHED", "OneCycleLR", "SOLVER.MAX_EPOCH", 200, "SOLVER.ONECYCLE.PCT_START", 0.5],
            0,
            ["SOLVER.ONECYCLE = ", "SOLVER.MAX_EPOCH = 200: was 120"],
        ),
        ([], ["SOLVER.MAX_EPOCH", 2], 0, ["SOLVER.MAX_EPOCH is 2; .*last.ckpt has 3 epochs behind it"]),
    ],
)
def test_what_the_optimizer_and_the_schedule_hold_must_stay(
    tmp_path: Path, before: list[Any], now: list[Any], steps: int, lines: list[str]
) -> None:
    with pytest.raises(UserError, match="(.|\n)*".join(lines)):
        resumable(tmp_path, before, now, steps=steps)
