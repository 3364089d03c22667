import math

import numpy as np
import pytest
import torch
from pytest import approx
from pytorch_metric_learning import distances
from pytorch_metric_learning.utils import inference
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PMLAccuracyCalculator
from torch.nn.functional import normalize

from pml_ext.functional import epsilon_opis, opis, spectral_variance
from pml_ext.metrics import AccuracyCalculator, VerificationEvaluator
from tests.oracles import metrics as oracle

CPU = torch.device("cpu")
KNN = ("precision_at_1", "mean_average_precision", "mean_average_precision_at_r", "r_precision", "mean_reciprocal_rank")
PER_QUERY = ("cmc_rank_1", "cmc_rank_5", "cmc_rank_10", "mean_inverse_negative_penalty", "reid_mean_average_precision")


def kmeans(x, count):
    """A clustering that does not depend on the machine, of an array, as faiss needs it."""
    return torch.arange(len(np.asarray(x))) % count


def calculator(cls=AccuracyCalculator, **options):
    return cls(device=CPU, kmeans_func=kmeans, **options)


def a_set(count=80, classes=8):
    labels = torch.randint(0, classes, (count,))
    labels[5] = classes  # a query without a match
    x = normalize(torch.randn(classes + 1, 6)[labels] + torch.randn(count, 6))
    return x, labels, torch.randint(0, 3, (count,))


def test_each_of_ours_equals_its_function():
    x, y, _ = a_set()
    result = calculator(far_range=(0.05, 0.2), grid=20, epsilon=0.3).get_accuracy(x, y)
    assert result["opis"] == float(opis(x, y, far_range=(0.05, 0.2), grid=20))
    assert result["epsilon_opis"] == float(epsilon_opis(x, y, epsilon=0.3, far_range=(0.05, 0.2), grid=20))
    assert result["spectral_variance"] == float(spectral_variance(x))
    assert result["f1"] == approx(oracle.clustering_f1(kmeans(x, 9).tolist(), y.tolist()))
    verification = VerificationEvaluator(fars=(1e-2, 1e-3)).of_all_pairs(x, y)
    for name, key in {"tar_at_far_1e-3": None, "verification_auc": "auc", "equal_error_rate": "eer"}.items():
        assert result[name] == approx(verification[key or name], abs=1e-12)
    assert math.isnan(result["tar_at_far_1e-4"])  # under 10,000 impostor pairs


def test_distractors_are_no_class_of_the_threshold_metrics():
    x, y, _ = a_set()
    extra, none = normalize(torch.randn(30, 6)), torch.zeros(30).long() + 77
    keys = ("opis", "tar_at_far_1e-2", "verification_auc", "equal_error_rate")
    plain = calculator(include=keys).get_accuracy(x[:40], y[:40], x[40:], y[40:])
    wanted = torch.isin(y, y[:40])
    assert plain["opis"] == approx(float(opis(x[wanted], y[wanted])), rel=1e-6)
    more = calculator(include=keys).get_accuracy(x[:40], y[:40], torch.cat([x[40:], extra]), torch.cat([y[40:], none]))
    assert more == plain


def test_large_ids_do_not_collide_and_keep_their_order():
    x, y, _ = a_set()
    assert calculator().get_accuracy(x, y + 2**24) == approx(calculator().get_accuracy(x, y), nan_ok=True)
    by_class = calculator(return_per_class=True, include=(*KNN, *PER_QUERY))
    assert by_class.get_accuracy(x, y + 2**24) == by_class.get_accuracy(x, y)


def test_arrays_halves_and_any_memory_layout(tmp_path):
    x, y, cameras = a_set()
    expected = calculator().get_accuracy(x, y, query_cameras=cameras)
    half = x.half()
    assert calculator().get_accuracy(half, y) == approx(calculator().get_accuracy(half.float(), y), nan_ok=True)
    np.save(tmp_path / "x.npy", x.numpy())
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    for view in (x.T.contiguous().T, x.clone().requires_grad_(), np.asfortranarray(x.numpy()), on_disk):
        found = calculator().get_accuracy(view, y.numpy(), query_cameras=cameras.numpy())
        assert found == approx(expected, nan_ok=True)
    nearly = x.double() * (1 + 1e-9)
    mixed = calculator().get_accuracy(nearly.numpy(), y.numpy(), x, y, True)
    assert mixed == approx(calculator().get_accuracy(x, y), nan_ok=True, rel=1e-6)


