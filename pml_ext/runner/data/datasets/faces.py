"""Face verification sets: insightface's image pairs, and IJB's pairs of templates of several images."""

import io
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pml_ext._errors import UserError
from pml_ext._files import read_regular
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_files import (
    listing_of,
    matching_lines,
    read_image,
    require_inside,
)
from pml_ext.runner.data.datasets.image_set import ImageSet, LazyImages, PairSet, TemplateSet, published

if TYPE_CHECKING:
    from torch import Tensor

# --- pairs of images ---

PAIR_FOLDERS = ("", "faces_emore_val", "faces_emore", "faces_webface_112x112", "val")
PAIRS = {
    "LFW": "Labeled Faces in the Wild (Huang et al., 2007)",
    "CFP_FP": "Celebrities in Frontal-Profile (Sengupta et al., WACV 2016), frontal and profile",
    "CFP_FF": "Celebrities in Frontal-Profile, both frontal",
    "AgeDB_30": "AgeDB (Moschoglou et al., CVPR workshops 2017), 30 years apart",
    "CALFW": "Cross-Age LFW (Zheng et al., 2017)",
    "CPLFW": "Cross-Pose LFW (Zheng and Deng, 2018)",
    "VGG2_FP": "VGGFace2 (Cao et al., FG 2018), frontal and profile",
}


def pair_set(root: Path, grey: bool, *, name: str) -> PairSet:
    """Reads insightface's `<name>.bin` from the root or one of the folders it is published in."""
    file = f"{name.lower()}.bin"
    for folder in PAIR_FOLDERS:
        if (root / folder / file).is_file():
            return read_bin(root / folder / file, grey)
    folders = ", ".join(str(root / folder) for folder in PAIR_FOLDERS)
    raise UserError(
        f"no {file} in {folders}; {listing_of(root)}. It is part of insightface's training sets (faces_emore)"
    )


def read_bin(path: Path, grey: bool) -> PairSet:
    """Reads an insightface verification file: a pickle of (image files as bytes, whether each pair is the same)."""
    try:
        contents, flags = _Unpickler(io.BytesIO(read_regular(path)), encoding="bytes").load()
        images, same = list(map(_content, contents)), list(map(_flag, flags))
    except Exception as error:  # errors of a damaged or hostile pickle have no common class
        raise UserError(f"{path} is not a verification file of insightface, or damaged: {error!s:.200}") from error
    if len(images) != 2 * len(same) or not same:
        raise UserError(f"{path}: expected two images a pair; got {len(images)} images for {len(same)} pairs")
    names = [f"{path}[{i}]" for i in range(len(images))]
    nobody = np.zeros(len(images), dtype=np.int64)
    lazy = LazyImages(list(zip(images, names, strict=True)), partial(_decode, grey))
    return PairSet(ImageSet(lazy, nobody, nobody, names), np.array(same))


def _decode(grey: bool, image: tuple[bytes, str]) -> "Tensor":
    return decode_image(*image, grey)


class _Array:
    """The bytes of NumPy arrays, scalars and dtypes in a pickle: a real array of a hostile dtype contains pointers."""

    def __init__(self, *arguments: Any) -> None:
        self.content = arguments[-1]  # for a scalar

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.content = state[-1]

    def __iter__(self) -> Iterator[int]:
        return iter(self.content)


class _Encode(_Array):
    """`_codecs.encode`, which Python 3 uses to write bytes for Python 2."""

    def __new__(cls, text: str, encoding: str) -> bytes:  # type: ignore[misc]
        return text.encode("latin1")


# Classes, because a pickle can set attributes of a function; those of _Array refuse a state.
_CALLED = {
    "_codecs.encode": _Encode,
    "numpy.ndarray": _Array,
    "numpy.dtype": _Array,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.core.multiarray.scalar": _Array,
}


class _Unpickler(pickle._Unpickler):
    """Builds lists, tuples, numbers, bytes and flat arrays, and calls only the functions in _CALLED.

    Uses the Python unpickler, because the C one allocates memory for any memo index in a file.
    """

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if full not in _CALLED:
            raise ValueError(f"it contains {full[:80]}, but only arrays and bytes are allowed in the pickle")
        return _CALLED[full]


def _content(image: Any) -> bytes:
    content = image.content if isinstance(image, _Array) else image
    if not isinstance(content, bytes):
        raise ValueError(f"an image must be bytes; got {type(content).__name__}")
    return content


