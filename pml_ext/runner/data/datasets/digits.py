"""scikit-learn's handwritten digits: real images that come with the library, for first runs and tests."""

from pathlib import Path

import numpy as np

from pml_ext.runner.data.datasets.data_set import DataSet, OpenSet
from pml_ext.runner.data.datasets.image_set import ImageSet


def digits_set(root: Path, grey: bool) -> OpenSet:
    """Classes 0–4 train (901 images, 8×8), classes 5–9 test (896).

    The set does not say who wrote an image, so each image is its own camera: a query searches all others.
    """
    import torch  # these take seconds, and few runs need the second
    from sklearn.datasets import load_digits

    data = load_digits()
    # 0…16 to 0…255
    pixels = torch.from_numpy((data.images * (255 / 16)).round().astype(np.uint8))[:, None]
    images = pixels if grey else pixels.expand(-1, 3, -1, -1)
    labels = data.target.astype(np.int64)

    def part(rows: np.ndarray) -> ImageSet:
        names = [f"sklearn.datasets.load_digits()[{i}]" for i in rows]
        return ImageSet(list(images[torch.from_numpy(rows)]), labels[rows], np.arange(len(rows)), names)

    return OpenSet(part(np.flatnonzero(labels < 5)), part(np.flatnonzero(labels >= 5)))


SETS = {"Digits": DataSet(digits_set, "scikit-learn's digits: 0–4 train, 5–9 test", check=lambda root: None)}
