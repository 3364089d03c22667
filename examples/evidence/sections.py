"""Sections of a page that another script writes, between a line that names the script and END."""

from pathlib import Path

from pml_ext._shared.files import write_atomically

END = "<!-- end -->"


def section_of(page: Path, start: str) -> str:
    """The section with its first and last line; "" if the page has none."""
    _, line, rest = _parts(page, start)
    return f"{line}{rest.partition(END)[0]}{END}\n" if line else ""


def replace_section(page: Path, section: str, start: str) -> None:
    """Write the section in the place of the earlier one, or at the end of the page."""
    before, _, rest = _parts(page, start)
    after = rest.partition(END)[2]
    write_atomically(page, f"{before.rstrip()}\n\n{start}\n{section}{END}{after or chr(10)}")


def _parts(page: Path, start: str) -> tuple[str, str, str]:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return text.partition(start)
