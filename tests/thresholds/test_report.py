import dataclasses
import hashlib
import math

import numpy as np
import pytest
import torch
from PIL import Image
from pytest import approx
from torch.nn.functional import normalize

from pml_ext import __version__
from pml_ext.functional import epsilon_opis, opis
from pml_ext.metrics import OPISSettings
from pml_ext.thresholds import SearchPlan, ThresholdReport
from pml_ext.thresholds.figures import threshold_figures
from tests.oracles import thresholds as oracle

SIZES = torch.tensor([7, 2, 9, 1, 6, 5])
LABELS = torch.arange(6).repeat_interleave(SIZES)


def clustered(seed=0, labels=LABELS):
    torch.manual_seed(seed)
    centres, spread = torch.randn(6, 5, dtype=torch.float64), 0.3 + torch.rand(6, 1, dtype=torch.float64)
    return (centres[labels] + spread[labels] * torch.randn(len(labels), 5)) * torch.rand(len(labels), 1)


def report(embeddings=None, labels=LABELS, **target):
    return ThresholdReport.from_embeddings(
        clustered() if embeddings is None else embeddings, labels, **(target or {"far": 0.05})
    )


@pytest.mark.parametrize("target", [{"far": 0.05}, {"far": 0.004}, {"frr": 0.1}, {"target": "utility"}])
def test_every_number_is_that_of_the_loops(target):
    embeddings = clustered().float()
    found = report(embeddings, **target)
    pairs = oracle.pair_distances(embeddings, LABELS.tolist())
    assert found.distance == approx(math.sqrt(2 - 2 * found.cosine), abs=1e-15)
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


def test_consistency_is_that_of_the_functional():
    found = report(far=0.05, opis=OPISSettings((0.05, 0.3), 20, 0.5)).consistency
    assert found.opis == approx(float(opis(clustered(), LABELS, far_range=(0.05, 0.3), grid=20)))
    expected = epsilon_opis(clustered(), LABELS, far_range=(0.05, 0.3), grid=20, epsilon=0.5)
    assert found.epsilon_opis == approx(float(expected))


def test_the_target_holds_where_float32_computes_the_scores_anew():
    labels = torch.arange(40).repeat_interleave(10)
    embeddings = torch.randn(40, 16)[labels] + torch.randn(400, 16)
    found = report(embeddings, labels, far=2e-3)
    unit = normalize(embeddings, dim=1)
    different = labels[:, None] != labels
    accepted = found.accept(unit @ unit.T)
    assert accepted.dtype == torch.bool
    assert accepted[different].double().mean() <= 2e-3
    assert accepted[different].sum() == 2 * found.far.errors
    rows, columns = torch.combinations(torch.arange(400)).T
    assert torch.equal(found.accept_pairs(embeddings[rows], embeddings[columns]), accepted[rows, columns])


def test_strings_name_the_classes():
    names = ["anna", "ben", "carl", "dora", "eve", "finn"]
    by_name = report(labels=[names[i] for i in LABELS])
    assert [c.label for c in by_name.classes] == names
    ids = report(labels=LABELS * 1000 - 2000)
    assert [c.label for c in ids.classes] == [-2000, -1000, 0, 1000, 2000, 3000]
    assert dataclasses.replace(ids, classes=by_name.classes) == by_name


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"labels": 0 * LABELS}, ValueError, "needs impostor pairs; all 30 samples are of class 0"),
        (
            {"labels": torch.arange(30)},
            ValueError,
            "needs genuine pairs; each of the 30 samples has a different class. Add more images",
        ),
        ({"embeddings": torch.eye(30, 5)}, ValueError, "not be zero vectors, which have no cosine; got 25 of 30"),
        ({"labels": ["a", "b"]}, ValueError, r"labels must have shape \(30,\), one label per embedding; got \(2,\)"),
        ({"labels": ["a", 1] * 15}, ValueError, "all integers or all strings; got several types"),
        ({"labels": (LABELS / 2).tolist()}, ValueError, "must be integers .* or strings; got float"),
        ({"far": 0.1, "frr": 0.1}, TypeError, "exactly one of far=, frr=, target=.* must be given; got far="),
        ({"far": None}, TypeError, "exactly one of far="),
        ({"far": 0.1, "search": SearchPlan(5, 0.1)}, TypeError, "exactly one of far="),
        ({"target": "eer"}, ValueError, 'target must be "utility"'),
        ({"far": 0}, ValueError, r"far must be in \(0, 1\); got 0"),
        ({"far": 1e-6}, ValueError, "FAR 1e-06 needs at least 1000000 impostor pairs.*; the set has 352"),
    ],
)
def test_what_cannot_be_reported_is_an_error(given, error, message):
    given = {"far": 0.05} | given if "labels" in given or "embeddings" in given else given
    with pytest.raises(error, match=message):
        report(**given)


