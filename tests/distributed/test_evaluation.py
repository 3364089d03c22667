"""Evaluation that ranks divide equals that of one process exactly, which the third process computes."""

import warnings
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from pytest import approx
from torch import distributed as dist
from torch.nn.functional import normalize

from pml_ext._ops.distributed import gather_in_order
from pml_ext.functional import cohort_offsets, labelled_pairs_roc, rank_matches
from pml_ext.functional.opis.calibration_range import distances_at_ranks
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.metrics import AccuracyCalculator, CohortNormalization
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets import ImageSet, OpenSet, PairSet
from pml_ext.runner.evaluation.run_metrics import Evaluation, device_with_room
from tests.pretend_device import FREE, POSSIBLE, needs_it, pretend_device

CPU = torch.device("cpu")
FARS = (0.1, 1e-2, 1e-3)
LENGTHS = (7, 0, 3)  # of the ranks' rows


def a_set():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1300) // 5
    return torch.randn(260, 16, generator=generator)[labels] + torch.randn(1300, 16, generator=generator), labels


def numbers_of(rank, ranks):
    """Of 0, 1, … in a random order, this rank's."""
    order = torch.randperm(sum(LENGTHS[:ranks]), generator=torch.Generator().manual_seed(0))
    return order.split(list(LENGTHS[:ranks]))[rank]


def rows_of(numbers):
    return torch.stack([numbers, -numbers], dim=1).float()


def a_search(queries, gallery, classes, seed=0):
    """Embeddings, labels (−1 is junk) and cameras; 1,000 are searched in blocks of 70 queries."""
    generator = torch.Generator().manual_seed(seed)
    found, centres = {}, torch.randn(classes, 6, generator=generator)
    for side, count in (("query", queries), ("reference", gallery)):
        labels = torch.randint(classes, (count,), generator=generator)
        found[side] = centres[labels] + torch.randn(count, 6, generator=generator)
        found[f"{side}_labels"] = torch.where(torch.rand(count, generator=generator) < 0.02, -1, labels)
        found[f"{side}_cameras"] = torch.randint(3, (count,), generator=generator)
    return found


SEARCHES = {
    "blocks": a_search(140, 1000, 100),  # two, for three ranks
    "one block": a_search(60, 300, 30),
    "fewer queries than ranks": a_search(1, 60, 2, seed=1),
    "one class": a_search(20, 60, 1),
    "no match": a_search(3, 8, 1000),
}


small_blocks = patch("pml_ext.functional.retrieval.feature_distances._ENTRIES", 70 * 1000)


@small_blocks
def rank(of, group, **options):
    given = SEARCHES[of]
    sides = [given[name] for name in ("query", "query_labels", "reference", "reference_labels")]
    cameras = {"query_cameras": given["query_cameras"], "gallery_cameras": given["reference_cameras"]}
    return list(rank_matches(*sides, **(cameras | options), group=group))


def one_pass(group):
    """Ends of a calibration range."""
    with patch("pml_ext.functional.opis.calibration_range._FEW_SAMPLES", 0):
        return distances_at_ranks(PairDistances(*a_set(), group=group), [100, 3000])


def closest_of_cohort(group):
    samples = SEARCHES["one block"]["reference"]
    with patch("pml_ext.functional.retrieval.cohort._ENTRIES", 2**14):
        return [cohort_offsets(samples, samples, 3, rows=torch.arange(300), group=group)]


SIDE = ("reference", "reference_labels")
RANKED = {
    **{of: lambda group, of=of: rank(of, group) for of in SEARCHES},
    "without cameras": lambda group: rank(
        "blocks", group, query_cameras=None, gallery_cameras=None, metric="euclidean", within=3
    ),
    "the gallery starts with the queries": lambda group: list(
        rank_matches(
            *(SEARCHES["blocks"][name][rows] for rows in (slice(100), slice(None)) for name in SIDE),
            gallery_includes_query=True, group=group,
        )
    ),
    "the closest of a cohort": closest_of_cohort,
}  # fmt: skip

NAMES = (
    "cmc_rank_5",
    "precision_at_1",
    "reid_mean_average_precision",
    "mean_average_precision",
    "opis",
    "epsilon_opis",
)
PAIRS = ("verification_auc", "equal_error_rate", "tar_at_far_1e-2", "spectral_variance")


@small_blocks
def measure(of, group):
    """The calculator's metrics."""
    kind, _, of = of.partition(": ")
    options = {"include": (*NAMES, *PAIRS), "device": torch.device("cpu"), "ranks": (5,)}
    given = SEARCHES[of] | {"group": group}
    if kind == "normalised":
        others = torch.randn(300, given["query"].shape[1], generator=torch.Generator().manual_seed(9))
        options |= {"normalize": CohortNormalization.fit(others, k=3)}
    if kind == "per class":
        options |= {"include": NAMES[:4], "return_per_class": True, "k": "max_bin_count"}
    if kind != "cameras":
        given = {name: value for name, value in given.items() if not name.endswith("cameras")}
    return AccuracyCalculator(**options).get_accuracy(**given)


MEASURED = (
    "cameras: blocks", "plain: blocks", "normalised: one block", "per class: blocks",
    "cameras: fewer queries than ranks", "plain: one class", "cameras: no match",
)  # fmt: skip


