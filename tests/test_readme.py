"""README: its code prints what it shows, its links lead somewhere, and its versions are those that are tested."""

import re
import subprocess
import sys
from email.parser import BytesParser

import pytest

import pml_ext
from tests.pages import LINK, ROOT, require_equal_outputs, require_links, require_outputs_of_python_blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_blocks_print_what_the_readme_shows(tmp_path):
    require_outputs_of_python_blocks("README.md")
    require_equal_outputs(["README.md"], tmp_path)


def test_links_and_named_files_exist():
    require_links("README.md")
    require_links("CONTRIBUTING.md")


def test_a_wheels_description_has_absolute_links(tmp_path):
    pytest.importorskip("setuptools", minversion="77")  # the oldest that builds
    code = "import sys; from setuptools.build_meta import *; prepare_metadata_for_build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = tmp_path.glob("*.dist-info/METADATA")
    metadata = BytesParser().parsebytes(file.read_bytes())
    repository = next(url.split(", ")[1] for url in metadata.get_all("Project-URL") if url.startswith("Repository"))
    description = metadata.get_payload(decode=True).decode()
    links = [link for link in LINK.findall(README) if "://" not in link]
    expected = sorted(link for link in links if not link.startswith("#"))
    assert all(f"]({link})" in description for link in links if link.startswith("#"))
    paths = re.findall(rf"\]\({re.escape(repository)}/(?:blob|raw)/main/([^)]+)\)", description)
    assert sorted(paths) == expected and len(expected) > 10
    assert f"({repository}/raw/main/examples/pictures/threshold.png)" in description


def test_versions_are_the_same_in_readme_pyproject_and_ci():
    """And each oldest version that is tested is the oldest that pyproject.toml allows."""
    project, oldest = (ROOT / "pyproject.toml").read_text("utf-8"), (ROOT / ".ci" / "oldest").read_text("utf-8")
    least = dict(re.findall(r'"([\w-]+)>=([\d.]+)', project))
    pinned = dict(re.findall(r"'([\w-]+)==([\d.]+)'", oldest))
    assert len(pinned) > 5 and [name for name in pinned if not pinned[name].startswith(least[name])] == []
    rows = {name: cells for name, *cells in re.findall(r"^\| (\w+) \| (.+) \| (.+) \|$", README, re.M)}
    minors = re.findall(r"Python :: (3\.\d+)", project)
    assert rows["Python"][0] == f"{minors[0]} to {minors[-1]}" and f'requires-python = ">={minors[0]}"' in project
    assert rows["PyTorch"][0] == f"{least['torch']} and newer" and rows["PyTorch"][1].startswith(least["torch"])
    (lower, upper) = re.search(r"pytorch-metric-learning>=([\d.]+),<(\d)", project).groups()
    assert re.fullmatch(rf"\[{lower} and [\d.]+\]\(.*\), not {upper}", rows["PML"][0])
    versions = rows["PML"][1].split(", ")
    assert versions[0] == pinned["pytorch-metric-learning"]
    page = (ROOT / "examples" / "guides" / "WHICH_PML.md").read_text(encoding="utf-8")
    assert f"The tests run with {' and '.join(versions)}" in page


def test_the_citation_has_the_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert set(re.findall(r"^ *version: (.+)$", citation, re.M)) == {pml_ext.__version__}


def test_the_readmes_tables_are_up_to_date():
    script = ROOT / "examples" / "tools" / "readme_tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"run python examples/tools/readme_tables.py: {done.stderr}"
