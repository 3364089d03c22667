"""Data sets with a folder per identity: CASIA-WebFace, the cleaned MS-Celeb-1M, or users' images."""

import os
from functools import partial
from pathlib import Path
from shlex import quote

from pml_ext._shared.errors import UserError
from pml_ext._shared.identities import clean_id
from pml_ext.runner.data.datasets.image_files import (
    FolderImages,
    ImageFile,
    image_sets,
    listing_of,
    open_set,
    require_folder,
    sub_folders,
)
from pml_ext.runner.data.datasets.image_set import DataSet, ImageSet, OpenSet, published
from pml_ext.runner.registry import DATASET_REGISTRY

WHOLE = ""
"""Part of a folder without parts."""
_TEST_PARTS = ("query", "val", "valid", "validation", "test")
_PARTS = ("train", "gallery", *_TEST_PARTS)
_LAYOUTS = """\
  {0}/<class>/<image>, whose classes are split into training and test classes;
  {0}/{{train,val}}/<class>/<image>, or test in place of val: test images search each other; or
  {0}/{{train,query,gallery}}/<class>/<image>: without gallery, queries search each other"""


def folder_per_identity(root: Path, grey: bool, *, name: str) -> ImageSet:
    """Reads root/name, where every sub-folder with images is an identity, numbered by name; no cameras."""
    require_folder(root / name, f"{root / name}/<identity>/<image>.jpg")
    return image_sets([classes_of(FolderImages(root / name))], grey)[0]


for _name, _folder, _about in (
    ("MS1MV2", "MS_Celeb_1M", "MS-Celeb-1M, cleaned: to train on"),
    ("CASIAWebFace", "CASIA-WebFace", "CASIA-WebFace (Yi et al., 2014): to train on"),
):
    published(_name, _about, kind=ImageSet)(partial(folder_per_identity, name=_folder))


def users_folder(folder: Path, grey: bool, share: float) -> OpenSet:
    """Reads class folders with images, optionally in the parts train and val (or test), or train, query and gallery.

    A class has the same name in all parts. Without a gallery, test images search each other. There are no cameras, so
    no image is excluded from a search because of its camera.

    Args:
        share: share of the classes (first by name) that train if the folder has no parts, as for CUB and Cars196. 1 if
            the folder is used only for training, 0 if only for tests.
    Raises:
        UserError: another layout; the message lists the expected and the existing folders.
    """
    require_folder(folder, f"{folder}/<class>/<image>")
    parts = parts_of(folder)
    if WHOLE in parts:
        return _split_by_class(parts[WHOLE], grey, share)
    test = next((name for name in _TEST_PARTS if name in parts), "")
    if "gallery" in parts and test != "query":
        raise _other_layout(folder, "a gallery needs queries")
    if not test and share < 1:
        raise _other_layout(folder, "there are no test images next to train")
    if "train" not in parts and share > 0:
        raise _other_layout(folder, "there are no training images")
    used = [part for part in ("train", test, "gallery") if part in parts]
    train, query, gallery = (classes_of(parts[part]) if part in parts else [] for part in ("train", test, "gallery"))
    unused = [path.name for path in sub_folders(folder) if path.name.lower() not in used]
    note = f"{folder}: {' and '.join(used)} are read; not used: {', '.join(unused)}" if unused else ""
    return open_set([train, query, gallery] if gallery else [train, query], grey, note=note)


def parts_of(folder: Path) -> dict[str, FolderImages]:
    """Returns part -> its images; the part of a folder without parts is WHOLE.

    Raises UserError for the layout of a published set, whose folders are not classes.
    """
    _require_users_layout(folder)
    paths = {path.name.lower(): path for path in sub_folders(folder) if path.name.lower() in _PARTS}
    contents = {name: FolderImages(path) for name, path in paths.items()}
    parts = {name: content for name, content in contents.items() if not _is_class(content)}
    return parts or {WHOLE: FolderImages(folder)}


def _is_class(content: FolderImages) -> bool:
    """Returns whether images lie in the folder itself: a class may have the name of a part."""
    return any("/" not in image for image in content.images)


def classes_of(content: FolderImages) -> list[ImageFile]:
    """Returns the images in class folders, and logs what is left out.

    An image is of the class whose folder it lies in or below: `apple` for apple/1.jpg and apple/green/2.jpg. Folders of
    one name, up to white space and Unicode form, are one class. Raises UserError without class folders, or if all
    images lie deeper.
    """
    folder = content.folder
    inside = [image for image in content.images if "/" in image]
    if not inside:
        raise _other_layout(folder, "there are no class folders with images")
    if all(image.count("/") > 1 for image in inside):
        problem = f"there are no class folders with images; the images lie deeper, such as {folder}/{inside[0]}"
        raise _other_layout(folder, problem)
    if outside := len(content.images) - len(inside):
        content.ignored["images outside class folders"] = outside
    content.log_ignored()
    return [ImageFile(f"{folder}/{image}", clean_id(image.split("/")[0])) for image in inside]


def labelled_images(folder: Path) -> list[ImageFile]:
    """Returns the images of all parts with their classes; a folder without sub-folders is a class."""
    if sub_folders(folder):
        return [file for content in parts_of(folder).values() for file in classes_of(content)]
    content = FolderImages(folder)
    content.log_ignored()
    name = clean_id(Path(os.path.abspath(folder)).name)
    return [ImageFile(f"{folder}/{image}", name) for image in content.images]


def _split_by_class(content: FolderImages, grey: bool, share: float) -> OpenSet:
    folder, files = content.folder, classes_of(content)
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


def _require_users_layout(folder: Path) -> None:
    """Raises a UserError for the folders or lists of a published set, whose classes are not its folders."""
    place = Path(os.path.abspath(folder))
    names = [name for name in DATASET_REGISTRY if _has_marks(place, DATASET_REGISTRY.get(name))]
    names = [name for name in names if place.match(DATASET_REGISTRY.get(name).folder)] or names
    if not names:
        return
    data = DATASET_REGISTRY.get(names[0])
    root = place.parents[data.folder.count("/")] if place.match(data.folder) else place
    chosen = f"""\"('{names[0]}',)\""""
    tests = "and DATASETS.TESTS of another set" if data.kind is ImageSet else f"DATASETS.TESTS {chosen}"
    raise UserError(
        f"{folder} has the layout of {' or '.join(names)}, in which folders are not classes. Train it by its name: "
        f"pml-ext train OwnImages/base.yml DATASETS.ROOT {quote(str(root))} DATASETS.NAMES {chosen} {tests}"
    )


def _has_marks(folder: Path, data: object) -> bool:
    return isinstance(data, DataSet) and bool(data.marks) and all((folder / mark).exists() for mark in data.marks)


def _other_layout(folder: Path, problem: str) -> UserError:
    listing = "\n".join(f"  {listing_of(path)}" for path in (folder, *sub_folders(folder)[:3]))
    return UserError(f"{folder}: {problem}. Expected\n{_LAYOUTS.format(folder)}.\nFound\n{listing}")
