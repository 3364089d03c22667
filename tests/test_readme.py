"""README and the pages in examples/: their code runs and prints what they say, and their links lead somewhere."""

import re
import subprocess
import sys
from email.parser import BytesParser
from pathlib import Path

import pytest

import pml_ext
from pml_ext.cli import main
from pml_ext.runner.config import defaults

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
README = TEXTS["README.md"]
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
PYTHON = [
    (page, code) for page, text in TEXTS.items() for language, code in _FENCED.findall(text) if language == "python"
]
# tests/runner/test_plugins.py runs the others.
RUN_HERE = [(page, code) for page, code in PYTHON if page != "examples/guides/EXTENDING.md"]
_PRINTED = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.M | re.S)
PRINTED = {code: lines for text in TEXTS.values() for code, lines in _PRINTED.findall(text)}


@pytest.fixture
def _unregistered():
    yield
    pml_ext.unregister()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_unregistered")
@pytest.mark.parametrize(("page", "code"), RUN_HERE, ids=[f"{page}-{i}" for i, (page, _) in enumerate(RUN_HERE)])
def test_python_blocks_run(page, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(defaults._TEST, "REPORT", False)  # tests/reports has them
    exec(code, {"__name__": "__main__"})
    assert len(PRINTED) == 2
    assert code not in PRINTED or capsys.readouterr().out == PRINTED[code]


def test_the_threshold_is_the_one_that_the_readme_shows(tmp_path, monkeypatch, capsys):
    """With the file that THRESHOLDS.md writes; the numbers of a line, as its words may be wrapped."""
    (code,) = [code for page, code in PYTHON if page == "examples/guides/THRESHOLDS.md" and "np.savez" in code]
    command, lines = re.findall(r"^\$ pml-ext (threshold [^\n]+)\n(.*?)^```$", README, re.M | re.S)[0]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert main(command.split()) == 0
    printed = numbers_by_label(capsys.readouterr().out)
    for label, numbers in numbers_by_label(lines).items():
        assert printed[label] == pytest.approx(numbers, rel=1e-3), label


def numbers_by_label(lines):
    """First word of a line -> its numbers."""
    found = {}
    for line in lines.splitlines():
        label, _, rest = line.partition(" ")
        found[label] = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", rest)]
    return found


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


def test_the_readmes_tables_are_up_to_date():
    script = ROOT / "examples" / "tools" / "readme_tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"run python examples/tools/readme_tables.py: {done.stderr}"
