"""Pair lists of the face verification protocols."""

import csv
import re
import warnings
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class ImagePairs(NamedTuple):
    """P pairs of images, identified by keys "name/number".

    Attributes:
        first, second: P keys each.
        same: (P,) bool, True for pairs of one subject.
        fold_ids: (P,) int64 from 0.

    >>> same, folds = torch.tensor([True, False]), torch.tensor([0, 0])
    >>> pairs = ImagePairs(("Ann/1", "Ann/1"), ("Ann/2", "Bob/1"), same, folds)
    >>> [one for one, same in zip(pairs.second, pairs.same) if same]
    ['Ann/2']
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    same: Tensor
    fold_ids: Tensor


class TemplatePairs(NamedTuple):
    """P pairs of templates. first, second: (P,) int64 template ids; same: (P,) bool.

    >>> pairs = TemplatePairs(torch.tensor([1, 1]), torch.tensor([2, 3]), torch.tensor([True, False]))
    >>> int(pairs.same.sum())
    1
    """

    first: Tensor
    second: Tensor
    same: Tensor


class TemplateMedia(NamedTuple):
    """N images of templates. images: N names; template_ids, media_ids: (N,) int64.

    >>> media = TemplateMedia(("a.jpg", "b.jpg"), torch.tensor([1, 1]), torch.tensor([10, 11]))
    >>> media.images[0]
    'a.jpg'
    """

    images: tuple[str, ...]
    template_ids: Tensor
    media_ids: Tensor


_SAME = "'name n1 n2'", re.compile(r"(\S+) (\d+) (\d+)", re.ASCII)
_DIFFERENT = "'name1 n1 name2 n2'", re.compile(r"(\S+) (\d+) (\S+) (\d+)", re.ASCII)


def read_lfw_pairs(path: str | PathLike[str]) -> ImagePairs:
    """Reads LFW's pairs.txt (10 folds), or pairsDevTrain.txt and pairsDevTest.txt (one fold).

    The first line is "folds pairs", or "pairs" for one fold. Each fold lists `pairs` lines "name n1 n2" of one
    subject, then as many lines "name1 n1 name2 n2" of two. Fields are separated by tabs or spaces.

    Returns:
        ImagePairs with keys such as "Aaron_Eckhart/1".
    Raises:
        ValueError: a malformed line (the message has its number).
        OSError: the file cannot be read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     _ = file.write("1\\nAnn 1 2\\nAnn 1 Bob 3\\n")
    ...     file.flush()
    ...     read_lfw_pairs(file.name).second
    ('Ann/2', 'Bob/3')
    """
    try:
        header, *lines = [line.split() for line in Path(path).read_text(encoding="utf-8-sig").rstrip().split("\n")]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8; {error}") from error
    if len(header) not in (1, 2) or not all(map(_is_count, header)) or 0 in map(int, header):
        raise _malformed(path, 1, "'folds pairs' or 'pairs', positive whole numbers", header)
    folds, pairs = (1, int(header[0])) if len(header) == 1 else map(int, header)
    first: list[str] = []
    second: list[str] = []
    same: list[bool] = []
    for number, fields in enumerate(lines, 2):
        if len(same) == folds * 2 * pairs:
            raise _malformed(path, number, f"the end after {folds} × 2 × {pairs} pairs", fields)
        is_same = len(same) // pairs % 2 == 0
        expected, form = _SAME if is_same else _DIFFERENT
        match = form.fullmatch(" ".join(fields))
        if match is None:
            raise _malformed(path, number, expected, fields)
        name, n1, *others, n2 = match.groups()
        if others == [name]:
            raise _malformed(path, number, "two different names", fields)
        other = others[0] if others else name
        first.append(f"{name}/{int(n1)}")
        second.append(f"{other}/{int(n2)}")
        same.append(is_same)
    if len(same) < folds * 2 * pairs:
        raise ValueError(f"{path}: expected {folds} × 2 × {pairs} pairs; the file ends after {len(same)}")
    fold_ids = torch.arange(len(same), device="cpu") // (2 * pairs)
    return ImagePairs(tuple(first), tuple(second), torch.tensor(same, device="cpu"), fold_ids)


def read_template_pairs(path: str | PathLike[str]) -> TemplatePairs:
    """Reads an IJB list of template pairs: lines "template1 template2 label", label 1 for one subject and 0 for two.

    Raises:
        ValueError: a malformed row (the message has its number); an empty file.
        OSError: the file cannot be read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     _ = file.write("1 2 1\\n1 3 0\\n")
    ...     file.flush()
    ...     read_template_pairs(file.name).same.tolist()
    [True, False]
    """
    first, second, labels = torch.from_numpy(_table(path, np.int64, "template1 template2 label")).T.contiguous()
    if bool((labels != (labels > 0)).any()):
        raise ValueError(f"{path}: expected labels 0 or 1; got {sorted(set(labels.tolist()))[:5]}")
    return TemplatePairs(first, second, labels > 0)


def read_template_media(path: str | PathLike[str]) -> TemplateMedia:
    """Reads an IJB list of the templates' images: lines "image template medium".

    Raises:
        ValueError: a malformed row (the message has its number); an empty file.
        OSError: the file cannot be read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     _ = file.write("a.jpg 1 10\\nb.jpg 1 11\\n")
    ...     file.flush()
    ...     read_template_media(file.name).media_ids.tolist()
    [10, 11]
    """
    expected = "image template medium"
    images, *ids = _table(path, str, expected).T
    try:
        templates, media = (torch.from_numpy(column.astype(np.int64)) for column in ids)
    except ValueError as error:
        raise ValueError(f"{path}: expected lines {expected!r} with whole numbers; {error}") from error
    return TemplateMedia(tuple(images.tolist()), templates, media)


def _table(path: str | PathLike[str], dtype: type, columns: str) -> np.ndarray:
    """Returns the (N, C) whitespace-separated fields of a file; ValueError for a different number of columns."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # for an empty file
            rows: np.ndarray = np.loadtxt(path, dtype=dtype, ndmin=2, comments=None, encoding="utf-8-sig")
        if rows.shape[1] != len(columns.split()):
            raise ValueError(f"it has {rows.shape[1]} columns")
    except (ValueError, UserWarning) as error:
        raise ValueError(f"{path}: expected lines {columns!r}; {error}") from error
    return rows


