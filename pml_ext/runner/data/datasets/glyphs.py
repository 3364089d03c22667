"""Glyphs: letters in the typefaces bundled with matplotlib; a query searches its letter in other typeface families."""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import sha256_of
from pml_ext.runner.data.datasets.image_set import ImageSet, OpenSet, published

SAME_LOOK = 0.985
"""Cosine of two characters' ink in the three DejaVu families together, above which they are one identity."""
SIDE = 32
_POINTS, _BASELINE = 22, 24

# Family -> its styles; the first style is the upright one. Each font file with the SHA-256 of its content.
TYPEFACES: dict[str, dict[str, str]] = {
    "DejaVu Sans": {
        "DejaVuSans.ttf": "3fdf69cabf06049ea70a00b5919340e2ce1e6d02b0cc3c4b44fb6801bd1e0d22",
        "DejaVuSans-Bold.ttf": "b184b89e3c1075f22f6b71575b6fc20d4972b3cfd3b23322ca6fd596dcaef167",
        "DejaVuSans-Oblique.ttf": "ccdf74b350f11fd3dd5774de50e5e6346a1a5da1f5b7d5fb83590665e97a5213",
        "DejaVuSans-BoldOblique.ttf": "6edf0283160186af451cbee71e7b845f2e4cabf264bb992ce668c83c25465e6f",
    },
    "DejaVu Sans Mono": {
        "DejaVuSansMono.ttf": "602ec86b8948cfcd956482fe64f94c36c867770149ef2f791d4613f443bcecb3",
        "DejaVuSansMono-Bold.ttf": "baada9a5172fe20886251aff0433fc38461912d5daf07287e7bee56620a8da96",
        "DejaVuSansMono-Oblique.ttf": "28052813f7a709fc89f52d192dc995ef4f0fdc5c3d7b73a49d6849b1916d0cd0",
        "DejaVuSansMono-BoldOblique.ttf": "a69081c15c76c827e0a27a5a7f5c74b6135c843499955495ffa8c20d3a98288b",
    },
    "DejaVu Serif": {
        "DejaVuSerif.ttf": "107244956e9962b9e96faccdc551825e0ae0898ae13737133e1b921a2fd35ffa",
        "DejaVuSerif-Bold.ttf": "c3753f2ed6bc673f15846dc45addbeb3b9c872f32fb18fd53a21f1bef1ed7676",
        "DejaVuSerif-Italic.ttf": "3e7994fbc54fa10ce3352a42d548fadd7d9cadb69cb1109bc9d960f6dac57f04",
        "DejaVuSerif-BoldItalic.ttf": "d93efec7a9d2e826768d1a2ee95b95870e15e29599a84f3484af1de1cec2e181",
    },
    "STIX": {
        "STIXGeneral.ttf": "167378031e2dddc6216d67819c9260e9a06ffc4c478e4e23cb98a6fd44b183c2",
        "STIXGeneralBol.ttf": "e8533dc7083fa346bda1933d60ea4a83b67d0945bceaf1b3541f82b4a0e2c6a0",
        "STIXGeneralItalic.ttf": "6cfcb333d22b7c3c623bdfd40174f14c85c3d6731ca6166c1edc80140eae8527",
        "STIXGeneralBolIta.ttf": "98788fd4ba48dfbb2bd026c0e20a247a8b06c7372879628b7a6bb0d5bb09736c",
    },
}


def font_path(file: str, sha256: str) -> Path:
    """Returns the path of a matplotlib font; raises UserError if it is missing or differs from the data set's font."""
    import matplotlib  # takes a moment, and only Glyphs needs it

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / file
    try:
        actual = sha256_of(path)
    except OSError as error:
        raise UserError(f"Glyphs needs matplotlib's font {file}: {error}; reinstall matplotlib") from error
    if actual != sha256:
        raise UserError(
            f"Glyphs: {path} differs from the data set's font (SHA-256 {actual[:12]}…, expected {sha256[:12]}…): "
            "install matplotlib 3.6 to 3.11"
        )
    return path


@lru_cache(maxsize=64)
def _font(path: Path, points: int) -> ImageFont.FreeTypeFont:
    # Not every build of Pillow has the other layout engine.
    return ImageFont.truetype(str(path), points, layout_engine=ImageFont.Layout.BASIC)


