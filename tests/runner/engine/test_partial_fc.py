"""MODEL.HEADS.PFC: runs on several numbers of ranks, their checkpoints, and what they refuse."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pml_ext.cli import main
from pml_ext.runner import DataModule, train
from pml_ext.runner.checks.check import require_supported
from pml_ext.runner.config.load import load_config
from pml_ext.runner.engine.training_module import TrainingModule
from tests.tiers import by_night

CONFIG = "Digits/sap_tcm.yml"
LOSSES = ("CrossEntropyLoss", *by_night("DiscriminativeLoss"))
DISC = "MODEL.LOSSES.NAME ('DiscriminativeLoss',)"
DRAWN = """MODEL.HEADS.PFC.SAMPLE_RATE 0.3 SOLVER.OPT Adam SOLVER.BASE_LR 0.001 SOLVER.CHUNK 50
    SOLVER.IMS_PER_BATCH 90 TEST.EVAL_PERIOD 2"""


def options(output, *more):
    # Batch norm would see each rank's own part of the batch. 50 classes, of which five have images.
    words = f"""MODEL.DEVICE cpu MODEL.BACKBONE.NORM GN MODEL.HEADS.NORM GN MODEL.LOSSES.NAME ('CrossEntropyLoss',)
        MODEL.HEADS.PFC.ENABLED True MODEL.HEADS.PFC.SAMPLE_RATE 1.0 MODEL.HEADS.CLS_LAYER CosSoftmax
        MODEL.HEADS.SCALE 16 MODEL.HEADS.MARGIN 0.1 MODEL.HEADS.NUM_CLASSES 50 MODEL.LOSSES.CE.EPSILON 0.1
        SOLVER.OPT SGD SOLVER.BASE_LR 0.05 SOLVER.SCHED MultiStepLR SOLVER.WARMUP_ITERS 0 SOLVER.CHECKPOINT_PERIOD 1
        SOLVER.CLIP_GRADIENTS.ENABLED True SOLVER.CLIP_GRADIENTS.CLIP_VALUE 0.1 SOLVER.CLIP_GRADIENTS.CLIP_TYPE norm
        SOLVER.IMS_PER_BATCH 300 DATALOADER.SAMPLER_TRAIN TrainingSampler TEST.EVAL_PERIOD 1
        TEST.REPORT False LOGGERS ('csv',) OUTPUT_DIR {output}""".split()
    return [*words, *more]


def command(output, epochs, *more):
    return ["train", CONFIG, *options(output, "SOLVER.MAX_EPOCH", str(epochs), *more)]


def shares(run):
    return [load_file(file) for file in sorted(run.glob("checkpoints/classes_*/*.safetensors"))]


def weights(run, name="last"):
    return torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]


def named(loss):
    return "MODEL.LOSSES.NAME", f"('{loss}',)"


def commands(folder, is_nightly):
    """Of the runs that `of_ranks` has made: an epoch on two ranks, and one on three."""
    made = []
    for loss in ["CrossEntropyLoss", *(["DiscriminativeLoss"] if is_nightly else [])]:
        run = folder / loss
        made += [(2, command(run, 1, *named(loss))), (3, [*command(run, 2, *named(loss)), "--resume"])]
    return made


@pytest.mark.parametrize("loss", LOSSES)
def test_two_ranks_then_three_are_one_process(tmp_path, of_ranks, loss):
    one, several = tmp_path, of_ranks / loss
    assert main(command(one, 2, *named(loss))) == 0
    (of_one,), of_several, close = shares(one), shares(several), {"rtol": 1e-4, "atol": 1e-5}
    assert [len(share["weight"]) for share in of_several] == [17, 17, 16], "those of the first epoch are gone"
    for name in ("weight", "momentum_buffer"):
        torch.testing.assert_close(torch.cat([share[name] for share in of_several]), of_one[name], **close)
    torch.testing.assert_close(weights(several), weights(one), **close)
    assert f"losses.{loss}.weight" not in {*weights(one), *weights(several), *weights(one, "best")}
    found = [json.loads((run / "metrics.json").read_text())["results"]["Digits"] for run in (one, several)]
    assert found[1]["reid_mean_average_precision"] == pytest.approx(found[0]["reid_mean_average_precision"], abs=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_drawn_classes_resume_bit_for_bit(tmp_path, loss):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for run, epochs in ((whole, "2"), (parts, "1"), (parts, "2")):
        cfg = load_config(CONFIG, options(run, *DRAWN.split(), *named(loss), "SOLVER.MAX_EPOCH", epochs))
        train(cfg, resume=run.exists())
    assert shares(whole)[0].keys() == {"weight", "exp_avg", "exp_avg_sq"}
    torch.testing.assert_close(shares(parts), shares(whole), rtol=0, atol=0)
    torch.testing.assert_close(weights(parts), weights(whole), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("MODEL.LOSSES.NAME ('TripletLoss',)", "PFC.ENABLED = True: shards the classes of CrossEntropyLoss or Disc"),
        ("MODEL.LOSSES.NAME ('CrossEntropyLoss','FocalLoss')", "must have exactly one of these, and no FocalLoss"),
        (f"{DISC} MODEL.LOSSES.DISC.CENTROIDS kmeans", "centroids .* must be 'one_hot' .* got 'kmeans'. .*all ranks"),
        ("MODEL.META_ARCHITECTURE MGN", "does not fit MGN, which has eight classifiers"),
    ],
)
def test_what_is_refused(tmp_path, words, message):
    cfg = load_config(CONFIG, options(tmp_path, *words.split()))
    with pytest.raises(Exception, match=message):
        require_supported(cfg)


def test_a_classifier_is_checked_without_its_memory(tmp_path):
    require_supported(load_config(CONFIG, options(tmp_path, "MODEL.HEADS.NUM_CLASSES", "2000000000")))


@pytest.mark.parametrize("words", ["MODEL.HEADS.PFC.ENABLED False", "", "MODEL.HEADS.PFC.SAMPLE_RATE 0.3"])
def test_only_the_optimizer_of_drawn_classes_steps_by_rows(tmp_path, words, monkeypatch):
    wrapped: list[torch.optim.Optimizer] = []
    monkeypatch.setattr("pml_ext.runner.engine.training_module.step_by_rows", wrapped.append)
    cfg = load_config(CONFIG, options(tmp_path, *words.split()))
    optimizer = TrainingModule(cfg, DataModule(cfg)).configure_optimizers()["optimizer"]
    assert wrapped == ([optimizer] if words.endswith("0.3") else [])


@pytest.mark.parametrize("enabled", [False, True])
def test_all_gradients_but_the_class_vectors_are_clipped_together_as_in_fastface(enabled):
    cfg = load_config(CONFIG, ["SOLVER.CLIP_GRADIENTS.ENABLED", enabled, "SOLVER.CLIP_GRADIENTS.CLIP_VALUE", 100.0])
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    expected = [30, -40, 70] if enabled else [3, -4, 70]
    for weight, gradient in zip(weights, (30.0, -40.0, 70.0), strict=True):
        weight.grad = torch.tensor([gradient])
    vectors = {"": SimpleNamespace(weight=weights[2])}
    net: Any = SimpleNamespace(cfg=cfg, class_vectors=vectors, ranks_of=lambda _: None)
    TrainingModule.configure_gradient_clipping(net, torch.optim.SGD(weights))
    assert [float(weight.grad) for weight in weights] == pytest.approx(expected, rel=1e-5)
