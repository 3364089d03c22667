"""Data sets with a folder per identity: CASIA-WebFace, the cleaned MS-Celeb-1M, or your own images."""

from functools import partial
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import (
    ImageFile,
    entries_of,
    found_in,
    image_sets,
    is_image,
    log_ignored,
    open_set,
    require_folder,
)
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet, published

_TEST_PARTS = ("query", "val", "valid", "validation", "test")
_LAYOUTS = """\
  {0}/<class>/<image>, whose classes are split into training and test classes;
  {0}/{{train,val}}/<class>/<image>, or test in place of val: test images search each other; or
  {0}/{{train,query,gallery}}/<class>/<image>: without gallery, queries search each other"""


def folder_per_identity(root: Path, grey: bool, *, name: str) -> ImageSet:
    """Reads root/name, where every sub-folder with images is an identity, numbered by name; no cameras."""
    require_folder(root / name, f"{root / name}/<identity>/<image>.jpg")
    return image_sets([_images(root / name)], grey)[0]


for _name, _folder, _about in (
    ("MS1MV2", "MS_Celeb_1M", "MS-Celeb-1M, cleaned: to train on"),
    ("CASIAWebFace", "CASIA-WebFace", "CASIA-WebFace (Yi et al., 2014): to train on"),
):
    published(_name, _about, kind=ImageSet)(partial(folder_per_identity, name=_folder))


def own_folder(folder: Path, grey: bool, share: float) -> OpenSet:
    """Reads class folders with images, optionally in the parts train and val (or test), or train, query and gallery.

    A class has the same name in all parts. Without a gallery, test images search each other. There are no cameras, so
    no image is excluded from a search because of its camera.

    Args:
        share: share of the classes (first by name) that train if the folder has no parts, as for CUB and Cars196. 1 if
            the folder is used only for training, 0 if only for tests.
    Raises:
        UserError: another layout; the message lists the expected folders and those found.
    """
    require_folder(folder, f"{folder}/<class>/<image>")
    parts = {}
    for path in entries_of(folder)[0]:
        is_class = any(map(is_image, entries_of(path)[1]))
        if path.name.lower() in ("train", "gallery", *_TEST_PARTS) and not is_class:
            parts[path.name.lower()] = path
    if not parts:
        return _split_by_class(folder, grey, share)
    test = next((name for name in _TEST_PARTS if name in parts), "")
    if "gallery" in parts and test != "query":
        raise _other_layout(folder, "a gallery needs queries")
    if not test and share < 1:
        raise _other_layout(folder, "there are no test images next to train")
    if "train" not in parts and share > 0:
        raise _other_layout(folder, "there are no training images")
    used = [part for part in ("train", test, "gallery") if part in parts]
    train, query, gallery = (_images(parts[part]) if part in parts else [] for part in ("train", test, "gallery"))
    unused = [path.name for path in entries_of(folder)[0] if path.name.lower() not in used]
    note = f"{folder}: {' and '.join(used)} are read; not used: {', '.join(unused)}" if unused else ""
    return open_set([train, query, gallery] if gallery else [train, query], grey, note=note)


def _split_by_class(folder: Path, grey: bool, share: float) -> OpenSet:
    files = _images(folder)
    names = sorted({str(file.identity) for file in files})
    count = int(share * len(names) + 0.5)  # if the number is odd, the middle class trains, as in validation_set
    note = ""
    if 0 < share < 1:
        if len(names) < 2:
            raise _other_layout(folder, f"all images are of one class, {names[0]}; a test needs another one")
        count = min(max(count, 1), len(names) - 1)
        rule = f"the first {count} of {len(names)} classes by name train, the others test"
        note = f"{folder}: {rule} (DATASETS.SPLIT {share:g})"
    trained = set(names[:count])
    train = [file for file in files if file.identity in trained]
    test = [file for file in files if file.identity not in trained]
    return open_set([train, test], grey, note=note)


def _images(folder: Path) -> list[ImageFile]:
    """Returns the images in the class folders of a folder."""
    entries = [path for each in entries_of(folder)[0] for path in entries_of(each)[1]]
    files = [ImageFile(path, path.parent.name) for path in entries if is_image(path)]
    if not files:
        raise _other_layout(folder, "there are no class folders with images")
    log_ignored(folder, entries)
    return files


def _other_layout(folder: Path, problem: str) -> UserError:
    found = "\n".join(f"  {found_in(path)}" for path in (folder, *entries_of(folder)[0][:3]))
    return UserError(f"{folder}: {problem}. Expected\n{_LAYOUTS.format(folder)}.\nFound\n{found}")
