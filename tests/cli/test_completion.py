"""The scripts for shells, tried in the shells that this machine has."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pml_ext.cli import main

pytest.importorskip("shtab")
# What is typed, and all that it can go on as.
TYPED = {
    "pml-ext tr": ["train"],
    "pml-ext list los": ["losses"],
    "pml-ext train --res": ["--resume"],
    "pml-ext threshold ch": ["check", "choose"],
    "pml-ext copy Glyphs/triplet_": ["Glyphs/triplet_tcm.yml"],
    "pml-ext copy verif": ["verification.py"],
    "pml-ext train my": ["my.npz", "my.yml"],
    "pml-ext evaluate my": ["my.npz", "my.yml"],
    "pml-ext report lo": ["logs"],
}
# With the path of the script and what is typed.
SHELLS = {
    "bash": """source "$0"; read -ra COMP_WORDS <<< "$1"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_pml_ext
               printf '%s\\n' "${COMPREPLY[@]}" """,
    "fish": "source $argv[1]; complete -C $argv[2]",
}


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = folder / f"_{shell}"
    assert main(["completion", shell]) == 0
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize("shell", SHELLS)
def test_words_are_completed(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shutil.which(shell) or pytest.skip(f"no {shell} here")
    completion = script(shell, tmp_path, capsys)
    folder = tmp_path / "here"
    (folder / "logs").mkdir(parents=True)
    for name in ("my.yml", "my.npz"):
        (folder / name).touch()
    for line, expected in TYPED.items():
        command = [found, "-c", SHELLS[shell], str(completion), line]
        shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout
        offered = [word.partition("\t")[0].rstrip("/") for word in shown.splitlines()]
        assert sorted(offered) == expected, line


def test_zsh_reads_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    completion = script("zsh", tmp_path, capsys)
    assert completion.read_text().startswith("#compdef pml-ext")
    found = shutil.which("zsh") or pytest.skip("no zsh here")
    subprocess.run([found, "-n", str(completion)], check=True, timeout=60)
