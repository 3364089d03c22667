import numpy as np
import pytest
import torch
from pytest import approx

from pml_ext.functional import (
    cohort_offsets,
    opis,
    rank_matches_from_distances,
    tar_at_far,
)
from pml_ext.metrics import CSLS, OPIS, AccuracyCalculator, CohortNormalization, cohort_mask
from pml_ext.thresholds import ThresholdReport
from tests.oracles.identification import cosine
from tests.refusals import refusals


def offsets_by_loops(points, cohort, k, rows=None):
    found = []
    for i, point in enumerate(points.tolist()):
        scores = [cosine(point, other) for j, other in enumerate(cohort.tolist()) if rows is None or j != rows[i]]
        found.append(sum(sorted(scores)[-k:]) / k)
    return found


@pytest.mark.parametrize(
    ("dtype", "tolerance", "k", "samples"),
    [
        (torch.float64, 1e-12, 3, 333),
        (torch.float64, 1e-12, 1, 64),
        (torch.float64, 1e-12, 30, 30),
        (torch.float32, 1e-6, 4, 30),
        (torch.float16, 5e-3, 4, 30),
    ],
)
def test_offsets_and_scores_equal_the_loops(dtype, tolerance, k, samples):
    cohort, a, b = (torch.randn(n, 6, dtype=torch.float64) for n in (samples, 7, 5))
    cohort[1::2] = cohort[:1]  # many tie
    normalization = CohortNormalization.fit(cohort.to(dtype), k=k, strength=0.7)
    m_a, m_b = (offsets_by_loops(points, cohort, k) for points in (a, b))
    assert normalization.offsets(a.to(dtype)).tolist() == approx(m_a, abs=tolerance)
    expected = [
        [cosine(x, y) - 0.35 * (m + n) for y, n in zip(b.tolist(), m_b, strict=True)]
        for x, m in zip(a.tolist(), m_a, strict=True)
    ]
    found = normalization.scores(a.to(dtype), b.to(dtype))
    assert torch.allclose(found.double(), torch.tensor(expected, dtype=torch.float64), atol=2 * tolerance)


def test_samples_of_the_cohort_leave_themselves_out_in_blocks_of_any_size(monkeypatch):
    cohort, rows = torch.randn(20, 6, dtype=torch.float64), torch.tensor([3, 19, 0])
    expected = approx(offsets_by_loops(cohort[rows], cohort, 4, rows.tolist()), abs=1e-12)
    for entries in (1, 45, 2**20):
        monkeypatch.setattr("pml_ext.functional.retrieval.cohort._ENTRIES", entries)
        assert cohort_offsets(cohort[rows], cohort, 4, rows=rows).tolist() == expected


COHORT, FITTED = torch.randn(10, 4), CohortNormalization.fit(torch.randn(10, 4), k=10)
TWO = torch.arange(10) % 2


JUDGED = torch.randn(120, 4, generator=torch.Generator().manual_seed(5))
NAMED = CohortNormalization.fit(COHORT, 3, labels=[f"cohort {i}" for i in range(10)])
REFUSED = [
    (lambda: CohortNormalization.fit(COHORT, k=11), "k must be from 1 to 10, .*got 11"),
    (lambda: CohortNormalization.fit(COHORT, strength=-1), "strength must be in"),
    (lambda: CohortNormalization.fit(COHORT, labels=TWO[1:]), r"labels must have shape \(10,\)"),
    (lambda: FITTED.offsets(COHORT[:, 1:]), "cohort must have the 3 columns .*: is it another model's"),
    (lambda: AccuracyCalculator(normalize="gallery"), "normalize must be a Cohort.* got str"),
    (lambda: OPIS(normalize=CSLS()), "normalize must be a CohortNormalization or None; got CSLS"),
    (lambda: CSLS(k=0), "k must be"),
    (lambda: AccuracyCalculator(normalize=CSLS(), label_comparison_fn=torch.ne), "normalize cannot be combined"),
    (
        lambda: AccuracyCalculator(include=("precision_at_1", "opis", "NMI"), normalize=CSLS()),
        "CSLS has ranking metrics only; got opis, NMI. .*CohortNormalization of other identities",
    ),
    (lambda: cohort_mask(["a", "b"], 1.0), r"share must be in \(0, 1\)"),
]
test_what_does_not_fit_is_an_error = refusals(REFUSED)


def measured_by_opis(normalize, embeddings, labels):
    metric = OPIS(normalize=normalize)
    metric.update(embeddings, labels)
    metric.compute()


