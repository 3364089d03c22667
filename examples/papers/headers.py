"""Reads the comments at the top of configs about the papers' results that they reproduce.

Comments come before the first key; continuation lines are indented by three spaces after the `#`:

    # Paper: LoOp, Table 2, row "LoOp (triplet)", CUB
    # Reported: NMI 59.9, F1 26.5, R@1 50.3        (the paper's numbers; or `a plot: what it shows`)
    # With: MODEL.LOSSES.TRIPLETMARGIN.MARGIN 0.1  (KEY VALUE pairs that the row needs in addition)
    # Needs: `MODEL.BACKBONE.PRETRAIN_PATH FILE`   (KEY VALUE pairs that only the user can give)
    # Differs: Paper: …; here: …

`Paper` opens a row and `Reported` must follow; the others are optional. `Differs` and `Needs` above all rows apply
to the whole file and to files that have it as _BASE_; of `Needs` the nearest counts. A config that belongs to a paper
but to none of its tables has one line, possibly in its _BASE_:

    # Beside: TCM, ResNet-50 on test classes that training has not seen, where the paper has ViT-B
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[2] / "fastreid_configs"
_FIELD = re.compile(r"# (Paper|Reported|With|Needs|Differs|Beside): +(\S.*)")
_ROW = re.compile(r'(\w+), ([^,"]+), row "([^"]+)", (\S.*)')
_BASE = re.compile(r"""^_BASE_: *["']?([^"'\s]+)""", re.M)
_BESIDE = re.compile(r"(\w+), (\S.*)")


class HeaderError(Exception):
    """A header or papers.yml cannot be read; the message says where and what is expected."""


@dataclass
class Row:
    """One result of a paper, and the config that should give it."""

    config: str
    paper: str
    experiment: str
    name: str
    data: str
    reported: str = ""
    overrides: str = ""
    needs: str = ""
    differs: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        return [f"Needs {self.needs}"] * bool(self.needs) + self.differs

    def opts(self) -> list[str]:
        """The overrides for load_config."""
        return shlex.split(self.overrides)


def rows_of(config: Path) -> list[Row]:
    """The rows in a config's header.

    Raises:
        HeaderError: a malformed line, or a row without the paper's numbers.
    """
    found = list[Row]()
    for label, text in _fields(config):
        if label == "Paper":
            parts = _ROW.fullmatch(text) or _fail(config, f'expected PAPER, TABLE, row "NAME", DATA; got {text!r}')
            found.append(Row(name_of(config), *parts.groups()))
        elif label in ("Differs", "Needs") and not found:
            pass  # of the whole file
        elif label == "Differs":
            found[-1].differs.append(text)
        elif label == "Beside":
            if found:
                _fail(config, "Beside is for a config without rows")
        elif not found:
            _fail(config, f"{label} has no Paper before it")
        elif label == "Reported":
            found[-1].reported = text
        elif label == "Needs":
            found[-1].needs = text
        else:
            if len(shlex.split(text)) % 2:
                _fail(config, f"With needs KEY VALUE pairs; got {text!r}")
            found[-1].overrides = text
    for row in found:
        if not row.reported:
            _fail(config, f"the row {row.name!r} of {row.experiment} needs a line Reported")
        row.differs = [*_of_file(config, "Differs"), *row.differs]
        row.needs = row.needs or "".join(_of_file(config, "Needs")[-1:])
    return found


def _of_file(config: Path, wanted: str) -> list[str]:
    """The lines of a label that apply to the whole file, those of its bases first."""
    base = base_of(config)
    above = _of_file(base, wanted) if base else []
    for label, text in _fields(config):
        if label == "Paper":
            break
        if label == wanted:
            above.append(text)
    return above


def beside(config: Path) -> tuple[str, str] | None:
    """The paper of a config without rows, and a description, from its own line or its nearest base's."""
    for label, text in _fields(config):
        if label == "Beside":
            match = _BESIDE.fullmatch(text) or _fail(config, f"expected PAPER, what it is; got {text!r}")
            return match[1], match[2]
    base = base_of(config)
    return beside(base) if base else None


def base_of(config: Path) -> Path | None:
    """The file in _BASE_, if any."""
    match = _BASE.search(config.read_text(encoding="utf-8"))
    return (config.parent / match[1]).resolve() if match else None


def _fields(config: Path) -> Iterator[tuple[str, str]]:
    """Labels and texts of the comments above a config's first key."""
    found = list[list[str]]()
    in_a_field = False
    for line in config.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if match := _FIELD.fullmatch(line):
            found.append([match[1], match[2]])
        elif in_a_field and line.startswith("#   "):
            found[-1][1] += f" {line[1:].strip()}"
        in_a_field = match is not None or (in_a_field and line.startswith("#   "))
    return ((label, text) for label, text in found)


def _fail(config: Path, reason: str) -> Any:
    raise HeaderError(f"{config.relative_to(CONFIGS.parent)}: {reason}")


def name_of(config: Path) -> str:
    """The path in fastreid_configs/."""
    return config.relative_to(CONFIGS).as_posix()


def leaves() -> list[Path]:
    """The configs that can be run."""
    return sorted(path for path in CONFIGS.rglob("*.yml") if not path.name.startswith("Base-"))


def all_rows() -> list[Row]:
    """The rows of all configs.

    Raises:
        HeaderError: a malformed header, or a row in a file that is only a base of others.
    """
    for base in CONFIGS.rglob("Base-*.yml"):
        if rows_of(base):
            _fail(base, "a base cannot be run: move its rows to the configs that have it as _BASE_")
    return [row for path in leaves() for row in rows_of(path)]
