"""The pages in examples/: their code runs and prints what they say, and their links lead somewhere."""

import csv
import re
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from tests.pages import ROOT, require_equal_outputs, require_links, require_outputs_of_python_blocks

_spec = spec_from_file_location("page_outputs", ROOT / "examples" / "tools" / "page_outputs.py")
page_outputs = module_from_spec(_spec)
_spec.loader.exec_module(page_outputs)
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.md"))
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
RUN = [str(path.relative_to(ROOT)) for path in page_outputs.PAGES if path.name != "README.md"]
RUN = [page for page in RUN if re.search("^```(python|console)", TEXTS[page], re.M)]


@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_print_what_it_shows(page, tmp_path):
    require_equal_outputs([page], tmp_path)


@pytest.mark.nightly
def test_all_pages_can_be_repeated_in_one_folder(tmp_path):
    require_equal_outputs([*RUN, *RUN], tmp_path, "--folder", str(tmp_path))


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


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_prints_and_every_link_leads_somewhere(page):
    require_outputs_of_python_blocks(page)
    require_links(page)


def test_what_replaces_an_import_of_fastreid_can_be_imported():
    with (ROOT / "examples" / "guides" / "fastreid_names.csv").open(encoding="utf-8", newline="") as file:
        replacements = [row["here"] for row in csv.DictReader(file)]
    names = [re.match(r"((?:pml_ext|timm|torch)\.[\w.]+)(?=$|[ ,;]|\(planes)", text) for text in replacements]
    ours = [name[1] for name in names if name]
    assert len(ours) > 40
    for path in ours:
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name), path
