"""Small pictures for a page, from the files that samples come from."""

import base64
import io
from pathlib import Path

_SIDE = 112


def thumbnail(path: str) -> str | None:
    """A picture as the text of an <img>'s source; None where there is no such file or it cannot be read.

    Only regular files are opened, and pictures of up to Pillow's own limit of pixels.
    """
    if not Path(path).is_file():
        return None
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        return None
    content = io.BytesIO()
    try:
        with Image.open(path) as image:
            image.draft("RGB", (_SIDE, _SIDE))
            upright = ImageOps.exif_transpose(image).convert("RGB")
            upright.thumbnail((_SIDE, _SIDE))
            upright.save(content, "JPEG", quality=85)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
