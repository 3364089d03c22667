"""The first results of every query, and the most confused identities."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pml_ext._identities import JUNK
from pml_ext._ops.normalize import unit_rows
from pml_ext.metrics import ReIDEvaluator
from pml_ext.runner.data.datasets import OpenSet
from pml_ext.runner.evaluation.evaluate import Features

SHOWN = 10
_QUERIES_AT_ONCE = 512


@dataclass(frozen=True)
class RankedLists:
    """The first results of each query under the camera protocol.

    Attributes:
        items: (Q, K) places in what is searched, the closest first.
        right: (Q, K) whether the result is of the query's identity.
        counts: (Q, K) whether there is a result at this place at all.
        average_precision: (Q,) over the whole list; nan where nothing could be found.
    """

    items: np.ndarray
    right: np.ndarray
    counts: np.ndarray
    average_precision: np.ndarray


@dataclass(frozen=True)
class Confusion:
    """Two identities, one of which appears in the results of the other's queries.

    Attributes:
        identity, taken_for: the queries' identity, and that of the wrong results.
        places, of: how many of the queries' first ten places they take, and of how many.
        query, result: places of one such query and result, for a picture.
    """

    identity: int
    taken_for: int
    places: int
    of: int
    query: int
    result: int


def first_results(data: OpenSet, features: Features) -> RankedLists:
    """The first ten results of every query, without those of its own identity and camera, and without junk."""
    queries, items = (unit_rows(features[place]) for place in (0, -1))
    (query_ids, query_cameras), (ids, cameras) = (
        (torch.from_numpy(part.identities), torch.from_numpy(part.cameras)) for part in (data.parts[0], data.parts[-1])
    )
    places, right, counts = [], [], []
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        rows = slice(start, start + _QUERIES_AT_ONCE)
        cosines = queries[rows] @ items.T
        same = query_ids[rows, None] == ids
        cosines[(same & (query_cameras[rows, None] == cameras)) | (ids == JUNK)] = -torch.inf
        best = cosines.topk(min(SHOWN, len(items)), dim=1)
        places.append(best.indices)
        right.append(same.gather(1, best.indices))
        counts.append(best.values > -torch.inf)
    ranking = ReIDEvaluator().per_query(queries, query_ids, query_cameras, items, ids, cameras)
    columns: list[Tensor] = [torch.cat(places), torch.cat(right), torch.cat(counts), ranking.average_precision]
    return RankedLists(*(column.numpy() for column in columns))


def confusions(data: OpenSet, lists: RankedLists, most: int) -> list[Confusion]:
    """The most confused pairs: those where one identity takes most of the first ten places of the other's queries."""
    asked, searched = data.query.identities, data.parts[-1].identities
    wrong = lists.counts & ~lists.right
    query, place = np.nonzero(wrong)
    found = lists.items[query, place]
    first: dict[tuple[int, int], tuple[int, int]] = {}
    pairs = list(zip(asked[query].tolist(), searched[found].tolist(), strict=True))
    for pair, q, item in zip(pairs, query.tolist(), found.tolist(), strict=True):
        first.setdefault(pair, (q, item))
    return [
        Confusion(*pair, places, int(lists.counts[asked == pair[0]].sum()), *first[pair])
        for pair, places in Counter(pairs).most_common(most)
    ]


def worst_and_random(lists: RankedLists, identities: np.ndarray, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Queries of the lowest average precision, one an identity, and random others."""
    countable = np.flatnonzero(~np.isnan(lists.average_precision))
    ascending = countable[np.argsort(lists.average_precision[countable], kind="stable")]
    _, firsts = np.unique(identities[ascending], return_index=True)
    worst = ascending[np.sort(firsts)[:count]]
    others = np.setdiff1d(countable, worst)
    chosen = np.random.default_rng(seed).choice(others, min(count, len(others)), replace=False)
    return worst.tolist(), sorted(chosen.tolist())
