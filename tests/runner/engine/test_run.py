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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from yacs.config import CfgNode as CN

from pml_ext.cli import main
from pml_ext.functional.retrieval import ranking
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import DataSet, OpenSet
from pml_ext.runner.data.datasets.handwriting import digits_set
from pml_ext.runner.engine import training_module
from pml_ext.runner.engine.run import evaluate
from pml_ext.runner.engine.training_module import TrainingModule
from pml_ext.runner.launch import Launch, is_first, start
from pml_ext.runner.modeling.architectures import Baseline, build_model
from pml_ext.runner.registry import DATASET_REGISTRY
from tests.runner.data.published_layouts import picture
from tests.runner.engine.forked_ranks import run_on_ranks

CONFIGS = Path(__file__).parents[3] / "fastreid_configs"
DIGITS = CONFIGS / "Digits" / "sap_tcm.yml"
QUICK = ["SOLVER.MAX_EPOCH", "2", "TEST.EVAL_PERIOD", "2", "SOLVER.CHECKPOINT_PERIOD", "1", "MODEL.DEVICE", "cpu"]


def train(output: Path, *opts: str, flags: tuple[str, ...] = (), config: Path = DIGITS) -> int:
    return main(["train", "--config-file", str(config), *flags, "OUTPUT_DIR", str(output), *QUICK, *opts])


def metrics(output: Path, file: str = "metrics.json") -> dict[str, Any]:
    return json.loads((output / file).read_text())["results"]["Digits"]


