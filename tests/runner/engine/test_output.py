"""One run at a time in a folder, and nothing of an earlier one that could be taken for its own."""

import io
import logging
import os

import pytest

from pml_ext._shared.errors import UserError
from pml_ext.runner.engine.output import (
    RESULTS,
    STARTING,
    logged,
    output_folder,
    prepare_folder,
    remove_earlier,
)


def test_a_folder_is_one_runs_until_it_ends(tmp_path):
    folder = str(tmp_path / "out")
    with output_folder(folder, first=True):
        refused = pytest.raises(UserError, match="is in use by another process: wait for")
        with refused, output_folder(folder, first=True):
            pass
        with output_folder(folder, first=False):  # the run's own further processes
            pass
    unwritable = pytest.raises(UserError, match="cannot be written")
    with output_folder(folder, first=True) as output, unwritable, output_folder(f"{output}/.lock/x", first=True):
        pass


def test_checkpoints_of_another_run_are_not_written_over(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    prepare_folder(tmp_path, "", resume=False, overwrite=False)
    for name in ("last.ckpt", "best.ckpt"):
        (tmp_path / "checkpoints" / name).touch()
    prepare_folder(tmp_path, "", resume=True, overwrite=False)
    with pytest.raises(
        UserError,
        match=r"another run \(best\.ckpt, last\.ckpt\): go on with it by --resume, replace it by --overwrite, or set",
    ):
        prepare_folder(tmp_path, "", resume=False, overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_restart_does_not_go_on_from_the_run_that_is_replaced(overwrite, tmp_path):
    prepare_folder(tmp_path, "", resume=False, overwrite=overwrite)
    assert (tmp_path / STARTING).exists()
    remove_earlier(tmp_path, whole_run=overwrite)
    assert not (tmp_path / STARTING).exists()


def test_a_run_of_fastreid_is_not_resumed(tmp_path):
    (tmp_path / "last_checkpoint").touch()
    prepare_folder(tmp_path, "", resume=False, overwrite=False)
    with pytest.raises(UserError, match=r"of FastReID, .* start from the weights that last_checkpoint names"):
        prepare_folder(tmp_path, "", resume=True, overwrite=False)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    prepare_folder(tmp_path, "", resume=True, overwrite=False)


@pytest.mark.parametrize("whole_run", [False, True])
def test_what_is_no_longer_true_is_removed_and_named(whole_run, tmp_path, caplog):
    results = ["metrics.json", "threshold_A.html", "threshold_A.json", "threshold_A.png"]
    run = ["checkpoints/best.ckpt", "csv/version_0", "tensorboard/events.1"]
    others = ["checkpoints/notes.txt", "config.yaml", "mine.json", "train.log"]
    drafts = [".0123456789ab.part", "checkpoints/.0123456789ab.part"]
    for name in (*results, *run, *others, *drafts):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with caplog.at_level(logging.INFO, logger="pml_ext"):
        remove_earlier(tmp_path, whole_run=whole_run)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted(others if whole_run else [*others, *run])
    gone = sorted([*results, *run] if whole_run else results)
    assert caplog.messages == [f"removed what an earlier run left in {tmp_path}: {', '.join(gone)}"]


def test_messages_for_the_file_stay_off_the_terminal(tmp_path):
    log, screen = logging.getLogger("pml_ext"), io.StringIO()
    handler = logging.StreamHandler(screen)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with logged(tmp_path, "a.log"):
            log.info("for both")
            RESULTS.info("for the file")
        log.info("afterwards")
    finally:
        log.removeHandler(handler)
    assert screen.getvalue() == "for both\nafterwards\n"
    text = (tmp_path / "a.log").read_text()
    assert "INFO for both" in text and "INFO for the file" in text and "afterwards" not in text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is full")
def test_a_log_on_a_full_disk_is_named_once(tmp_path, capsys):
    (tmp_path / "a.log").symlink_to("/dev/full")
    with logged(tmp_path, "a.log"):
        for _ in range(3):
            RESULTS.info("a line")
    assert capsys.readouterr().err == f"{tmp_path}/a.log is not complete: [Errno 28] No space left on device\n"
