"""IJB-B and IJB-C: templates of several images and video frames, compared with each other."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.data_set import DataSet, TemplateSet
from pml_ext.runner.data.datasets.image_files import read_image, require_inside
from pml_ext.runner.data.datasets.image_set import ImageSet, LazyImages
from pml_ext.runner.data.datasets.layout import found_in, matching_lines

if TYPE_CHECKING:
    from torch import Tensor

    from pml_ext.metrics.protocol_files import SearchProtocol

SIDE = 112
# Where ArcFace's crops of 112×112 have the eyes, the nose and the corners of the mouth (x, y).
_LANDMARKS = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)


def template_set(root: Path, grey: bool, *, name: str) -> TemplateSet:
    """insightface's copy of IJB-B or IJB-C: `IJBC/meta/…` and the images in `IJBC/loose_crop/`.

    Faces are aligned by the landmarks of `meta/ijbc_name_5pts_score.txt`. The detector's scores in that file are not
    used: every image of a medium weighs the same. With the lists of the 1:N protocol in `meta/`, templates are searched
    for in both galleries too.
    """
    from pml_ext.metrics.protocol_files import read_template_media, read_template_pairs  # import torch

    folder, lower = root / name, name.lower()
    meta = folder / "meta"
    if not meta.is_dir() or not (folder / "loose_crop").is_dir():
        raise UserError(f"expected {name}/meta and {name}/loose_crop in {root}; {found_in(root)}")
    media = read_template_media(meta / f"{lower}_face_tid_mid.txt")
    pairs = read_template_pairs(meta / f"{lower}_template_pair_label.txt")
    number = r"-?\d+(?:\.\d+)?"
    form = rf"(\S+)((?:\s+{number}){{10}})(?:\s+{number})?"
    lines = matching_lines(meta / f"{lower}_name_5pts_score.txt", form, "image x1 y1 … x5 y5 score")
    landmarks = {line[1]: np.array(line[2].split(), dtype=np.float64).reshape(5, 2) for line in lines}
    if missing := [image for image in media.images if image not in landmarks]:
        raise UserError(f"no landmarks for {len(missing)} images, such as {missing[0]}")
    crops = folder / "loose_crop"
    for image in media.images:
        require_inside(image, crops, str(meta / f"{lower}_face_tid_mid.txt"))
    faces = [(crops / image, landmarks[image]) for image in media.images]
    nobody, names = np.zeros(len(faces), dtype=np.int64), [str(path) for path, _ in faces]
    images = LazyImages(faces, partial(_aligned_face, grey))
    return TemplateSet(ImageSet(images, nobody, np.arange(len(faces)), names), media, pairs, _searches(meta, lower))


def _searches(meta: Path, lower: str) -> "SearchProtocol | None":
    """`meta/ijbc_1N_probe_mixed.csv` and the galleries `G1`, `G2` beside it (IJB-B: `S1`, `S2`); None without any."""
    from pml_ext.metrics.protocol_files import SearchProtocol, read_template_subjects  # import torch

    letter = "S" if lower == "ijbb" else "G"
    galleries = [meta / f"{lower}_1N_gallery_{letter}{number}.csv" for number in (1, 2)]
    files = [meta / f"{lower}_1N_probe_mixed.csv", *galleries]
    missing = [path.name for path in files if not path.is_file()]
    if len(missing) == len(files):
        return None
    if missing:
        raise UserError(f"the 1:N protocol needs {', '.join(path.name for path in files)}; {missing[0]} is missing")
    probes, *enrolled = map(read_template_subjects, files)
    return SearchProtocol(probes, tuple(enrolled))


def _aligned_face(grey: bool, face: tuple[Path, np.ndarray]) -> "Tensor":
    return align(read_image(face[0], grey), face[1])


def align(image: "Tensor", landmarks: np.ndarray) -> "Tensor":
    """uint8 (C, 112, 112): the image under the similarity transform that fits its landmarks best.

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


SETS = {
    name: DataSet(partial(template_set, name=name), f"{about}, templates to test on", TemplateSet)
    for name, about in {
        "IJBB": "IJB-B (Whitelam et al., CVPR workshops 2017)",
        "IJBC": "IJB-C (Maze et al., ICB 2018)",
    }.items()
}
