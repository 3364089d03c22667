"""A small test set with cameras, junk and images that tell their identity."""

import warnings

import numpy as np
import torch
from torch.nn.functional import normalize

from pml_ext.runner.data.datasets import ImageSet, OpenSet


def image_set(identities, cameras, name="image"):
    shades = torch.from_numpy(20 * (identities % 12) + 10).to(torch.uint8)
    images = [shade.expand(1, 8, 8).clone() for shade in shades]
    return ImageSet(images, identities, cameras, [f"{name}_{i}.png" for i in range(len(identities))])


def overhang(figure):
    """Inches by which what is drawn reaches beyond the edges of a panel."""
    beyond = [0.0]
    for panel in figure.panel_figures:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # of scripts that matplotlib's font lacks
            box = panel.get_tightbbox()  # inches
        width, height = panel.get_size_inches()
        beyond += [-box.x0, -box.y0, box.x1 - width, box.y1 - height]
    return max(beyond)


def small_set(name="image"):
    """12 identities, of which a gallery holds 8 images each beside five of junk; and embeddings of both parts."""
    random = np.random.default_rng(0)
    query = image_set(np.repeat(np.arange(12), 3), random.integers(0, 3, 36), name)
    gallery_ids = np.concatenate([np.repeat(np.arange(12), 8), [-1] * 5])
    gallery = image_set(gallery_ids, random.integers(0, 3, len(gallery_ids)), name)
    centres = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
    features = []
    for part in (query, gallery):
        noise = torch.randn(len(part), 6, generator=torch.Generator().manual_seed(len(part)))
        features.append(normalize(centres[np.maximum(part.identities, 0)] + 0.9 * noise))
    return OpenSet(image_set(np.empty(0, int), np.empty(0, int)), query, gallery), features
