"""A user's own data set in Python, with FastReID's interface."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext._names import qualified_name
from pml_ext.runner.data.datasets.decoding import decode_image, pixels_of
from pml_ext.runner.data.datasets.image_files import ImageFiles, numbered, read_image
from pml_ext.runner.data.datasets.image_set import DataSet, ImageSet, Lazy, OpenSet

if TYPE_CHECKING:
    from torch import Tensor

Item = Sequence[Any]
Items = Sequence[Item] | Callable[[], Sequence[Item]]
_PARTS = ("train", "query", "gallery")


class ImageDataset:
    """Images of training, queries and gallery, each a list of (image, identity, camera).

    Items may have more columns; `extras` says what a batch gets of them.

    Args:
        train, query, gallery: a list of tuples, or a function without arguments that returns one. The image is a path,
            the bytes of an image file, or a function without arguments that returns a PIL image. Identity and camera
            are integers or texts, the same in query and gallery. A part that no run asks for may be empty; with an
            empty gallery the queries search each other.
        kwargs: ignored, as in FastReID.

    Identities in `_junk_pids` are never right and never wrong answers.

    >>> from pml_ext.runner.registry import DATASET_REGISTRY
    >>> @DATASET_REGISTRY.register()
    ... class Warehouse(ImageDataset):
    ...     def __init__(self, root="datasets", **kwargs):
    ...         images = [(f"{root}/warehouse/{i}.jpg", f"pallet {i // 4}", i % 2) for i in range(40)]
    ...         super().__init__(images[:20], images[20:], [], **kwargs)
    """

    _junk_pids: Sequence[int | str] = ()

    def __init__(self, train: Items, query: Items, gallery: Items, **kwargs: Any) -> None:
        self.train, self.query, self.gallery = train, query, gallery

    def extras(self, item: Item) -> dict[str, Any]:
        """Further columns of a batch, of an item with more than (image, identity, camera); called where it is read.

        Numbers, arrays and tensors are stacked, all else stays a list. An architecture finds them in its batch.
        """
        return {}


def data_set_of(kind: Callable[..., Any]) -> DataSet:
    """A registered class as the trainer reads it."""
    about = qualified_name(kind)
    return DataSet(partial(_read, kind, about), about)


def _read(kind: Callable[..., Any], about: str, root: Path, grey: bool) -> OpenSet:
    try:
        made = kind(root=str(root))
        given = [getattr(made, part) for part in _PARTS]
        parts = [items() if callable(items) else items for items in given]
    except UserError:
        raise
    except Exception as error:  # whatever a user's class raises
        raise UserError(f"{about} cannot be read: {type(error).__name__}: {error}") from error
    for name, items in zip(_PARTS, parts, strict=True):
        for row, item in enumerate(items):
            _require_item(item, f"{about}, {name}: item {row}")
    train, query, gallery = parts
    # Training identities and those of tests are numbered apart: the first may be integers and the others texts.
    trained, train_names = numbered([item[1] for item in train])
    tested, test_names = numbered([item[1] for item in [*query, *gallery]])
    cameras, _ = numbered([item[2] for items in parts for item in items])
    identities = [trained, *np.split(tested, [len(query)])]
    names = [train_names, test_names, test_names]
    camera_parts = np.split(cameras, np.cumsum([len(train), len(query)]))
    columns = zip(_PARTS, parts, identities, camera_parts, names, strict=True)
    sets = [_image_set(made, grey, *column) for column in columns]
    return OpenSet(*sets[: 3 if len(gallery) else 2])


def _require_item(item: Any, where: str) -> None:
    is_right = isinstance(item, (tuple, list)) and len(item) >= 3
    if not is_right or not (isinstance(item[0], (str, Path, bytes)) or callable(item[0])):
        raise UserError(f"{where} must be (image, identity, camera); got {item!r:.100}")
    for value in item[1:3]:
        if not isinstance(value, (int, np.integer, str)):
            raise UserError(f"{where}: identity and camera must be integers or texts; got {value!r:.100}")


def _image_set(
    made: Any,
    grey: bool,
    part: str,
    items: Sequence[Item],
    identities: np.ndarray,
    cameras: np.ndarray,
    identity_names: Mapping[int, str],
) -> ImageSet:
    junk = getattr(made, "_junk_pids", ())
    identities[[item[1] in junk for item in items]] = JUNK
    sources = [item[0] for item in items]
    names = [str(source) if isinstance(source, (str, Path)) else f"{part} {i}" for i, source in enumerate(sources)]
    images: Sequence[Tensor] = ImageFiles(names, grey)
    if not all(isinstance(source, (str, Path)) for source in sources):
        images = Lazy(list(zip(sources, names, strict=True)), partial(_image, grey=grey))
    found = ImageSet(images, identities, cameras, names, identity_names)
    if len(items) and len(items[0]) > 3 and hasattr(made, "extras"):
        found = replace(found, extras=Lazy(items, made.extras), more=Lazy(items, _further_columns))
    return found


def _further_columns(item: Item) -> tuple[Any, ...]:
    return tuple(item[3:])


def _image(source: tuple[Any, str], grey: bool) -> "Tensor":
    image, name = source
    if isinstance(image, (str, Path)):
        return read_image(image, grey)
    if isinstance(image, bytes):
        return decode_image(image, name, grey)
    return pixels_of(image(), grey)
