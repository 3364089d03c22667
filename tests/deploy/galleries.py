"""Galleries without a network or images."""

from typing import Any

import numpy as np
import torch

from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.model_record import ModelRecord
from pml_ext.metrics import CohortNormalization

CONFIG: dict[str, Any] = {
    "INPUT.CROP.ENABLED": False, "INPUT.SIZE_TEST": [12, 8], "MODEL.PIXEL_MEAN": [0.0], "TEST.FLIP.ENABLED": False,
}  # fmt: skip


def clustered(count, dim=8, seed=0):
    """Unit rows around one of 60 centres."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(5).standard_normal((60, dim))
    x = centres[generator.integers(0, 60, count)] + 0.3 * generator.standard_normal((count, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def create(folder, dim, *, sha256="0" * 64, labels=False, cohort=None):
    return Gallery.create(folder, ModelRecord(CONFIG, "w", sha256, dim), has_labels=labels, cohort=cohort)


def create_with_cohort(folder, size, k):
    """An empty gallery of normalised scores, and the cohort of so many rows."""
    (folder / "w").write_bytes(b"weights")
    cohort = CohortNormalization.fit(torch.from_numpy(clustered(size, seed=2)), k).with_checkpoint(folder / "w")
    cohort.save(folder / "cohort.npz")
    assert cohort.checkpoint is not None
    return create(folder / "g", 8, sha256=cohort.checkpoint.sha256, cohort=folder / "cohort.npz"), cohort


def add(gallery, x, *, first=0, parts=1):
    """Rows of images first.jpg, …, as so many parts."""
    for rows in np.array_split(np.arange(len(x)), parts):
        names = [f"{first + row}.jpg" for row in rows]
        gallery.add(
            names, [f"class {(first + row) % 7}" for row in rows], [f"hash of {name}" for name in names], x[rows]
        )
    return gallery
