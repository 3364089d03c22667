"""Face sets: insightface's training records and image pairs, and IJB's pairs of templates of several images."""

import io
import mmap
import pickle
import struct
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import read_regular, require_regular
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_files import listing_of, matching_lines, read_image, require_inside
from pml_ext.runner.data.datasets.image_set import ImageSet, Lazy, LazyImages, PairSet, TemplateSet, published

if TYPE_CHECKING:
    from torch import Tensor

# --- MXNet RecordIO files: train.rec and train.idx ---

_MAGIC = 0xCED7230A
_PART = struct.Struct("<II")  # magic; kind of part (3 bits) and length (29 bits)
_HEADER = struct.Struct("<IfQQ")  # number of further labels, label, id, second id
_LENGTH_BITS = 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_FURTHER = (_PART.size + _HEADER.size) // 4  # offset of the first further label, in 4-byte words
_AT_A_TIME = 2**16


class RecordFile:
    """Records of a .rec file by their offset. The file is memory-mapped and shared by processes and threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            require_regular(path)
            with path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise UserError(f"record file {path} cannot be read: {error}") from error
        if hasattr(mmap, "MADV_RANDOM"):
            self._content.madvise(mmap.MADV_RANDOM)  # otherwise the system also reads the images between the headers

    def __reduce__(self) -> tuple[type["RecordFile"], tuple[Path]]:
        return RecordFile, (self.path,)  # another process opens the file itself

    def headers(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first label of each record, (N,) float32, and whether it has an image, (N,) bool."""
        parts = np.split(offsets, range(_AT_A_TIME, len(offsets), _AT_A_TIME))
        labels, has_image = zip(*map(self._some_headers, parts), strict=True)
        return np.concatenate(labels), np.concatenate(has_image)

    def _some_headers(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        words = np.frombuffer(self._content, dtype="<u4", count=len(self._content) // 4)
        places = offsets // 4
        is_record = (offsets >= 0) & (offsets % 4 == 0) & (places + _FURTHER <= len(words))
        places = np.where(is_record, places, 0)
        magic, part, count, label = (words[np.minimum(places + i, len(words) - 1)] for i in range(4))
        kind, length = part >> _LENGTH_BITS, part & (2**_LENGTH_BITS - 1)
        image_length = length - 4.0 * count - _HEADER.size
        is_record &= (magic == _MAGIC) & ((kind == _FIRST) | (kind == _WHOLE) & (image_length >= 0))
        for offset in offsets[~is_record][:1].tolist():
            raise UserError(f"{self.path}: no record at byte {offset}: the file or its index is damaged or truncated")
        further = words[np.minimum(places + _FURTHER, len(words) - 1)]
        return np.where(count > 0, further, label).view("<f4"), (kind == _FIRST) | (image_length > 0)

    def image(self, offset: int) -> bytes:
        """Returns the image file of a record, which follows its labels."""
        # A record that contains the magic number is split there into parts.
        kind, content = self._part(offset)
        parts = [content]
        while kind in (_FIRST, _MIDDLE):
            offset += _PART.size + len(content) + (-len(content)) % 4
            kind, content = self._part(offset)
            parts.append(content)
        record = struct.pack("<I", _MAGIC).join(parts)
        return record[_HEADER.size + 4 * _HEADER.unpack_from(record)[0] :]

    def _part(self, offset: int) -> tuple[int, bytes]:
        magic, part = _PART.unpack_from(self._content, offset)
        start, length = offset + _PART.size, part & (2**_LENGTH_BITS - 1)
        content = self._content[start : start + length]
        if magic != _MAGIC or len(content) < length:
            raise ValueError(f"{length} bytes expected at byte {start}, {len(content)} found")
        return part >> _LENGTH_BITS, content


def record_set(path: Path, grey: bool) -> ImageSet:
    """Reads the images and identities of a .rec file with its .idx file in the same folder; no cameras."""
    keys, offsets = _index(path.with_suffix(".idx"))
    file = RecordFile(path)
    if not len(keys):
        raise UserError(f"{path} contains no images: its index is empty")
    labels, has_image = file.headers(offsets)
    # insightface's record 0 contains the end of the images; the records after it describe identities, without an image.
    end = np.float32(has_image.sum() + 1)
    if keys[0] == 0 and not has_image[0] and labels[0] != end:
        raise UserError(f"{path}: its first record announces {labels[0] - 1:.0f} images; its index has {end - 1:.0f}")
    keys, offsets, labels = keys[has_image], offsets[has_image], labels[has_image]
    # A 32-bit float distinguishes integers only below 2^24.
    for row in np.flatnonzero(~((labels >= 0) & (labels < 2**24) & (labels == np.floor(labels))))[:1].tolist():
        raise UserError(
            f"{path}: the identity of record {keys[row]} must be an integer from 0 to 2^24 - 1; got {labels[row]:g}"
        )
    names = Lazy(keys, partial("{}[{}]".format, path))
    return ImageSet(Lazy(offsets, partial(_image, file, grey)), labels.astype(np.int64), np.arange(len(keys)), names)


def _image(file: RecordFile, grey: bool, offset: np.int64) -> "Tensor":
    name = f"{file.path} at byte {offset}"
    try:
        content = file.image(int(offset))
    except (ValueError, struct.error) as error:
        raise UserError(f"image {name} cannot be read, the file is damaged or truncated: {error}") from error
    return decode_image(content, name, grey)


def _index(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sorted keys of an .idx file and their offsets; the file has lines of `key<tab>offset`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # NumPy's response to text that is not all numbers
            numbers = np.fromstring(read_regular(path).decode("ascii"), dtype=np.int64, sep=" ")
        keys, offsets = numbers.reshape(-1, 2).T
    except (OSError, ValueError, DeprecationWarning) as error:
        raise UserError(f"record index {path} cannot be read: {error}") from error
    order = np.argsort(keys, kind="stable")
    return keys[order], offsets[order]


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
