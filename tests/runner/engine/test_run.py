"""Whole runs through the command line, on digits."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml

from pml_ext.cli import main
from pml_ext.inspection import gradient_shares
from pml_ext.runner.engine import training_module
from pml_ext.runner.engine.checkpoints import BestCheckpoint
from pml_ext.runner.engine.training_module import TrainingModule
from pml_ext.runner.modeling.architectures import Baseline, build_model
from tests.tiers import by_night

DIGITS = "Digits/sap_tcm.yml"
QUICK = ["SOLVER.MAX_EPOCH", "2", "TEST.EVAL_PERIOD", "2", "SOLVER.CHECKPOINT_PERIOD", "1", "MODEL.DEVICE", "cpu"]


def train(output, *opts, flags=()):
    return main(["train", DIGITS, *flags, "OUTPUT_DIR", str(output), *QUICK, *opts])


def written(output, file="metrics.json"):
    return json.loads((output / file).read_text())


def metrics(output, file="metrics.json"):
    return written(output, file)["results"]["Digits"]


def checkpoint(output, file="last.ckpt"):
    return torch.load(output / "checkpoints" / file, weights_only=True)


def require_same_weights(one, other, file="last.ckpt"):
    first, second = (checkpoint(run, file)["state_dict"] for run in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def recorded(output):
    """(step, name, value) of what the CSV files of all starts have, but for speeds."""
    rows = [row for file in output.glob("csv/*/metrics.csv") for row in csv.DictReader(file.read_text().splitlines())]
    return sorted(
        (row["step"], name, value)
        for row in rows
        for name, value in row.items()
        if value and name not in ("step", "images_per_second")
    )


def test_a_run_learns_and_leaves_its_files(trained):
    found = metrics(trained)
    assert list(found) == [
        "precision_at_1", "cmc_rank_5", "cmc_rank_10", "mean_average_precision_at_r", "reid_mean_average_precision",
        "mean_inverse_negative_penalty", "opis", "epsilon_opis", "NMI",
    ]  # fmt: skip
    assert found["precision_at_1"] > 0.9 and 0 < found["opis"] < 0.25
    assert {p.name for p in (trained / "checkpoints").glob("*.ckpt")} == {"best.ckpt", "last.ckpt"}
    assert written(trained)["opis"]["far_range"] == [0.01, 0.1]
    assert yaml.safe_load((trained / "config.yaml").read_text())["SOLVER"]["MAX_EPOCH"] == 2
    log = (trained / "train.log").read_text()
    assert "901 images of 5 identities, 11 steps an epoch" in log and "ε-OPIS" in log
    losses = "losses: SmoothAPLoss (pml_ext.losses.smooth_rank), TCMLoss (pml_ext.losses.tcm)"
    assert f"{losses}; miner: none; initial weights: random" in log
    assert {"loss", "loss/SmoothAPLoss", "loss/TCMLoss", "opis"} <= {name for _, name, _ in recorded(trained)}
    assert list((trained / "tensorboard").glob("events*"))


@pytest.mark.nightly
def test_an_evaluation_of_a_run_has_a_report_of_its_own(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    assert main(["eval", str(run), "TEST.REPORT", "True"]) == 0
    page = (run / "eval" / "report.html").read_text()
    assert "Digits" in page and not (run / "report.html").exists()
    assert "max epochs" in page and "gradient shares" not in page, "an evaluation does not measure them"


def test_eval_repeats_the_numbers_exactly(trained, tmp_path, capfd):
    opts = ["OUTPUT_DIR", str(tmp_path), *QUICK, "MODEL.WEIGHTS", str(trained / "checkpoints" / "last.ckpt")]
    opts += ["TEST.BASELINES", "True"]
    assert main(["eval", DIGITS, *opts]) == 0
    assert metrics(tmp_path, "eval_metrics.json") == metrics(trained)
    baselines = written(tmp_path, "eval_metrics.json")["baselines"]
    assert baselines["raw pixels"]["Digits"]["precision_at_1"] > 0.98
    shown, said = capfd.readouterr()
    rows = [line.partition("  ")[0] for line in shown.splitlines()]
    assert shown.startswith("Digits: the trained model is worse than raw pixels")
    first = rows.index("Digits, raw pixels")
    assert rows[first : first + 3] == ["Digits, raw pixels", "Digits, random weights", "Digits"]
    assert "R@1" in shown and "R@1" not in said, "results are on standard output, the rest on standard error"


class KilledError(Exception):
    pass


# Every random step that keeps no state (AutoAugment and AugMix take three channels), and losses with a state.
STATEFUL = (
    "SOLVER.MAX_EPOCH", "3", "INPUT.PADDING.ENABLED", "True", "INPUT.PADDING.SIZE", "1", "INPUT.REA.ENABLED", "True",
    "INPUT.REA.VALUE", "[0.0]", "INPUT.AFFINE.ENABLED", "True", "INPUT.CJ.ENABLED", "True",
    "MODEL.LOSSES.NAME", '("CrossEntropyLoss", "DiscriminativeLoss", "LoOp")', "MODEL.HEADS.WITH_BNNECK", "True",
    "MODEL.LOSSES.DISC.CENTROIDS", "kmeans", "MODEL.LOSSES.DISC.CENTROID_SIZE", "7",
    "SOLVER.CLIP_GRADIENTS.ENABLED", "True", "SOLVER.AMP.ENABLED", "True",
)  # fmt: skip
TWO_EPOCHS = ("SOLVER.MAX_EPOCH", "2")
BY_STEPS = ("TEST.EVAL_STEPS", "8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Options -> a run that nothing stops, with a validation after the second of three epochs or each eight steps."""

    @cache
    def run(*opts):
        output = tmp_path_factory.mktemp("whole")
        assert train(output, *STATEFUL, *opts) == 0
        return output

    return run


