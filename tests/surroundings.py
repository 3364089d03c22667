"""What file servers, operating systems and notebooks add to folders of images."""

import os
import shutil
from itertools import cycle
from pathlib import Path

FOLDERS = (
    "@eaDir", "#recycle", "$RECYCLE.BIN", "__MACOSX", "System Volume Information", "lost+found", ".Trash-1000",
    ".ipynb_checkpoints", "locked",
)  # fmt: skip


def surround(root, monkeypatch):
    """Add copies of everything under such names: all folders at the top, one in each other; `locked` is unreadable."""
    names, folders = cycle(FOLDERS), [Path(folder) for folder, _, _ in os.walk(root)]
    for folder in reversed(folders):
        for file in [path for path in folder.iterdir() if path.is_file()]:
            shutil.copy(file, folder / f"._{file.name}")
        shutil.copytree(folder, folder / next(names))
        for name in ("Thumbs.db", "desktop.ini"):
            (folder / name).write_text("no image")
    for name in {*FOLDERS} - {path.name for path in root.iterdir()}:
        shutil.copytree(root, root / name, ignore=shutil.ignore_patterns(*FOLDERS))
    scandir = os.scandir

    def refusing(path="."):
        if str(path).rstrip("/").endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
