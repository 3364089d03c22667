"""Pictures of characters in the typefaces that matplotlib ships, drawn by FreeType."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pml_ext._errors import UserError

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
    """A font among matplotlib's; a UserError where it is missing, or not the one that the data set is made of."""
    import matplotlib  # takes a moment, and only Glyphs needs it

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / file
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"Glyphs needs matplotlib's font {file}: {error}; install matplotlib again") from error
    if found != sha256:
        raise UserError(
            f"Glyphs: {path} is another font than the data set is made of (SHA-256 {found[:12]}…, expected "
            f"{sha256[:12]}…): install a matplotlib of 3.6 to 3.11"
        )
    return path


class Typeface:
    """One style of a family; errors as of `font_path`."""

    def __init__(self, file: str, sha256: str) -> None:
        from matplotlib.ft2font import FT2Font  # the fonts are checked without it

        self.path = font_path(file, sha256)
        self.characters = frozenset(map(chr, FT2Font(self.path).get_charmap()))
        self._fonts: dict[int, ImageFont.FreeTypeFont] = {}

    def picture(self, character: str) -> np.ndarray:
        """(32, 32) uint8, black on white, on one baseline; in a smaller size where the character would not fit."""
        for points in range(_POINTS, 4, -1):
            left, top, right, bottom = self._font(points).getbbox(character, anchor="ms")
            if right - left <= SIDE and top >= -_BASELINE and bottom <= SIDE - _BASELINE:
                break
        canvas = Image.new("L", (SIDE, SIDE), 255)
        # In the middle by its ink: the space that a typeface leaves around a character says which typeface it is.
        at = ((SIDE - round(left + right)) // 2, _BASELINE)
        ImageDraw.Draw(canvas).text(at, character, fill=0, font=self._font(points), anchor="ms")
        return np.array(canvas)

    def _font(self, points: int) -> ImageFont.FreeTypeFont:
        if points not in self._fonts:
            layout = ImageFont.Layout.BASIC  # the other one is not in every build of Pillow
            self._fonts[points] = ImageFont.truetype(str(self.path), points, layout_engine=layout)
        return self._fonts[points]
