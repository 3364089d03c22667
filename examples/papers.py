"""Write PAPERS.md, the papers' experiments and the configs that run them; --check tells whether it is up to date.

papers.yml lists the experiments. The configs have the rows of their tables in comments at the top, which
paper_headers.py reads.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml
from paper_headers import HeaderError, Row, all_rows, beside, leaves, name_of, rows_of

from pml_ext._files import replacing

HERE = Path(__file__).parent
PAGE = HERE / "PAPERS.md"
NOT_RUN = "not run: data unavailable"
_START = """# The papers' experiments

All tables and figures of the five papers, the configs or commands that run them, the papers' numbers and ours. Numbers
are percent unless stated otherwise. Run a config, with the keys next to its name, by
`pml-ext train --config-file fastreid_configs/FILE [KEY VALUE …]`.
[papers.py](papers.py) writes this page from the comments at the top of the configs and from [papers.yml](papers.yml).
"""


def read_experiments() -> dict[str, Any]:
    """Read papers.yml."""
    return yaml.safe_load((HERE / "papers.yml").read_text(encoding="utf-8"))


def page(rows: list[Row]) -> str:
    """PAPERS.md.

    Raises:
        HeaderError: a row of an unlisted experiment, or an experiment without config, command or reason.
    """
    papers = read_experiments()["papers"]
    for row in rows:
        if row.experiment not in papers.get(row.paper, {"experiments": {}})["experiments"]:
            raise HeaderError(f"{row.config}: papers.yml has no {row.experiment} of {row.paper}")
    return _START + "".join(_section(key, paper, rows) for key, paper in papers.items())


def _section(key: str, paper: dict[str, Any], rows: list[Row]) -> str:
    text, without, more = f"\n## {key}: {paper['title']}\n", "", dict[str, list[str]]()
    for name, experiment in paper["experiments"].items():
        mine = [row for row in rows if (row.paper, row.experiment) == (key, name)]
        if mine or "command" in experiment:
            text += f"\n### {key}, {name}: {experiment['shows']}\n\n{_table(mine, experiment)}"
            text += f"\nNot here: {experiment['missing']}.\n" if "missing" in experiment else ""
        elif "missing" in experiment:
            without += f"| {name} | {experiment['shows']} | {experiment['missing']} |\n"
        else:
            raise HeaderError(
                f"papers.yml: {name} of {key} has no config: give its `command`, or the reason as `missing`"
            )
    if without:
        text += f"\n### {key}, without a config\n\n| experiment | what it shows | why |\n| --- | --- | --- |\n{without}"
    for path in leaves():
        found = beside(path)
        if found and found[0] == key and not rows_of(path):
            more.setdefault(found[1], []).append(_link(name_of(path)))
    if more:
        text += f"\n### {key}, related configs\n\n"
        text += "".join(f"- {what}: {', '.join(configs)}\n" for what, configs in more.items())
    return text


def _link(config: str) -> str:
    return f"[{config}](../fastreid_configs/{config})"


def _table(rows: list[Row], experiment: dict[str, Any]) -> str:
    notes = list(dict.fromkeys(note for row in rows for note in row.differs))
    lines = list[list[str]]()
    for row in rows:
        numbers = ", ".join(str(notes.index(note) + 1) for note in row.differs)
        with_keys = f" `{row.overrides}`" if row.overrides else ""
        lines.append([row.name, row.data, _link(row.config) + with_keys, row.reported, row.ours or NOT_RUN, numbers])
    if "command" in experiment:
        reported, ours = experiment.get("reported", ""), experiment.get("ours", NOT_RUN)
        lines.append(["", "", f"`{experiment['command']}`", reported, ours, ""])
    headings = ["row", "data", "config or command", "paper", "ours", "differs"]
    text = "".join(f"| {' | '.join(line)} |\n" for line in [headings, ["---"] * len(headings), *lines])
    return text + ("\nDiffers:\n\n" + "".join(f"{n}. {note}\n" for n, note in enumerate(notes, 1)) if notes else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the page differs")
    try:
        text = page(all_rows())
    except HeaderError as error:
        raise SystemExit(f"papers.py: {error}") from error
    if parser.parse_args().check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    with replacing(PAGE) as file:
        file.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
