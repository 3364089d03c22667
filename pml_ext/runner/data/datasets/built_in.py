"""The published data sets, which register without being asked."""

from pml_ext.runner.data.datasets import (
    digits,
    face_pairs,
    folders,
    glyphs,
    ijb,
    listed_sets,
    omniglot,
    reid_folders,
    retrieval,
    training_sets,
)
from pml_ext.runner.registry import DATASET_REGISTRY

for reader in (
    digits, glyphs, omniglot, reid_folders, listed_sets, training_sets, retrieval, folders, face_pairs, ijb
):  # fmt: skip
    for name, data_set in reader.SETS.items():
        DATASET_REGISTRY.register(name)(data_set)
