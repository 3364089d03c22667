"""Pictures of EmojiReID as files."""

import zipfile
from pathlib import Path

import pytest

from pml_ext.training.data.datasets.root import dataset_root


def extract(folder: Path, count: int) -> list[Path]:
    """The first pictures, unpacked below the folder as the data set has them."""
    file = dataset_root("") / "emoji_reid" / "emoji_reid.zip"
    if not file.is_file():
        pytest.skip(f"no pictures at {file}")
    with zipfile.ZipFile(file) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith((".jpg", ".png")))[:count]
        archive.extractall(folder, names)
    return [folder / name for name in names]
