"""Files and functions named in CONTRIBUTING exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_files_exist():
    files = set(re.findall(r"`((?:pml_ext|tests|examples|fastreid_configs)/[\w/.]*)`", TEXT))
    assert len(files) > 20
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_the_names_exist():
    """`name` in `file.py`, and `name` and `name` in `file.py`."""
    named = re.findall(r"`(\w+)`(?:\s+and\s+`(\w+)`)?\s+in\s+`(pml_ext/[\w/]+\.py)`", TEXT)
    assert len(named) > 10
    for *names, file in named:
        code = (ROOT / file).read_text(encoding="utf-8")
        for name in filter(None, names):
            assert re.search(rf"^ *(?:def|class) {name}\b|^{name}\b", code, re.M), f"{name} in {file}"
