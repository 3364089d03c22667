"""Every example runs as a user would run it and prints the right result."""

import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_metric_learning.losses

import pml_ext

# They need a model and a frame (test_tracker.py), a report (tests/thresholds/), a YAML file
# (tests/runner/test_ported_project.py).
_WITH_ARGUMENTS = ("tracker", "decide_with_numpy", "ported_project")
FOLDER = Path(__file__).parents[2] / "examples" / "scripts"
OTHERS = (  # with tests of their own
    "draw_letters", "smooth_ap_of_any_batch", "verification", "fastreid_metric_faults",
    "fastreid_gradient_buffer", "opis_far_range", "tune_with_optuna", "with_distributed_wrapper", *_WITH_ARGUMENTS,
)  # fmt: skip
TRAINING = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in OTHERS)
NEEDS = {"swap_in_hydra_target": "hydra", "swap_in_lightning": "lightning", "tune_with_optuna": "optuna"}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def printed_by(monkeypatch, capsys):
    """(name, *arguments) -> what the example prints."""
    pytest.importorskip("sklearn")

    def run(name, *arguments):
        pytest.importorskip(NEEDS.get(name, "torch"))
        path = FOLDER / f"{name}.py"
        assert len(path.read_text().splitlines()) < 60
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    yield run
    pml_ext.unregister()


@pytest.mark.parametrize("name", TRAINING)
def test_training_improves_recall(name, printed_by):
    require_better_recall(printed_by(name))


def test_two_processes_improve_recall():
    command = [sys.executable, str(FOLDER / "with_distributed_wrapper.py")]  # it starts its own file again
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    require_better_recall(done.stdout)


def require_better_recall(shown):
    before, *after = (float(number) for number in re.findall(r"\d\.\d{3}", shown))
    assert before < 0.5 and after and all(value > 0.6 for value in after), shown


@pytest.mark.skipif(not hasattr(pytorch_metric_learning.losses, "SmoothAPLoss"), reason="beside PML 2.9's")
def test_smooth_ap_is_close_to_exact_in_any_batch(printed_by):
    rows = re.findall(r"(\d+) × (\d+) +(\S+) +(\S+) +(\S+)$", printed_by("smooth_ap_of_any_batch"), re.M)
    assert len(rows) == 4
    for classes, samples, exact, ours, theirs in rows:
        assert float(ours) == pytest.approx(float(exact), abs=1e-3)
        assert (abs(float(theirs) - float(exact)) < 1e-3) == (classes == samples)


def test_verification_rates_need_enough_impostors(printed_by):
    shown = printed_by("verification")
    rows = dict(re.findall(r"^(.+? pairs|all pairs, streamed) +(\S.*)$", shown, re.M))
    names = ("6000 listed pairs", "all pairs", "all pairs, streamed")
    listed, exact, streamed = (list(map(float, rows[name].split())) for name in names)
    assert exact == pytest.approx(streamed, abs=2e-4)
    assert math.isnan(listed[3]) and exact[:4] == sorted(exact[:4], reverse=True)
    assert listed[:3] == pytest.approx(exact[:3], abs=0.05)


def test_faults_of_other_metrics_are_shown(printed_by):
    rows = re.findall(r"^(.+?) {2,}(\S+) +(\d\.\d{3})$", printed_by("fastreid_metric_faults"), re.M)
    given, right = zip(*(row[1:] for row in rows), strict=True)
    assert given[1] == "ValueError"
    impostors_rejected, ties, mirrored, negative_scores, equal_labels = (float(given[i]) for i in (0, 2, 3, 4, 5))
    genuine_accepted, rank_1, pessimistic, pixel, average_precision, precision = (float(value) for value in right)
    assert (mirrored, pixel) == (-1.992, 0.4)
    assert abs(impostors_rejected - genuine_accepted) > 0.1
    assert rank_1 == 0.5
    assert ties > pessimistic + 0.01
    assert (negative_scores, equal_labels, precision) == (0, 1, 0)
    assert average_precision == pytest.approx(pessimistic, abs=0.02)


def test_the_gradient_buffer_is_dropped_unless_it_is_set_to_zero(printed_by):
    dropped, kept = (float(line.split()[-1]) for line in printed_by("fastreid_gradient_buffer").splitlines())
    assert dropped == 0 and 0.05 < kept < 0.2  # ten steps of Adam at 0.01


def test_opis_depends_on_the_calibration_range(printed_by):
    lines = printed_by("opis_far_range").splitlines()[1:]
    rows = [list(map(float, line.split())) for line in lines]
    scores = [row[4] for row in rows]
    assert len(rows) == 6 and max(scores) > 1.5 * min(scores) > 0
    assert all(opis < epsilon_opis for *_, opis, epsilon_opis in rows)


def test_losses_are_tuned_on_classes_that_neither_train_nor_test(printed_by):
    shown = printed_by("tune_with_optuna")
    training, validation, test = (set(line.split()) for line in re.findall(r"^\w+ classes: (.+)$", shown, re.M))
    assert len(training | validation | test) == len(training) + len(validation) + len(test) == 36
    rows = re.findall(r"^(.+?) +(\S+) → (\S+) +(\S+) → (\S+) (\{.+\})$", shown, re.M)
    assert [name for name, *_ in rows] == ["triplet", "with TCM", "proxy NCA"]
    for name, *scores, _ in rows:
        default, best, *_ = map(float, scores)
        assert 0.4 < default <= best < 1, name
