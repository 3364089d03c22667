"""What mkdocs adds to the pages in pages/: README and examples as they are, and pages made from code."""

import ast
import csv
import html
import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_keys import config_keys

from pml_ext import cli, deploy, functional, losses, metrics, miners, runner, thresholds
from pml_ext.runner import registry
from pml_ext.runner.config.files import NOTEBOOKS, SCRIPTS

ROOT = Path(__file__).resolve().parents[2]

# module -> public names
PUBLIC = {
    "pml_ext": ["UserError", "register", "unregister"],
    "pml_ext.losses": [*losses.OURS, *losses.CORRECTED, *losses.PARTS],
    "pml_ext.miners": [*miners.OURS],
    "pml_ext.metrics": metrics.__all__,
    "pml_ext.thresholds": thresholds.__all__,
    "pml_ext.deploy": deploy.__all__,
    "pml_ext.functional": functional.__all__,
    "pml_ext.inspection": [
        "SimilarityDependence",
        "gradient_shares",
        "pair_weights",
        "shares_of_values",
        "similarity_dependence",
    ],
    "pml_ext.large_batch": ["step"],
    "pml_ext.runner": [name for name in runner.__all__ if getattr(runner, name).__module__.startswith("pml_ext")],
}
_REGISTRY = "pml_ext.runner.registry"
REGISTRIES = [name for name in vars(registry) if name.endswith("_REGISTRY")]
# part of pml_ext.functional -> title of its page
TOPICS = {
    "losses": "Losses and pair weights",
    "tuples": "Triplets",
    "loop": "Arcs of LoOp",
    "opis": "OPIS and utility",
    "verification": "Verification",
    "open_set": "Open-set identification",
    "retrieval": "Retrieval",
    "clustering_metrics": "Clustering",
    "pairwise": "Pair distances",
    "spectrum": "Spread of embeddings",
}
# class -> what its picture, examples/pictures/CLASS.png, shows
PICTURES = {
    "CITLoss": "Weights that CIT gives the pairs of a batch (the size of the gradient by their similarity).",
    "DiscriminativeLoss": "The distance to the own centroid minus a third of the mean distance to the others.",
    "TCMLoss": "The two hinges, at the default margins.",
    "LoOp": "Arcs of two classes. The solid line is LoOp's distance, the dotted line that of two samples.",
    "PairWeightingLoss": "Weights that three weightings give the pairs of a batch.",
}
# file of the repository -> page of the site
TEXTS = {"README.md": "about.md"}
for _path in (*ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")):
    _name = _path.relative_to(ROOT)
    if not {"site", "pictures"} & set(_name.parts):
        TEXTS.setdefault(str(_name), str(_name))
OF_NOTEBOOKS = {f"examples/notebooks/{name}": f"examples/notebooks/{name[:-6]}.md" for name in NOTEBOOKS.names()}
OWN = {f"examples/site/pages/{path.name}": path.name for path in (ROOT / "examples" / "site" / "pages").glob("*.md")}
SWAPS = [name for name in SCRIPTS.names() if name.startswith("swap_in_")]
OF_SCRIPTS = {
    name: "scripts/swap_a_loss.md" if name in SWAPS else f"scripts/{name[:-3]}.md" for name in SCRIPTS.names()
}
PAGES = {**TEXTS, **OF_NOTEBOOKS, **OWN, **{f"examples/scripts/{name}": page for name, page in OF_SCRIPTS.items()}}
PAGES["examples/guides/fastreid_names.csv"] = "fastreid_names.md"
_WIDE = "---\nhide: [navigation]\n---\n"  # lines of 120 columns fit beside the table of contents alone
# Shows the rows that contain every word.
_FILTER = """<script>
function filterRows(text) {
  const words = text.toLowerCase().split(/\\s+/);
  for (const row of document.querySelectorAll("#rows tbody tr"))
    row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
}
</script>"""
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
_SHORT_CODE = re.compile(r"<code>(?=[^<\n]{1,24}</code>)")
_FLOAT = re.compile(r"\d+\.\d{8,}")
_OPERATOR = re.compile("<mi>([∈≤≥≠:·×])</mi>")
# code, a formula, or a "<" that Markdown would take for a tag's
_TAG = re.compile(r"`[^`]*`|\$\$.*?\$\$|\$[^$\n]+\$|^ *>>> .*?(?=\n\n|\Z)|(<)(?=[A-Za-z/])", re.M | re.S)
_DOCTEST = re.compile(r"^>>> .*?(?=\n\n(?!>>> )|\Z)", re.M | re.S)
_LINK = re.compile(r"\]\((?!data:)([^)\s#]+)(#[^)\s]*)?\)")


class Sections(griffe.Extension):
    """Sections as the parser wants them: a blank line before each, Examples above doctests; and a class's picture."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            text = _TAG.sub(lambda mark: "&lt;" if mark[1] else mark[0], obj.docstring.value)
            text = re.sub(r"^Source: (.*(?:\n {4}.*)*)", _source, text, flags=re.M)
            text = re.sub(r"\n(?=(?:Args|Attributes|Raises|Returns|Yields):$)", "\n\n", text, flags=re.M)
            text = _DOCTEST.sub(_examples, text, count=1)
            text = _DOCTEST.sub(lambda block: _code(block[0], "pycon"), text)
            text = re.sub(r"(^ *|: )>= ", r"\1≥ ", text, flags=re.M)  # > would begin a quotation
            # Several names of one entry: the parser would take what follows a space for a type.
            text = re.sub(r"^ {4}\w+(, \w+)+(?=: )", lambda names: names[0].replace(", ", ",\u00a0"), text, flags=re.M)
            if obj.is_class and obj.name in PICTURES:
                formula, end, below = text.rpartition("$$\n\n")
                symbols, gap, rest = below.partition("\n\n")
                text = formula + end + symbols + gap + _figure(obj.name) + rest
            obj.docstring.value = text


def _figure(name: str) -> str:
    image = f'<img src="../../../examples/pictures/{name}.png" alt="">'
    return f"<figure>{image}<figcaption>{PICTURES[name]}</figcaption></figure>\n\n"


def _examples(found: re.Match[str]) -> str:
    return f"Examples:\n{textwrap.indent(found[0], '    ')}"


def _source(found: re.Match[str]) -> str:
    return "\n**Source:** " + re.sub(r"\n {4}(Paper: )?", lambda paper: "<br>Paper: " if paper[1] else "\n", found[1])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation's API, a section for each module with an entry for each of its pages, and its scripts."""
    sections: list[Any] = []
    for module in PUBLIC:
        entries = [{title: page} for title, page in _titles(module).items()]
        sections.append({module: [_index_of(module), *entries]})
    scripts: list[Any] = ["scripts/index.md", {"Swap a loss": "scripts/swap_a_loss.md"}]
    scripts += [{name: page} for name, page in OF_SCRIPTS.items() if name not in SWAPS]
    assert config.nav is not None
    for part in config.nav:
        if "API" in part:
            part["API"] = [*sections, {_REGISTRY: "api/registry.md"}]
        for entry in part.get("How-to guides", ()):
            if isinstance(entry, dict) and "Scripts" in entry:
                entry["Scripts"] = scripts
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    repository = str(config.repo_url)
    for source, page in TEXTS.items():
        text = _relink((ROOT / source).read_text(encoding="utf-8"), source, page, repository)
        files.append(File.generated(config, page, content=text))
    for source, page in OF_NOTEBOOKS.items():
        notebook = json.loads((ROOT / source).read_text(encoding="utf-8"))
        text = "\n\n".join(_cells(notebook["cells"]))
        files.append(File.generated(config, page, content=_relink(text, source, page, repository)))
    for image in (ROOT / "examples").rglob("*.png"):
        name = str(image.relative_to(ROOT))
        files.append(File.generated(config, name, abs_src_path=str(image)))
    for module in PUBLIC:
        for page, text in _reference(module):
            files.append(File.generated(config, page, content=text))
    made = {
        **_scripts(),
        "api/registry": _registries(),
        "command_line": _command_line(),
        "config_keys": _config_keys(),
        "fastreid_names": _table("FastReID's imports and ours", "solver", "guides", "fastreid_names.csv"),
        "comparisons": _table(
            "All comparisons", "emoji tcm opis", "evidence/results", "comparisons.csv", "whole_networks.csv"
        ),
        "paper_rows": _table("Rows of the papers' tables", "tcm cub", "papers", "rows.csv"),
    }
    for page, text in made.items():
        files.append(File.generated(config, f"{page}.md", content=text))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Links of the pages in pages/ are those of the repository, too."""
    name = page.file.src_uri
    sources = [source for source, own in OWN.items() if own == name]
    return _relink(markdown, sources[0], name, str(config.repo_url)) if sources else markdown


def on_page_content(content: str, /, **_: object) -> str:
    """Set formulas as MathML, which browsers show without a script, and mark inline code that fits on a line."""
    return _SHORT_CODE.sub('<code class="short">', _FORMULA.sub(_mathml, content))


def on_post_page(output: str, /, **_: object) -> str:
    """Remove the attribute that makes the theme's script fetch the repository's stars from api.github.com."""
    return output.replace(' data-md-component="source"', "")


on_post_template = on_post_page  # 404.html


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[1] == "div" else "inline"
    formula = html.unescape(found[2])
    if display == "block":
        formula = re.sub(r"\\(min|max)_", r"\\\1\\limits_", formula)
    formula = convert(formula, display=display)
    # The converter takes these characters for variables, which have no space around them.
    formula = _OPERATOR.sub(r"<mo>\1</mo>", formula)
    return f'<{found[1]} class="formula">{formula}</{found[1]}>'


def _reference(module: str) -> Iterator[tuple[str, str]]:
    """The pages of a module and their texts: an index, and a page for each name or, of functions, for each topic."""
    about = _DOCTEST.sub(lambda example: _code(example[0], "python"), inspect.getdoc(import_module(module)) or "")
    index = f"# {module}\n\n{about}\n\n"
    if module != "pml_ext.functional":
        yield _index_of(module), index + _rows(module, {name: f"{name}.md" for name in PUBLIC[module]})
        for name, page in _titles(module).items():
            yield page, _entry(f"{module}.{name}", 1) + _weightings(name)
        return
    for title, page in _titles(module).items():
        names = [name for name in PUBLIC[module] if TOPICS[_topic(name)] == title]
        index += f"## {title}\n\n" + _rows(module, dict.fromkeys(names, os.path.basename(page)))
        yield page, f"# {title}\n\n" + "".join(_entry(_address(module, name), 2) for name in names)
    yield _index_of(module), index


def _rows(module: str, pages: dict[str, str]) -> str:
    """A table of names, each with a link to its page, and what they are."""
    rows = [
        f"| [`{name}`]({page}#{_address(module, name)}) | {_summary(module, name)} |\n" for name, page in pages.items()
    ]
    return "| name | summary |\n|---|---|\n" + "".join(rows) + "\n"


def _address(module: str, name: str) -> str:
    """The dotted name of an entry: where it is defined, if a folder has the same name, as functional/opis has."""
    thing = getattr(import_module(module), name)
    is_folder = f"{module}.{name}" in sys.modules
    return f"{thing.__module__}.{name}" if is_folder else f"{module}.{name}"


def _entry(name: str, level: int) -> str:
    return f"::: {name}\n    options: {{heading_level: {level}}}\n\n"


def _weightings(name: str) -> str:
    """What PairWeightingLoss's page has below its docstring."""
    if name != "PairWeightingLoss":
        return ""
    weightings = functional.WEIGHTINGS.values()
    return "## Weightings\n\n" + "".join(_entry(f"{one.__module__}.{one.__name__}", 3) for one in weightings)


def _index_of(module: str) -> str:
    return f"api/{module.rpartition('.')[2]}/index.md"


def _titles(module: str) -> dict[str, str]:
    """Title -> page, without the index."""
    folder = os.path.dirname(_index_of(module))
    if module == "pml_ext.functional":
        return {title: f"{folder}/{topic}.md" for topic, title in TOPICS.items()}
    return {name: f"{folder}/{name}.md" for name in PUBLIC[module]}


def _topic(name: str) -> str:
    """The part of pml_ext.functional that has a name."""
    home = getattr(getattr(functional, name), "__module__", "pml_ext.functional.losses")  # WEIGHTINGS is a dict
    return home.split(".")[2]


def _summary(module: str, name: str) -> str:
    """The first paragraph of a docstring, for a cell of a table."""
    thing = getattr(import_module(module), name)
    if not callable(thing):
        return "functions of pair weights by name"  # WEIGHTINGS
    text = inspect.getdoc(thing) or ""
    return text.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _relink(text: str, source: str, page: str, repository: str) -> str:
    """Links to files of the repository lead to their pages, or to the repository."""

    def to_page(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        name = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if name in PAGES or name.endswith(".png"):
            return f"]({os.path.relpath(PAGES.get(name, name), os.path.dirname(page))}{anchor})"
        if "://" in target or not (ROOT / name).exists():
            return found[0]
        return f"]({repository}/{'tree' if (ROOT / name).is_dir() else 'blob'}/main/{name}{anchor})"

    return _LINK.sub(to_page, text)


def _cells(cells: list[dict[str, Any]]) -> Iterator[str]:
    """A notebook's text, code, printed lines and figures as Markdown."""
    for cell in cells:
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else _code(text, "python")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                yield f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})"
            elif shown := "".join(output.get("text", data.get("text/plain", ""))):
                yield _code(shown.rstrip(), "text")


