"""Checks of README and of the pages in examples/: blocks print what is shown, and links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
_SCRIPT = ROOT / "examples" / "tools" / "page_outputs.py"


def require_equal_outputs(pages, folder, *options):
    """Runs the blocks of some pages in one process, which imports torch once."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PML_EXT_DATA": "/nonexistent", "TMPDIR": str(folder)}
    command = [sys.executable, str(_SCRIPT), *pages, "--check", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run python examples/tools/page_outputs.py {' '.join(pages)}: {done.stderr[-3000:]}"


def require_outputs_of_python_blocks(page):
    """Every Python block prints, but for those that become files, which another block uses."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, code in FENCED.findall(text):
        if language == "python" and not re.match(r"# [\w./]+\.py", code):
            follows = text.partition(f"```python\n{code}```\n")[2]
            assert follows.startswith("\n```text\n"), f"{page}: {code}"


def anchors(text):
    """GitHub's anchors of the headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def require_links(page):
    """Linked files and headings, and named configs, exist."""
    text = (ROOT / page).read_text(encoding="utf-8")
    configs = set(re.findall(r"fastreid_configs/[\w./-]+\.yml", text))
    assert [path for path in sorted(configs) if not (ROOT / path).is_file()] == []
    links = LINK.findall(re.sub(r"`[^`\n]*`", "", FENCED.sub("", text)))
    for link in (link for link in links if "://" not in link):
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), f"{page}: {link}"
