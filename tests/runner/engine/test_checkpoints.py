"""Checkpoint files; `test_partial_fc.py` has class vectors of several ranks."""

import shutil
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import require_recorded_sha256
from pml_ext.losses import PartialFC
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.engine.checkpoints import (
    BestCheckpoint,
    WholeCheckpoints,
    check_resumable,
    load_classes,
    save_classes,
)
from pml_ext.runner.modeling.weights.load import read_state_dict
from pml_ext.runner.registry import OPTIMIZER_REGISTRY, SCHEDULER_REGISTRY
from pml_ext.runner.solver import build_optimizer, build_schedule

VECTORS = "losses.CrossEntropyLoss.weight"


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, request):
    file = tmp_path / "folder" / "last.ckpt"
    WholeCheckpoints().save_checkpoint({"x": torch.ones(3)}, file)
    request.getfixturevalue("full_disk")
    message = r"last\.ckpt cannot be written, an earlier one is kept as it was: .*File too large"
    with pytest.raises(UserError, match=message):
        WholeCheckpoints().save_checkpoint({"x": torch.ones(10_000)}, file)
    torch.testing.assert_close(torch.load(file, weights_only=True)["x"], torch.ones(3))
    require_recorded_sha256(file)
    assert sorted(path.name for path in file.parent.iterdir()) == ["last.ckpt", "last.ckpt.sha256"]
    with pytest.raises(UserError, match=r"0_to_2000\.safetensors cannot be written, .*too large"):
        saved(tmp_path, step=5, classes=2000)


def test_a_changed_checkpoint_is_not_loaded_and_a_copy_without_a_record_is(tmp_path):
    file, copy = tmp_path / "last.ckpt", tmp_path / "copy.ckpt"
    WholeCheckpoints().save_checkpoint({"x": torch.ones(3)}, file)
    shutil.copyfile(file, copy)
    assert torch.equal(read_state_dict(copy)["x"], torch.ones(3))
    flipped = bytearray(file.read_bytes())
    flipped[-1] ^= 1  # the length of a comment, which zip's own checksums do not see
    file.write_bytes(flipped)
    with pytest.raises(UserError, match=r"last\.ckpt is damaged or was replaced: its SHA-256"):
        read_state_dict(file)


def test_a_run_in_another_folder_keeps_its_best_checkpoint_until_a_better_one(tmp_path):
    options = {"monitor": "mAP", "mode": "max"}
    before = BestCheckpoint(tmp_path / "before", **options)
    before.record(torch.tensor(0.6))
    moved = BestCheckpoint(tmp_path / "after", **options)
    moved.load_state_dict(before.state_dict())
    assert moved.best_model_score is None, "its file was left behind"
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "best.ckpt").touch()
    moved.load_state_dict(before.state_dict())
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(reduce_boolean_decision=bool))
    better = [moved.check_monitor_top_k(trainer, torch.tensor(score)) for score in (0.55, 0.65)]
    assert better == [False, True]
    assert moved.best_model_path == moved.format_checkpoint_name({})


def saved(folder, step, *, classes=50, part=(0, 1)):
    """The checkpoint of a rank after a step of Adam."""
    loss = PartialFC(3, classes, part=part)
    optimizer = torch.optim.Adam([loss.weight])
    loss.weight.sin().sum().backward()
    optimizer.step()
    state: dict[str, Any] = {
        "state_dict": {VECTORS: loss.weight.detach()}, "optimizer_states": [optimizer.state_dict()],
        "global_step": step,
    }  # fmt: skip
    save_classes(state, VECTORS, loss, optimizer, folder)
    assert optimizer.state[loss.weight].keys() == {"step", "exp_avg", "exp_avg_sq"}, "the optimizer goes on with them"
    return state


