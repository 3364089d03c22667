"""Person re-identification sets whose identities are in list files: Airport, and NAIC's competitions."""

from dataclasses import dataclass
from pathlib import Path

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import ImageFile, each_its_own_camera, image_set, open_set
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet
from pml_ext.runner.data.datasets.layout import lines_of, require_folder

_FIRST_AT_THE_AIRPORT = 11001  # smaller numbers are nobody's


@dataclass(frozen=True)
class Lists:
    """A round of NAIC.

    Attributes:
        folder: under the root, with the lists.
        images: the folder of the images in it.
        train: the list of the training images.
        between: an image's name and its identity.
        first: how many lines of the list count; 0 for all.
        tested: whether val_query.txt and val_gallery.txt are lists too.
    """

    folder: str
    images: str
    train: str
    between: str = ":"
    first: int = 0
    tested: bool = False


_R1, _R2 = "naic/2020_NAIC/chusai/train", "naic/2020_NAIC/fusai/train"
NAIC = {
    "NAIC19": Lists("naic/2019_NAIC/fusai", ".", "train_list_clean.txt", between=" "),
    "NAIC20_R1": Lists(_R1, "images", "label.txt", first=40188),
    "NAIC20_R1CNV": Lists(_R1, "images_convert", "label.txt", first=40188),
    "NAIC20_R2": Lists(_R2, "images", "naic20r2_train_list_clean.txt", tested=True),
    "NAIC20_R2CNV": Lists(_R2, "images_convert", "naic20r2_train_list_clean.txt", first=53000),
}


def naic(root: Path, grey: bool, *, name: str) -> ImageSet | OpenSet:
    """Persons of a round of NAIC; the lists are those of FastReID's project NAIC20. Without cameras.

    Raises:
        UserError: no such folder or list, or a line of another form.
    """
    lists = NAIC[name]
    folder = root / lists.folder
    require_folder(folder, name, f"{folder}/{lists.train}")
    train = each_its_own_camera(_naic_list(folder, lists, lists.train)[: lists.first or None])
    if not lists.tested:
        return image_set(train, grey)
    query, gallery = (_naic_list(folder, lists, f"val_{part}.txt") for part in ("query", "gallery"))
    return open_set(train, query, [file._replace(camera=1) for file in gallery], grey)


def _naic_list(folder: Path, lists: Lists, name: str) -> list[ImageFile]:
    files = []
    for number, line in enumerate(lines_of(folder / name), start=1):
        image, _, identity = line.rpartition(lists.between)
        if not image or not identity.isdecimal():
            raise UserError(
                f"{folder / name}, line {number}: expected `00040591.png{lists.between}15178`; got {line!r}"
            )
        files.append(ImageFile(folder / lists.images / image, int(identity), 0))
    if not files:
        raise UserError(f"{folder / name} names no images")
    return files


def airport_alert(root: Path, grey: bool) -> ImageSet:
    """Airport (Karanam et al., TPAMI 2019): training images, 6 cameras, by its list filepath.txt.

    Raises:
        UserError: no such folder or list, or a line that is not camera\\identity\\image.
    """
    folder = root / "AirportALERT"
    require_folder(folder, "AirportALERT", f"{folder}/filepath.txt")
    files, cameras = [], dict[str, int]()
    for number, line in enumerate(lines_of(folder / "filepath.txt"), start=1):
        camera, *path = line.split("\\")
        if len(path) < 2 or not path[0].isdecimal():
            raise UserError(f"{folder}/filepath.txt, line {number}: expected `cam1\\11001\\1.jpg`; got {line!r}")
        if int(path[0]) >= _FIRST_AT_THE_AIRPORT:
            place = cameras.setdefault(camera, len(cameras))
            files.append(ImageFile(folder.joinpath(camera, *path), int(path[0]), place))
    if not files:
        raise UserError(f"{folder}/filepath.txt names no person from {_FIRST_AT_THE_AIRPORT} on")
    return image_set(files, grey)
