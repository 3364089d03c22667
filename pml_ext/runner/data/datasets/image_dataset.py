"""Base class of user-defined data sets, with FastReID's interface."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.identities import JUNK, read_ids
from pml_ext._shared.names import qualified_name
from pml_ext.runner.data.datasets.image_files import ImageFiles, numbered, numbered_identities, read_image
from pml_ext.runner.data.datasets.image_set import DataSet, ImageSet, Lazy, OpenSet

if TYPE_CHECKING:
    from torch import Tensor

Item = Sequence[Any]
Items = Sequence[Item] | Callable[[], Sequence[Item]]
_PARTS = ("train", "query", "gallery")


class ImageDataset:
    """Training, query and gallery images, each a list of (image, identity, camera).

    Items have the further columns that the class names in `columns`. A batch has them under these names, and samplers
    get them in the items. A part of the set whose items lack all of them is left without.

    Args:
        train, query, gallery: a list of tuples, or a function without arguments that returns one. The image is a path,
            the bytes of an image file, or a function without arguments that returns a Pillow image or an array.
            Identity and camera are integers or strings, the same in query and gallery, read as in a table: without
            surrounding white space, and none may be missing. A camera `name_0` in training is camera 0 in tests, as in
            FastReID. A part that no run uses may be empty. With an empty gallery the queries search each other.
        kwargs: ignored, as in FastReID.

    Identity −1 is junk, which neither trains nor counts. Identities in the class's `_junk_pids` are distractors: their
    gallery images count as wrong, and DATASETS.COMBINEALL leaves them out.

    >>> from pml_ext.runner.registry import DATASET_REGISTRY
    >>> @DATASET_REGISTRY.register()
    ... class Warehouse(ImageDataset):
    ...     def __init__(self, root="datasets", **kwargs):
    ...         images = [(f"{root}/warehouse/{i}.jpg", f"pallet {i // 4}", i % 2) for i in range(40)]
    ...         super().__init__(images[:20], images[20:], [], **kwargs)
    """

    _junk_pids: Sequence[int | str] = ()
    columns: Sequence[str] = ()
    """Names of the items' columns after (image, identity, camera), such as ("view",)."""

    def __init__(self, train: Items, query: Items, gallery: Items, **kwargs: Any) -> None:
        self.train, self.query, self.gallery = train, query, gallery

    def extras(self, item: Item) -> dict[str, Any]:
        """Returns batch columns that are computed from an item on loading it, such as a mask read from its path.

        In a batch, numbers, arrays and tensors of all columns are stacked; all else becomes a list.
        """
        return {}

    def check_before_run(self, required_files: str | Sequence[str]) -> None:
        """Raises a UserError if one of the files or folders is missing."""
        files = [required_files] if isinstance(required_files, str) else required_files
        for file in files:
            if not Path(file).exists():
                raise UserError(f"{qualified_name(type(self))}: {file} is missing")


def data_set_of(kind: Callable[..., Any], cfg: CN | None = None) -> DataSet:
    """Returns the DataSet of a registered class, whose constructor gets the config if it has an argument `cfg`."""
    about = qualified_name(kind)
    options = {"cfg": cfg} if "cfg" in inspect.signature(kind).parameters else {}
    nobody = (JUNK, *getattr(kind, "_junk_pids", ()))
    return DataSet(partial(_read, partial(kind, **options), about), about, nobody=nobody)


def _read(kind: Callable[..., Any], about: str, root: Path, grey: bool) -> OpenSet:
    data = kind(root=str(root))
    items_of_parts = [getattr(data, part) for part in _PARTS]
    parts = [items() if callable(items) else items for items in items_of_parts]
    further = tuple(getattr(data, "columns", ()))
    train, query, gallery = parts
    named_parts = [(f"{about}, {name}", items) for name, items in zip(_PARTS, parts, strict=True)]
    for where, items in named_parts:
        for row, item in enumerate(items):
            _require_item(item, further, f"{where}: item {row}")
    ids = [_column(items, 1, f"{where}: identity") for where, items in named_parts]
    camera_ids = [_column(items, 2, f"{where}: camera") for where, items in named_parts]
    # Training and test identities are numbered separately: the former may be integers and the latter strings.
    trained, train_names = numbered_identities(ids[0])
    tested, test_names = numbered_identities(ids[1] + ids[2])
    cameras = _numbered_cameras(camera_ids[0], camera_ids[1] + camera_ids[2])
    identities = [trained, *np.split(tested, [len(query)])]
    names = [train_names, test_names, test_names]
    camera_parts = np.split(cameras, np.cumsum([len(train), len(query)]))
    columns = zip(_PARTS, parts, identities, camera_parts, names, strict=True)
    sets = [_image_set(data, grey, *column) for column in columns]
    return OpenSet(*sets[: 3 if len(gallery) else 2])