def _scripts() -> dict[str, str]:
    """A table of the scripts, a page for each, and one for those that swap a loss."""
    table = "# Scripts\n\n`pml-ext copy NAME` copies one of them into the current folder.\n\n"
    table += "|script|what it does|\n|---|---|\n"
    pages = {"scripts/swap_a_loss": f"{_WIDE}# Swap a loss\n\nFour scripts that change one loss on the same digits.\n"}
    for name, page in OF_SCRIPTS.items():
        code = (SCRIPTS.folder / name).read_text(encoding="utf-8")
        about = html.escape((ast.get_docstring(ast.parse(code)) or "").partition("\n")[0])
        table += f"|[{name}]({os.path.basename(page)})|{about}|\n"
        entry = f"{name}\n\n`pml-ext copy {name}`\n\n{_code(code, 'python')}\n"
        if name in SWAPS:
            pages["scripts/swap_a_loss"] += f"\n## {entry}"
        else:
            pages[page.removesuffix(".md")] = f"{_WIDE}# {entry}"
    return {"scripts/index": table, **pages}


def _registries() -> str:
    """The page of the registries: they are values, not classes with pages."""
    options = f"heading_level: 2, show_root_heading: false, members: [{', '.join(REGISTRIES)}]"
    return f"# {_REGISTRY}\n\n::: {_REGISTRY}\n    options: {{{options}}}\n"


