"""DATASETS.ALIASES: names that a YAML uses, for data of one's own."""

from collections.abc import Iterable


def aliases_of(entries: Iterable[object]) -> dict[str, str]:
    """name -> what it stands for, of entries NAME=file:people.csv or NAME=folder:path.

    >>> aliases_of(["NAIC=file:naic/people.csv"])
    {'NAIC': 'file:naic/people.csv'}
    """
    return {name: target for name, _, target in (str(entry).partition("=") for entry in entries)}