def test_copies_under_several_labels_allow_no_threshold():
    with (
        pytest.warns(UserWarning, match="30 of 60"),
        pytest.raises(
            ValueError, match=r"no threshold meets the target: it allows 1 of 1604 impostor pairs.*several labels"
        ),
    ):
        report(torch.cat([clustered()] * 2), torch.cat([LABELS, LABELS + 6]), far=1e-3)


def test_two_classes_of_which_one_has_genuine_pairs():
    found = report(torch.randn(4, 3), torch.tensor([0, 0, 0, 1]), far=0.5)
    assert found.consistency is None
    assert "not measurable: fewer than two classes" in found.summary()
    assert [figure.name for figure in threshold_figures(found) if figure.pixels.std()] == ["det"]


def test_tensors_and_arrays_are_decided_alike():
    rows = clustered().numpy()
    rows.flags.writeable = False
    found = ThresholdReport.from_embeddings(rows, LABELS.numpy(), far=0.1)
    assert found == ThresholdReport.from_embeddings(clustered(), LABELS, far=0.1)
    decided = found.accept_pairs(rows[:9], rows[9:0:-1])
    assert decided.tolist() == found.accept_pairs(clustered()[:9], clustered()[1:10].flip(0)).tolist()
    scores = torch.tensor([[0.4999, 0.5], [1.0, -1.0]], dtype=torch.float64)
    found = dataclasses.replace(found, cosine=0.5)
    of_array = found.accept(scores.numpy())
    assert isinstance(of_array, np.ndarray) and of_array.tolist() == found.accept(scores).tolist()
    assert found.accept(scores).tolist() == [[False, True], [True, False]]
    assert found.accept(scores.half()).tolist() == [[True, True], [True, False]] and bool(found.accept(0.7))
    for bad in (torch.tensor([1.2]), np.array([np.nan])):
        with pytest.raises(ValueError, match=r"scores must be cosine similarities in \[-1, 1\]"):
            found.accept(bad)
    with pytest.raises(ValueError, match="same number of rows; got 3 and 2"):
        found.accept_pairs(rows[:3], rows[:2])
    with pytest.raises(ValueError, match=r"b must have 5 columns.*; got 4: is it another model's"):
        found.accept_pairs(rows[:3], rows[:3, :4])


def test_a_report_comes_back_from_its_file_and_belongs_to_its_checkpoint(tmp_path):
    model, other, file = tmp_path / "model.ckpt", tmp_path / "other.ckpt", tmp_path / "r.json"
    model.write_bytes(b"1")
    other.write_bytes(b"2")
    hashes = [hashlib.sha256(content).hexdigest() for content in (b"1", b"2")]
    names = [f"person {i}" for i in LABELS]
    for found in (report(labels=names, target="utility"), report(torch.randn(4, 3), [0, 0, 0, 1], far=0.5)):
        found.save(file, checkpoint=model)
        loaded = ThresholdReport.load(file, checkpoint=model)
        assert loaded.checkpoint.sha256 == hashes[0]
        assert dataclasses.replace(loaded, checkpoint=None) == found and loaded.version == __version__
    with pytest.raises(ValueError, match=f"model.ckpt with SHA-256 {hashes[0]}.*other.ckpt has {hashes[1]}"):
        ThresholdReport.load(file, checkpoint=other)
    with pytest.warns(UserWarning, match="not compared with the model in use"):
        loaded = ThresholdReport.load(file)
    with pytest.raises(ValueError, match="a loaded report has no curves"):
        loaded.save_page(tmp_path / "r.html")
    found.save(file)
    with pytest.raises(ValueError, match="records no checkpoint"):
        ThresholdReport.load(file, checkpoint=model)


def test_the_page_escapes_names_and_has_the_numbers(tmp_path):
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


@pytest.mark.parametrize("options", [{"far": 0.01}, {"search": SearchPlan(5, 0.1)}])
def test_collapsed_embeddings_are_named(options):
    x = 3 * torch.ones(60, 8) + 1e-5 * torch.randn(60, 8)
    with pytest.raises(ValueError, match=r"all 60 embeddings are \(nearly\) equal, so no threshold separates them"):
        ThresholdReport.from_embeddings(x, torch.arange(60) // 3, **options)