def _command_line() -> str:
    whole, commands = cli.parsers_of_commands()
    parts = ["# Command line", _code(whole.format_help(), "text")]
    for name, parser in commands.items():
        parts += [f"## pml-ext {name}", _code(parser.format_help(), "text")]
    return "\n\n".join(parts)


def _config_keys() -> str:
    """A table for each part of the config, with an anchor for each key."""
    about = (
        "Every key of a YAML file. [`pml-ext list losses`](command_line.md) and the like list the keys of each part."
    )
    parts = {"": list[str]()}
    for key, default, meaning in config_keys():
        parent = key.partition(".")[0] if "." in key else ""
        link = f'<a id="{key}" href="#{key}"><code>{key}</code></a>'
        value = _FLOAT.sub(lambda number: f"{float(number[0]):g}", repr(default))
        cells = [link, f"`{type(default).__name__}`", f"`{value}`", html.escape(meaning).replace("|", "\\|")]
        parts.setdefault(parent, []).append(f"| {' | '.join(cells)} |\n")
    head = "| key | type | default | meaning |\n|---|---|---|---|\n"
    tables = [f"{f'## {part}' if part else ''}\n\n{head}{''.join(rows)}" for part, rows in parts.items()]
    return f"# Config keys\n\n{about}\n\n" + "\n".join(tables)


def _table(title: str, search: str, folder: str, *names: str) -> str:
    """CSV files of one schema as a table, with a field that filters its rows, e.g. by the words in `search`."""
    columns: list[str] = []
    body = ""
    for name in names:
        with (ROOT / "examples" / folder / name).open(encoding="utf-8", newline="") as file:
            columns, *rows = csv.reader(file)
        for row in rows:
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
            body += f"<tr>{cells}</tr>\n"
    head = "".join(f"<th>{column.replace('_', ' ')}</th>" for column in columns)
    table = f"<table id='rows' data-file='{names[0]}'><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    field = f"<input id='filter' placeholder='Filter, e.g. {search}' oninput='filterRows(this.value)'>"
    front = "---\nhide: [navigation, toc]\nsearch: {exclude: true}\n---\n"
    return f"{front}# {title}\n\n<p>{field}</p>\n\n{table}\n\n{_FILTER}"


def _code(text: str, language: str) -> str:
    return f"````{language}\n{text}\n````"
