"""Write a page for each paper and their index, README.md; --check tells whether they are up to date.

papers.yml lists the experiments in the paper's order. The configs have the rows of their tables in comments at the top,
which headers.py reads.
"""

import argparse
import csv
import io
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from headers import HeaderError, Row, all_rows, beside, leaves, name_of, rows_of

from pml_ext._shared.files import replacing

HERE = Path(__file__).parent
_INDEX = """# The papers' experiments

Each paper has a page: what each table and figure shows, what reruns it, and what differs.
[rows.csv](rows.csv) lists every row with its config and the paper's numbers; what differs is in the config's comments.
[papers.bib](papers.bib) has the citations.

|page|paper|rows with a config|
|---|---|---|
{papers}
None of these {rows} rows was run here: the papers' data sets were not available.
[How the evidence was made](../evidence/EVIDENCE.md) tests the papers' claims on other data.

## Run a row

```sh
pml-ext train CONFIG KEY VALUE … OUTPUT_DIR FOLDER
```

CONFIG and KEY VALUE are columns of rows.csv. `pml-ext check-config` reports what is missing before a run.

- `FOLDER/metrics.json` has the last epoch's metrics; `FOLDER/checkpoints` has `last.ckpt` and `best.ckpt`. To measure
  another checkpoint, or other test sets, use `pml-ext eval` with the same config, keys and `MODEL.WEIGHTS FILE`.
- If a note asks for `MODEL.BACKBONE.PRETRAIN_PATH FILE`, write timm's weights to a file first:
  `torch.save(timm.create_model("NAME", pretrained=True).state_dict(), "FILE")`.
- `pml-ext compare RUN RUN` draws runs side by side.

[write_pages.py](write_pages.py) writes these pages from [papers.yml](papers.yml) and the configs' comments.
"""
# paper -> the section of LOSSES.md on it
SECTIONS = {
    "CIT": "cit-next-to-an-identity-loss",
    "Discriminative": "change-one-name",
    "TCM": "tcm",
    "LoOp": "loop-around-your-own-loss",
    "MS": "inspect-which-pairs-a-loss-uses",
}


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
        lines += f"|[{key}]({key}.md)|{paper['title']}|{len(mine)}|\n"
    index = _INDEX.format(papers=lines, rows=len(rows))
    return {"README.md": index, "rows.csv": _table(rows)} | {
        f"{key}.md": _page(key, papers[key], rows) for key in papers
    }


def _page(key: str, paper: dict[str, Any], all_rows: list[Row]) -> str:
    rows = [row for row in all_rows if row.paper == key]
    everywhere = list(rows[0].notes)
    for row in rows:
        everywhere = [note for note in everywhere if note in row.notes]
    links = f"[In your loop](../guides/LOSSES.md#{SECTIONS[key]}); [how to run a row](README.md)"
    text = f"# {key}\n\n{paper['title']}. {links}.\n\n"
    text += paper["loss"] + "\n"
    text += "".join(f"- {remark}\n" for remark in paper.get("remarks", []))
    if everywhere:
        text += "\nAll configs differ from the paper in this (each one's comments have what only some do):\n\n"
        text += "".join(f"- {note}\n" for note in everywhere)
    folders = dict.fromkeys(row.config.rpartition("/")[0] for row in rows)
    text += f"\n## Tables and figures\n\nConfigs are in {', '.join(map(_link, folders))}.\n\n"
    for name, experiment in paper["experiments"].items():
        mine = _in_order([row for row in rows if row.experiment == name], key, name, experiment, paper["data"])
        if not mine and not {"command", "missing"} & {*experiment}:
            raise HeaderError(
                f"papers.yml: {name} of {key} has no config: give its `command`, or the reason as `missing`"
            )
        if mine or "command" in experiment:
            text += f"- {' '.join(_sentences(name, experiment, len(mine)))}\n"
    missing = [(name, one["missing"]) for name, one in paper["experiments"].items() if not {"rows", "command"} & {*one}]
    if missing:
        text += f"\nNot reproduced: {'; '.join(f'{name} ({reason})' for name, reason in missing)}.\n"
    more = [(found[1], path) for path in leaves() if (found := beside(path)) and found[0] == key and not rows_of(path)]
    text += "\n## Related configs\n\n" if more else ""
    for what, group in groupby(sorted(more), lambda one: one[0]):
        folders = dict.fromkeys(name_of(path).rpartition("/")[0] for _, path in group)
        text += f"- {what}: {', '.join(map(_link, folders))}\n"
    text += f"\nNot described here: {paper['not_covered']}.\n" if "not_covered" in paper else ""
    return re.sub(r"\n{3,}", "\n\n", text)


def _in_order(rows: list[Row], key: str, name: str, experiment: dict[str, Any], data: list[str]) -> list[Row]:
    """The rows of an experiment as the paper has them: by data set, then as `rows` lists them."""
    listed = experiment.get("rows", [])
    if given := {row.name for row in rows} ^ set(listed):
        raise HeaderError(f"papers.yml: `rows` of {name} of {key} and the configs differ in {sorted(given)}")
    if unknown := {row.data for row in rows} - set(data):
        raise HeaderError(f"papers.yml: `data` of {key} lacks {sorted(unknown)}")
    return sorted(rows, key=lambda row: (data.index(row.data), listed.index(row.name)))


def _sentences(name: str, experiment: dict[str, Any], rows: int) -> list[str]:
    """Returns what an experiment shows, what reruns it, what the paper and we found, and what is missing."""
    count = f" ({rows} row{'s' if rows > 1 else ''})" if rows else ""
    sentences = [f"**{name}**{count}: {experiment['shows']}."]
    if "command" in experiment:
        runs = f" of {experiment['runs']}" if "runs" in experiment else ""
        sentences.append(f"Command: `{experiment['command']}`{runs}.")
    for source in ("Paper", "Here", "Ours"):
        if source.lower() in experiment:
            sentences.append(f"{source}: {experiment[source.lower()]}.")
    if "missing" in experiment:
        sentences.append(f"Not reproduced: {experiment['missing']}.")
    return sentences


def _table(rows: list[Row]) -> str:
    """All rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["paper", "experiment", "row", "data", "config", "key value", "reported"])
    for row in rows:
        writer.writerow([row.paper, row.experiment, row.name, row.data, row.config, row.overrides, row.reported])
    return text.getvalue()


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
        found = {path.name: path.read_text(encoding="utf-8") for path in (*HERE.glob("*.md"), HERE / "rows.csv")}
        return int(found != texts)
    for name, text in texts.items():
        with replacing(HERE / name) as file:
            file.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
