"""Write a page for each paper and their index, README.md; --check tells whether they are up to date.

papers.yml lists the experiments in the paper's order. The configs have the rows of their tables in comments at the top,
which headers.py reads.
"""

import argparse
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from headers import HeaderError, Row, all_rows, beside, leaves, name_of, rows_of

from pml_ext._files import replacing

HERE = Path(__file__).parent
_INDEX = """# The papers' experiments

A page for each paper with its tables, figures and supplement: what each shows, the config or command that runs it, the
paper's numbers, ours where it was run, and how ours differs. Numbers are percent unless stated otherwise.
[papers.bib](papers.bib) has the papers' BibTeX entries.

| page | paper | rows with a config |
| --- | --- | --- |
{papers}
Of these {rows} rows, {run} were run here: the papers' data sets (CUB, Cars196, SOP, iNaturalist, Market-1501, In-shop,
MNIST, CASIA-WebFace, LFW, AgeDB, CFP-FP and IJB-C) were not available. On other data,
[EVIDENCE.md](../evidence/EVIDENCE.md) tests claims of the papers, and some of ours, and names their sources, and
[WHOLE_NETWORKS.md](../evidence/WHOLE_NETWORKS.md) trains whole networks. A dash: the paper gives no number, or a note
says why it is missing.

- Run a row: `pml-ext train --config-file fastreid_configs/CONFIG KEY VALUE … OUTPUT_DIR FOLDER`, with the keys beside
  the config's name and a folder for each row. `pml-ext check-config` reports what is missing before a run.
- `FOLDER/metrics.json` has the last epoch. `FOLDER/checkpoints` has it as `last.ckpt`, and the best of the measured
  epochs (`TEST.EVAL_PERIOD`) as `best.ckpt`: by `TEST.BEST`, else the first of `TEST.METRICS`, of face pairs
  the accuracy, of IJB-C the EER, on the first test set. To measure either, also for a row that differs only in
  `DATASETS.TESTS` (IJB-C):
  `pml-ext eval --config-file fastreid_configs/CONFIG KEY VALUE … MODEL.WEIGHTS FOLDER/checkpoints/… OUTPUT_DIR OTHER`.
- Where a note asks for `MODEL.BACKBONE.PRETRAIN_PATH FILE`, write the timm weights that it names to a file first:
  `torch.save(timm.create_model("NAME", pretrained=True).state_dict(), "FILE")`.
- Draw two or more runs side by side: `pml-ext compare RUN RUN`. `RUN/report.html` shows one run.

[write_pages.py](write_pages.py) writes these pages from [papers.yml](papers.yml) and from the comments at the top of
the configs.
"""


def read_papers() -> dict[str, Any]:
    """Read papers.yml."""
    papers: dict[str, Any] = yaml.safe_load((HERE / "papers.yml").read_text(encoding="utf-8"))["papers"]
    return papers


def pages(rows: list[Row]) -> dict[str, str]:
    """The text of each page, by file name.

    Raises:
        HeaderError: a row that papers.yml does not list, or an experiment without config, command or reason.
    """
    papers = read_papers()
    for row in rows:
        if row.experiment not in papers.get(row.paper, {"experiments": {}})["experiments"]:
            raise HeaderError(f"{row.config}: papers.yml has no {row.experiment} of {row.paper}")
    lines = ""
    for key, paper in papers.items():
        mine = [row for row in rows if row.paper == key]
        lines += f"| [{key}]({key}.md) | {paper['title']} | {len(mine)} |\n"
    run = sum(bool(row.ours) for row in rows) or "none"
    index = _INDEX.format(papers=lines, rows=len(rows), run=run)
    return {"README.md": index} | {f"{key}.md": _page(key, papers[key], rows) for key in papers}


