"""What `pml-ext embed --add` does with the file that is there: which pictures are new, changed or gone."""

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pml_ext._errors import UserError
from pml_ext.search.embedding_blocks import Block, Version
from pml_ext.search.embedding_file import EmbeddingFile
from pml_ext.search.image_list import Listed, is_unchanged
from pml_ext.search.model_record import ModelRecord

log = logging.getLogger("pml_ext")

_SHOWN = 3  # of the pictures that are gone


class Plan(NamedTuple):
    """The pictures to embed, and which rows (N,) of the file that is there stay."""

    fresh: Sequence[Listed]
    stay: np.ndarray = np.zeros(0, dtype=bool)


def open_old(output: Path, record: ModelRecord, label_by_folder: bool) -> EmbeddingFile:
    """The output that pictures are added to; an error where it is of another model."""
    old = EmbeddingFile.open(output)
    if old.record is None or not old.record.same_model(record):
        of = "another program" if old.record is None else f"{old.record.weights} (SHA-256 {old.record.sha256[:12]}…)"
        raise UserError(
            f"{output} is of {of}: its embeddings and those of {record.weights} ({record.sha256[:12]}…) with this "
            "config cannot be compared; choose another --output"
        )
    was, now = old.record.normalization, record.normalization
    if (was is None) != (now is None) or (was is not None and not was.same_as(now)):
        advice = f"give --normalize {was.file}" if was else "leave out --normalize, or take another --output"
        raise UserError(f"{output} has scores {f'normalised by {was}' if was else 'that are plain cosines'}: {advice}")
    if ("labels" in old.texts) != label_by_folder:
        has = "has no labels: leave out" if label_by_folder else "has labels: give"
        raise UserError(f"{output} {has} --label-by-folder")
    return old


def plan_additions(old: EmbeddingFile, listed: Sequence[Listed], *, prune: bool) -> Plan:
    """Compare the pictures by size and content with those that the rows were made of; the log says what was found."""
    names = old.paths()
    known = dict(zip(names, old.fingerprints(), strict=True))
    there = [picture for picture in listed if picture.name in known]
    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
        same = list(pool.map(lambda picture: is_same(picture, known[picture.name]), there))
    changed = {picture.name for picture, is_as_before in zip(there, same, strict=True) if not is_as_before}
    if there:
        count = f"{len(there)} of {len(listed)} pictures are in {old.path} already"
        log.info("%s%s", count, f"; {len(changed)} of them have changed and are embedded again" if changed else "")
    if unknown := sum(not known[picture.name] for picture in there):
        log.warning(
            "%s has no fingerprints of %d of these pictures, which an older version wrote: they count as unchanged; "
            "--overwrite embeds all again", old.path, unknown,
        )  # fmt: skip
    base = old.path.parent.resolve()
    gone = {name for name in known if not os.path.exists(base / name)}
    if gone:
        some = ", ".join(sorted(gone)[:_SHOWN]) + (" …" if len(gone) > _SHOWN else "")
        does = "they are dropped" if prune else "--prune drops them"
        log.warning("%d pictures in %s do not exist any more (%s): %s", len(gone), old.path, some, does)
    dropped = changed | gone if prune else changed
    fresh = [picture for picture in listed if picture.name not in known or picture.name in changed]
    stay = np.array([name not in dropped for name in names])
    if not fresh and not stay.any():
        raise UserError(f"none of the pictures in {old.path} exists: are they on a disk that is not mounted?")
    return Plan(fresh, stay)


def is_same(picture: Listed, fingerprint: str) -> bool:
    """Whether a picture is as it was; True where its fingerprint is unknown."""
    return not fingerprint or is_unchanged(picture.path, fingerprint)


def rows_that_stay(old: EmbeddingFile, stay: np.ndarray) -> tuple[Iterator[Block], tuple[Version, ...]]:
    """These rows of a file, and its versions, none where a row goes."""

    def blocks() -> Iterator[Block]:
        begin = 0
        for block in old.blocks():
            of_block = stay[begin : begin + len(block.paths)]
            begin += len(of_block)
            fingerprints = block.fingerprints or [""] * len(block.paths)
            if of_block.any():
                yield Block(
                    block.embeddings[of_block],
                    list(compress(block.paths, of_block)),
                    None if block.labels is None else list(compress(block.labels, of_block)),
                    list(compress(fingerprints, of_block)),
                    None if block.offsets is None else block.offsets[of_block],
                )

    return blocks(), old.versions if stay.all() else ()
