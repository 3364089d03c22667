"""Draw letters in matplotlib's typefaces: a folder of images per class, to try the commands on.

python draw_letters.py           # letters/A/DejaVuSans.png …: the Latin alphabet, 16 typefaces
python draw_letters.py others    # others/Γ/…: 24 other letters, on which no model of the first was trained
"""

import sys
from pathlib import Path

from PIL import Image

from pml_ext.runner.data.datasets.glyphs import draw

# Others: Greek and Cyrillic letters that look like no Latin one, nor like each other.
ALPHABETS = {"letters": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "others": "ΓΔΘΛΞΠΣΦΨΩαβπБДЖИЙЛЧШЫЮЯ"}

if __name__ == "__main__":
    name = sys.argv[1] if sys.argv[1:] else "letters"
    table = draw(list(ALPHABETS[name]))
    for pixels, character, font in zip(table.images, table.characters, table.fonts, strict=True):
        folder = Path(name, str(character))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{font}.png")
    print(f"{len(table.images)} images of {len(set(table.characters))} letters in {name}/")
