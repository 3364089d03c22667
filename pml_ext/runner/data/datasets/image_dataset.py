"""A user's own data set in Python, with FastReID's interface."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext.runner.data.datasets.data_set import DataSet, OpenSet
from pml_ext.runner.data.datasets.decoding import decode_image, pixels_of
from pml_ext.runner.data.datasets.image_files import ImageFiles, read_image
from pml_ext.runner.data.datasets.image_set import ImageSet, Lazy

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
    about = f"{kind.__module__}.{getattr(kind, '__qualname__', kind)}"
    return DataSet(partial(_read, kind, about), about)


def _read(kind: Callable[..., Any], about: str, root: Path, grey: bool) -> OpenSet:
    try:
        made = kind(root=str(root))
        parts = {part: _items(getattr(made, part)) for part in _PARTS}
    except UserError:
        raise
    except Exception as error:  # whatever a user's class raises
        raise UserError(f"{about} cannot be read: {type(error).__name__}: {error}") from error
    for part, items in parts.items():
        _require_columns(items, f"{about}, {part}")
    junk = getattr(made, "_junk_pids", ())
    cameras = _Numbers(item[2] for items in parts.values() for item in items)
    trained = _Numbers(item[1] for item in parts["train"])
    tested = _Numbers(item[1] for part in _PARTS[1:] for item in parts[part])
    train, query, gallery = (
        _image_set(items, part, grey, trained if part == "train" else tested, cameras, junk, made)
        for part, items in parts.items()
    )
    return OpenSet(train, query, gallery if len(gallery) else None)


def _items(part: Items) -> Sequence[Item]:
    return part() if callable(part) else part


def _require_columns(items: Sequence[Item], of: str) -> None:
    for row, item in enumerate(items):
        is_right = isinstance(item, (tuple, list)) and len(item) >= 3
        if not is_right or (not isinstance(item[0], (str, Path, bytes)) and not callable(item[0])):
            raise UserError(f"{of}: item {row} must be (image, identity, camera); got {item!r:.100}")
        for value, name in zip(item[1:3], ("identity", "camera"), strict=True):
            if not isinstance(value, (int, np.integer, str)):
                raise UserError(f"{of}: the {name} of item {row} must be an integer or a text; got {value!r:.100}")


class _Numbers:
    """Integers as they are, if all values are integers; else the places of the texts in their order."""

    def __init__(self, values: Iterable[int | str]) -> None:
        different = set(values)
        is_numbered = all(not isinstance(value, str) for value in different)
        texts = [] if is_numbered else sorted(map(str, different))
        self._places = {text: place for place, text in enumerate(texts)}
        self.names = dict(enumerate(texts))

    def __getitem__(self, value: int | str) -> int:
        return self._places[str(value)] if self._places else int(value)


def _image_set(
    items: Sequence[Item],
    part: str,
    grey: bool,
    identities: _Numbers,
    cameras: _Numbers,
    junk: Sequence[int | str],
    made: Any,
) -> ImageSet:
    sources = [item[0] for item in items]
    names = [str(source) if isinstance(source, (str, Path)) else f"{part} {i}" for i, source in enumerate(sources)]
    images: Sequence[Tensor] = ImageFiles(names, grey)
    if any(not isinstance(source, (str, Path)) for source in sources):
        images = Lazy(list(zip(sources, names, strict=True)), partial(_image, grey=grey))
    numbers = [JUNK if item[1] in junk else identities[item[1]] for item in items]
    has_columns = bool(items) and len(items[0]) > 3 and hasattr(made, "extras")
    return ImageSet(
        images,
        np.array(numbers, dtype=np.int64),
        np.array([cameras[item[2]] for item in items], dtype=np.int64),
        names,
        identities.names,
        Lazy(items, made.extras) if has_columns else None,
        Lazy(items, _further_columns) if has_columns else None,
    )


def _further_columns(item: Item) -> tuple[Any, ...]:
    return tuple(item[3:])


def _image(source: tuple[Any, str], grey: bool) -> "Tensor":
    image, name = source
    if isinstance(image, (str, Path)):
        return read_image(image, grey)
    if isinstance(image, bytes):
        return decode_image(image, name, grey)
    return pixels_of(image(), grey)