def _is_count(field: str) -> bool:
    """Returns whether a field is digits only and fits into 64 bits; int() would also accept 1_0."""
    return field.isascii() and field.isdigit() and len(field) <= 18


def _malformed(path: object, number: int, expected: str, fields: list[str]) -> ValueError:
    return ValueError(f"{path}, line {number}: expected {expected}; got {' '.join(fields)[:80]!r}")


_COLUMNS = ("TEMPLATE_ID", "SUBJECT_ID")


class TemplateSubjects(NamedTuple):
    """T templates. template_ids: (T,) int64, ascending; subjects: (T,) int64.

    >>> TemplateSubjects(torch.tensor([1, 2]), torch.tensor([7, 7])).subjects.tolist()
    [7, 7]
    """

    template_ids: Tensor
    subjects: Tensor


class SearchProtocol(NamedTuple):
    """Probes, and galleries with disjoint subjects that are searched one after the other.

    >>> one, other = (TemplateSubjects(torch.tensor([t]), torch.tensor([t])) for t in (1, 2))
    >>> probes = TemplateSubjects(torch.tensor([3, 4]), torch.tensor([1, 2]))
    >>> protocol = SearchProtocol(probes, (one, other))
    >>> len(protocol.galleries)
    2
    """

    probes: TemplateSubjects
    galleries: tuple[TemplateSubjects, ...]


def read_template_subjects(path: str | PathLike[str]) -> TemplateSubjects:
    """Reads a list of the 1:N protocol, such as ijbc_1N_gallery_G1.csv: one line per image of a template.

    The file has a header; columns other than TEMPLATE_ID and SUBJECT_ID are ignored.

    Raises:
        ValueError: missing columns, no templates, an id that is not an integer, or a template with two subjects (the
            message has the line number).
        OSError: the file cannot be read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("TEMPLATE_ID,SUBJECT_ID,FILENAME\\n5,1,1.jpg\\n5,1,2.jpg\\n6,2,3.jpg\\n")
    ...     file.flush()
    ...     read_template_subjects(file.name).template_ids.tolist()
    [5, 6]
    """
    subjects: dict[int, int] = {}
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = csv.DictReader(file)
        lines.fieldnames = [name.strip().upper() for name in lines.fieldnames or ()]
        if missing := [name for name in _COLUMNS if name not in lines.fieldnames]:
            raise ValueError(
                f"{path}: expected a header with {' and '.join(_COLUMNS)}; {', '.join(missing)} is missing"
            )
        for line in lines:
            fields = [(line[name] or "").strip() for name in _COLUMNS]
            if not all(map(_is_count, fields)):
                raise ValueError(f"{path}, line {lines.line_num}: expected whole numbers as ids; got {fields}")
            template, subject = map(int, fields)
            if subjects.setdefault(template, subject) != subject:
                raise ValueError(
                    f"{path}, line {lines.line_num}: expected one subject per template; {template} is of "
                    f"{subjects[template]} and of {subject}"
                )
    if not subjects:
        raise ValueError(f"{path}: expected at least one template; the file lists none")
    templates = sorted(subjects)
    return TemplateSubjects(
        torch.tensor(templates, device="cpu"),
        torch.tensor([subjects[template] for template in templates], device="cpu"),
    )
