"""Where data sets lie, and where those made here are kept."""

import os
from pathlib import Path


def dataset_root(configured: str) -> Path:
    """DATASETS.ROOT, else $FASTREID_DATASETS, else $PML_EXT_DATA, else ./datasets."""
    root = configured or os.environ.get("FASTREID_DATASETS") or os.environ.get("PML_EXT_DATA") or "datasets"
    return Path(root).expanduser()


def cache_folder() -> Path:
    """Where data that is made here is kept: $XDG_CACHE_HOME/pml_ext, else ~/.cache/pml_ext."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pml_ext"