def ask(patch, hook, step, *numbers):
    """Send signals to this process, once, before so many steps, in a hook; without any, it is killed there."""
    method, to_send = getattr(TrainingModule, hook), list(numbers)

    def asked(module, *given, **options):
        if module.global_step == step:
            if not numbers:
                raise KilledError
            while to_send:
                os.kill(os.getpid(), to_send.pop())
        return method(module, *given, **options)

    patch.setattr(TrainingModule, hook, asked)


IN_SLURM = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_NAME": "train"}


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("number", "hook", "step", "saved_at", "opts"),
    [
        (signal.SIGUSR1, "training_step", 12, 13, (*TWO_EPOCHS, "DATALOADER.NUM_WORKERS", "1")),
        pytest.param(signal.SIGINT, "training_step", 10, 11, (), marks=pytest.mark.nightly),
        pytest.param(signal.SIGINT, "validation_step", 22, 22, (), marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, "validation_step", 16, 16, BY_STEPS, marks=pytest.mark.nightly),
    ],
)
def test_a_signal_ends_a_run_that_resumes_bit_for_bit(
    number, hook, step, saved_at, opts,
    whole, tmp_path, monkeypatch, capfd,
):  # fmt: skip
    """Eleven steps an epoch: the signal comes within an epoch, at the end of one, and in a validation.

    Under SLURM, Lightning would write and read checkpoints of its own.
    """
    expected = whole(*opts[:2])
    for name, value in IN_SLURM.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "hpc_ckpt_1.ckpt").write_bytes(b"of another run")
    with pytest.MonkeyPatch.context() as patch:
        ask(patch, hook, step, number)
        assert train(tmp_path, *STATEFUL, *opts) == 128 + number
    assert [file.name for file in tmp_path.glob("hpc*")] == ["hpc_ckpt_1.ckpt"]
    assert f"last.ckpt holds the run up to step {saved_at}; continue with --resume" in capfd.readouterr().err
    assert checkpoint(tmp_path)["global_step"] == saved_at
    assert train(tmp_path, *STATEFUL, *opts, flags=("--resume",)) == 0
    require_same_weights(expected, tmp_path)
    assert metrics(tmp_path) == metrics(expected) and recorded(tmp_path) == recorded(expected)
    assert os.listdir(tmp_path / "csv") == ["version_0"]
    best = [checkpoint(run, "best.ckpt") for run in (expected, tmp_path)]
    assert best[0]["global_step"] == best[1]["global_step"]