def test_class_vectors_of_weights_alone_are_not_written(tmp_path):
    loss = PartialFC(3, 50)
    checkpoint = {"state_dict": {VECTORS: loss.weight}}
    save_classes(checkpoint, VECTORS, loss, torch.optim.SGD([loss.weight]), tmp_path)
    assert checkpoint == {"state_dict": {}} and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("loss", "part", "message"),
    [
        (PartialFC(3, 40), (0, 1), r"has classes × embedding size \(50, 3\); the config \(40, 3\)"),
        (PartialFC(4, 50), (0, 1), r"has classes × embedding size \(50, 3\); the config \(50, 4\)"),
        (PartialFC(3, 50), (1, 2), r"classes_6_of_2 lacks class vectors: copy it with the checkpoint"),
    ],
)
def test_class_vectors_of_other_sizes_or_ranks_are_an_error(loss, part, message, tmp_path):
    with pytest.raises(UserError, match=message):
        load_classes(saved(tmp_path, step=6, part=part), VECTORS, loss, tmp_path)


def test_a_damaged_or_foreign_file_of_class_vectors_is_an_error(tmp_path):
    checkpoint, file = saved(tmp_path, step=5), tmp_path / "classes_5_of_1" / "0_to_50.safetensors"
    for content in (file.read_bytes()[:-20], save({"weight": torch.zeros(50, 3)})):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"0_to_50.safetensors is damaged or was replaced"):
            load_classes(checkpoint, VECTORS, PartialFC(3, 50), tmp_path)


def test_class_vectors_that_a_new_checkpoint_replaces_are_removed(tmp_path):
    for step, part in ((4, (0, 2)), (5, (0, 2))):
        saved(tmp_path, step, part=part)
    WholeCheckpoints().save_checkpoint(saved(tmp_path, step=5), tmp_path / "last.ckpt")
    assert [file.name for file in tmp_path.glob("classes*")] == ["classes_5_of_1"]


def resumable(folder, before, now, *, steps=0):
    """What a run with the keys `now` finds in a checkpoint of a run with the keys `before`, after three epochs."""
    cfgs = [get_cfg(), get_cfg()]
    for cfg, changes in zip(cfgs, (before, now), strict=True):
        cfg.merge_from_list(changes)
    return resumed(folder, *cfgs, steps=steps)


def resumed(folder, before, now, *, steps=0):
    progress = {
        "epoch_progress": {"current": {"started": 3 + bool(steps), "processed": 3}},
        "epoch_loop.batch_progress": {"current": {"processed": steps}},
    }
    optimizer = build_optimizer(before.SOLVER, torch.nn.Linear(1, 1))
    schedule = build_schedule(before.SOLVER, optimizer, steps_per_epoch=10).state_dict()
    content = {"loops": {"fit_loop": progress}, "config": before.dump(), "optimizer_states": []}
    torch.save({**content, "lr_schedulers": [schedule]}, folder / "last.ckpt")
    return check_resumable(now, folder / "last.ckpt")


def test_a_checkpoint_says_where_its_run_was(tmp_path):
    free = [
        "SOLVER.MAX_EPOCH", 200, "SOLVER.CHECKPOINT_PERIOD", 1, "MODEL.LOSSES.CE.EPSILON", 0.1, "SOLVER.GAMMA", 0.5,
        "SOLVER.MOMENTUM", 0.5, "TEST.BEST", "reid_mean_average_precision",
    ]  # fmt: skip
    assert resumable(tmp_path, [], free) == (3, 0)
    assert resumable(tmp_path, [], free, steps=5) == (3, 5)
    torch.save({"state_dict": {}}, tmp_path / "weights.ckpt")
    with pytest.raises(UserError, match="holds weights alone: start anew"):
        check_resumable(get_cfg(), tmp_path / "weights.ckpt")


ONE_CYCLE, SGD = ["SOLVER.SCHED", "OneCycleLR"], ["SOLVER.OPT", "SGD"]