class Typeface:
    """One style of a family; raises the errors of `font_path`."""

    def __init__(self, file: str, sha256: str) -> None:
        from matplotlib.ft2font import FT2Font  # imported late: checking the fonts does not need it

        self.path = font_path(file, sha256)
        self.characters = frozenset(map(chr, FT2Font(self.path).get_charmap()))

    def image(self, character: str) -> np.ndarray:
        """Draws a character, (32, 32) uint8, black on white, on a fixed baseline; smaller if it would not fit."""
        for points in range(_POINTS, 4, -1):
            font = _font(self.path, points)
            left, top, right, bottom = font.getbbox(character, anchor="ms")
            if right - left <= SIDE and top >= -_BASELINE and bottom <= SIDE - _BASELINE:
                break
        canvas = Image.new("L", (SIDE, SIDE), 255)
        # Centred by its ink: the space around a character would reveal the typeface.
        at = ((SIDE - round(left + right)) // 2, _BASELINE)
        ImageDraw.Draw(canvas).text(at, character, fill=0, font=font, anchor="ms")
        return np.array(canvas)


@published("Glyphs", "letters in the typefaces of matplotlib; Latin ones train", is_made=True)
def glyphs_set(root: Path, grey: bool) -> OpenSet:
    """Draws the set: Latin letters train; Greek, Cyrillic, Armenian and Georgian ones and symbols test (32×32).

    An identity is a letter, or several letters that look the same, such as A in Latin, Greek and Cyrillic. It trains if
    one of them is Latin. The camera is the typeface family (DejaVu Sans, DejaVu Sans Mono, DejaVu Serif, STIX); the
    images are the family's styles. The set is drawn in each run, which takes a second. Another version of FreeType may
    smooth edges differently.
    """
    import torch  # as in pixels_of

    table = draw()
    pixels = torch.from_numpy(table.images)[:, None]
    images = pixels if grey else pixels.expand(-1, 3, -1, -1)
    names, latin = [], set()
    identity_names: dict[int, str] = {}
    for identity, character, font in zip(table.identities.tolist(), table.characters, table.fonts, strict=True):
        name = unicodedata.name(character, f"U+{ord(character):04X}")
        names.append(f"{font}: {character} ({name})")
        identity_names.setdefault(identity, str(character))  # the first of the characters that look the same
        if name.startswith("LATIN"):
            latin.add(identity)
    whole = ImageSet(list(images), table.identities, table.families, names, identity_names)
    trains = np.isin(table.identities, list(latin))
    return OpenSet(whole.subset(np.flatnonzero(trains)), whole.subset(np.flatnonzero(~trains)))


@dataclass(frozen=True)
class GlyphTable:
    """All images and their characters."""

    images: np.ndarray  # (N, 32, 32) uint8, black on white
    identities: np.ndarray  # (N,) int64, characters that look the same have one
    families: np.ndarray  # (N,) int64, index of the family in TYPEFACES
    characters: np.ndarray  # (N,) str
    fonts: np.ndarray  # (N,) str, the font's file without its ending


def draw(characters: list[str] | None = None) -> GlyphTable:
    """Draws all images of some characters; default: every letter that all three DejaVu families have.

    An image that is identical to another one of its identity and family is dropped.
    """
    faces: list[list[Typeface]] = []
    for files in TYPEFACES.values():
        faces.append([Typeface(file, sha256) for file, sha256 in files.items()])
    upright = [styles[0] for family, styles in zip(TYPEFACES, faces, strict=True) if family.startswith("DejaVu")]
    if characters is None:
        everywhere = frozenset.intersection(*(face.characters for face in upright))
        characters = sorted(c for c in everywhere if unicodedata.category(c) in ("Lu", "Ll", "Lt", "Lo"))
    looks = [face.image(character) for face in upright for character in characters]
    identities = identities_of_looks(np.reshape(looks, (len(upright), len(characters), SIDE, SIDE)))
    rows, images, seen = [], [], set()
    for family, styles in enumerate(faces):
        for face in styles:
            for character, identity in zip(characters, identities.tolist(), strict=True):
                if character not in face.characters:
                    continue
                image = face.image(character)
                key = (identity, family, image.tobytes())
                if image.min() < 255 and key not in seen:
                    seen.add(key)
                    rows.append((identity, family, character, face.path.stem))
                    images.append(image)
    return GlyphTable(np.stack(images), *(np.array(column) for column in zip(*rows, strict=True)))


def identities_of_looks(looks: np.ndarray) -> np.ndarray:
    """Returns (N,) identities of N characters from (F, N, h, w) uint8 images in F families, black on white.

    Two characters are one identity if the cosine of their ink over all families is above SAME_LOOK, or if others
    connect them. An identity is the index of its first character.
    """
    ink = 255.0 - looks.transpose(1, 0, 2, 3).reshape(looks.shape[1], -1)
    ink /= np.maximum(np.linalg.norm(ink, axis=1, keepdims=True), 1e-12)
    identities = np.arange(len(ink))
    for first, second in np.argwhere(np.triu(ink @ ink.T > SAME_LOOK, 1)):
        identities[identities == identities[second]] = identities[first]
    return np.unique(identities, return_index=True)[1][np.unique(identities, return_inverse=True)[1]]
