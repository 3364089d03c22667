"""Files and functions named in CONTRIBUTING exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = sorted(set(re.findall(r"`((?:pml_ext|tests|examples|fastreid_configs)/[\w/.]*)`", TEXT)))
# "`name` in `file.py`", "`name` and `name` in `file.py`"
NAMED = sorted(
    {
        (file, name)
        for *names, file in re.findall(r"`(\w+)`(?:\s+and\s+`(\w+)`)?\s+in\s+`(pml_ext/[\w/]+\.py)`", TEXT)
        for name in names
        if name
    }
)


@pytest.mark.parametrize("file", FILES)
def test_the_file_exists(file: str) -> None:
    assert (ROOT / file).exists()


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_the_name_exists(file: str, name: str) -> None:
    assert re.search(rf"^(?:def|class) {name}\b|^{name}\b", (ROOT / file).read_text(encoding="utf-8"), re.M)


def test_names_were_found() -> None:
    assert len(FILES) > 20 and len(NAMED) > 12