def _flag(value: Any) -> bool:
    number = int.from_bytes(value.content, "little") if isinstance(value, _Array) else value
    if number not in (0, 1):
        raise ValueError(f"whether a pair is the same must be 0 or 1; got {type(value).__name__}")
    return bool(number)


for _name, _about in PAIRS.items():
    published(_name, f"{_about}, in pairs to test on", kind=PairSet)(partial(pair_set, name=_name))

# --- pairs of templates ---

SIDE = 112
# Where ArcFace's crops of 112×112 have the eyes, the nose and the corners of the mouth (x, y).
LANDMARKS = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)


def template_set(root: Path, grey: bool, *, name: str) -> TemplateSet:
    """Reads insightface's copy of IJB-B or IJB-C: `IJBC/meta/…` and the images in `IJBC/loose_crop/`.

    Faces are aligned by the landmarks in `meta/ijbc_name_5pts_score.txt`. The detector's scores in that file are not
    used: all images of a medium have the same weight.
    """
    from pml_ext.metrics.protocol_files import read_template_media, read_template_pairs  # import torch

    meta, crops, prefix = root / name / "meta", root / name / "loose_crop", name.lower()
    if not meta.is_dir() or not crops.is_dir():
        raise UserError(f"expected {name}/meta and {name}/loose_crop in {root}; {listing_of(root)}")
    media = read_template_media(meta / f"{prefix}_face_tid_mid.txt")
    pairs = read_template_pairs(meta / f"{prefix}_template_pair_label.txt")
    number = r"-?\d+(?:\.\d+)?"
    form = rf"(\S+)((?:\s+{number}){{10}})(?:\s+{number})?"
    lines = matching_lines(meta / f"{prefix}_name_5pts_score.txt", form, "image x1 y1 … x5 y5 score")
    landmarks = {line[1]: np.array(line[2].split(), dtype=np.float64).reshape(5, 2) for line in lines}
    faces = []
    for image in media.images:
        require_inside(image, crops, str(meta / f"{prefix}_face_tid_mid.txt"))
        if image not in landmarks:
            raise UserError(f"{meta / prefix}_name_5pts_score.txt has no landmarks for {image}")
        faces.append((crops / image, landmarks[image]))
    nobody, names = np.zeros(len(faces), dtype=np.int64), [str(path) for path, _ in faces]
    images = ImageSet(LazyImages(faces, partial(_aligned_face, grey)), nobody, np.arange(len(faces)), names)
    return TemplateSet(images, media, pairs)


def _aligned_face(grey: bool, face: tuple[Path, np.ndarray]) -> "Tensor":
    path, landmarks = face
    return align(read_image(path, grey), landmarks)


def align(image: "Tensor", landmarks: np.ndarray) -> "Tensor":
    """Returns the aligned face, uint8 (C, 112, 112): the image after the best similarity transform of its landmarks.

    landmarks: (5, 2) x and y of the left eye, the right eye, the nose, and the left and right corner of the mouth.
    Source: the least-squares similarity of Umeyama, TPAMI 1991, from the crop to the image.
    """
    import torch  # as in pixels_of

    # x' = a x − b y + s, y' = b x + a y + t, linear in (a, b, s, t).
    x, y = LANDMARKS.T
    one, zero = np.ones(5), np.zeros(5)
    system = np.concatenate([np.stack([x, -y, one, zero], 1), np.stack([y, x, zero, one], 1)])
    a, b, s, t = np.linalg.lstsq(system, np.concatenate([landmarks[:, 0], landmarks[:, 1]]), rcond=None)[0]
    columns, rows = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    height, width = image.shape[-2:]
    # grid_sample's coordinates run from −1 to 1 between the centres of the outermost pixels.
    places = np.stack([a * columns - b * rows + s, b * columns + a * rows + t], -1)
    places = 2 * places / np.maximum([width - 1, height - 1], 1) - 1
    grid = torch.from_numpy(places.astype(np.float32))[None]
    face = torch.nn.functional.grid_sample(image[None].float(), grid, align_corners=True)[0]
    aligned: Tensor = face.round().clamp(0, 255).to(torch.uint8)
    return aligned


for _name, _about in (
    ("IJBB", "IJB-B (Whitelam et al., CVPR workshops 2017)"),
    ("IJBC", "IJB-C (Maze et al., ICB 2018)"),
):
    published(_name, f"{_about}, templates to test on", kind=TemplateSet)(partial(template_set, name=_name))
