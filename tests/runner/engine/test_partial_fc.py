"""MODEL.HEADS.PFC: runs on several numbers of ranks, their checkpoints, and what they refuse."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pml_ext.cli import main
from pml_ext.runner.checks.check import require_supported
from pml_ext.runner.config.load import load_config
from pml_ext.runner.engine.training_module import TrainingModule
from tests.runner.engine.forked_ranks import run_on_ranks

CONFIG = "Digits/sap_tcm.yml"
LOSSES = ("CrossEntropyLoss", pytest.param("DiscriminativeLoss", marks=pytest.mark.nightly))
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


def train(output, epochs, *more, flags=()):
    assert main([*command(output, epochs, *more), *flags]) == 0


def shares(run):
    return [load_file(file) for file in sorted(run.glob("checkpoints/classes_*/*.safetensors"))]


def weights(run, name="last"):
    return torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]


def named(loss):
    return "MODEL.LOSSES.NAME", f"('{loss}',)"


@pytest.mark.parametrize("loss", LOSSES)
def test_two_ranks_then_three_are_one_process(tmp_path, loss):
    one, several = tmp_path / "one", tmp_path / "several"
    begin, resume = command(several, 1, *named(loss)), [*command(several, 2, *named(loss)), "--resume"]
    run_on_ranks((2, begin), (3, resume))
    train(one, 2, *named(loss))
    of_one, of_ranks = shares(one), shares(several)
    assert [len(share["weight"]) for share in of_ranks] == [17, 17, 16], "those of the first epoch are gone"
    close = {"rtol": 1e-4, "atol": 1e-5}
    for name in ("weight", "momentum_buffer"):
        torch.testing.assert_close(torch.cat([share[name] for share in of_ranks]), of_one[0][name], **close)
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(several)[name], value, **close, msg=lambda m, n=name: f"{n}: {m}")
    assert f"losses.{loss}.weight" not in {*weights(one), *weights(several), *weights(one, "best")}
    found = [json.loads((run / "metrics.json").read_text())["results"]["Digits"] for run in (one, several)]
    assert found[1]["reid_mean_average_precision"] == pytest.approx(found[0]["reid_mean_average_precision"], abs=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_drawn_classes_resume_bit_for_bit(tmp_path, loss):
    more = [*DRAWN.split(), *named(loss)]
    train(tmp_path / "whole", 2, *more)
    train(tmp_path / "parts", 1, *more)
    train(tmp_path / "parts", 2, *more, flags=("--resume",))
    (whole,), (parts,) = shares(tmp_path / "whole"), shares(tmp_path / "parts")
    assert whole.keys() == parts.keys() == {"weight", "exp_avg", "exp_avg_sq"}
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(value, other[name]) for name, value in one.items())


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


@pytest.mark.parametrize("enabled", [False, True])
def test_all_gradients_but_the_class_vectors_are_clipped_together_as_in_fastface(enabled):
    cfg = load_config(CONFIG, ["SOLVER.CLIP_GRADIENTS.ENABLED", enabled, "SOLVER.CLIP_GRADIENTS.CLIP_VALUE", 100.0])
    one, other, vectors = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    for parameter, gradient in ((one, 30.0), (other, -40.0), (vectors, 70.0)):
        parameter.grad = torch.tensor([gradient])
    net: Any = SimpleNamespace(cfg=cfg, class_vectors={"": SimpleNamespace(weight=vectors)}, ranks_of=lambda _: None)
    TrainingModule.configure_gradient_clipping(net, torch.optim.SGD([one, other, vectors]))
    found = [parameter.grad.item() for parameter in (one, other, vectors)]  # type: ignore[union-attr]
    assert found == pytest.approx([30, -40, 70] if enabled else [3, -4, 70], rel=1e-5)