def test_each_metric_can_be_asked_for_alone():
    x, y, cameras = a_set()
    everything = calculator().get_accuracy(x, y)
    for name, value in everything.items():
        assert calculator(include=(name,)).get_accuracy(x, y) == approx({name: value}, nan_ok=True)
        assert calculator(include=(name,)).get_accuracy(x, y, query_cameras=cameras).keys() == {name}
    assert calculator().get_accuracy(x, y, include=("opis", "f1")).keys() == {"opis", "f1"}
    assert everything.keys() - calculator().get_accuracy(x, y, exclude=["opis"]).keys() == {"opis"}


X, Y, CAMERAS = a_set()


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"include": ("opsi",)}, {}, "include: unknown metric 'opsi'; did you mean 'opis'"),
        ({"ranks": (2, 7), "include": ("cmc_rank_5",)}, {}, r"'cmc_rank_5' needs ranks=\(5,\)"),
        ({"ranks": ()}, {}, "ranks must have at least one rank"),
        ({"k": 0}, {}, "k, unless it is None"),
        ({"avg_of_avgs": True, "return_per_class": True}, {}, "exclude each other"),
        ({}, {"exclude": ("opsi",)}, "exclude: unknown metric 'opsi'"),
        ({}, {"reference_cameras": CAMERAS}, "need reference"),
        ({}, {"query_labels": Y[1:]}, r"query_labels must have shape \(80,\), one label per embedding"),
        ({}, {"reference": X, "reference_labels": Y + 1, "ref_includes_query": True}, "start with the query's entries"),
        (
            {},
            {"reference": X, "reference_labels": Y, "ref_includes_query": True}
            | {"query_cameras": CAMERAS, "reference_cameras": CAMERAS + 1},
            "reference_cameras must start with",
        ),
        ({"return_per_class": True, "include": ("opis", "cmc_rank_1")}, {}, "a value per class, .*; got opis"),
        (
            {"knn_func": print, "include": ("precision_at_1",)},
            {"query_cameras": CAMERAS},
            "cameras into account",
        ),
        ({}, {"query_labels": Y * 0 - 1, "query_cameras": CAMERAS}, "must not be empty; got 0 and 0"),
        ({}, {"query": X * torch.nan}, "query must be finite"),
    ],
)
def test_what_does_not_fit_is_an_error(options, arguments, message):
    with pytest.raises(ValueError, match=message):
        calculator(**options).get_accuracy(**{"query": X, "query_labels": Y, **arguments})


class Own:
    """Metrics that a user adds to PML's calculator, or to ours, as PML's documentation shows."""

    def requires_knn(self):
        return [*super().requires_knn(), "second"]

    def requires_clustering(self):
        return [*super().requires_clustering(), "clusters"]

    def calculate_second(self, knn_labels, query_labels, label_counts, **given):
        counted = (knn_labels[:, 1] == query_labels)[given["not_lone_query_mask"]].double().mean()
        return float(counted + given["lone_query_labels"].sum() + label_counts[1].sum() + given["reference"].sum())

    def calculate_r_precision(self, **given):  # in place of the calculator's
        return -1.0

    def calculate_clusters(self, cluster_labels, query_labels, **given):
        return float((cluster_labels == query_labels).double().mean())


def test_a_users_own_metrics_are_given_what_pml_gives_and_refused_with_cameras():
    x, y, cameras = a_set()
    ours, theirs = (type("Mine", (Own, base), {}) for base in (AccuracyCalculator, PMLAccuracyCalculator))
    for arguments in ((x, y), (x[:40], y[:40], x[40:], y[40:]), (x[:40], y[:40], x, y, True)):
        expected = calculator(theirs).get_accuracy(*arguments)
        found = calculator(ours).get_accuracy(*arguments, include=tuple(expected))
        assert found == approx(expected, rel=1e-6, nan_ok=True) and {"second", "clusters"} <= found.keys()
    with pytest.raises(ValueError, match="second cannot take cameras into account"):
        calculator(ours, include=("second", "cmc_rank_1")).get_accuracy(x, y, query_cameras=cameras)


def test_names_for_hooks_that_maximise_and_for_sql():
    x, y, _ = a_set()
    falling = ("opis", "epsilon_opis", "equal_error_rate", "spectral_variance")
    names = (*(f"negative_{name}" for name in falling), "tar_at_far_1em2")
    named = calculator(include=names)
    assert set(named.get_curr_metrics()) == set(names) and all(name.isidentifier() for name in names)
    found, plain = named.get_accuracy(x, y), calculator().get_accuracy(x, y)
    assert found == {"tar_at_far_1em2": plain["tar_at_far_1e-2"]} | {f"negative_{n}": -plain[n] for n in falling}


