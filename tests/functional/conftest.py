import pytest

from pml_ext._ops import numerics
from pml_ext.functional.loop import partners
from pml_ext.functional.open_set import best_scores
from pml_ext.functional.retrieval import cohort, feature_distances


@pytest.fixture
def blocks_of(monkeypatch):
    """Sets how many entries a block of any kernel has, so that small inputs take several blocks."""

    def set_size(entries):
        monkeypatch.setattr(numerics, "ENTRIES", entries)
        monkeypatch.setattr(feature_distances, "_FEWEST_ROWS", 1)
        for module in (partners, best_scores, cohort, feature_distances):
            monkeypatch.setattr(module, "_ENTRIES", entries)

    return set_size