def a_test_set(kind):
    def part(identities):
        cameras = np.random.default_rng(1).integers(0, 3, len(identities))
        return ImageSet([""] * len(identities), identities, cameras, [""] * len(identities))

    random, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    query, gallery = part(random.integers(0, 30, 150)), part(random.integers(-1, 35, 300))
    centres = torch.randn(36, 8, generator=generator)
    parts = (query, gallery) if kind == "gallery" else (query,)
    features = [normalize(centres[p.identities] + torch.randn(len(p), 8, generator=generator)) for p in parts]
    if kind == "pairs":
        return PairSet(query, random.random(75) < 0.5), features
    return OpenSet(part(np.arange(0)), query, gallery if kind == "gallery" else None), features


EVERYTHING = "TEST.ROC.ENABLED True TEST.CSLS.ENABLED True TEST.RERANK.ENABLED True TEST.AQE.ENABLED True"
EVALUATED = {"gallery": EVERYTHING, "queries": "TEST.METRICS ('NMI',) TEST.CSLS.ENABLED True", "pairs": ""}


def evaluate(kind, group, device=CPU):
    cfg = get_cfg()
    cfg.merge_from_list(EVALUATED[kind].split())
    return Evaluation(cfg.TEST)(*a_test_set(kind), group, device)


def measurements(group):
    """What the tests compare, by name."""
    found = {"roc": list(labelled_pairs_roc(*a_set(), fars=FARS, group=group)), "ends": one_pass(group)}
    found |= {("ranked", name): made(group) for name, made in RANKED.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is nan
        found |= {("measured", name): measure(name, group) for name in MEASURED}
    found |= {("evaluated", kind): evaluate(kind, group) for kind in EVALUATED}
    if POSSIBLE:  # where the group exchanges no tensors of the CPU
        with pretend_device() as device:
            found |= {("on a device", kind): evaluate(kind, group, device) for kind in EVALUATED}
    return found


def chosen_devices(rank_, group):
    """Where the metrics of embeddings are computed that just have room on the device, and of one byte more."""
    with pretend_device() as device:
        most = 2 * FREE - (dist.get_world_size() - 1)  # the last rank takes the most
        with patch.multiple("pml_ext.runner.evaluation.run_metrics", _COPIES=1, _BLOCKS=rank_):
            rooms = [torch.empty(size, dtype=torch.uint8, device="meta") for size in (most, most + 1)]
            return [str(device_with_room([features], device, group)) for features in rooms]


def on_rank(rank_, ranks):
    group = dist.group.WORLD
    found = measurements(group)
    numbers = numbers_of(rank_, ranks)
    for step in (2, 100):
        for everywhere in (False, True):
            found["gathered", step, everywhere] = gather_in_order(
                rows_of(numbers), numbers, group, step=step, everywhere=everywhere
            )
    found["gathered", "nothing"] = gather_in_order(rows_of(numbers[:0]), numbers[:0], group, everywhere=True)
    return found | ({"room": chosen_devices(rank_, group)} if POSSIBLE else {})


def test_the_curve_is_that_of_one_process(found, alone):
    for of_rank in found:
        for column, expected in zip(of_rank["roc"], alone["roc"], strict=True):
            assert torch.equal(column, expected)


def test_rows_come_together_in_the_order_of_their_numbers(found):
    everything = rows_of(torch.arange(sum(LENGTHS[: len(found)])))
    for step in (2, 100):
        assert torch.equal(found[0]["gathered", step, False], everything)
        assert all(len(other["gathered", step, False]) == 0 for other in found[1:])
        assert all(torch.equal(each["gathered", step, True], everything) for each in found)
    assert all(each["gathered", "nothing"].shape == (0, 2) for each in found)


def test_the_calibration_range_is_that_of_one_process(found, alone):
    expected = alone["ends"]
    assert 0 < expected[0] < expected[1]
    assert all(torch.equal(of_rank["ends"], expected) for of_rank in found)


def test_ranks_of_matches_are_those_of_one_process(found, alone):
    for name, of_rank in product(RANKED, found):
        for field, expected in zip(of_rank["ranked", name], alone["ranked", name], strict=True):
            assert field.dtype == expected.dtype and field.is_contiguous(), name
            assert torch.equal(field.nan_to_num(-1), expected.nan_to_num(-1)), name


def test_the_calculator_gives_what_it_gives_alone(found, alone):
    for name in MEASURED:
        expected = alone["measured", name]
        assert len(expected) > 3
        for of_rank in found:
            assert repr(of_rank["measured", name]) == repr(expected), f"{name}: exactly, nan where it is nan"


@pytest.mark.parametrize("kind", EVALUATED)
def test_the_runner_measures_what_one_process_does(found, alone, kind):
    require_shares([of_rank["evaluated", kind] for of_rank in found], kind, alone["evaluated", kind])


@needs_it
@pytest.mark.parametrize("kind", EVALUATED)
def test_and_on_a_device(found, alone, kind):
    expected = alone["on a device", kind]
    assert expected == approx(alone["evaluated", kind], rel=1e-3, nan_ok=True)
    require_shares([of_rank["on a device", kind] for of_rank in found], kind, expected)


def require_shares(by_rank, kind, expected):
    first, *others = by_rank
    assert repr(first) == repr(expected), "exactly, nan where it is nan"
    # What they have no part in: clusterings, the ranks after re-ranking, and pairs.
    refined = {"reid_mean_average_precision", "cmc_rank_5"} & first.keys()
    for other in others:
        assert bool(other) == (kind == "gallery")
        assert "NMI" not in other and all(other[name] != first[name] for name in refined)
        assert all(other[name] == first[name] for name in other if "csls" in name or "opis" in name)


@needs_it
def test_all_ranks_choose_the_device_where_it_has_room_on_each(found):
    assert all(of_rank["room"] == ["pretend:0", "cpu"] for of_rank in found)