def _page(key: str, paper: dict[str, Any], all_rows: list[Row]) -> str:
    rows = [row for row in all_rows if row.paper == key]
    everywhere = [note for note in rows[0].notes if all(note in row.notes for row in rows)]
    text = f"# {key}\n\n{paper['title']}. [How to run a row; the claims on other data](README.md).\n\n"
    text += "".join(f"- {remark}\n" for remark in paper.get("remarks", []))
    if everywhere:
        text += "\nAll configs in the tables, but for the keys and the notes beside a row:\n\n"
        text += "".join(f"- {note}\n" for note in everywhere)
    numbers = dict.fromkeys(everywhere, 0)  # note -> its number on this page
    for name, experiment in paper["experiments"].items():
        mine = _in_order([row for row in rows if row.experiment == name], key, name, experiment, paper["data"])
        text += f"\n## {name}: {experiment['shows']}\n\n" + _tables(mine, numbers)
        runs = f" of {experiment['runs']}" if "runs" in experiment else ""
        said = [f"Command: `{experiment['command']}`{runs}."] if "command" in experiment else []
        said += [f"{who}: {experiment[who.lower()]}." for who in ("Paper", "Here", "Ours") if who.lower() in experiment]
        text += " ".join(said) + "\n" if said else ""
        if "missing" in experiment:
            text += f"\nNot reproduced: {experiment['missing']}.\n"
        elif not mine and "command" not in experiment:
            raise HeaderError(
                f"papers.yml: {name} of {key} has no config: give its `command`, or the reason as `missing`"
            )
    more = [(found[1], path) for path in leaves() if (found := beside(path)) and found[0] == key and not rows_of(path)]
    text += "\n## Related configs\n\n" if more else ""
    for what, group in groupby(sorted(more), lambda one: one[0]):
        text += f"- {what}: {', '.join(_link(name_of(path)) for _, path in group)}\n"
    text += f"\nNot described here: {paper['not_covered']}.\n" if "not_covered" in paper else ""
    listed = [f"{number}. {note}\n" for note, number in numbers.items() if number]
    return re.sub(r"\n{3,}", "\n\n", text + ("\n## Notes\n\n" + "".join(listed) if listed else ""))


def _in_order(rows: list[Row], key: str, name: str, experiment: dict[str, Any], data: list[str]) -> list[Row]:
    """The rows of an experiment as the paper has them: by data set, then as `rows` lists them."""
    listed = experiment.get("rows", [])
    if given := {row.name for row in rows} ^ set(listed):
        raise HeaderError(f"papers.yml: `rows` of {name} of {key} and the configs differ in {sorted(given)}")
    if unknown := {row.data for row in rows} - set(data):
        raise HeaderError(f"papers.yml: `data` of {key} lacks {sorted(unknown)}")
    return sorted(rows, key=lambda row: (data.index(row.data), listed.index(row.name)))


def _tables(rows: list[Row], numbers: dict[str, int]) -> str:
    """A table for each run of rows with the same metrics, which are named in its heading."""
    text = ""
    for metrics, group in groupby(rows, lambda row: _split(row)[0]):
        lines = list[list[str]]()
        mine = list(group)
        plot = metrics if isinstance(metrics, str) else ""
        for row in mine:
            _, values, remark = _split(row)
            notes = [numbers.setdefault(note, 1 + max(numbers.values(), default=0)) for note in [*row.notes, *remark]]
            run = _link(row.config) + (f" `{row.overrides}`" if row.overrides else "")
            cells = [row.name, row.data, run, values, row.ours, ", ".join(str(note) for note in sorted(notes) if note)]
            lines.append(cells)
        data = "data, network" if any(", " in row.data for row in mine) else "data"
        headings = ["row", data, "config", "" if plot else f"paper: {' / '.join(metrics)}", "ours", "notes"]
        kept = [n for n, heading in enumerate(headings) if heading in headings[:3] or any(line[n] for line in lines)]
        text += f"Paper: {plot}.\n\n" if plot else ""
        for line in [headings, ["---"] * len(headings), *lines]:
            text += f"| {' | '.join(line[n] for n in kept)} |\n"
        text += "\n"
    return text


def _split(row: Row) -> tuple[tuple[str, ...] | str, str, list[str]]:
    """The names of a row's metrics, their values, and a remark in brackets; or a plot's description without values."""
    if row.reported.startswith("a plot"):
        return row.reported, "", []
    numbers, remark = re.fullmatch(r"(.*?)(?: \((.*)\))?", row.reported).groups()  # type: ignore[union-attr]
    parts = [re.fullmatch(r"(.+) (–|[−\d]\S*)", part) for part in numbers.split(", ")]
    if not all(parts):
        raise HeaderError(f"{row.config}: Reported needs `NAME NUMBER, …` or `a plot: …`; got {row.reported!r}")
    names, values = zip(*(part.groups() for part in parts if part), strict=True)
    return names, " / ".join(values), [f"Paper: {remark}"] if remark else []


def _link(config: str) -> str:
    return f"[{config}](../../fastreid_configs/{config})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page differs")
    try:
        texts = pages(all_rows())
    except HeaderError as error:
        raise SystemExit(f"write_pages.py: {error}") from error
    if parser.parse_args().check:
        found = {path.name: path.read_text(encoding="utf-8") for path in HERE.glob("*.md")}
        return int(found != texts)
    for name, text in texts.items():
        with replacing(HERE / name) as file:
            file.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
