"""Glyphs: letters in the typefaces that come with matplotlib; a letter is to be found in another typeface family."""

import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pml_ext.runner.data.datasets.data_set import DataSet, OpenSet
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.data.datasets.typefaces import TYPEFACES, Typeface, font_path

SAME_LOOK = 0.985
"""Cosine of the ink of two characters in the three DejaVu families together, above which they are one identity."""


def glyphs_set(root: Path, grey: bool) -> OpenSet:
    """Latin letters train, those of Greek, Cyrillic, Armenian, Georgian and letter-like symbols test (32×32).

    An identity is a letter, or several that look the same (A of Latin, Greek and Cyrillic: such an identity trains
    where one of them is Latin); the camera is the typeface family (DejaVu Sans, DejaVu Sans Mono, DejaVu Serif, STIX),
    and the family's styles are the pictures. Drawn anew in each run, which takes a second; another version of
    FreeType may smooth edges differently.
    """
    import torch  # as in pixels_of

    table = draw()
    pixels = torch.from_numpy(table.pictures)[:, None]
    images = pixels if grey else pixels.expand(-1, 3, -1, -1)
    # Of characters that look the same the first one is the identity's name.
    called = dict(zip(reversed(table.identities.tolist()), reversed(table.characters.tolist()), strict=True))
    trains = np.isin(table.identities, table.identities[[_name(c).startswith("LATIN") for c in table.characters]])

    def part(rows: np.ndarray) -> ImageSet:
        names = [f"{table.fonts[i]}: {table.characters[i]} ({_name(table.characters[i])})" for i in rows]
        pictures = list(images[torch.from_numpy(rows)])
        return ImageSet(pictures, table.identities[rows], table.families[rows], names, called)

    return OpenSet(part(np.flatnonzero(trains)), part(np.flatnonzero(~trains)))


def _check(root: Path) -> None:
    """Raise UserError where the pictures cannot be drawn; nothing is drawn."""
    for styles in TYPEFACES.values():
        for file, sha256 in styles.items():
            font_path(file, sha256)


@dataclass(frozen=True)
class GlyphTable:
    """Every picture, with what it shows."""

    pictures: np.ndarray  # (N, 32, 32) uint8, black on white
    identities: np.ndarray  # (N,) int64, characters that look the same have one
    families: np.ndarray  # (N,) int64, a family's place in TYPEFACES
    characters: np.ndarray  # (N,) str
    fonts: np.ndarray  # (N,) str, the font's file without its ending


def draw(characters: list[str] | None = None) -> GlyphTable:
    """All pictures of some characters; without any, of every letter that the three DejaVu families have.

    A picture that equals another one of its identity and family to the pixel is left out.
    """
    faces = {
        family: {Path(file).stem: Typeface(file, sha256) for file, sha256 in styles.items()}
        for family, styles in TYPEFACES.items()
    }
    upright = [next(iter(styles.values())) for family, styles in faces.items() if family.startswith("DejaVu")]
    if characters is None:
        everywhere = frozenset.intersection(*(face.characters for face in upright))
        characters = sorted(c for c in everywhere if unicodedata.category(c) in ("Lu", "Ll", "Lt", "Lo"))
    looks = np.stack([[face.picture(c) for c in characters] for face in upright])
    identities = identities_of_looks(looks)
    rows, pictures, seen = [], [], set()
    for family, styles in enumerate(faces.values()):
        for font, face in styles.items():
            for character, identity in zip(characters, identities.tolist(), strict=True):
                if character not in face.characters:
                    continue
                picture = face.picture(character)
                key = (identity, family, picture.tobytes())
                if picture.min() < 255 and key not in seen:
                    seen.add(key)
                    rows.append((identity, family, character, font))
                    pictures.append(picture)
    return GlyphTable(np.stack(pictures), *(np.array(column) for column in zip(*rows, strict=True)))


def identities_of_looks(looks: np.ndarray) -> np.ndarray:
    """(F, N, h, w) uint8 of N characters in F families, black on white, to (N,) identities.

    Two characters are one where the cosine of their ink over all families is above SAME_LOOK, or where a third joins
    them. An identity is the place of its first character.
    """
    ink = 255.0 - looks.transpose(1, 0, 2, 3).reshape(looks.shape[1], -1)
    ink /= np.maximum(np.linalg.norm(ink, axis=1, keepdims=True), 1e-12)
    identities = np.arange(len(ink))
    for first, second in np.argwhere(np.triu(ink @ ink.T > SAME_LOOK, 1)):
        identities[identities == identities[second]] = identities[first]
    return np.unique(identities, return_index=True)[1][np.unique(identities, return_inverse=True)[1]]


def _name(character: str) -> str:
    return unicodedata.name(character, f"U+{ord(character):04X}")


SETS = {"Glyphs": DataSet(glyphs_set, "letters in the typefaces of matplotlib; Latin ones train", check=_check)}