@pytest.mark.parametrize(
    ("before", "now", "steps", "lines"),
    [
        ([], ["SOLVER.OPT", "SGD", "SOLVER.BASE_LR", 0.5], 0, "SOLVER.OPT = 'SGD': was 'Adam'\n  .*BASE_LR = 0.5: was"),
        ([], ["MODEL.LOSSES.NAME", ("CITLoss",)], 0, r"MODEL\.LOSSES\.NAME = \['CITLoss'\]: was"),
        ([], ["MODEL.LOSSES.DISC.CENTROIDS", "simplex"], 0, "DISC.CENTROIDS = 'simplex': was 'one_hot'"),
        ([], ["SOLVER.IMS_PER_BATCH", 32], 0, "SOLVER.IMS_PER_BATCH = 32: was 64"),
        ([], ["SOLVER.WARMUP_ITERS", 20], 0, "SOLVER.WARMUP_ITERS = 20: was"),
        (
            [],
            ["DATASETS.TESTS", ("Digits",), "TEST.BEST", "opis"],
            0,
            "DATASETS.TESTS = .*: was .*\n  TEST.BEST = 'opis': was",
        ),
        (
            [],
            ["DATASETS.SPLIT", 0.8, "DATASETS.COMBINEALL", True],
            0,
            "DATASETS.SPLIT = 0.8: was 0.5\n  DATASETS.COMBINEALL = True: was False",
        ),
        ([], ["TEST.METRICS", ("opis",)], 0, "TEST.BEST = 'opis': was 'reid_mean_average_precision'"),
        (ONE_CYCLE, [*ONE_CYCLE, "SOLVER.MAX_EPOCH", 200], 0, "SOLVER.MAX_EPOCH = 200: was 120"),
        (ONE_CYCLE, [*ONE_CYCLE, "SOLVER.ONECYCLE.PCT_START", 0.1], 0, "SOLVER.ONECYCLE.PCT_START = 0.1: was 0.3"),
        (SGD, [*SGD, "SOLVER.MOMENTUM", 0.5], 0, "SOLVER.MOMENTUM = 0.5: was 0.9"),
        ([], ["SOLVER.MAX_EPOCH", 2], 0, "SOLVER.MAX_EPOCH is 2; .*last.ckpt has 3 epochs behind it"),
    ],
)
def test_what_the_optimizer_and_the_schedule_hold_must_stay(tmp_path, before, now, steps, lines):
    with pytest.raises(UserError, match=lines):
        resumable(tmp_path, before, now, steps=steps)


def project_schedule(optimizer, max_epochs, *, lowest=0.0):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max_epochs, lowest)


def project_function(optimizer, max_epochs, *, lowest=0.0):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1 - step / max_epochs, lowest))


@pytest.fixture
def users_parts(monkeypatch):
    for registry in (OPTIMIZER_REGISTRY, SCHEDULER_REGISTRY):
        list(registry)  # loads the package's parts
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    OPTIMIZER_REGISTRY.register("Mine", keys={"MU": "momentum"})(torch.optim.SGD)
    SCHEDULER_REGISTRY.register("Cosine")(project_schedule)
    SCHEDULER_REGISTRY.register("Function")(project_function)


@pytest.mark.usefixtures("users_parts")
@pytest.mark.parametrize(
    ("parts", "before", "now", "line"),
    [
        (
            ("AdamW", "Function"),
            {},
            {"ADAMW": {"BETAS": [0.5, 0.9]}},
            r"ADAMW\.BETAS = \[0.5, 0.9\]: was \[0.9, 0.999\]",
        ),
        (("AdamW", "Function"), {"ADAMW": {"EPS": 0.1}}, {}, r"SOLVER\.ADAMW\.EPS = 1e-08: was 0.1"),
        (("AdamW", "Function"), {}, {"ADAMW": {"BETAS": [0.9, 0.999]}, "MINE": {"MU": 0.5}}, None),
        (("AdamW", "Function"), {}, {"FUNCTION": {"LOWEST": 0.5}, "MAX_EPOCH": 200}, None),
        (("Mine", "Function"), {}, {"MINE": {"MU": 0.7}}, r"SOLVER\.MINE\.MU = 0.7: was 0"),
        (("Adam", "Cosine"), {}, {"COSINE": {"LOWEST": 0.1}}, r"SOLVER\.COSINE\.LOWEST = 0.1: was 0"),
        (("Adam", "Cosine"), {}, {"MAX_EPOCH": 200}, r"SOLVER\.MAX_EPOCH = 200: was 120"),
    ],
)
def test_arguments_of_the_optimizer_and_the_schedule_must_stay(tmp_path, parts, before, now, line):
    cfgs = []
    for changes in (before, now):
        cfg = get_cfg()
        cfg.SOLVER.update(CN({"OPT": parts[0], "SCHED": parts[1], **changes}))
        cfgs.append(cfg)
    with pytest.raises(UserError, match=line) if line else nullcontext():
        assert resumed(tmp_path, *cfgs) == (3, 0)
