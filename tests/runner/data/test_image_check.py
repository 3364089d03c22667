"""Each rank decodes its share of the image files, and all leave out the same."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch import distributed as dist
from yacs.config import CfgNode as CN

from pml_ext.runner import rank_store
from pml_ext.runner.data.datasets import ImageCheck, image_check
from pml_ext.runner.data.datasets.image_files import ImageFile, image_set
from tests.runner.data.published_layouts import picture

RANKS = 3


def test_ranks_divide_the_files_and_share_what_they_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{i}.jpg" for i in range(11)]
    for i, file in enumerate(files):
        file.write_bytes(b"" if i in (3, 4, 9) else picture())
    images = image_set([ImageFile(file, i) for i, file in enumerate(files)], grey=False)
    alone = ImageCheck(CN({"CHECK_IMAGES": True, "MAX_UNREADABLE": 0.5}))
    expected = alone.readable("set", images).identities.tolist()
    assert expected == [0, 1, 2, 5, 6, 7, 8, 10]

    decoded, here, store = Counter[str](), threading.local(), dist.HashStore()
    read = image_check.require_image

    def counted(path: str) -> None:
        decoded[path] += 1
        read(path)

    monkeypatch.setattr(image_check, "require_image", counted)
    for module in (rank_store, image_check):
        monkeypatch.setattr(module, "rank_and_ranks", lambda: (here.rank, RANKS))
    monkeypatch.setattr(rank_store, "_store", lambda: store)

    def check(rank: int) -> tuple[list[int], list[str]]:
        here.rank = rank
        of_rank = ImageCheck(CN({"CHECK_IMAGES": True, "MAX_UNREADABLE": 0.5}))
        return of_rank.readable("set", images).identities.tolist(), of_rank.skipped

    monkeypatch.setattr(rank_store, "_calls", CallsOfEachThread())
    with ThreadPoolExecutor(RANKS) as pool:
        found = list(pool.map(check, range(RANKS)))
    assert found == [(expected, alone.skipped)] * RANKS
    assert decoded == {str(file): 1 for file in files}, "no file twice"


class CallsOfEachThread(threading.local):
    """As a process counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __next__(self) -> int:
        self.calls += 1
        return self.calls
