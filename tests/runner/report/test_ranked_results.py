"""First results and confusions against nested loops."""

from collections import Counter

import numpy as np
import torch

from pml_ext.runner.data.datasets import OpenSet
from pml_ext.runner.report.ranked_results import confusions, first_results, worst_and_random
from tests.runner.report.small_set import image_set, small_set


def ranked_by_loops(data, query, items):
    """Every place in the order of its distance, without junk and what shares identity and camera with the query."""
    searched, found = data.parts[-1], []
    for q in range(len(query)):
        asked = (data.query.identities[q], data.query.cameras[q])
        kept = [
            i
            for i in range(len(items))
            if searched.identities[i] != -1 and (searched.identities[i], searched.cameras[i]) != asked
        ]
        found.append(sorted(kept, key=lambda i: -float(query[q].double() @ items[i].double())))
    return found


def test_first_results_of_a_gallery():
    data, (query, items) = small_set()
    expected, found = ranked_by_loops(data, query, items), first_results(data, [query, items])
    searched = data.parts[-1].identities
    for q, places in enumerate(expected):
        assert found.items[q].tolist() == places[:10]
        right = [searched[place] == data.query.identities[q] for place in places]
        assert found.right[q].tolist() == right[:10]
        assert found.counts[q].all()
        precisions = [sum(right[: k + 1]) / (k + 1) for k in range(len(right)) if right[k]]
        np.testing.assert_allclose(found.average_precision[q], np.mean(precisions), rtol=1e-9)


def test_queries_that_search_each_other_never_find_themselves():
    identities = np.repeat(np.arange(4), 3)
    data = OpenSet(image_set(identities, identities), image_set(identities, np.arange(12)))
    features = [torch.nn.functional.normalize(torch.randn(12, 4))]
    expected, found = ranked_by_loops(data, features[0], features[0]), first_results(data, features)
    assert found.items.tolist() == [places[:10] for places in expected]
    assert not (found.items == np.arange(12)[:, None]).any()


def test_fewer_results_than_places_are_told_apart():
    identities, cameras = np.array([0, 0, 1]), np.array([0, 1, 0])
    data = OpenSet(image_set(identities, cameras), image_set(identities, cameras))
    found = first_results(data, [torch.eye(3)])
    assert found.counts.sum(axis=1).tolist() == [2, 2, 2], "the query itself is no result"
    assert np.isnan(found.average_precision[2]), "no other image of its identity"


def test_confusions_are_counted_over_the_first_ten_places():
    data, features = small_set()
    lists = first_results(data, features)
    wrong: Counter[tuple[int, int]] = Counter()
    for q, places in enumerate(ranked_by_loops(data, *features)):
        for place in places[:10]:
            pair = (int(data.query.identities[q]), int(data.parts[-1].identities[place]))
            if pair[0] != pair[1]:
                wrong[pair] += 1
    found = confusions(data, lists, 5)
    assert [c.places for c in found] == sorted(wrong.values(), reverse=True)[:5]
    for c in found:
        assert wrong[c.identity, c.taken_for] == c.places
        assert c.of == 30
        assert data.query.identities[c.query] == c.identity
        assert data.parts[-1].identities[c.result] == c.taken_for


def test_the_worst_queries_are_of_different_identities():
    data, features = small_set()
    lists = first_results(data, features)
    identities = data.query.identities
    worst, others = worst_and_random(lists, identities, 4, seed=0)
    lowest = {i: min(lists.average_precision[identities == i]) for i in range(12)}
    assert [identities[q] for q in worst] == sorted(lowest, key=lambda i: lowest[i])[:4]
    assert all(lists.average_precision[q] == lowest[identities[q]] for q in worst)
    assert len(set(others)) == 4 and not set(others) & set(worst)
    assert worst_and_random(lists, identities, 4, seed=0) == (worst, others)
