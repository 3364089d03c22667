"""Every damaged or hostile file ends a run with one message and exit status 2, before any work and in bounded time."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pml_ext.cli import main
from pml_ext.runner.data.datasets.table import table_set
from tests.runner import damaged_files
from tests.runner.damaged_files import DAMAGED, HOSTILE_PICKLES

DIGITS = Path(__file__).parents[2] / "fastreid_configs" / "Digits" / "sap_tcm.yml"


@pytest.fixture
def bounded() -> Iterator[None]:
    """What hangs is a failure."""

    def stop(*_: object) -> None:
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_message(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make, message = DAMAGED[name]
    (tmp_path / "data").mkdir()
    overrides = ["MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(tmp_path / "out"), *make(tmp_path / "data")]
    assert main(["train", "--config-file", str(DIGITS), *overrides]) == 2
    shown = capfd.readouterr()
    errors = [line for line in shown.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.search(message, errors[0]), errors[0]
    assert "Traceback" not in shown.err + shown.out
    assert len(errors[0]) < 2000


@pytest.mark.usefixtures("bounded")
def test_a_pipe_as_config_or_as_its_base_is_not_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.yml")
    (tmp_path / "config.yml").write_text("_BASE_: pipe.yml\n")
    for name in ("pipe.yml", "config.yml"):
        assert main(["train", "--config-file", str(tmp_path / name)]) == 2
        assert re.search(r"^error: cannot read config file .*pipe\.yml.*: .*not a regular file", capfd.readouterr().err)


def test_identities_beyond_64_bits_are_names_like_any_other(tmp_path: Path) -> None:
    rows = "".join(f"good.png,{2**63 + i},train\n" for i in range(2))
    damaged_files.table(f"path,identity,split\n{rows}")(tmp_path)
    assert table_set(tmp_path / "people.csv", False).train.identities.tolist() == [0, 1]


READ = """
import json, sys
from pathlib import Path
from pml_ext import UserError
from pml_ext.runner.data.datasets.faces import read_bin
for path in map(Path, sys.argv[1:]):
    try:
        read_bin(path, False)
        print(json.dumps([path.parent.name, "read"]), flush=True)
    except UserError as error:
        print(json.dumps([path.parent.name, str(error)]), flush=True)
"""


def test_hostile_verification_files_build_and_run_nothing(tmp_path: Path) -> None:
    """In a process of its own, which a pointer out of a file would end."""
    paths = []
    for i, (content, _) in enumerate(HOSTILE_PICKLES.values()):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "lfw.bin").write_bytes(content)
        paths.append(str(tmp_path / str(i) / "lfw.bin"))
    done = subprocess.run(
        [sys.executable, "-c", READ, *paths], capture_output=True, text=True, timeout=120, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = dict(json.loads(line) for line in done.stdout.splitlines())
    for i, (name, (_, message)) in enumerate(HOSTILE_PICKLES.items()):
        assert re.search(message, said[str(i)]), (name, said[str(i)][:300])
        assert len(said[str(i)]) < 500
    assert not list(tmp_path.rglob("hostile_pickle_was_run"))
