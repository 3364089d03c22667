"""A folder per identity: CASIA-WebFace, the clean MS-Celeb-1M, or a user's own images."""

import logging
from functools import partial
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.data_set import DataSet, OpenSet
from pml_ext.runner.data.datasets.image_files import ImageFile, each_its_own_camera, image_set, open_set
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.data.datasets.layout import entries_of, is_image, require_folder, tree

log = logging.getLogger("pml_ext")

_TEST_PARTS = ("query", "val", "valid", "validation", "test")
_PARTS = ("train", "gallery", *_TEST_PARTS)
_LAYOUTS = """\
  {0}/<class>/<image>, whose classes are split into training and test classes;
  {0}/{{train,val}}/<class>/<image>, or test in place of val: test images search each other; or
  {0}/{{train,query,gallery}}/<class>/<image>: without gallery, queries search each other"""


def folder_per_identity(root: Path, grey: bool, *, name: str) -> ImageSet:
    """Every sub-folder of root/name with images is an identity, numbered in the order of their names; no cameras."""
    require_folder(root / name, f"{root / name}/<identity>/<image>.jpg")
    (files,), names = _numbered([_images(root / name, root / name)])
    return image_set(each_its_own_camera(files), grey, names)


def own_folder(folder: Path, grey: bool, share: float) -> OpenSet:
    """Class folders with images; or the parts train and val (or test), or train, query and gallery, of class folders.

    A class has the same name in all parts. Without a gallery, test images search each other. There are no cameras: no
    image is left out of a search for its camera.

    Args:
        share: share of the classes that train if the folder has no parts: the first by name, as for CUB and Cars196. 1
            if the folder is only trained on, 0 if it is only tested on.
    Raises:
        UserError: another layout; the message shows the expected folders and those found.
    """
    require_folder(folder, f"{folder}/<class>/<image>")
    inside = {path.name.lower(): path for path in entries_of(folder)[0]}
    candidates = {name: inside[name] for name in _PARTS if name in inside}
    parts = {name: path for name, path in candidates.items() if not any(map(is_image, entries_of(path)[1]))}
    if not parts:
        return _split_by_class(folder, grey, share)
    test = next((name for name in _TEST_PARTS if name in parts), None)
    if "gallery" in parts and test != "query":
        raise _unlike_all_layouts(folder, "a gallery needs queries")
    if test is None and share < 1:
        raise _unlike_all_layouts(folder, "there are no test images beside train")
    if "train" not in parts and share > 0:
        raise _unlike_all_layouts(folder, "there are no training images")
    used = [part for part in ("train", test, "gallery") if part in parts]
    unused = [path.name for name, path in inside.items() if name not in used]
    found = {part: _images(parts[part], folder) for part in used}
    files, names = _numbered([found.get("train", []), found.get(str(test), []), *filter(None, [found.get("gallery")])])
    note = f"{folder}: {' and '.join(used)} are read; not used: {', '.join(unused)}" if unused else ""
    return open_set(files, grey, names, cameras=False, note=note)


def _split_by_class(folder: Path, grey: bool, share: float) -> OpenSet:
    (files,), names = _numbered([_images(folder, folder)])
    count = int(share * len(names) + 0.5)  # of an odd number the middle one trains, as in validation_set
    if 0 < share < 1:
        if len(names) < 2:
            raise _unlike_all_layouts(folder, f"all images are of one class, {names[0]}; a test needs another one")
        count = min(max(count, 1), len(names) - 1)
    train = [file for file in files if file.identity < count]
    test = [file for file in files if file.identity >= count]
    note = (
        f"{folder}: the first {count} of {len(names)} classes by name train, the others test (DATASETS.SPLIT {share:g})"
    )
    return open_set([train, test], grey, names, cameras=False, note=note if 0 < share < 1 else "")


def _images(folder: Path, whole: Path) -> list[Path]:
    """The images in the class folders of a folder; whole is what the user named."""
    entries = [path for each in entries_of(folder)[0] for path in entries_of(each)[1]]
    files = [*filter(is_image, entries)]
    if not files:
        raise _unlike_all_layouts(whole, f"{folder} has no class folders with images")
    if len(entries) > len(files):
        kinds = ", ".join(sorted({path.suffix or path.name for path in entries} - {path.suffix for path in files}))
        log.info("%s: %d files are left out, no images by their names (%s)", folder, len(entries) - len(files), kinds)
    return files


def _unlike_all_layouts(folder: Path, problem: str) -> UserError:
    return UserError(f"{folder}: {problem}. Expected\n{_LAYOUTS.format(folder)}.\nFound\n{tree(folder)}")


def _numbered(parts: list[list[Path]]) -> tuple[list[list[ImageFile]], dict[int, str]]:
    """The files with their folders' names as numbers, the same in all parts, and the name of each number."""
    names = sorted({path.parent.name for files in parts for path in files})
    numbers = {name: number for number, name in enumerate(names)}
    return [[ImageFile(path, numbers[path.parent.name]) for path in files] for files in parts], dict(enumerate(names))


SETS = {
    name: DataSet(partial(folder_per_identity, name=folder), about, ImageSet)
    for name, folder, about in (
        ("MS1MV2", "MS_Celeb_1M", "MS-Celeb-1M, cleaned: to train on"),
        ("CASIAWebFace", "CASIA-WebFace", "CASIA-WebFace (Yi et al., 2014): to train on"),
    )
}
