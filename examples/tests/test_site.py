"""The site builds without a warning, and has what it promises."""

import html
import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests import api_surface
from tests.test_docstrings import public

pytest.importorskip("latex2mathml")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings_handlers.python")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The text of each page, without tags."""
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    config = str(ROOT / "examples" / "site" / "mkdocs.yml")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-f", config, "-d", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {
        str(path.parent.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("index.html")
    }
    return {name: html.unescape(re.sub(r"<[^>]+>", "", page)) for name, page in pages.items()}


def test_everything_public_has_its_example(site):
    for name, thing in public():
        module, _, own = name.rpartition(".")
        folder = f"api/{module.rpartition('.')[2]}"
        pages = [f"{folder}/{own}"]
        if module == "pml_ext.functional":
            pages = [page for page in site if page.startswith(f"{folder}/")]
        text = "".join(site[page] for page in pages)
        lines = re.findall(r"^ *>>> (.+)$", inspect.getdoc(thing) or "", re.M)
        assert lines and all(line in text for line in lines), name
        assert own in site[folder], name


def test_every_public_name_has_a_page(site):
    paths = [path.rpartition(".") for path in api_surface.surface()]
    names = [(module, name) for module, _, name in paths if module in sys.modules and name != "__version__"]
    assert len(names) > 150
    for module, name in names:
        thing = getattr(import_module(module), name)
        if isinstance(thing, ModuleType):
            assert f"api/{name}" in site
        elif getattr(thing, "__module__", "pml_ext").startswith("pml_ext"):
            assert name in site[f"api/{module.rpartition('.')[2]}"], f"{module}.{name}"


def test_pages_begin_with_what_a_name_does_and_show_angle_brackets(site):
    assert "cmc_rank_<r>" in site["api/metrics/AccuracyCalculator"]
    assert "reid_mean_average_precision': 0.667" in site["api/metrics/AccuracyCalculator"]
    assert "equals PML's contrastive loss on cosines" in site["api/losses/TCMLoss"]


def test_formulas_are_set(site):
    for page, text in site.items():
        assert not re.search(r"\$\$\w|\\(frac|sum|sqrt|max)\b", text), page


def test_pages_are_the_repositorys_own(site):
    assert "Choose a threshold" in site["."]
    assert "PairWeightingLoss" in site["examples/guides/LOSSES"]
    assert "Swap one loss in a PML loop" in site["examples/notebooks/swap_one_loss"]
    assert "IMS_PER_BATCH" in site["config_keys"]
