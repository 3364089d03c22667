"""Lists of the 1:N protocols of IJB-B and IJB-C: which templates are enrolled, and which are searched for."""

import csv
from os import PathLike
from typing import NamedTuple

import torch
from torch import Tensor

_COLUMNS = ("TEMPLATE_ID", "SUBJECT_ID")


class TemplateSubjects(NamedTuple):
    """T templates. template_ids: (T,) int64, ascending; subjects: (T,) int64.

    >>> TemplateSubjects(torch.tensor([1, 2]), torch.tensor([7, 7])).subjects.tolist()
    [7, 7]
    """

    template_ids: Tensor
    subjects: Tensor


class SearchProtocol(NamedTuple):
    """Probes, and galleries that are searched one after the other; the galleries' subjects differ.

    >>> one, other = (TemplateSubjects(torch.tensor([t]), torch.tensor([t])) for t in (1, 2))
    >>> protocol = SearchProtocol(TemplateSubjects(torch.tensor([3, 4]), torch.tensor([1, 2])), (one, other))
    >>> len(protocol.galleries)
    2
    """

    probes: TemplateSubjects
    galleries: tuple[TemplateSubjects, ...]


def read_template_subjects(path: str | PathLike[str]) -> TemplateSubjects:
    """A list of the 1:N protocol, such as ijbc_1N_gallery_G1.csv: a line for each image of a template.

    The header names the columns; TEMPLATE_ID and SUBJECT_ID are read, others are ignored.

    Raises:
        ValueError: a file without these columns or without templates; with the number of its line, an id that is no
            whole number, or a template of two subjects.
        OSError: the file cannot be read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("TEMPLATE_ID,SUBJECT_ID,FILENAME\\n5,1,img/1.jpg\\n5,1,img/2.jpg\\n6,2,img/3.jpg\\n")
    ...     file.flush()
    ...     read_template_subjects(file.name).template_ids.tolist()
    [5, 6]
    """
    subjects: dict[int, int] = {}
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = csv.reader(file)
        header = [name.strip().upper() for name in next(lines, [])]
        if missing := [name for name in _COLUMNS if name not in header]:
            raise ValueError(
                f"{path}: expected a header with {' and '.join(_COLUMNS)}; {', '.join(missing)} is missing"
            )
        places = [header.index(name) for name in _COLUMNS]
        for line in lines:
            if not line:
                continue
            fields = [line[place].strip() if place < len(line) else "" for place in places]
            if not all(field.isascii() and field.isdigit() and len(field) <= 18 for field in fields):
                raise ValueError(f"{path}, line {lines.line_num}: expected whole numbers as ids; got {fields}")
            template, subject = map(int, fields)
            if subjects.setdefault(template, subject) != subject:
                raise ValueError(
                    f"{path}, line {lines.line_num}: expected one subject a template; {template} is of "
                    f"{subjects[template]} and of {subject}"
                )
    if not subjects:
        raise ValueError(f"{path}: expected at least one template; the file lists none")
    return TemplateSubjects(*(torch.tensor(column) for column in zip(*sorted(subjects.items()), strict=True)))