def test_what_a_label_comparison_refuses():
    x, y, cameras = a_set()
    options = {"label_comparison_fn": lambda a, b: a == b}
    ours = calculator(**options, exclude=("NMI", "AMI"))
    assert ours.get_accuracy(x, y).keys() == set(KNN), "what this package adds steps aside"
    with pytest.raises(NotImplementedError, match=r"^opis compare labels for equality, not by label_comparison"):
        calculator(**options, include=("opis", "r_precision"))
    with pytest.raises(NotImplementedError, match=r"^cmc_rank_1 compare labels for equality"):
        ours.get_accuracy(x, y, include=("cmc_rank_1",))
    with pytest.raises(NotImplementedError, match=r"^AMI, NMI compare labels for equality"):
        calculator(**options)
    with pytest.raises(NotImplementedError, match="cameras cannot be combined"):
        ours.get_accuracy(x, y, query_cameras=cameras)


def near(a, b):
    return (a - b).abs() < 2


def any_alike(a, b):
    return (a == b).any(dim=-1)


BY_COSINE = inference.CustomKNN(distances.CosineSimilarity())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3},
        {"k": 4},
        {"k": "max_bin_count"},
        {"avg_of_avgs": True},
        {"return_per_class": True},
        {"label_comparison_fn": near, "k": 7},
        {"label_comparison_fn": any_alike, "return_per_class": True},
        {"knn_func": BY_COSINE, "avg_of_avgs": True},
    ],
)
def test_pmls_metrics_are_pmls(options):
    x, y, _ = a_set()
    if options != {"k": 3}:
        x = x * (0.2 + torch.rand(len(x), 1))  # cosines and distances rank differently
    if options.get("label_comparison_fn") is any_alike:
        y = torch.stack([y, y.flip(0)], dim=1)
    options = {"include": KNN, **options} if "label_comparison_fn" in options else options
    for arguments in ((x, y), (x[:40], y[:40], x[40:], y[40:]), (x[:40], y[:40], x, y, True)):
        expected = calculator(PMLAccuracyCalculator, **options).get_accuracy(*arguments)
        if options.keys() <= {"k"}:  # ours, beside them
            expected |= calculator(include=PER_QUERY).get_accuracy(*arguments)
        found = calculator(**{**options, "include": tuple(expected)}).get_accuracy(*arguments)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            # PML divides in float32 for the reciprocal ranks.
            assert found[name] == approx(value, rel=1e-6 if name in KNN else 0, nan_ok=True), name


@pytest.mark.parametrize("case", ["one set", "one set with cameras", "two sets with cameras"])
def test_every_ranking_metric_is_that_of_the_loops_and_respects_cameras(case):
    x, y, cameras = a_set()
    query, gallery = (slice(30), slice(30, None)) if case.startswith("two") else (slice(None), slice(None))
    given = {}
    if "cameras" in case:
        y[50:53] = -1
        x *= 0.5 + torch.rand(80, 1)  # PML's metrics are by L2, ours by cosine
        given["query_cameras"] = cameras[query]
    if case.startswith("two"):
        given |= {"reference": x[gallery], "reference_labels": y[gallery], "reference_cameras": cameras[gallery]}
    found = calculator(ranks=(2, 7)).get_accuracy(x[query], y[query], **given)
    assert [name for name in found if name.startswith("cmc")] == ["cmc_rank_2", "cmc_rank_7"]
    parts = [v.tolist() for v in (y[query], y[gallery], cameras[query], cameras[gallery])]

    def columns(points):
        distances = torch.cdist(points[query], points[gallery]).tolist()
        rows = oracle.ranking(distances, *parts[: 4 if given else 2], includes_query=not given)
        rows = [row for row, label in zip(rows, parts[0], strict=True) if row and label != -1]
        return (np.array(column, dtype=float) for column in zip(*rows, strict=True))

    _, first, ap, _, ap_at_r, r_precision = columns(x.double())
    expected = {
        "precision_at_1": first == 1,
        "mean_average_precision": ap,
        "mean_average_precision_at_r": ap_at_r,
        "r_precision": r_precision,
        "mean_reciprocal_rank": 1 / first,
    }
    _, first, ap, inp, _, _ = columns(normalize(x.double()))
    expected |= {
        "cmc_rank_2": first <= 2,
        "cmc_rank_7": first <= 7,
        "mean_inverse_negative_penalty": inp,
        "reid_mean_average_precision": ap,
    }
    assert {name: found[name] for name in expected} == approx({n: v.mean() for n, v in expected.items()})


