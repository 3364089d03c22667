import subprocess
import sys

import numpy as np
import pytest
import torch

from pml_ext.functional.retrieval.neighbors import nearest_rows

MEASURE = """
import resource, torch
from pml_ext.functional import expand_features, rerank_blocks
torch.set_num_threads(1)
def measured(count):
    x = torch.randn(count, 16)
    if "{name}" == "expand_features":
        expand_features(x[: count // 4], x[count // 4 :])
    else:
        for _ in rerank_blocks(x[: count // 4], x[count // 4 :]):
            pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = measured(500)
print((measured({count}) - before) // 1024)
"""


@pytest.mark.parametrize("entries", [1, 100, None])
def test_nearest_rows_equal_the_loops(entries: int | None) -> None:
    x = torch.randn(30, 4, dtype=torch.float64)
    places, nearest, largest = nearest_rows(x, 5, "euclidean", entries=entries)
    distances = np.array(
        [[sum((a - b) ** 2 for a, b in zip(u, v, strict=True)) for v in x.tolist()] for u in x.tolist()]
    )
    np.testing.assert_array_equal(places.numpy(), distances.argsort(axis=1)[:, :5])
    np.testing.assert_allclose(nearest.numpy(), np.sort(distances, axis=1)[:, :5], atol=1e-12)
    np.testing.assert_allclose(largest.numpy(), distances.max(axis=1))


@pytest.mark.parametrize(("name", "count", "most"), [("expand_features", 16000, 64), ("rerank_blocks", 10000, 128)])
def test_blocks_do_not_fragment_the_heap(name: str, count: int, most: int) -> None:
    # Measured in a separate process. A block is 8 MB; results allocated between blocks took 1,500 MB at 20,000 samples.
    run = subprocess.run(
        [sys.executable, "-c", MEASURE.format(name=name, count=count)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < most