def _require_item(item: Any, further: tuple[str, ...], where: str) -> None:
    is_right = isinstance(item, (tuple, list)) and len(item) >= 3
    if not is_right or not (isinstance(item[0], (str, Path, bytes)) or callable(item[0])):
        raise UserError(
            f"{where} must be (image, identity, camera), the image a path, the bytes of a file or a function that "
            f"returns it; got {item!r:.100}"
        )
    if len(item) not in (3, 3 + len(further)):
        names = ", ".join(("image", "identity", "camera", *further))
        raise UserError(
            f"{where} has {len(item)} columns, and the class names {names}: name all others, which batches then have, "
            'such as columns = ("view",)'
        )


def _column(items: Sequence[Item], place: int, what: str) -> list[int | str]:
    """Returns the identities or cameras of items, read by the rules of tables."""
    values: list[int | str] = read_ids([item[place] for item in items], len(items), what).tolist()
    return values


def _numbered_cameras(train: Sequence[int | str], tests: Sequence[int | str]) -> np.ndarray:
    """Returns the numbers of the training cameras, then of the test cameras; a camera has the same in both.

    FastReID's sets write camera 0 as `name_0` for training, and as 0 for tests. Training cameras with other names are
    numbered in sorted order, as by FastReID's loader.
    """
    places = [re.fullmatch(r"(.*\D|)(\d{1,18})", str(camera)) for camera in train]
    names = {place and place[1] for place in places}
    if len(names) == 1 and (name := names.pop()) is not None:
        numbers = [str(camera).removeprefix(name) for camera in (*train, *tests)]
        if all(re.fullmatch(r"-?\d{1,18}", number) for number in numbers):
            return np.array(numbers, dtype=np.int64)
    if any(isinstance(camera, str) for camera in tests):
        return numbered([*train, *tests])[0]
    return np.concatenate([numbered(train)[0], numbered(tests)[0]])


def _image_set(
    data: Any,
    grey: bool,
    part: str,
    items: Sequence[Item],
    identities: np.ndarray,
    cameras: np.ndarray,
    identity_names: Mapping[int, str],
) -> ImageSet:
    sources = [item[0] for item in items]
    names = [str(source) if isinstance(source, (str, Path)) else f"{part} {i}" for i, source in enumerate(sources)]
    images: Sequence[Tensor] = ImageFiles(names, grey)
    if not all(isinstance(source, (str, Path)) for source in sources):
        images = Lazy(list(zip(sources, names, strict=True)), partial(_image, grey=grey))
    image_set = ImageSet(images, identities, cameras, names, identity_names)
    if len(items) and len(items[0]) > 3:
        image_set = replace(image_set, more=Lazy(items, _further_columns))
    has_extras = getattr(type(data), "extras", ImageDataset.extras) is not ImageDataset.extras
    if image_set.more is not None or has_extras:
        image_set = replace(image_set, extras=Lazy(items, partial(_batch_columns, data)))
    return image_set


def _further_columns(item: Item) -> tuple[Any, ...]:
    return tuple(item[3:])


def _batch_columns(data: Any, item: Item) -> dict[str, Any]:
    named = dict(zip(data.columns, item[3:], strict=True)) if len(item) > 3 else {}
    return named | (data.extras(item) if hasattr(data, "extras") else {})


def _image(source: tuple[Any, str], grey: bool) -> "Tensor":
    image, name = source
    return read_image(image() if callable(image) else image, grey, name=name)