def weights(output: Path, file: str = "last.ckpt") -> dict[str, torch.Tensor]:
    return torch.load(output / "checkpoints" / file, weights_only=True)["state_dict"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "out"
    assert train(output) == 0
    return output


def test_a_run_learns_and_leaves_its_files(trained: Path) -> None:
    found = metrics(trained)
    assert list(found) == [
        "precision_at_1", "cmc_rank_5", "cmc_rank_10", "mean_average_precision_at_r", "reid_mean_average_precision",
        "mean_inverse_negative_penalty", "opis", "epsilon_opis", "NMI",
    ]  # fmt: skip
    assert {p.name for p in (trained / "checkpoints").glob("*.ckpt")} == {"best.ckpt", "last.ckpt"}
    written = json.loads((trained / "metrics.json").read_text())
    (note,) = written["notes"]
    assert note.startswith("Training made the network worse: mAP is")
    assert written["opis"] == {
        "far_range": [0.01, 0.1], "grid": 100, "epsilon": 0.1, "negatives_per_positive": None, "seed": 0,
    }  # fmt: skip
    assert found["precision_at_1"] > 0.9
    assert 0 < found["opis"] < 0.25
    assert yaml.safe_load((trained / "config.yaml").read_text())["SOLVER"]["MAX_EPOCH"] == 2
    log = (trained / "train.log").read_text()
    assert "901 images of 5 identities, 11 steps an epoch" in log
    assert "ε-OPIS" in log
    with (trained / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"loss", "loss/SmoothAPLoss", "loss/TCMLoss", "opis"} <= set(rows[0])
    assert list((trained / "tensorboard").glob("events*"))
    with Image.open(trained / "utility_Digits.png") as figure:
        assert figure.size > (600, 400)
        assert len(np.unique(np.asarray(figure))) > 50, "an empty figure"


def test_eval_repeats_the_numbers_exactly(trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    opts = ["OUTPUT_DIR", str(tmp_path), *QUICK, "MODEL.WEIGHTS", str(trained / "checkpoints" / "last.ckpt")]
    assert main(["eval", "--config-file", str(DIGITS), *opts]) == 0
    assert metrics(tmp_path, "eval_metrics.json") == metrics(trained)
    shown, said = capfd.readouterr()
    assert "R@1" not in said, "results are on standard output, the rest on standard error"
    assert "cameras" not in said, "digits have none"
    assert "R@1" in shown
    assert str(tmp_path / "eval_metrics.json") in shown


def test_two_processes_measure_what_one_does(trained: Path, tmp_path: Path) -> None:
    # A batch of the same size for every image, whoever embeds it.
    words = f"""eval --config-file {DIGITS} MODEL.WEIGHTS {trained / "checkpoints" / "last.ckpt"} MODEL.DEVICE cpu
        TEST.METRICS ("precision_at_1","reid_mean_average_precision","opis","epsilon_opis","NMI","f1")
        TEST.ROC.ENABLED True TEST.NORMALIZE.ENABLED True TEST.REPORT False TEST.IMS_PER_BATCH 32 OUTPUT_DIR""".split()
    run_on_ranks((1, [*words, str(tmp_path / "one")]), (2, [*words, str(tmp_path / "two")]))
    one, two = (metrics(tmp_path / name, "eval_metrics.json") for name in ("one", "two"))
    assert {"NMI", "f1", "opis", "normalized_opis", "tar_at_far_1e-3", "precision_at_1"} <= one.keys()
    assert two == one, "exactly"


def _evaluate(cfg: CN, launch: Launch) -> object:
    """With a bug in what rank 1 does between two exchanges."""
    if not is_first():
        ranking.match_ranks_of = lambda *_: 1 // 0
    return evaluate(cfg, launch)


def test_a_rank_that_fails_while_others_wait_for_its_part_ends_the_evaluation(trained: Path, tmp_path: Path) -> None:
    opts = ["MODEL.WEIGHTS", str(trained / "checkpoints" / "last.ckpt"), *QUICK, "OUTPUT_DIR", str(tmp_path)]
    with pytest.raises(RuntimeError, match=r"^rank 1 has failed:\n(.|\n)*ZeroDivisionError"):
        start(Launch(2, timeout=120), partial(_evaluate, load_config(str(DIGITS), opts)))
    assert not (tmp_path / "eval_metrics.json").exists()


class KilledError(Exception):
    pass


LEARNED = (
    "MODEL.LOSSES.NAME", '("CrossEntropyLoss", "DiscriminativeLoss", "LoOp")', "MODEL.HEADS.WITH_BNNECK", "True",
    "MODEL.LOSSES.DISC.CENTROIDS", "kmeans", "MODEL.LOSSES.DISC.CENTROID_SIZE", "7", "INPUT.PADDING.ENABLED", "True",
    "INPUT.PADDING.SIZE", "1", "SOLVER.CLIP_GRADIENTS.ENABLED", "True", "SOLVER.AMP.ENABLED", "True",
)  # fmt: skip


def test_resume_continues_bit_for_bit_with_the_state_of_the_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(tmp_path / "whole", *LEARNED) == 0

    def stop_in_the_second_epoch(self: Any) -> None:
        if self.current_epoch == 1:
            raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(TrainingModule, "on_train_batch_start", lambda s, *_: stop_in_the_second_epoch(s))
        train(tmp_path / "parts", *LEARNED)
    assert not (tmp_path / "parts" / "metrics.json").exists()
    assert train(tmp_path / "parts", *LEARNED, flags=("--resume",)) == 0
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert any(k.startswith("losses.DiscriminativeLoss.") for k in whole)
    assert all(torch.equal(v, parts[k]) for k, v in whole.items())
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")


# Every random step that keeps no state; AutoAugment and AugMix take three channels.
AUGMENTED = (
    "SOLVER.MAX_EPOCH", "3", "INPUT.PADDING.ENABLED", "True", "INPUT.PADDING.SIZE", "1", "INPUT.REA.ENABLED", "True",
    "INPUT.REA.VALUE", "[0.0]", "INPUT.AFFINE.ENABLED", "True", "INPUT.CJ.ENABLED", "True",
)  # fmt: skip


@pytest.fixture(scope="module")
def augmented(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, float]]:
    """A run that nothing stops, and a random number of each step."""
    output = tmp_path_factory.mktemp("augmented") / "out"
    with pytest.MonkeyPatch.context() as patch:
        steps = Asked(patch)
        assert train(output, *AUGMENTED) == 0
    return output, steps.drawn


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C reaches this process also where a script started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Asked:
    """Sends a signal to this process in a step or in a validation; keeps a random number of each step."""

    def __init__(
        self, patch: pytest.MonkeyPatch, step: int | None = None, *, validating: bool = False,
        number: signal.Signals = signal.SIGTERM, times: int = 1,
    ) -> None:  # fmt: skip
        self.drawn: dict[int, float] = {}
        training, validation = TrainingModule.training_step, TrainingModule.validation_step

        def ask(module: TrainingModule, when: bool) -> None:
            if when and module.global_step == step:
                for _ in range(times):
                    os.kill(os.getpid(), number)

        def train(module: TrainingModule, *batch: Any) -> torch.Tensor:
            self.drawn[module.global_step] = float(torch.rand(()))
            ask(module, not validating)
            return training(module, *batch)

        def validate(module: TrainingModule, *batch: Any) -> None:
            ask(module, validating)
            validation(module, *batch)

        patch.setattr(TrainingModule, "training_step", train)
        patch.setattr(TrainingModule, "validation_step", validate)


def lines_of_epochs(output: Path) -> list[str]:
    return re.findall("epoch .*", (output / "train.log").read_text())


def recorded(output: Path) -> list[tuple[str, str, str]]:
    """(step, name, value) of what the CSV files of all starts have, but for speeds."""
    rows = [row for file in output.glob("csv/*/metrics.csv") for row in csv.DictReader(file.read_text().splitlines())]
    return sorted(
        (row["step"], name, value)
        for row in rows
        for name, value in row.items()
        if value and name not in ("step", "images_per_second")
    )


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("number", "workers", "step", "validating", "saved_at"),
    [
        (signal.SIGTERM, 1, 12, False, 13),
        (signal.SIGINT, 0, 10, False, 11),
        (signal.SIGINT, 0, 22, True, 22),
    ],
)
def test_a_signal_ends_a_run_that_resumes_bit_for_bit(
    number: signal.Signals, workers: int, step: int, validating: bool, saved_at: int,
    augmented: tuple[Path, dict[int, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Eleven steps an epoch, a validation after the second of three: within epochs, at the end of one, and in that."""
    opts = (*AUGMENTED, "DATALOADER.NUM_WORKERS", str(workers))
    whole, drawn = augmented
    with monkeypatch.context() as patch:
        first = Asked(patch, step, validating=validating, number=number)
        assert train(tmp_path, *opts) == 128 + number
    assert f"last.ckpt holds the run up to step {saved_at}; continue with --resume" in capfd.readouterr().err
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == saved_at
    with monkeypatch.context() as patch:
        second = Asked(patch)
        assert train(tmp_path, *opts, flags=("--resume",)) == 0
    assert first.drawn | second.drawn == drawn and not first.drawn.keys() & second.drawn.keys()
    assert all(torch.equal(v, weights(tmp_path)[k]) for k, v in weights(whole).items())
    assert metrics(tmp_path) == metrics(whole)
    assert lines_of_epochs(tmp_path) == lines_of_epochs(whole)
    assert recorded(tmp_path) == recorded(whole)
    best = [torch.load(run / "checkpoints" / "best.ckpt", weights_only=True) for run in (whole, tmp_path)]
    assert (
        best[0]["global_step"] == best[1]["global_step"] and best[0]["callbacks"].keys() == best[1]["callbacks"].keys()
    )


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        Asked(patch, 2, number=signal.SIGINT, times=2)
        assert train(tmp_path) == 130
    assert not (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert "no checkpoint was saved yet" in capfd.readouterr().err


def test_results_are_of_the_best_checkpoint_of_a_run_that_stops_early(tmp_path: Path) -> None:
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
    assert Path(json.loads((tmp_path / "metrics.json").read_text())["weights"]).name == "best.ckpt"


@pytest.mark.parametrize(("opts", "expected"), [((), [0, 11, 22]), (("TEST.EVAL_PERIOD", "0"), [0, 22])])
def test_nothing_is_measured_twice(
    opts: tuple[str, ...], expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before training, in training where the period says so, and at the end only what was not measured there."""
    measured: list[int] = []
    validate = TrainingModule.on_validation_epoch_end

    def counted(module: TrainingModule) -> None:
        measured.append(module.global_step)
        validate(module)

    monkeypatch.setattr(TrainingModule, "on_validation_epoch_end", counted)
    assert train(tmp_path, "TEST.EVAL_PERIOD", "1", "TEST.BEST", "last", "TEST.REPORT", "False", *opts) == 0
    assert measured == expected


def test_precise_statistics_are_of_the_best_weights_also_when_a_finished_run_is_resumed(tmp_path: Path) -> None:
    opts = (
        "SOLVER.MAX_EPOCH", "3", "TEST.EVAL_PERIOD", "1", "SOLVER.BASE_LR", "0.1", "TEST.REPORT", "False",
        "TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.DATASET", "Digits", "TEST.PRECISE_BN.NUM_ITER", "5",
    )  # fmt: skip
    assert train(tmp_path, *opts) == 0
    best, found = weights(tmp_path, "best.ckpt"), metrics(tmp_path)
    assert any(not torch.equal(v, weights(tmp_path)[k]) for k, v in best.items() if k.endswith("weight"))
    assert train(tmp_path, *opts, flags=("--resume",)) == 0
    assert metrics(tmp_path) == found
    assert all(torch.equal(v, best[k]) for k, v in weights(tmp_path, "best.ckpt").items())


def test_validations_by_steps_are_where_they_were_after_sigterm_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opts = ("TEST.EVAL_STEPS", "8", "TEST.METRICS", "('cmc',)", "TEST.REPORT", "False")
    assert train(tmp_path / "whole", *opts) == 0
    with monkeypatch.context() as patch:
        Asked(patch, 16, validating=True)
        assert train(tmp_path / "parts", *opts) == 143
    assert train(tmp_path / "parts", *opts, flags=("--resume",)) == 0
    assert recorded(tmp_path / "parts") == recorded(tmp_path / "whole")
    measured = {step for step, name, _ in recorded(tmp_path / "whole") if name == "precision_at_1"}
    assert measured == {"7", "15", "22"}, "steps count from 0; the last one is of the finished run"
    assert all(torch.equal(v, weights(tmp_path / "parts")[k]) for k, v in weights(tmp_path / "whole").items())


def test_a_checkpoint_each_few_steps(
    augmented: tuple[Path, dict[int, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(module: TrainingModule, *_: Any, **__: Any) -> None:
        if module.global_step == 18:
            raise KilledError

    opts = (*AUGMENTED, "SOLVER.CHECKPOINT_STEPS", "7", "SOLVER.CHECKPOINT_PERIOD", "3")
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(TrainingModule, "configure_gradient_clipping", kill)
        train(tmp_path, *opts)
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 14
    assert train(tmp_path, *opts, flags=("--resume",)) == 0
    assert all(torch.equal(v, weights(tmp_path)[k]) for k, v in weights(augmented[0]).items())


def test_compile_reaches_the_network_and_leaves_its_names(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(module))
    assert train(tmp_path, "MODEL.COMPILE", "True", "SOLVER.MAX_EPOCH", "1") == 0
    assert len(compiled) == 2 and weights(tmp_path).keys() == weights(trained).keys()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gpu_trains_in_16_bits_compiled_and_resumes(dtype: str, tmp_path: Path) -> None:
    opts = (
        "MODEL.DEVICE", "cuda", "SOLVER.AMP.ENABLED", "True", "SOLVER.AMP.DTYPE", dtype, "MODEL.COMPILE", "True",
        "SOLVER.MATMUL_PRECISION", "high",
    )  # fmt: skip
    assert train(tmp_path, *opts) == 0
    assert train(tmp_path, *opts, "SOLVER.MAX_EPOCH", "3", flags=("--resume",)) == 0
    assert metrics(tmp_path)["precision_at_1"] > 0.9


def test_resume_of_another_model_and_of_nothing(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "other")
    assert train(tmp_path / "other", "MODEL.HEADS.EMBEDDING_DIM", "32", flags=("--resume",)) == 2
    assert "last.ckpt is of another architecture than the config's model" in capfd.readouterr().err
    kept = (tmp_path / "other" / "config.yaml").read_text()
    assert kept == (trained / "config.yaml").read_text(), "a failed start left the run's config as it was"
    assert train(tmp_path, flags=("--resume",)) == 0
    assert "resuming from nothing" in capfd.readouterr().err
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(b"cut")
    assert train(tmp_path, flags=("--resume",)) == 2
    assert "last.ckpt.sha256 beside it. Take an earlier copy" in capfd.readouterr().err


def test_a_run_into_the_folder_of_another_is_refused_before_any_work(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "out")
    (tmp_path / "out" / "threshold_Digits.json").write_text("{}")

    def content() -> dict[str, bytes]:
        files = (p for p in (tmp_path / "out").rglob("*") if p.is_file() and p.name not in ("train.log", ".lock"))
        return {str(path): path.read_bytes() for path in files}

    before = content()
    assert train(tmp_path / "out", "SEED", "1") == 2
    assert "images" not in capfd.readouterr().err, "no data was read"
    assert train(tmp_path / "out", flags=("--resume", "--overwrite")) == 2
    assert "give one of them" in capfd.readouterr().err
    assert train(tmp_path / "out", "MODEL.WEIGHTS", "none.pth", flags=("--overwrite",)) == 2
    assert content() == before, "a start that fails leaves everything as it was"
    assert train(tmp_path / "out", "SEED", "1", flags=("--overwrite",)) == 0
    assert "removed what an earlier run left" in capfd.readouterr().err
    assert not (tmp_path / "out" / "threshold_Digits.json").exists()
    assert not torch.equal(weights(tmp_path / "out")["backbone.0.weight"], weights(trained)["backbone.0.weight"])


_OF_A_RUN = r"last\.ckpt cannot be resumed: it is not as a run leaves it \(.*\)\. Take an earlier copy, with its folder"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("state_dict", None, "holds no state_dict"),
        ("config", "SOLVER: [", _OF_A_RUN),
        ("loops", {}, _OF_A_RUN),
        ("optimizer_states", [{"state": {}, "param_groups": []}], _OF_A_RUN),
    ],
)
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_checkpoint_of_another_program_is_not_resumed(
    key: str, value: object, message: str, trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir()
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    torch.save({**content, key: value}, checkpoint)
    before = checkpoint.read_bytes()
    assert train(tmp_path, "SOLVER.MAX_EPOCH", "3", flags=("--resume",)) == 2
    shown = capfd.readouterr().err
    assert len(re.findall("^error: ", shown, flags=re.MULTILINE)) == 1
    assert re.search(message, shown), shown[-600:]
    assert "Traceback" not in shown
    assert checkpoint.read_bytes() == before


@contextmanager
def started(output: Path, *opts: str, flags: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own, once it has written its first checkpoint; it does not outlive the test."""
    command = [sys.executable, "-m", "pml_ext", "train", "--config-file", str(DIGITS), *flags]
    running = subprocess.Popen(
        [*command, "OUTPUT_DIR", str(output), *QUICK, *opts],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        # Tests that a shell put into the background hand on an ignored Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with running:
        try:
            while not (output / "checkpoints" / "last.ckpt").exists():
                assert running.poll() is None
                time.sleep(0.01)
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize(
    ("number", "flags", "status", "said"),
    [
        (signal.SIGINT, ("--num-gpus", "2"), 130, "stopped before the end"),
        (signal.SIGTERM, ("--num-gpus", "2"), 143, "stopped by SIGTERM"),
    ],
)
def test_a_signal_ends_the_run_with_a_message_and_it_can_be_resumed(
    tmp_path: Path, number: signal.Signals, flags: Sequence[str], status: int, said: str
) -> None:
    opts = ("TEST.EVAL_PERIOD", "500", "SOLVER.IMS_PER_BATCH", "64")
    with started(tmp_path, "SOLVER.MAX_EPOCH", "500", *opts, flags=flags) as running:
        running.send_signal(number)
        _, message = running.communicate(timeout=120)
    assert running.returncode == status
    assert said in message and "continue with --resume" in message and "Traceback" not in message
    logged = (tmp_path / "csv" / "version_0" / "metrics.csv").read_text()
    epochs = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["epoch"]
    assert train(tmp_path, "SOLVER.MAX_EPOCH", str(epochs + 1), *opts, flags=("--resume",)) == 0
    assert (tmp_path / "csv" / "version_0" / "metrics.csv").read_text() == logged, "what was logged stays"


def test_a_killed_run_ends_with_the_same_metrics(trained: Path, tmp_path: Path) -> None:
    """The signal goes to all processes, as a scheduler sends it."""
    with started(tmp_path, "DATALOADER.NUM_WORKERS", "2") as running:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=120)
    assert train(tmp_path, flags=("--resume",)) == 0
    assert metrics(tmp_path) == metrics(trained)
    assert all(torch.equal(v, weights(tmp_path)[k]) for k, v in weights(trained).items())


def test_batches_that_teach_nothing_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    opts = ("MODEL.LOSSES.NAME", "('ContrastiveLoss',)", "TEST.REPORT", "False", "SOLVER.MAX_EPOCH", "1")
    shuffled = ("DATALOADER.SAMPLER_TRAIN", "TrainingSampler", "SOLVER.IMS_PER_BATCH", "2", "SEED", "3")
    assert train(tmp_path, *opts, *shuffled) == 0
    assert "the first batch does not have two i" in capfd.readouterr().err


def test_freezing_precise_statistics_flipped_tests_and_the_profile(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    opts = (
        "TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.DATASET", "Digits", "TEST.PRECISE_BN.NUM_ITER", "13",
        "MODEL.FREEZE_LAYERS", "['backbone']", "SOLVER.FREEZE_ITERS", "22", "TEST.FLIP.ENABLED", "True",
    )  # fmt: skip
    assert train(tmp_path, *opts, flags=("--profile",)) == 0
    fresh, other = weights(tmp_path, "best.ckpt"), weights(trained)
    assert not torch.equal(fresh["backbone.0.weight"], other["backbone.0.weight"])
    assert fresh["backbone.1.num_batches_tracked"] == 13, "counted anew, and frozen before"
    assert not torch.equal(fresh["backbone.1.running_mean"], torch.zeros(64))
    assert metrics(tmp_path) != metrics(trained)
    log = capfd.readouterr().err
    assert "Profiler Report" in log and "train_dataloader_next" in log and "backward" in log


@pytest.mark.filterwarnings("ignore:a low")
def test_a_collapsed_run_ends_with_a_report_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    compute_outputs = Baseline.compute_outputs

    def collapsed(self: Any, batch: Any) -> Any:
        outputs = compute_outputs(self, batch)
        scores = {name: 0 * outputs[name] for name in ("cls_outputs", "pred_class_logits") if name in outputs}
        return {**outputs, **scores, "features": 0 * outputs["features"] + 1}

    monkeypatch.setattr(Baseline, "compute_outputs", collapsed)
    losses = '("TripletLoss", "CrossEntropyLoss")'
    assert train(tmp_path, "MODEL.LOSSES.NAME", losses, "TEST.REPORT", "True") == 0
    stuck, equal = json.loads((tmp_path / "metrics.json").read_text())["notes"]
    values = "TripletLoss stayed at 0.3 and CrossEntropyLoss stayed at 1.609"
    assert stuck.startswith(f"In epoch 2 {values}, the value if all embeddings are equal; try")
    assert equal.startswith("Digits: all embeddings are equal, so a low OPIS")
    printed, page = capfd.readouterr(), (tmp_path / "report.html").read_text()
    assert printed.err.count("In epoch") == 1, "once, not in every epoch"
    assert all(note in printed.out and f'<p class="lead">{note}</p>' in page for note in (stuck, equal))
    assert "all embeddings are equal" in re.findall("Not drawn: ([^<]*)", page)


def test_nan_stops_with_step_batch_and_loss_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loss = TrainingModule._loss

    def spoiled(self: Any, outputs: Any, batch: Any) -> Any:
        if self.global_step == 13:
            outputs["features"] = outputs["features"] * torch.nan
        return loss(self, outputs, batch)

    monkeypatch.setattr(TrainingModule, "_loss", spoiled)
    assert train(tmp_path) == 2
    message = capfd.readouterr().err
    assert "SmoothAPLoss is nan at step 13 (epoch 1); the batch begins with sklearn.datasets.load_digits()[" in message
    good = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert good["global_step"] == 11
    assert all(torch.isfinite(v).all() for v in good["state_dict"].values())


def test_weights_that_are_not_finite_are_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def spoil(self: Any, *_: Any) -> None:
        if self.global_step == 11:
            self.model.backbone[0].weight.data.mul_(torch.nan)

    monkeypatch.setattr(TrainingModule, "on_train_batch_end", spoil)
    assert train(tmp_path) == 2
    assert "the weights backbone.0.weight are not finite after step 11" in capfd.readouterr().err
    assert (
        not list((tmp_path / "checkpoints").glob("*")) or torch.isfinite(weights(tmp_path)["backbone.0.weight"]).all()
    )


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (("MODEL.LOSSES.NAME", '("CITLos",)'), "LOSSES.NAME = 'CITLos': unknown; did you mean 'CITLoss'"),
        (("MODEL.DEVICE", "cuda"), "MODEL.DEVICE = cuda: torch sees no CUDA device here; take cpu"),
        (("MODEL.HEADS.NUM_CLASSES", "3"), "NUM_CLASSES is 3, but the training set has 5 identities"),
        (("TEST.BEST", "R@1"), "TEST.BEST = 'R@1': Digits is measured by precision_at_1, cmc_rank_5, "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_message(
    tmp_path: Path, opts: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if opts[0] == "MODEL.DEVICE" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    assert train(tmp_path, *opts) == 2
    shown = capfd.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


SMALL = [
    p for folder in ("Digits", "Omniglot") for p in sorted((CONFIGS / folder).rglob("*.yml")) if "Base-" not in p.stem
]


def few_digits(root: Path, grey: bool) -> OpenSet:
    whole = digits_set(root, grey)
    return OpenSet(whole.train.subset(range(0, 901, 4)), whole.query.subset(range(0, 896, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("config", SMALL, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_small_config_trains_and_evaluates(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own model and losses, for one epoch of some digits in its image size."""
    entry = replace(DATASET_REGISTRY.entry("Digits"), part=DataSet(few_digits, ""))
    monkeypatch.setitem(DATASET_REGISTRY._entries, "Digits", entry)
    data = ("DATASETS.NAMES", '("Digits",)', "DATASETS.TESTS", '("Digits",)', "SOLVER.IMS_PER_BATCH", "80")
    batch = ("DATALOADER.NUM_INSTANCE", "16", "SOLVER.MAX_EPOCH", "1", "TEST.EVAL_PERIOD", "1")
    assert train(tmp_path, *data, *batch, config=config) == 0
    assert 0.2 < metrics(tmp_path)["precision_at_1"] <= 1


def test_a_folder_that_is_removed_while_a_run_goes_on(tmp_path: Path) -> None:
    with started(tmp_path / "out", "SOLVER.MAX_EPOCH", "500", "TEST.EVAL_PERIOD", "500") as running:
        shutil.rmtree(tmp_path / "out")
        _, message = running.communicate(timeout=120)
    assert running.returncode == 2
    assert f"OUTPUT_DIR {tmp_path}/out was removed while the run went on" in message
    assert "Traceback" not in message


def test_a_killed_worker_ends_the_run_with_one_message(tmp_path: Path) -> None:
    opts = ("SOLVER.MAX_EPOCH", "500", "TEST.EVAL_PERIOD", "500", "DATALOADER.NUM_WORKERS", "2")
    with started(tmp_path, *opts) as running:
        workers = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(int(workers[-1]), signal.SIGKILL)
        _, message = running.communicate(timeout=120)
    assert running.returncode == 2
    assert "error: a process that loads images was ended from outside" in message
    assert "Traceback" not in message


def test_an_image_that_a_worker_cannot_read_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = ["path,identity,split"]
    for i in range(80):
        (tmp_path / f"{i}.png").write_bytes(picture(3 * i, "PNG"))
        rows += [f"{i}.png,{i % 5},train", f"{i}.png,{i % 5},query"]
    (tmp_path / "7.png").write_bytes(picture(21, "PNG")[:-40])
    (tmp_path / "people.csv").write_text("\n".join(rows))
    data = ("DATASETS.ROOT", str(tmp_path), "DATASETS.NAMES", '("file:people.csv",)', "DATASETS.CHECK_IMAGES", "False")
    assert train(tmp_path / "run", *data, "DATALOADER.NUM_WORKERS", "1") == 2
    shown = capfd.readouterr().err
    assert len(re.findall("^error: image .*7.png cannot be decoded", shown, flags=re.MULTILINE)) == 1
    assert "Traceback" not in shown
    checked = (*data[:-1], "True")
    assert train(tmp_path / "out", *checked) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: 1 of 80 images of file:people.csv, train cannot be read (listed in ")
    assert error.endswith("Set DATASETS.MAX_UNREADABLE 0.02 to go on without them")
    listed = (tmp_path / "out" / "unreadable_images.txt").read_text().splitlines()
    assert len(listed) == 1 and str(tmp_path / "7.png") in listed[0]


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_needs_no_pretrained_weights_and_keeps_the_numbers_before_training(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    asked: list[bool] = []

    def build(cfg: CN, *, pretrained: bool = False, **options: Any) -> torch.nn.Module:
        asked.append(pretrained)
        return build_model(cfg, **options)

    monkeypatch.setattr(training_module, "build_model", build)
    opts = ("TEST.BASELINES", "True")
    assert train(tmp_path / "run", *opts, flags=("--resume",)) == 0
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert written["notes"] == json.loads((trained / "metrics.json").read_text())["notes"]
    assert written["baselines"].keys() == {"raw pixels", "untrained"}
    assert train(tmp_path / "new", "SOLVER.MAX_EPOCH", "1", *opts) == 0
    again = json.loads((tmp_path / "new" / "metrics.json").read_text())
    assert again["baselines"] == written["baselines"] and asked == [False, True]