MEASURES = {
    "report": lambda normalize, x, y: ThresholdReport.from_embeddings(x, y, far=0.01, normalize=normalize),
    "opis": measured_by_opis,
    "calculator": lambda normalize, x, y: AccuracyCalculator(include=("opis",), normalize=normalize).get_accuracy(x, y),
}


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_no_measure_takes_a_cohort_of_judged_samples_or_identities(measure):
    embeddings, labels = crowded()
    others, names = crowded(seed=1)
    measure(CohortNormalization.fit(others, labels=names + 1000), embeddings, labels)
    shared = names + 1000
    shared[:7] = torch.tensor([3, 3, 8, 11, 30, 31, 32])
    with pytest.raises(
        ValueError,
        match=r"other identities .*; 6 are in both: 11, 3, 30, 31, 32, and 1 more. Remove them on one side, or rename",
    ):
        measure(CohortNormalization.fit(others, labels=shared), embeddings, labels)
    others[[4, 9]] = 3 * embeddings[[250, 17]]
    with pytest.raises(ValueError, match="2 judged rows are copies of cohort samples: rows 17, 250"):
        measure(CohortNormalization.fit(others, labels=names + 1000), embeddings, labels)


def test_labels_are_compared_as_text_and_copies_by_the_rows_numbers():
    NAMED.corrections_of_judged(JUDGED, labels=[f"judged {i}" for i in range(120)])
    numbers = CohortNormalization.fit(COHORT, labels=torch.arange(10))
    with pytest.raises(ValueError, match="1 are in both: 7"):
        numbers.corrections_of_judged(JUDGED[:1], labels=["7"])
    with pytest.raises(ValueError, match="rows 31"):
        FITTED.corrections_of_judged(torch.cat([JUDGED[:1], FITTED.cohort[:1].double()]), rows=[30, 31])


def test_identities_are_set_aside_by_name():
    names = [f"person {i}" for i in range(200)]
    mask = cohort_mask(names, 0.3)
    assert int(mask.sum()) == 60 and mask.dtype == torch.bool
    twice = cohort_mask([*reversed(names), *names], 0.3)
    assert twice[:200].flip(0).equal(mask) and twice[200:].equal(mask)
    assert cohort_mask(torch.arange(200), 0.3).equal(cohort_mask([str(i) for i in range(200)], 0.3))
    grown = cohort_mask([*names, "someone new"], 0.3)
    assert int((grown[:200] != mask).sum()) <= 1, "the others stay"


