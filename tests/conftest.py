import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

# The work is small: threads cost more than they save, and stall when other processes use the cores; also those of the
# processes that the tests start.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run everything: the nightly tests too, on all examples")


def pytest_configure(config):
    if config.getoption("--nightly") and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        config.args.append(str(Path(__file__).parents[1] / "examples" / "tests"))


def pytest_collection_modifyitems(config, items):
    if config.getoption("--nightly"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    config.hook.pytest_deselected(items=nightly)
    items[:] = [item for item in items if not item.get_closest_marker("nightly")]


@pytest.fixture(scope="session")
def draws(request):
    """(by_day, by_night) -> how many draws a test of a statistic takes."""

    def number(by_day, by_night):
        return by_night if request.config.getoption("--nightly") else by_day

    return number


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)][: 1 + torch.cuda.is_available()])
def device(request):
    """The CPU, and a GPU where there is one: pytest -m gpu."""
    return torch.device(request.param)


@pytest.fixture
def blank_figures(monkeypatch):
    """Pages and PNGs whose figures are empty: drawing a report takes half a second."""
    from matplotlib.figure import Figure

    monkeypatch.setattr("pml_ext.reports.drawing._draw", lambda panel, height: Figure((1, 1)))


@pytest.fixture
def ctrl_c():
    """Ctrl-C reaches this process also where a script started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """(name, make) -> a folder that `make` fills once for all of pytest's processes."""
    of_all = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        of_all = of_all.parent

    def get(name, make):
        folder = of_all / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                unfinished = tmp_path_factory.mktemp(name)
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return get


@pytest.fixture(scope="session")
def installed(made_once):
    """A folder with the wheel of this tree, installed."""
    return made_once("wheel", _install) / "installed"


def _install(folder):
    root = Path(__file__).parents[1]
    copy = shutil.copytree(root, folder / "copy", ignore=shutil.ignore_patterns(".*", "__pycache__", "logs", "build"))
    pip = [sys.executable, "-m", "pip"]
    offline = ["-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", folder, copy], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", *offline, "--target", folder / "installed", wheel], check=True)
    editable = "from setuptools.build_meta import build_editable; build_editable('..')"
    subprocess.run([sys.executable, "-c", editable], cwd=copy, check=True, capture_output=True)
    shutil.rmtree(copy)
