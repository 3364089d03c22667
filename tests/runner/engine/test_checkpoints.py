import hashlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from yacs.config import CfgNode

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


def left_by(cfg: CfgNode, epochs: int) -> dict[str, Any]:
    """What says in a checkpoint where a run was."""
    progress = {"epoch_progress": {"current": {"started": epochs, "processed": epochs}}}
    return {"epoch": epochs - 1, "loops": {"fit_loop": progress}, "config": cfg.dump()}


def test_what_the_optimizer_and_the_schedule_hold_must_stay(tmp_path: Path) -> None:
    before, now = get_cfg(), get_cfg()
    torch.save(left_by(before, 3), tmp_path / "last.ckpt")
    now.SOLVER.MAX_EPOCH, now.SOLVER.CHECKPOINT_PERIOD, now.MODEL.LOSSES.CE.EPSILON = 200, 1, 0.1
    assert check_resumable(now, tmp_path / "last.ckpt") == (3, 0)
    now.SOLVER.OPT, now.SOLVER.SCHED, now.SOLVER.BASE_LR = "SGD", "CosineAnnealingLR", 0.5
    with pytest.raises(UserError, match="cannot be resumed with other settings") as caught:
        check_resumable(now, tmp_path / "last.ckpt")
    assert [line.strip() for line in str(caught.value).splitlines()[1:-1]] == [
        "SOLVER.OPT = 'SGD': was 'Adam'",
        "SOLVER.SCHED = 'CosineAnnealingLR': was 'MultiStepLR'",
        "SOLVER.BASE_LR = 0.5: was 0.0003",
    ]


def test_the_batch_must_stay_within_an_epoch(tmp_path: Path) -> None:
    cfg = get_cfg()
    content = left_by(cfg, 3)
    progress = content["loops"]["fit_loop"]
    progress["epoch_progress"]["current"]["started"] = 4
    progress["epoch_loop.batch_progress"] = {"current": {"processed": 5, "completed": 4}}
    torch.save(content, tmp_path / "last.ckpt")
    assert check_resumable(cfg, tmp_path / "last.ckpt") == (3, 5)
    cfg.SOLVER.IMS_PER_BATCH = 32
    with pytest.raises(UserError, match=r"SOLVER\.IMS_PER_BATCH = 32: was 64"):
        check_resumable(cfg, tmp_path / "last.ckpt")


def test_one_cycle_holds_its_length_and_options(tmp_path: Path) -> None:
    before = get_cfg()
    before.SOLVER.SCHED = "OneCycleLR"
    torch.save(left_by(before, 3), tmp_path / "last.ckpt")
    now = before.clone()
    check_resumable(now, tmp_path / "last.ckpt")
    now.SOLVER.MAX_EPOCH, now.SOLVER.ONECYCLE.PCT_START = 200, 0.5
    with pytest.raises(UserError, match=r"SOLVER\.ONECYCLE = (.|\n)*SOLVER\.MAX_EPOCH = 200: was 120"):
        check_resumable(now, tmp_path / "last.ckpt")


def test_fewer_epochs_than_are_done(tmp_path: Path) -> None:
    cfg = get_cfg()
    torch.save(left_by(cfg, 121), tmp_path / "last.ckpt")
    with pytest.raises(UserError, match=r"SOLVER\.MAX_EPOCH is 120; .*last\.ckpt has 121 epochs behind it"):
        check_resumable(cfg, tmp_path / "last.ckpt")
