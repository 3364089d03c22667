"""Where data sets lie."""

import os
from pathlib import Path


def dataset_root(configured: str) -> Path:
    """DATASETS.ROOT, else $FASTREID_DATASETS, else $PML_EXT_DATA, else ./datasets."""
    root = configured or os.environ.get("FASTREID_DATASETS") or os.environ.get("PML_EXT_DATA") or "datasets"
    return Path(root).expanduser()
