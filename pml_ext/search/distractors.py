"""Queries against a gallery and a file of distractors, which is read in blocks."""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from pml_ext._errors import UserError
from pml_ext._identities import JUNK
from pml_ext.metrics import IdentificationEvaluator, StreamingVerification
from pml_ext.search.embedding_file import EmbeddingFile
from pml_ext.search.query_and_gallery import Part


def measure_among_distractors(query: Part, gallery: Part, distractors: str) -> dict[str, float]:
    """TAR at FAR over all pairs of a query and a gallery row, TPIR at FPIR, and ranks of identities.

    Gallery rows of the query's identity and camera are ignored, as is junk.

    UserError: files that do not fit; and as `distractor_blocks`.
    """
    kept = [part.labels != JUNK for part in (query, gallery)]
    probes, enrolled = (
        (part.data.embeddings.float()[rows], part.labels[rows], part.cameras[rows])
        for part, rows in zip((query, gallery), kept, strict=True)
    )
    pairs = StreamingVerification()
    try:
        blocks = chain([enrolled], distractor_blocks(distractors, query, probes[0].shape[1]))
        found = IdentificationEvaluator().of_blocks(*probes[:2], blocks, cameras=probes[2], verification=pairs)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{query.file}: {error}") from error
    return pairs.compute() | found


def distractor_blocks(path: str, query: Part, dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Embeddings and identities of a file's rows, which are no query's; without labels each row is one of its own.

    UserError: other dimensions, and an identity that the queries or their gallery have.
    """
    file = EmbeddingFile.open(path)
    if file.dim != dim:
        raise UserError(f"{path} must have {dim} dimensions, as {query.file}; got {file.dim}")
    known, numbers = set(query.identity_names.values()), dict[str, int]()
    first = max(query.identity_names) + 1
    for block in file.blocks():
        if block.labels is None:
            ids = torch.arange(first, first + len(block.embeddings))
            first += len(ids)
        else:
            if both := known.intersection(block.labels):
                raise UserError(f"{path} must have other identities than {query.file} and its gallery; got {min(both)}")
            ids = torch.tensor([numbers.setdefault(name, first + len(numbers)) for name in block.labels])
        yield torch.from_numpy(block.embeddings), ids
