"""README and the pages in examples/: their code runs and prints what they say, and their links lead somewhere."""

import os
import re
import subprocess
import sys
from email.parser import BytesParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
README = TEXTS["README.md"]
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
PYTHON = [
    (page, code) for page, text in TEXTS.items() for language, code in _FENCED.findall(text) if language == "python"
]
_OUTPUTS = ROOT / "examples" / "tools" / "page_outputs.py"
_spec = spec_from_file_location("page_outputs", _OUTPUTS)
page_outputs = module_from_spec(_spec)
_spec.loader.exec_module(page_outputs)


def trains(page):
    """Whether a block trains, which is slow."""
    return re.search(r"^\$ (pml-ext train|python tune)", TEXTS[page], re.M) is not None


RUN = [str(path.relative_to(ROOT)) for path in page_outputs.PAGES]
RUN = [page for page in RUN if re.search("^```(python|console)", TEXTS[page], re.M)]
SLOW = [page for page in RUN if trains(page)]
QUICK = [page for page in RUN if page not in SLOW]


def stems(pages):
    return " ".join(Path(page).stem for page in pages)


def require_equal_outputs(pages, folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PML_EXT_DATA": "/nonexistent", "TMPDIR": str(folder)}
    command = [sys.executable, str(_OUTPUTS), *pages, "--check"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run python examples/tools/page_outputs.py {' '.join(pages)}: {done.stderr[-3000:]}"


@pytest.mark.parametrize("pages", [QUICK[first::4] for first in range(4)], ids=stems)  # a process imports torch once
def test_the_blocks_of_a_page_print_what_it_shows(pages, tmp_path):
    require_equal_outputs(pages, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("pages", [[page] for page in SLOW], ids=stems)
def test_the_blocks_of_a_page_that_trains(pages, tmp_path):
    require_equal_outputs(pages, tmp_path)


@pytest.mark.parametrize(
    ("shown", "printed", "is_equal"),
    [
        ("R@1 0.50\n", "R@1 0.51\n", True),
        ("R@1 0.50\n", "R@1 0.55\n", False),
        ("a  1\n", "a 1\n", True),
        ("first\n…\nlast\n", "first\n2\n3\nlast\n", True),
        ("first\n…\n", "second\n", False),
        ("took … s\n", "took 12 s\n", True),
        ("−0.1 dB\n", "-0.1 dB\n", True),
        ("", "words\n", False),
    ],
)
def test_outputs_agree_up_to_small_differences_and_ellipses(shown, printed, is_equal):
    assert page_outputs.agree(shown, printed) == is_equal


def test_every_python_block_prints():
    """Except those that become files, which another block uses."""
    for page, code in PYTHON:
        follows = TEXTS[page].partition(f"```python\n{code}```\n")[2]
        assert follows.startswith("\n```text\n") or re.match(r"# [\w./]+\.py", code), f"{page}: {code}"


def anchors(text):
    """GitHub's anchors of the headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", text), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_links_and_named_files_exist(page):
    configs = set(re.findall(r"fastreid_configs/[\w./-]+\.yml", TEXTS[page]))
    assert [path for path in sorted(configs) if not (ROOT / path).is_file()] == []
    links = _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCED.sub("", TEXTS[page])))
    for link in (link for link in links if "://" not in link):
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_a_wheels_description_has_absolute_links(tmp_path):
    pytest.importorskip("setuptools", minversion="77")  # the oldest that builds
    code = "import sys; from setuptools.build_meta import *; prepare_metadata_for_build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = tmp_path.glob("*.dist-info/METADATA")
    metadata = BytesParser().parsebytes(file.read_bytes())
    repository = next(url.split(", ")[1] for url in metadata.get_all("Project-URL") if url.startswith("Repository"))
    description = metadata.get_payload(decode=True).decode()
    expected = sorted(link for link in _LINK.findall(README) if "://" not in link)
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
    assert f"The tests run with {' and '.join(versions)}" in TEXTS["examples/site/pages/which_pml.md"]


def test_the_readmes_tables_are_up_to_date():
    script = ROOT / "examples" / "tools" / "readme_tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"run python examples/tools/readme_tables.py: {done.stderr}"
