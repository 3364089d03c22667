"""IJB-B and IJB-C: templates of several images and video frames, compared with each other."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.image_files import ImageFile, ImageFiles, image_set
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.data.datasets.layout import found_in, lines_of

if TYPE_CHECKING:
    from torch import Tensor

    from pml_ext.metrics.pair_lists import TemplateMedia, TemplatePairs

NAMES = ("IJBB", "IJBC")
SIDE = 112
# Where ArcFace's crops of 112×112 have the eyes, the nose and the corners of the mouth (x, y).
_LANDMARKS = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)


@dataclass(frozen=True)
class TemplateSet:
    """Images of templates, and which templates are compared.

    Attributes:
        images: (N); their identities mean nothing.
        media: template and medium of each image.
        pairs: the comparisons.
    """

    images: ImageSet
    media: "TemplateMedia"
    pairs: "TemplatePairs"

    @property
    def parts(self) -> list[ImageSet]:
        """What a test embeds."""
        return [self.images]


class AlignedFaces(Sequence["Tensor"]):
    """Faces turned, scaled and moved so that their five landmarks lie as in ArcFace's crops of 112×112."""

    def __init__(self, images: ImageFiles, landmarks: np.ndarray) -> None:
        self.images, self.landmarks = images, landmarks

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> "Tensor":  # type: ignore[override]
        return align(self.images[row], self.landmarks[row])


def template_set(root: Path, grey: bool, *, name: str) -> TemplateSet:
    """insightface's copy of IJB-B or IJB-C: `IJBC/meta/…` and the images in `IJBC/loose_crop/`.

    Faces are aligned by the landmarks of `meta/ijbc_name_5pts_score.txt`. The detector's scores in that file are not
    used: every image of a medium weighs the same.

    Raises:
        UserError: another layout, a damaged list, an image without landmarks.
    """
    from pml_ext.metrics.pair_lists import read_template_media, read_template_pairs  # stand on torch

    folder, lower = root / name, name.lower()
    meta = folder / "meta"
    if not meta.is_dir() or not (folder / "loose_crop").is_dir():
        raise UserError(f"{name} at {root}: expected {name}/meta and {name}/loose_crop; {found_in(root)}")
    try:
        media = read_template_media(meta / f"{lower}_face_tid_mid.txt")
        pairs = read_template_pairs(meta / f"{lower}_template_pair_label.txt")
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error
    landmarks = _landmarks(meta / f"{lower}_name_5pts_score.txt")
    if missing := [image for image in media.images if image not in landmarks]:
        raise UserError(f"{name}: no landmarks for {len(missing)} images, such as {missing[0]}")
    faces = image_set([ImageFile(folder / "loose_crop" / image, 0, i) for i, image in enumerate(media.images)], grey)
    assert isinstance(faces.images, ImageFiles)
    points = np.stack([landmarks[image] for image in media.images])
    return TemplateSet(
        ImageSet(AlignedFaces(faces.images, points), faces.identities, faces.cameras, faces.names), media, pairs
    )


def align(image: "Tensor", landmarks: np.ndarray) -> "Tensor":
    """uint8 (C, 112, 112): the image under the similarity transform that fits its landmarks best.

    Args:
        image: uint8 (C, h, w).
        landmarks: (5, 2) x and y of the left eye, the right eye, the nose, and the left and right corner of the mouth.
    Source: the least-squares similarity of Umeyama, TPAMI 1991, from the crop to the image.
    """
    import torch  # as in pixels_of

    # x' = a x − b y + s, y' = b x + a y + t, linear in (a, b, s, t).
    x, y = _LANDMARKS.T
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


def _landmarks(listing: Path) -> dict[str, np.ndarray]:
    """Lines of `image x1 y1 … x5 y5 score`."""
    number = r"-?\d+(?:\.\d+)?"
    line_form = re.compile(rf"(\S+)((?:\s+{number}){{10}})(?:\s+{number})?")
    landmarks = {}
    for place, line in enumerate(lines_of(listing), start=1):
        if not (match := line_form.fullmatch(line)):
            raise UserError(f"{listing}, line {place}: expected `image x1 y1 … x5 y5 score`; got {line[:80]!r}")
        landmarks[match[1]] = np.array(match[2].split(), dtype=np.float64).reshape(5, 2)
    return landmarks
