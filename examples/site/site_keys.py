"""Reads the config keys with their defaults, and their meanings from the comments of defaults.py."""

import ast
import io
import tokenize
from collections.abc import Iterator
from typing import Any

from pml_ext.runner.config import defaults

Comments = dict[int, tuple[str, bool]]  # line -> comment, and whether it is alone on its line


def config_keys() -> Iterator[tuple[str, Any, str]]:
    """Key, default and meaning, in the order of the file."""
    with open(defaults.__file__, encoding="utf-8") as file:
        code = file.read()
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(code).readline) if token.type == tokenize.COMMENT]
    comments = {token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#")) for token in tokens}
    tables = dict[str, ast.Dict]()
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict):
            assert isinstance(statement.target, ast.Name)
            tables[statement.target.id] = statement.value
    yield from _rows(tables["_DEFAULTS"], defaults.get_cfg(), "", "", comments, tables)


def _rows(
    table: ast.Dict,
    values: Any,
    prefix: str,
    meaning: str,
    comments: dict[int, tuple[str, bool]],
    tables: dict[str, ast.Dict],
) -> Iterator[tuple[str, Any, str]]:
    entries = list(zip(table.keys, table.values, strict=True))
    for place, (key, node) in enumerate(entries):
        assert isinstance(key, ast.Constant)
        before = entries[place - 1][1].end_lineno if place else table.lineno
        after = entries[place + 1][0] if place + 1 < len(entries) else None
        own = list[str]()
        line = key.lineno - 1
        while key.lineno != before and comments.get(line, ("", False))[1]:
            own.insert(0, comments[line][0])
            line -= 1
        is_last = after is None or after.lineno > (node.end_lineno or 0)
        end = comments.get(node.end_lineno or 0)
        closes_here = after is None and table.end_lineno == node.end_lineno  # then the comment is the table's
        if is_last and not closes_here and end is not None and not end[1]:
            own.append(end[0])
        said, name = " ".join(own) or meaning, f"{prefix}{key.value}"
        inner = tables.get(node.id) if isinstance(node, ast.Name) else node
        if isinstance(inner, ast.Dict):
            yield from _rows(inner, values[key.value], f"{name}.", said, comments, tables)
        else:
            yield name, values[key.value], said