@pytest.mark.nightly
def test_a_killed_run_resumes_from_a_checkpoint_between_epochs_or_steps(whole, tmp_path):
    opts = (*STATEFUL, "SOLVER.CHECKPOINT_STEPS", "7", "SOLVER.CHECKPOINT_PERIOD", "3")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KilledError):
        ask(patch, "configure_gradient_clipping", 18)
        train(tmp_path, *opts)
    assert checkpoint(tmp_path)["global_step"] == 14 and not (tmp_path / "metrics.json").exists()
    assert train(tmp_path, *opts, flags=("--resume",)) == 0
    require_same_weights(whole(), tmp_path)


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_stops_at_once(tmp_path, monkeypatch, capfd):
    ask(monkeypatch, "training_step", 2, signal.SIGINT, signal.SIGINT)
    assert train(tmp_path) == 130
    assert not (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert "no checkpoint was saved yet" in capfd.readouterr().err


@pytest.mark.nightly
def test_ctrl_c_ends_several_processes_with_a_message(tmp_path):
    opts = ["TEST.EVAL_PERIOD", "500", "SOLVER.MAX_EPOCH", "500", "SOLVER.IMS_PER_BATCH", "64"]
    command = [sys.executable, "-m", "pml_ext", "train", DIGITS, "--num-gpus", "2", *QUICK, *opts]
    with subprocess.Popen(
        [*command, "OUTPUT_DIR", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
        # Tests that a shell put into the background hand on an ignored Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:  # fmt: skip
        try:
            while not (tmp_path / "checkpoints" / "last.ckpt").exists():
                assert running.poll() is None
                time.sleep(0.01)
            running.send_signal(signal.SIGINT)
            _, message = running.communicate(timeout=120)
        finally:
            running.kill()
    assert running.returncode == 130
    assert "stopped before the end" in message and "continue with --resume" in message and "Traceback" not in message


def test_results_are_of_the_best_checkpoint_of_a_run_that_stops_early(tmp_path):
    """A learning rate that spoils the weights after a first good epoch."""
    opts = (
        "SOLVER.MAX_EPOCH", "6", "TEST.EVAL_PERIOD", "1", "TEST.PATIENCE", "2", "SOLVER.BASE_LR", "0.05",
        "TEST.REPORT", "False",
    )  # fmt: skip
    assert train(tmp_path, *opts) == 0
    log = (tmp_path / "train.log").read_text()
    epochs = [float(value) for value in re.findall(r"epoch .* mAP ↑ ([\d.]+) %", log)]
    best = epochs.index(max(epochs))
    assert len(epochs) == best + 3 < 6 and "stopped early: mAP has not improved in 2 validations" in log
    assert f"best.ckpt, after step {11 * (best + 1)} of {11 * len(epochs)}" in log
    assert 100 * metrics(tmp_path)["reid_mean_average_precision"] == pytest.approx(max(epochs), abs=0.01)
    assert Path(written(tmp_path)["weights"]).name == "best.ckpt"
    validated = [row for row in recorded(tmp_path) if row[1] == "reid_mean_average_precision"]
    assert len(validated) == len(epochs), "the best network is not logged as that of the last step"


def test_a_set_of_precise_bn_that_is_missing_is_an_error_before_training(tmp_path, capfd):
    assert train(tmp_path, "TEST.PRECISE_BN.ENABLED", "True", "DATASETS.ROOT", str(tmp_path)) == 2
    said = capfd.readouterr().err
    assert "TEST.PRECISE_BN.DATASET: Market1501" in said and "epoch 1" not in said


@pytest.mark.nightly
def test_precise_statistics_are_of_the_best_weights_also_when_a_finished_run_is_resumed(tmp_path, capfd):
    opts = (
        "SOLVER.MAX_EPOCH", "3", "TEST.EVAL_PERIOD", "1", "SOLVER.BASE_LR", "0.1",
        "TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.DATASET", "Digits", "TEST.PRECISE_BN.NUM_ITER", "5",
    )  # fmt: skip
    assert train(tmp_path / "run", *opts, flags=("--profile",)) == 0
    assert "Profiler Report" in capfd.readouterr().err
    best, last = (checkpoint(tmp_path / "run", file)["state_dict"] for file in ("best.ckpt", "last.ckpt"))
    assert not torch.equal(best["backbone.0.weight"], last["backbone.0.weight"])
    assert best["backbone.1.num_batches_tracked"] == 5, "counted anew"
    shutil.copytree(tmp_path / "run", tmp_path / "before")
    assert train(tmp_path / "run", *opts, flags=("--resume",)) == 0
    assert metrics(tmp_path / "run") == metrics(tmp_path / "before")
    require_same_weights(tmp_path / "run", tmp_path / "before", "best.ckpt")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("default")  # of torch's compiler
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gpu_trains_in_16_bits_compiled_and_resumes(dtype, tmp_path):
    opts = (
        "MODEL.DEVICE", "cuda", "SOLVER.AMP.ENABLED", "True", "SOLVER.AMP.DTYPE", dtype, "MODEL.COMPILE", "True",
        "SOLVER.MATMUL_PRECISION", "high",
    )  # fmt: skip
    assert train(tmp_path, *opts) == 0
    assert train(tmp_path, *opts, "SOLVER.MAX_EPOCH", "3", flags=("--resume",)) == 0
    assert metrics(tmp_path)["precision_at_1"] > 0.9


def test_a_resumed_run_has_to_beat_the_best_of_its_last_epoch(tmp_path, monkeypatch):
    """The third epoch is validated after training, whose last score is the second's."""
    monkeypatch.setattr(BestCheckpoint, "check_monitor_top_k", lambda *_: True)
    assert train(tmp_path, "SOLVER.MAX_EPOCH", "3", "TEST.REPORT", "False") == 0
    last = checkpoint(tmp_path)
    (best,) = (state for name, state in last["callbacks"].items() if name.startswith("BestCheckpoint"))
    assert float(best["best_model_score"]) == pytest.approx(metrics(tmp_path)["reid_mean_average_precision"])
    assert checkpoint(tmp_path, "best.ckpt")["global_step"] == last["global_step"]


def test_resume_of_another_model_and_of_nothing(trained, tmp_path, capfd):
    shutil.copytree(trained, tmp_path / "other")
    assert train(tmp_path / "other", "MODEL.HEADS.EMBEDDING_DIM", "32", flags=("--resume",)) == 2
    assert "last.ckpt does not fit the architecture of the config's model" in capfd.readouterr().err
    kept = (tmp_path / "other" / "config.yaml").read_text()
    assert kept == (trained / "config.yaml").read_text(), "a failed start left the run's config as it was"
    assert train(tmp_path / "other", "SOLVER.BASE_LR", "0.5", flags=("--resume",)) == 2
    assert "SOLVER.BASE_LR = 0.5: was" in capfd.readouterr().err
    assert recorded(tmp_path / "other") == recorded(trained), "and its log"
    assert train(tmp_path, "SOLVER.MAX_EPOCH", "1", flags=("--resume",)) == 0
    assert "resuming from nothing" in capfd.readouterr().err
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(b"cut")
    assert train(tmp_path, flags=("--resume",)) == 2
    assert "last.ckpt.sha256 next to it. Use an earlier copy" in capfd.readouterr().err


def test_a_run_into_the_folder_of_another_is_refused_before_any_work(trained, tmp_path, capfd, monkeypatch):
    output = tmp_path / "out"
    shutil.copytree(trained, output)
    (output / "threshold_Digits.json").write_text("{}")
    own = str(output / "checkpoints" / "best.ckpt")
    for restarts in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        for opts, flags in ((("SEED", "1"), ()), ((), ("--resume", "--overwrite"))):
            assert train(output, *opts, flags=flags) == 2
        assert train(output, "MODEL.WEIGHTS", "none.pth", flags=("--overwrite",)) == 2
        assert train(output, "MODEL.WEIGHTS", own, flags=("--overwrite",)) == 2
        assert "--overwrite removes " in capfd.readouterr().err
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    with pytest.MonkeyPatch.context() as patch:
        ask(patch, "validation_step", 0, signal.SIGTERM)
        assert train(output, "TEST.BASELINES", "True", flags=("--overwrite",)) == 143
        assert "no checkpoint was saved yet" in capfd.readouterr().err
    require_same_weights(trained, output)
    assert (output / "threshold_Digits.json").exists(), "a start that fails leaves everything as it was"
    assert train(output, "SEED", "1", "SOLVER.MAX_EPOCH", "1", flags=("--overwrite",)) == 0
    assert "removed what an earlier run left" in capfd.readouterr().err
    assert not (output / "threshold_Digits.json").exists()


@pytest.mark.filterwarnings("ignore:a low")
@pytest.mark.parametrize("has_page", [False, *by_night(True)])
def test_a_collapsed_run_ends_with_a_report_that_says_so(has_page, tmp_path, monkeypatch, capfd):
    compute_outputs = Baseline.compute_outputs

    def collapsed(self, batch):
        outputs = compute_outputs(self, batch)
        scores = {name: 0 * outputs[name] for name in ("cls_outputs", "pred_class_logits") if name in outputs}
        return {**outputs, **scores, "features": 0 * outputs["features"] + 1}

    monkeypatch.setattr(Baseline, "compute_outputs", collapsed)
    losses = '("TripletLoss", "CrossEntropyLoss")'
    assert train(tmp_path, "MODEL.LOSSES.NAME", losses, "TEST.REPORT", str(has_page)) == 0
    stuck, equal = written(tmp_path)["notes"]
    values = r"TripletLoss stayed at ([\d.]+) and CrossEntropyLoss stayed at ([\d.]+)"
    found = re.match(f"In epoch 2 {values}, the value if all embeddings are equal; try", stuck)
    assert found is not None and [float(value) for value in found.groups()] == pytest.approx([0.3, 1.609], abs=1e-3)
    assert equal.startswith("Digits: all embeddings are equal, so a low OPIS")
    assert capfd.readouterr().err.count("In epoch") == 1, "once, not in every epoch"
    if has_page:
        page = (tmp_path / "report.html").read_text()
        assert all(f'<p class="lead">{note}</p>' in page for note in (stuck, equal))


@pytest.mark.parametrize("has_page", [False, *by_night(True)])
def test_a_run_says_each_losses_share_of_the_gradient_and_which_one_does_nothing(
    has_page, tmp_path, monkeypatch,
    capfd,
):  # fmt: skip
    seen: list[dict[str, float]] = []
    loss = TrainingModule._loss

    def compared(self, outputs, batch):
        total = loss(self, outputs, batch)
        if self.trainer.is_last_batch:
            features, labels = self.loss_terms.batch.features[0].detach(), self.loss_terms.batch.labels
            seen.append(gradient_shares({name: self.losses[name] for name in ("CITLoss", "TCMLoss")}, features, labels))
        return total

    monkeypatch.setattr(TrainingModule, "_loss", compared)
    losses = ("MODEL.LOSSES.NAME", '("CrossEntropyLoss", "CITLoss", "TCMLoss")', "MODEL.LOSSES.CIT.SCALE", "1e-4")
    assert train(tmp_path, *losses, "TEST.REPORT", str(has_page)) == 0
    shares = written(tmp_path)["gradient_shares"]
    assert list(shares) == ["CrossEntropyLoss", "CITLoss", "TCMLoss"] and sum(shares.values()) == pytest.approx(1)
    ratio = 1e-4 * seen[-1]["CITLoss"] / seen[-1]["TCMLoss"]
    assert shares["CITLoss"] / shares["TCMLoss"] == pytest.approx(ratio, rel=1e-3)
    (note,) = written(tmp_path)["notes"]
    share = f"{100 * shares['CITLoss']:.3g} %"
    assert note.startswith(f"In epoch 2 CITLoss had {share} of the gradient on the embeddings, so that it hardly")
    assert note.endswith("raise MODEL.LOSSES.CIT.SCALE, or leave it out.")
    err = capfd.readouterr().err
    assert err.count("In epoch") == 1 and f"CITLoss {share}" in err and "gradient shares CrossEntropyLoss" in err
    if has_page:
        assert f"CITLoss {share}" in (tmp_path / "report.html").read_text()


def test_nan_stops_with_step_batch_and_loss_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, capfd):
    loss = TrainingModule._loss

    def spoiled(self, outputs, batch):
        if self.global_step == 13:
            outputs["features"] = outputs["features"] * torch.nan
        return loss(self, outputs, batch)

    monkeypatch.setattr(TrainingModule, "_loss", spoiled)
    assert train(tmp_path) == 2
    message = capfd.readouterr().err
    assert "SmoothAPLoss is nan at step 13 (epoch 1); the batch begins with sklearn.datasets.load_digits()[" in message
    assert checkpoint(tmp_path)["global_step"] == 11


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch, capfd):
    def spoil(self, *_):
        self.model.backbone[0].weight.data.mul_(torch.nan)

    monkeypatch.setattr(TrainingModule, "on_train_epoch_end", spoil)
    assert train(tmp_path) == 2
    assert "the weights backbone.0.weight are not finite after step 11" in capfd.readouterr().err
    assert not list((tmp_path / "checkpoints").glob("*"))


def test_weights_that_are_not_finite_cannot_be_measured(trained, tmp_path, capfd):
    weights = checkpoint(trained)["state_dict"]
    torch.save({name: value * torch.nan for name, value in weights.items()}, tmp_path / "nan.pth")
    opts = ["OUTPUT_DIR", str(tmp_path), *QUICK, "MODEL.WEIGHTS", str(tmp_path / "nan.pth")]
    assert main(["eval", DIGITS, *opts]) == 2
    said = "Digits cannot be measured: the network's embeddings must be finite; got NaN or infinity in 896 of 896 rows"
    assert said in capfd.readouterr().err


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_from_random_weights_trains_frozen_norms_also_when_it_resumes(tmp_path):
    opts = (
        "MODEL.BACKBONE.NAME",
        "timm:test_resnet",
        "MODEL.BACKBONE.NORM",
        "FrozenBN",
        "MODEL.BACKBONE.FEAT_DIM",
        "0",
    )
    opts += ("MODEL.LOSSES.NAME", "MultiSimilarityLoss", "MODEL.MINER.NAME", "MultiSimilarityMiner")
    assert train(tmp_path, "SOLVER.MAX_EPOCH", "1", *opts) == 0
    log = (tmp_path / "train.log").read_text()
    assert "MODEL.BACKBONE.NORM FrozenBN needs loaded weights" in log
    losses = "MultiSimilarityLoss (pytorch_metric_learning.losses.multi_similarity_loss)"
    assert f"losses: {losses}; miner: MultiSimilarityMiner; initial weights: random" in log
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["MODEL"]["BACKBONE"]["NORM"] == "BN"
    before = checkpoint(tmp_path)["state_dict"]
    assert train(tmp_path, *opts, flags=("--resume",)) == 0
    after = checkpoint(tmp_path)["state_dict"]
    norms = [name for name in before if name.endswith("bn2.weight") or name.endswith("bn3.weight")]
    assert norms and not any(torch.equal(before[name], after[name]) for name in norms)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_needs_no_pretrained_weights_and_keeps_the_numbers_before_training(
    trained, tmp_path, monkeypatch
):
    asked: list[bool] = []

    def build(cfg, *, pretrained=False, **options):
        asked.append(pretrained)
        return build_model(cfg, **options)

    monkeypatch.setattr(training_module, "build_model", build)
    shutil.copytree(trained, tmp_path / "resumed")
    before = written(trained)["baselines"]
    assert train(tmp_path / "resumed", "TEST.BASELINES", "True", flags=("--resume",)) == 0
    assert written(tmp_path / "resumed")["baselines"] == before and before.keys() == {"raw pixels", "random weights"}
    assert train(tmp_path / "new", "SOLVER.MAX_EPOCH", "1", "TEST.EVAL_PERIOD", "0", "TEST.METRICS", "('cmc',)") == 0
    assert asked == [False, True]
