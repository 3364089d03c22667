import dataclasses
import hashlib
import io
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import __version__
from pml_ext._progress import show_steps
from pml_ext.functional import epsilon_opis, opis
from pml_ext.metrics import CohortNormalization, OPISSettings, SearchPlan, ThresholdReport
from pml_ext.metrics.threshold import measure
from tests.oracles import thresholds as oracle

SIZES = torch.tensor([7, 2, 9, 1, 6, 5])
LABELS = torch.arange(6).repeat_interleave(SIZES)


def clustered(seed: int = 0, labels: torch.Tensor = LABELS) -> torch.Tensor:
    torch.manual_seed(seed)
    centres, spread = torch.randn(6, 5, dtype=torch.float64), 0.3 + torch.rand(6, 1, dtype=torch.float64)
    return (centres[labels] + spread[labels] * torch.randn(len(labels), 5)) * torch.rand(len(labels), 1)


def report(embeddings: torch.Tensor | None = None, labels: Any = LABELS, **target: Any) -> ThresholdReport:
    return ThresholdReport.from_embeddings(
        clustered() if embeddings is None else embeddings, labels, **{"splits": 2, **(target or {"far": 0.05})}
    )


@pytest.mark.parametrize("target", [{"far": 0.05}, {"far": 0.004}, {"frr": 0.1}, {"target": "utility"}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_number_is_that_of_the_loops(target: dict[str, Any], dtype: torch.dtype) -> None:
    embeddings = clustered().to(dtype)
    found = report(embeddings, **target)
    pairs = oracle.pair_distances(embeddings, LABELS.tolist())
    assert found.distance == pytest.approx(math.sqrt(2 - 2 * found.cosine), abs=1e-15)
    assert (found.far.rate, found.frr.rate) == oracle.rates(pairs, found.distance)
    if "far" in target:
        assert found.far.rate <= target["far"]
        assert found.frr.rate == oracle.best_frr_within_far(pairs, target["far"])
    elif "frr" in target:
        assert found.frr.rate <= target["frr"]
        assert found.far.rate == oracle.best_far_within_frr(pairs, target["frr"])
    else:
        assert oracle.utility(pairs, found.distance) == max(oracle.utility(pairs, t) for t in oracle.candidates(pairs))
    by_class = oracle.class_errors(pairs, found.distance)
    assert {
        c.label: (c.false_accepts, c.impostor_pairs, c.false_rejects, c.genuine_pairs) for c in found.classes
    } == by_class
    assert [c.samples for c in found.classes] == SIZES.tolist()
    assert found.classes[3].frr is None
    for name, wrong, of in (("far", 0, 1), ("frr", 2, 3)):
        worst = sorted((c for c in by_class if by_class[c][of]), key=lambda c: -by_class[c][wrong] / by_class[c][of])
        assert [c.label for c in found.worst_classes(name, 4)] == worst[:4]
        rate = found.far if name == "far" else found.frr
        assert rate.low <= rate.rate <= rate.high


def test_consistency_is_that_of_the_functional() -> None:
    found = report(far=0.05, opis=OPISSettings((0.05, 0.3), 20, 0.5)).consistency
    assert found is not None
    assert found.opis == pytest.approx(float(opis(clustered(), LABELS, far_range=(0.05, 0.3), grid=20)))
    expected = epsilon_opis(clustered(), LABELS, far_range=(0.05, 0.3), grid=20, epsilon=0.5)
    assert found.epsilon_opis == pytest.approx(float(expected))
    pairs = oracle.pair_distances(clustered(), LABELS.tolist())
    assert [oracle.rates(pairs, d + 1e-9)[0] >= far for d, far in zip(found.distances, (0.05, 0.3), strict=True)]


def test_the_target_holds_where_float32_computes_the_scores_anew() -> None:
    labels = torch.arange(40).repeat_interleave(10)
    embeddings = torch.randn(40, 16)[labels] + torch.randn(400, 16)
    found = report(embeddings, labels, far=2e-3)
    unit = torch.nn.functional.normalize(embeddings, dim=1)
    different = labels[:, None] != labels
    accepted = found.accept(unit @ unit.T)
    assert accepted.dtype == torch.bool
    assert accepted[different].double().mean() <= 2e-3
    assert accepted[different].sum() == 2 * found.far.errors
    rows, columns = torch.combinations(torch.arange(400)).T
    assert torch.equal(found.accept_pairs(embeddings[rows], embeddings[columns]), accepted[rows, columns])


def test_halves_of_the_classes() -> None:
    labels = torch.arange(60).repeat_interleave(5)
    embeddings = torch.randn(60, 8)[labels] + (0.2 + torch.rand(60, 1))[labels] * torch.randn(300, 8)
    one, again, other = (
        report(embeddings, labels, frr=0.1, splits=5, opis=OPISSettings(seed=s)).stability for s in (0, 0, 1)
    )
    assert one is not None and other is not None
    assert one == again != other
    assert 0 < one.mean_shift < one.max_shift < 0.5
    assert report(embeddings, labels, frr=0.1, splits=0).stability is None
    # mirrored classes: both halves hold the same thing when the classes are all alike
    alike = torch.eye(12, dtype=torch.float64).repeat_interleave(2, dim=0)
    alike[::2] += 0.1 / math.sqrt(12)
    stable = report(alike, torch.arange(12).repeat_interleave(2), frr=0.5).stability
    assert stable is not None
    assert stable.max_shift < 1e-3
    assert report(far=0.004).stability is None, "a half cannot support the target"


def test_long_work_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(is_terminal: bool, quiet: float) -> str:
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(measure, "show_steps", partial(show_steps, quiet=quiet))
        report(frr=0.1)
        return stream.getvalue()

    *said, blank, end = shown(True, 1e-9).split("\r")
    assert "measuring the stability of the threshold, split 2 of 2 (step 4 of 8, 00:00)" in [s.strip() for s in said]
    assert (blank.strip(), end, "\n" in "".join(said)) == ("", "", False), "one line, which goes at the end"
    assert shown(True, 60.0) == "", "not of work that ends at once"
    assert shown(False, 1e-9) == "", "nor into files and pipes"


def test_strings_name_the_classes() -> None:
    names = ["anna", "ben", "carl", "dora", "eve", "finn"]
    by_name = report(labels=[names[i] for i in LABELS])
    assert [c.label for c in by_name.classes] == names
    ids = report(labels=LABELS * 1000 - 2000)
    assert [c.label for c in ids.classes] == [-2000, -1000, 0, 1000, 2000, 3000]
    assert dataclasses.replace(ids, classes=by_name.classes) == by_name


@pytest.mark.parametrize(
    ("labels", "embeddings", "message"),
    [
        (torch.zeros(4).long(), torch.randn(4, 3), "needs impostor pairs; all 4 samples are of class 0"),
        (torch.arange(4), torch.randn(4, 3), "needs genuine pairs; each of the 4 samples is a class of its own"),
        (torch.tensor([0, 0, 1, 1]), torch.full((4, 3), torch.nan), "embeddings must be finite"),
        (torch.tensor([0, 0, 1, 1]), torch.eye(4, 3), "must not be zero vectors, which have no cosine; got 1 of 4"),
        (["a", "a", "b"], torch.randn(4, 3), r"labels must have shape \(4,\), one label per embedding; got \(3,\)"),
        (["a", "a", 1, 1], torch.randn(4, 3), "all integers or all strings; got several types"),
        ([0.5, 0.5, 1.5, 1.5], torch.randn(4, 3), "must be integers .* or strings; got float64"),
    ],
)
def test_bad_input(labels: Any, embeddings: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report(embeddings, labels, target="utility")


def test_targets_that_cannot_be() -> None:
    several = {"far": 0.1, "search": SearchPlan(5, 0.1)}
    for target in ({"far": 0.1, "frr": 0.1}, {"far": 0.1, "target": "utility"}, {"splits": 1}, several):
        with pytest.raises(TypeError, match=r"exactly one of far=, frr=, target=.* must be given; got far="):
            report(**target)
    with pytest.raises(ValueError, match='target must be "utility"'):
        report(target="eer")
    with pytest.raises(ValueError, match=r"far must be in \(0, 1\); got 0"):
        report(far=0)
    with pytest.raises(ValueError, match=r"far=1e-06 needs at least 1000000 impostor pairs.*; the set has 352"):
        report(far=1e-6)
    with pytest.raises(ValueError, match="counts all pairs: leave negatives_per_positive"):
        report(far=0.1, opis=OPISSettings(negatives_per_positive=4))
    with pytest.raises(ValueError, match="splits must be at least 0; got -1"):
        report(far=0.1, splits=-1)


def test_copies_are_counted_and_warned_of() -> None:
    embeddings = torch.cat([clustered(), clustered()[:3]])
    with pytest.warns(UserWarning, match="3 of 33 embeddings are copies of others"):
        found = report(embeddings, torch.cat([LABELS, LABELS[:3]]))
    assert found.copies == 3
    assert "33 samples, 3 of them copies" in found.summary()
    with (
        pytest.warns(UserWarning, match="30 of 60"),
        pytest.raises(ValueError, match=r"no threshold meets far.*several labels"),
    ):
        report(torch.cat([clustered()] * 2), torch.cat([LABELS, LABELS + 6]), far=1e-3)


def test_two_classes_of_which_one_has_genuine_pairs() -> None:
    found = report(torch.randn(4, 3), torch.tensor([0, 0, 0, 1]), far=0.5)
    assert found.consistency is None and found.stability is None
    assert "not measurable: fewer than two classes" in found.summary()


def test_accept_takes_tensors_and_arrays() -> None:
    found = dataclasses.replace(report(), cosine=0.5)
    scores = [[0.4999, 0.5], [1.0, -1.0]]
    expected = [[False, True], [True, False]]
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert (
            found.accept(torch.tensor(scores, dtype=dtype)).tolist()
            == (torch.tensor(scores, dtype=dtype) >= 0.5).tolist()
        )
    decided = found.accept(np.array(scores))
    assert isinstance(decided, np.ndarray) and decided.dtype == bool
    assert decided.tolist() == expected
    assert bool(found.accept(0.7)) is True
    for bad in (torch.tensor([1.2]), torch.tensor([torch.nan]), np.array([-2.0])):
        with pytest.raises(ValueError, match=r"scores must be cosine similarities in \[-1, 1\]"):
            found.accept(bad)
    with pytest.raises(ValueError, match=r"got values from 0\.5 to 1\.4"):
        found.accept(torch.tensor([0.5, 1.4]))


def test_arrays_work_as_tensors_do() -> None:
    rows = clustered().numpy()
    rows.flags.writeable = False
    found = ThresholdReport.from_embeddings(rows, LABELS.numpy(), far=0.1, splits=2)
    assert found == ThresholdReport.from_embeddings(clustered(), LABELS, far=0.1, splits=2)
    decided = found.accept_pairs(rows[:9], rows[9:0:-1])
    assert isinstance(decided, np.ndarray)
    assert decided.tolist() == found.accept_pairs(clustered()[:9], clustered()[1:10].flip(0)).tolist()
    chance = found.probability(np.array([0.2, 0.7]), prior=0.1)
    assert isinstance(chance, np.ndarray)
    assert chance.tolist() == found.probability(torch.tensor([0.2, 0.7], dtype=torch.float64), prior=0.1).tolist()


def test_accept_pairs_refuses_another_model() -> None:
    found, fine = report(), torch.randn(3, 5)
    for a, b, message in (
        (fine, torch.randn(3, 6), r"b must have 5 columns.*; got 6: is it another model's"),
        (fine, fine[:2], "same number of rows; got 3 and 2"),
        (0 * fine, fine, "a must not be zero vectors"),
        (torch.full((3, 5), torch.inf), fine, "a must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            found.accept_pairs(a, b)


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    model = tmp_path / "model.ckpt"
    model.write_bytes(b"weights" * 1000)
    names = [f"person {i}" for i in LABELS]
    for found in (report(labels=names, target="utility"), report(torch.randn(4, 3), [0, 0, 0, 1], far=0.5)):
        found.save(tmp_path / "b.json", checkpoint=model)
        loaded = ThresholdReport.load(tmp_path / "b.json", checkpoint=model)
        assert loaded.checkpoint is not None
        assert loaded.checkpoint.sha256 == hashlib.sha256(model.read_bytes()).hexdigest()
        assert dataclasses.replace(loaded, checkpoint=None) == found and loaded.version == __version__


def test_another_checkpoint_is_refused_by_both_hashes(tmp_path: Path) -> None:
    one, other = tmp_path / "one.ckpt", tmp_path / "other.ckpt"
    one.write_bytes(b"1")
    other.write_bytes(b"2")
    report().save(tmp_path / "r.json", checkpoint=one)
    hashes = [hashlib.sha256(content).hexdigest() for content in (b"1", b"2")]
    with pytest.raises(ValueError, match=f"one.ckpt with SHA-256 {hashes[0]}.*other.ckpt has {hashes[1]}"):
        ThresholdReport.load(tmp_path / "r.json", checkpoint=other)
    report().save(tmp_path / "r.json")
    with pytest.raises(ValueError, match="names no checkpoint"):
        ThresholdReport.load(tmp_path / "r.json", checkpoint=one)
    with pytest.raises(FileNotFoundError):
        report().save(tmp_path / "r.json", checkpoint=tmp_path / "none.ckpt")


def test_the_page_escapes_names_and_has_the_numbers(tmp_path: Path) -> None:
    found = report(labels=[f"<script>alert({i})</script>$x_{{y & z" for i in LABELS])
    found.save_page(tmp_path / "r.html")
    found.save_figure(tmp_path / "r.png")
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(2)&lt;/script&gt;$x_{y &amp; z" in page
    with Image.open(tmp_path / "r.png") as figure:
        assert figure.width == 1400 and len(np.unique(np.asarray(figure))) > 100, "an empty figure"
    assert f"<b>{found.cosine:.4f}</b>" in page and f"{found.cosine:.6f}" in found.summary()
    assert f"{found.far.errors} of {found.far.pairs}" in found.summary()


def test_of_classes_equally_bad_the_one_with_more_errors_is_named_first() -> None:
    found = report()
    bad = [dataclasses.replace(c, false_rejects=c.genuine_pairs, false_accepts=c.impostor_pairs) for c in found.classes]
    found = dataclasses.replace(found, classes=tuple(bad))
    assert [c.samples for c in found.worst_classes("frr")] == [9, 7, 6, 5, 2]
    assert [c.samples for c in found.worst_classes("far")] == [9, 7, 6, 5, 2, 1]


def test_figures_of_few_classes_and_of_many() -> None:
    few = report(torch.randn(4, 3), torch.tensor([0, 0, 0, 1]), far=0.5)
    labels = torch.arange(450).repeat_interleave(2)
    many = report(torch.eye(450)[labels] + 0.03 * torch.randn(900, 450), labels, target="utility", splits=0)
    assert many.far.errors == 0 == many.frr.errors
    from pml_ext.reports.threshold_figures import threshold_pictures

    assert [[p.name for p in threshold_pictures(r) if p.pixels.std()] for r in (few, many)] == [
        ["roc"], ["utility", "roc"],
    ]  # fmt: skip


def test_a_loaded_report_has_no_curves_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a loaded report has no curves"):
        dataclasses.replace(report(), curves=None).save_page(tmp_path / "r.html")


@pytest.mark.parametrize("noise", [0.0, 1e-5])
@pytest.mark.parametrize(
    "options",
    [{"far": 0.01}, {"frr": 0.1}, {"target": "utility"}, {"search": SearchPlan(5, 0.1)}],
    ids=lambda options: next(iter(options)),
)
def test_collapsed_embeddings_are_named(noise: float, options: dict[str, Any]) -> None:
    x = 3 * torch.ones(60, 8) + noise * torch.randn(60, 8)
    with pytest.raises(ValueError, match=r"all 60 embeddings are \(nearly\) equal, so no threshold separates them"):
        ThresholdReport.from_embeddings(x, torch.arange(60) // 3, **options)
    with pytest.raises(ValueError, match=r"all 60 embeddings are \(nearly\) equal"):
        CohortNormalization.tune(None, x, torch.arange(60) // 3, far=0.01)