def saved(folder, **options):
    weights = folder / "weights.pt"
    weights.write_bytes(b"weights")
    fitted = CohortNormalization.fit(torch.randn(30, 6), k=4, strength=0.7, labels=torch.arange(30) // 2)
    fitted.save(folder / "cohort.npz", **options)
    return fitted, folder / "cohort.npz"


def test_a_saved_cohort_gives_the_same_scores_to_the_bit(tmp_path):
    fitted, path = saved(tmp_path)
    loaded = CohortNormalization.load(path)
    assert loaded.record == fitted.record and torch.equal(loaded.cohort, fitted.cohort)
    assert loaded.labels.tolist() == fitted.labels.tolist() and loaded.identities == 15
    samples = torch.randn(5, 6)
    assert torch.equal(loaded.scores(samples, samples), fitted.scores(samples, samples))
    with np.load(path, allow_pickle=False) as arrays:  # any program can read it
        assert arrays["cohort"].shape == (30, 6) and '"k":4' in str(arrays["record"])


def test_a_cohort_is_bound_to_its_weights(tmp_path):
    weights, other = tmp_path / "weights.pt", tmp_path / "other.pt"
    other.write_bytes(b"other")
    _, path = saved(tmp_path, checkpoint=tmp_path / "weights.pt")
    assert CohortNormalization.load(path, checkpoint=weights).checkpoint is not None
    with pytest.raises(ValueError, match=r"is of the checkpoint weights.pt with .*: it is not this model's"):
        CohortNormalization.load(path, checkpoint=other)
    with pytest.warns(UserWarning, match="not compared with the model in use: pass its checkpoint"):
        CohortNormalization.load(path)
    _, unbound = saved(tmp_path)
    with pytest.raises(ValueError, match="records no checkpoint to compare"):
        CohortNormalization.load(unbound, checkpoint=weights)


def test_other_and_changed_files_are_refused(tmp_path):
    fitted, path = saved(tmp_path)
    with np.load(path) as arrays:
        content = dict(arrays)
    changes = {
        "checksum differs": {"cohort": content["cohort"] + np.float32(1e-6)},
        r"was modified after it was saved \(the checksum": {"labels": content["labels"][::-1]},
        "was modified": {"labels": np.arange(30)},
        "Invalid enum value": {"record": np.array(str(content["record"]).replace("normalization 2", "9"))},
        "k must be from 1 to 30": {"record": np.array(str(content["record"]).replace('"k":4', '"k":99'))},
        "allow_pickle": {"cohort": np.array([{}], dtype=object)},
    }
    for message, change in changes.items():
        np.savez(path, **(content | change))
        with pytest.raises(ValueError, match=message):
            CohortNormalization.load(path)
    for junk in (b"", b"PK\x03\x04junk", b"text"):
        path.write_bytes(junk)
        with pytest.raises(ValueError, match="is not a saved cohort normalization"):
            CohortNormalization.load(path)
    with pytest.raises(ValueError, match=r"a cohort is saved as \.npz; got cohort.bin"):
        fitted.save(tmp_path / "cohort.bin")


NAMES = ("precision_at_1", "mean_average_precision_at_r", "reid_mean_average_precision", "cmc_rank_5", "opis")
RATE = "tar_at_far_1e-2"


def by_cohort():
    return CohortNormalization.fit(crowded(seed=1)[0], k=15, strength=0.7)


@pytest.mark.parametrize("cameras", [False, True])
def test_the_calculator_ranks_and_decides_by_normalised_scores(cameras):
    normalize = by_cohort()
    embeddings, labels = crowded()
    query, gallery = embeddings[:120], embeddings[120:]
    seen_by = (torch.arange(300) // 60 % 2).split([120, 180]) if cameras else (None, None)
    calculator = AccuracyCalculator(include=(*NAMES, RATE), normalize=normalize)
    found = calculator.get_accuracy(
        query, labels[:120], gallery, labels[120:], query_cameras=seen_by[0], reference_cameras=seen_by[1]
    )
    scores = normalize.scores(query, gallery)
    ranking = rank_matches_from_distances(
        -scores, labels[:120], labels[120:], query_cameras=seen_by[0], gallery_cameras=seen_by[1]
    )
    require_ranks(found, ranking)
    # Pairs: queries and gallery together.
    half = 0.5 * 0.7 * normalize.offsets(embeddings)
    assert found["opis"] == approx(float(opis(embeddings, labels, offsets=half)), rel=1e-5)
    one, other = torch.triu_indices(300, 300, 1)
    scores = torch.cosine_similarity(embeddings[one], embeddings[other]) - half[one] - half[other]
    assert found[RATE] == approx(float(tar_at_far(scores, labels[one] == labels[other], 1e-2)), abs=1e-3)


def require_ranks(found, ranking):
    counted = ranking.matches > 0
    expected = {
        "precision_at_1": (ranking.first_match_rank == 1).double(),
        "mean_average_precision_at_r": ranking.average_precision_at_r,
        "reid_mean_average_precision": ranking.average_precision,
        "cmc_rank_5": (ranking.first_match_rank <= 5).double(),
    }
    for name, values in expected.items():
        assert found[name] == approx(float(values[counted].mean()), abs=1e-9), name


@pytest.mark.parametrize("alone", [False, True])
def test_csls_ranks_by_the_gallery_and_has_ranking_metrics_only(alone):
    embeddings, labels = crowded()
    query, gallery = (embeddings, embeddings) if alone else (embeddings[:120], embeddings[120:])
    ids, gallery_ids = (labels, labels) if alone else (labels[:120], labels[120:])
    reference = () if alone else (gallery, gallery_ids)
    found = AccuracyCalculator(include=NAMES[:-1], normalize=CSLS(15)).get_accuracy(query, ids, *reference)
    m = torch.tensor(offsets_by_loops(gallery, gallery, 15, range(len(gallery))))
    scores = torch.nn.functional.normalize(query) @ torch.nn.functional.normalize(gallery).T - m / 2
    require_ranks(found, rank_matches_from_distances(-scores, ids, gallery_ids, gallery_includes_query=alone))
    every = AccuracyCalculator(normalize=CSLS(15), ranks=(1, 3)).get_accuracy(query, ids, *reference)
    assert {"cmc_rank_3", "r_precision", "mean_inverse_negative_penalty"} <= every.keys()
    assert not [name for name in every if "opis" in name or "far" in name or name in ("NMI", "f1", "verification_auc")]


def test_a_set_that_searches_itself():
    normalize = by_cohort()
    embeddings, labels = crowded()
    names = ("precision_at_1", "opis", "NMI")
    found, plain = (AccuracyCalculator(include=names, normalize=n).get_accuracy(*crowded()) for n in (normalize, None))
    scores = normalize.scores(embeddings, embeddings)
    ranking = rank_matches_from_distances(-scores, labels, labels, gallery_includes_query=True)
    assert found["precision_at_1"] == float((ranking.first_match_rank == 1).double().mean())
    metric = OPIS(normalize=normalize)
    metric.update(embeddings, labels)
    assert found["opis"] == approx(metric.compute()["opis"], rel=1e-6)
    assert metric.sensitivity([(0.01, 0.1)])[0].opis == approx(found["opis"], rel=1e-6)
    assert plain["opis"] != found["opis"] and plain["NMI"] == approx(found["NMI"], abs=0.1)


def crowded(classes=60, each=5, seed=0):
    """Classes along a line into a crowded corner of the space."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * each) % classes
    crowding = torch.linspace(0, 3, classes)[:, None] * torch.eye(1, 16)
    centres = torch.randn(classes, 16, generator=generator) + crowding
    return centres[labels] + 0.5 * torch.randn(len(labels), 16, generator=generator), labels