def test_float64_is_not_rounded():
    x, y = torch.tensor([[5.0], [5.0 + 1e-8], [5.0 + 3e-8]], dtype=torch.float64), torch.tensor([0, 0, 1])
    assert calculator(include=("precision_at_1",)).get_accuracy(x, y) == {"precision_at_1": 1.0}


def test_per_class_values():
    x, y, _ = a_set()
    by_class = calculator(return_per_class=True, include=(*KNN, *PER_QUERY)).get_accuracy(x, y)
    assert by_class["cmc_rank_1"] == approx(by_class["precision_at_1"])
    assert by_class["reid_mean_average_precision"] == approx(by_class["mean_average_precision"])
    assert len(by_class["mean_inverse_negative_penalty"]) == 8  # the class without a match is left out, as by PML
    average = calculator(avg_of_avgs=True, include=(*KNN, *PER_QUERY)).get_accuracy(x, y)
    assert average == approx({name: np.mean(values) for name, values in by_class.items()})


def test_a_k_too_small_for_a_metric_is_logged(caplog):
    x, y, _ = a_set()
    calculator(include=("r_precision",), k=1).get_accuracy(x, y)
    assert "k=1 is less than the 12 matches of a query" in caplog.text


def test_nothing_is_clustered_for_f1_alone_unless_it_is_named():
    x, y, _ = a_set()
    without = calculator(exclude=("NMI", "AMI"))
    assert "f1" not in without.get_curr_metrics() and "f1" not in without.get_accuracy(x, y)
    assert "f1" not in calculator().get_accuracy(x, y, exclude=["NMI", "AMI"])
    assert "f1" in without.get_accuracy(x, y, include=["f1"])
    assert "f1" in calculator(include=("f1", "r_precision")).get_accuracy(x, y)
    assert "f1" in calculator(exclude=("NMI",)).get_accuracy(x, y)


class Indexed:
    """Rows with an index, like a filtered Series or DataFrame of pandas: [] takes names of rows, not places."""

    def __init__(self, rows):
        self.rows = rows

    def __array__(self, dtype=None, copy=None):
        return self.rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, name):
        raise KeyError(name)

    def __iter__(self):
        return iter(self.rows)


def test_rows_with_an_index_are_read_by_position():
    torch.manual_seed(0)
    rows, labels = torch.randn(24, 4).numpy()[::-1], np.arange(24)[::-1] % 6
    cameras, same = np.arange(24) % 4, np.arange(24) % 2 == 0
    calculator = AccuracyCalculator(include=("precision_at_1", "cmc_rank_1"), device=torch.device("cpu"))
    expected = calculator.get_accuracy(rows.copy(), labels.copy(), query_cameras=cameras)
    given = Indexed(rows), Indexed(labels)
    assert calculator.get_accuracy(*given, query_cameras=Indexed(cameras)) == expected
    scores, evaluator = torch.randn(24), VerificationEvaluator(folds=None)
    expected = evaluator.of_scores(scores, same)
    assert evaluator.of_scores(scores, Indexed(same)) == approx(expected, nan_ok=True)
    with pytest.raises(TypeError, match=r"scores must be a torch.Tensor of shape \(P,\); got Indexed"):
        evaluator.of_scores(Indexed(scores.numpy()), same)
    with pytest.raises(ValueError, match=r"query_labels must have shape \(24,\)"):
        calculator.get_accuracy(rows, Indexed(labels[:, None]))


def test_cameras_that_exclude_nothing_change_nothing_and_two_distances_are_logged_once(caplog):
    torch.manual_seed(0)
    labels = torch.arange(12).repeat(6)
    rows = (torch.randn(72, 8) + 1.2 * torch.randn(12, 8)[labels]) * (0.3 + 3 * torch.rand(72, 1))
    mixed = AccuracyCalculator(device=torch.device("cpu"))
    alone = mixed.get_accuracy(rows, labels)
    of_pml = PMLAccuracyCalculator(include=KNN, device=torch.device("cpu")).get_accuracy(rows, labels)
    assert {name: alone[name] for name in of_pml} == approx(of_pml, rel=1e-6)
    assert mixed.get_accuracy(rows, labels, query_cameras=torch.arange(72)) == approx(alone, nan_ok=True)
    assert [record.message for record in caplog.records] == [
        "the rows are not of length 1: mean_average_precision, mean_average_precision_at_r, mean_reciprocal_rank, "
        "precision_at_1, r_precision by L2 distance, as in PML, the others by cosine"
    ]
    AccuracyCalculator(include=KNN).get_accuracy(rows, labels)
    mixed.get_accuracy(normalize(rows), labels)
    assert len(caplog.records) == 1
