"""Images of EmojiReID as files."""

import zipfile

from tests.conftest import real_data


def extract(folder, count):
    """The first images, unpacked below the folder as the data set has them."""
    with zipfile.ZipFile(real_data("emoji_reid") / "emoji_reid.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith((".jpg", ".png")))[:count]
        archive.extractall(folder, names)
    return [folder / name for name in names]
