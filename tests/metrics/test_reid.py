import math

import numpy as np
import pytest
import torch

from pml_ext.metrics import ReIDEvaluator
from tests.functional import oracle_metrics as oracle


def test_equals_the_loops() -> None:
    query, gallery = torch.randn(20, 5).double(), torch.randn(70, 5).double()
    query_ids, gallery_ids = torch.randint(1, 6, (20,)), torch.randint(-1, 6, (70,))
    query_ids[:3] = torch.tensor([99, 98, -1])  # two without a match, one junk
    query_cameras, gallery_cameras = torch.randint(0, 3, (20,)), torch.randint(0, 3, (70,))
    found = ReIDEvaluator(ranks=(1, 3))(query, query_ids, query_cameras, gallery, gallery_ids, gallery_cameras)
    unit = torch.nn.functional.normalize
    distances = (1 - unit(query) @ unit(gallery).T).tolist()
    labels = (v.tolist() for v in (query_ids, gallery_ids, query_cameras, gallery_cameras))
    rows = [row for row in oracle.ranking(distances, *labels) if row]
    assert found == pytest.approx(
        {
            "rank_1": np.mean([row[1] <= 1 for row in rows]),
            "rank_3": np.mean([row[1] <= 3 for row in rows]),
            "mAP": np.mean([row[2] for row in rows]),
            "mINP": np.mean([row[3] for row in rows]),
            "queries": 17,
            "queries_without_match": 2,
        }
    )


def test_no_match_at_all_is_nan() -> None:
    found = ReIDEvaluator()(
        torch.randn(2, 3), torch.tensor([1, 2]), None, torch.randn(2, 3), torch.tensor([3, 4]), None
    )
    assert found["queries_without_match"] == 2
    assert all(math.isnan(found[name]) for name in ("rank_1", "rank_5", "rank_10", "mAP", "mINP"))


def test_errors() -> None:
    with pytest.raises(ValueError, match="ranks must be one or more ranks from 1"):
        ReIDEvaluator(ranks=(0, 1))
