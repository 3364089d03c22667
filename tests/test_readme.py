"""The README's Python runs as it stands there, and its shell blocks name files that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [code for language, code in BLOCKS if language == "sh"]


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_there_is_python_to_run() -> None:
    assert len(PYTHON) >= 3


def test_the_first_two_shell_blocks_are_the_main_command_and_the_tests() -> None:
    assert "pml-ext train --config-file fastreid_configs/Digits/sap_tcm.yml" in SHELL[0]
    assert SHELL[1].rstrip().endswith("pytest -n auto")
    assert all("python3 -m venv .venv" in code for code in SHELL[:2]), "each must work alone in a fresh clone"


def test_named_configs_exist() -> None:
    named = {path for code in SHELL for path in re.findall(r"fastreid_configs/\S+\.yml", code)}
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []
