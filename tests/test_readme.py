"""README and the pages in examples/: their Python code runs, and the files they name exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# tests/test_site.py has the pages of the site.
PAGES = [README, *(page for page in sorted((ROOT / "examples").rglob("*.md")) if "site" not in page.parts[-3:])]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
BLOCKS = [(page, *block) for page, text in TEXTS.items() for block in _BLOCK.findall(text)]
PYTHON = [(page, code) for page, language, code in BLOCKS if language == "python"]
_URL = re.search(r'^Repository = "https://github.com/(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
assert _URL
OF_MAIN = (f"https://github.com/{_URL[1]}/blob/main/", f"https://raw.githubusercontent.com/{_URL[1]}/main/")
SHELL = [code for page, language, code in BLOCKS if language == "sh" and page == "README.md"]


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[f"{page}-{i}" for i, (page, _) in enumerate(PYTHON)])
def test_python_blocks_run(page: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_python_blocks_were_found() -> None:
    assert len(PYTHON) >= 6


def test_the_first_shell_blocks_are_the_main_command_and_the_tests() -> None:
    assert "pml-ext train --config-file fastreid_configs/Glyphs/smoothap_tcm.yml" in SHELL[0]
    assert SHELL[1].rstrip().endswith("pytest -n auto")
    assert all("python3 -m venv .venv" in code for code in SHELL[:2]), "each must work alone in a fresh clone"


def test_the_readme_is_short() -> None:
    text = re.sub(r"<!-- written.*?<!-- end -->", "", README.read_text(encoding="utf-8"), flags=re.S)
    assert len(text.split()) <= 1000


def test_the_readmes_links_hold_on_a_package_index() -> None:
    """Whole addresses in this repository, or headings of the page itself."""
    headings = re.findall(r"^## (.+)$", TEXTS["README.md"], re.M)
    anchors = {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(([^)]+)\)", TEXTS["README.md"])
    own = [link for link in links if "pml_ext" in link]
    assert len(own) > 10 and all(link.startswith(OF_MAIN) for link in own)
    assert [link for link in own if not (ROOT / _in_this_tree(link)).is_file()] == []
    assert [link for link in links if "://" not in link and link not in anchors] == []


def _in_this_tree(link: str) -> str:
    return link.removeprefix(OF_MAIN[0]).removeprefix(OF_MAIN[1])


@pytest.mark.parametrize("page", TEXTS)
def test_named_files_exist(page: str) -> None:
    configs = set(re.findall(r"fastreid_configs/[\w./-]+\.yml", TEXTS[page]))
    assert [path for path in sorted(configs) if not (ROOT / path).is_file()] == []
    links = {link for link in re.findall(r"\]\(([^)#]+)", TEXTS[page]) if "://" not in link}
    assert [link for link in sorted(links) if not ((ROOT / page).parent / link).exists()] == []


def test_the_readmes_tables_are_up_to_date() -> None:
    script = ROOT / "examples" / "readme_tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"run python examples/readme_tables.py: {done.stderr}"
