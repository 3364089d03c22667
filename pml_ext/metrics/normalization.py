"""Score normalisation: corrects cosines by how crowded the surroundings of both samples are, without training."""

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal
from zipfile import BadZipFile

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor
from torch import distributed as dist

from pml_ext._ops.numerics import full_precision, unit_rows
from pml_ext._shared.checks import check_choice, check_finite_embeddings, check_fraction, check_in_range, check_whole
from pml_ext._shared.files import decode_json, encode_json, replacing
from pml_ext._shared.settings import CheckedSettings
from pml_ext._shared.text import first_of
from pml_ext._version import __version__
from pml_ext.functional.pairwise.pair_blocks import both_sides
from pml_ext.functional.retrieval.cohort import check_cohort_size, cohort_offsets, highest_cosines
from pml_ext.metrics.checkpoint import Checkpoint, CountAbove0, ModelFile, Sha256, checkpoint_of, require_checkpoint
from pml_ext.metrics.labels import Ids, names_of_samples


class CohortNormalization(CheckedSettings):
    r"""Corrects each cosine by the mean similarity of its two samples to a cohort (symmetric score normalisation).

    $$s'(a, b) = \cos(a, b) - \frac{1}{2} \text{strength} (m(a) + m(b))$$

    m(x) is the mean of the k highest cosines of x with the cohort.

    s' is the inner product of vectors with two more columns (`augment`), so any index for inner products can search
    by it.

    A cohort is a fixed set of samples whose identities are judged nowhere: no report, metric or check may contain
    them. An identity's samples in the cohort raise its m(x) and lower its scores, which the scores of a stranger
    are not; error rates measured so are too low. Reports and metrics therefore raise a ValueError for a cohort that
    holds a judged sample or, if it has labels, a judged identity. `cohort_mask` sets identities aside by name.

    Whether normalised scores help depends on the data, and a cohort of a few dozen identities did harm. A
    `ThresholdReport` with a cohort also has the FRR and OPIS of plain cosines at the same FAR.

    Args:
        cohort: (M, D), finite; normalised here. `fit` is an alias of the constructor.
        k: number of nearest cohort samples to average, 1 to M.
        strength: 0 leaves cosines unchanged, 1 subtracts the full mean.
        labels: (M,) identities of the cohort, integers or strings. None: unknown, so that only copies of judged samples
            can be refused.
        checkpoint: model file that computed the cohort, see `with_checkpoint`.
    Attributes:
        cohort: (M, D), of length 1.
        labels: (M,) strings, or None.
    Raises:
        ValueError: fewer than k samples in the cohort; values out of range; labels of another length.
    Source: see `pml_ext.functional.cohort_offsets`. Paper (AS-norm, Matějka et al., 2017): also divides by the standard
        deviation; here: no division.

    >>> generator = torch.Generator().manual_seed(0)
    >>> others = torch.randn(100, 8, generator=generator)  # of people who are neither query nor gallery
    >>> queries, gallery = torch.randn(5, 8, generator=generator), torch.randn(20, 8, generator=generator)
    >>> normalization = CohortNormalization.fit(others, k=10)
    >>> scores = normalization.scores(queries, gallery)
    >>> torch.allclose(normalization.augment(queries) @ normalization.augment(gallery, "gallery").T, scores, atol=1e-6)
    True
    """

    fixed = ("cohort", "k", "labels", "strength")

    def __init__(
        self,
        cohort: Tensor,
        k: int = 10,
        strength: float = 1.0,
        *,
        labels: Ids | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        check_finite_embeddings(cohort, "cohort")
        check_whole(k, "k")
        check_cohort_size(k, len(cohort), includes_sample=False)
        check_in_range(strength, 0, 2, "strength")
        self.cohort, self.k, self.strength = unit_rows(cohort.detach()), k, float(strength)
        self.labels = None if labels is None else names_of_samples(labels, len(cohort))
        self.checkpoint = checkpoint

    @classmethod
    def fit(
        cls, cohort: Tensor, k: int = 10, strength: float = 1.0, *, labels: Ids | None = None
    ) -> "CohortNormalization":
        """Creates a normalisation from a cohort; nothing is trained."""
        return cls(cohort, k, strength, labels=labels)

    def with_checkpoint(self, model: ModelFile) -> "CohortNormalization":
        """Returns a copy with the name and SHA-256 of the model file that computed the cohort.

        Raises:
            OSError: the file cannot be read.
        """
        bound = copy(self)
        bound.checkpoint = checkpoint_of(model)
        return bound

    @property
    def record(self) -> "CohortRecord":
        """Returns k, strength, the cohort's SHA-256 and its checkpoint."""
        samples, dim = self.cohort.shape
        return CohortRecord(self.k, self.strength, samples, dim, self.sha256, self.checkpoint)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the cohort's numbers and labels; identifies the cohort."""
        return checksum(self.cohort, self.labels)

    @property
    def identities(self) -> int | None:
        """Number of different labels; None without labels."""
        return None if self.labels is None else len(set(self.labels.tolist()))

    def save(self, path: str | Path, *, checkpoint: ModelFile | None = None) -> None:
        """Writes an .npz file with the cohort's numbers, labels, k, strength and checkpoint.

        Args:
            checkpoint: model file that computed the cohort. Its SHA-256 is stored, and `load` compares it.
        """
        bound = self if checkpoint is None else self.with_checkpoint(checkpoint)
        write_cohort(Path(path), bound.cohort, bound.labels, bound.record)

    @classmethod
    def load(cls, path: str | Path, *, checkpoint: ModelFile | None = None) -> "CohortNormalization":
        """Reads a file written by `save`.

        Args:
            checkpoint: model file in use; must be the one that computed the cohort.
        Warns:
            UserWarning: the cohort records a checkpoint, and `checkpoint` is None.
        Raises:
            FileNotFoundError: no such file.
            ValueError: not a saved cohort, or a modified one; the cohort records another checkpoint, or none although
                one is given.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     CohortNormalization.fit(torch.eye(4), k=2).save(f"{folder}/cohort.npz")
        ...     CohortNormalization.load(f"{folder}/cohort.npz").offsets(torch.eye(4)[:1])
        tensor([0.5000])
        """
        cohort, labels, record = read_cohort(Path(path))
        require_checkpoint(record.checkpoint, checkpoint, path)
        normalization = cls(cohort, record.k, record.strength, labels=labels, checkpoint=record.checkpoint)
        vars(normalization)["cohort"] = cohort  # bit by bit, as the checksum is that of the file
        return normalization

    def overlap(self, embeddings: Tensor, labels: Ids | None = None) -> tuple[Tensor, Tensor]:
        """Returns which samples the cohort must not be used for.

        Args:
            embeddings: (N, D).
            labels: (N,) their identities; None if unknown.
        Returns:
            Two (N,) bool masks on the CPU: samples of an identity of the cohort (none if either side has no labels),
            and copies of cohort samples.
        """
        count = len(embeddings)
        inside = torch.zeros(count, dtype=torch.bool, device="cpu")
        if labels is not None and self.labels is not None:
            inside = torch.from_numpy(np.isin(names_of_samples(labels, count), self.labels))
        closest = cohort_offsets(embeddings.double(), self.cohort.double(), 1)
        return inside, (closest > 1 - _ROUNDING).cpu()

    def corrections_of_judged(
        self,
        embeddings: Tensor,
        labels: Ids | None = None,
        *,
        rows: Sequence[int] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> Tensor:
        """Returns `corrections` of samples that are judged, which the cohort must not hold.

        Args:
            embeddings: (N, D), the judged samples.
            labels: (N,) their identities; None, or a cohort without labels: only copies are looked for.
            rows: N row numbers for messages; None: 0, 1, …
            group: the ranks that share the samples.
        Returns:
            (N,) float64.
        Raises:
            ValueError: the cohort holds a judged sample or a judged identity.
        """
        count = len(embeddings)
        if labels is not None and self.labels is not None:
            common = np.intersect1d(names_of_samples(labels, count), self.labels).tolist()
            if common:
                raise ValueError(
                    f"the cohort must hold other identities than those that are judged; {len(common)} are in both: "
                    f"{first_of(common)}. Remove them on one side, or rename labels that mean other identities there"
                )
        highest = highest_cosines(embeddings.double(), self.cohort.double(), self.k, group=group)
        copies = torch.nonzero(highest.amax(dim=1) > 1 - _ROUNDING).flatten().tolist()
        if copies:
            numbers = copies if rows is None else [rows[place] for place in copies]
            raise ValueError(
                f"the cohort must hold other samples than those that are judged; {len(copies)} judged rows are copies "
                f"of cohort samples: rows {first_of(numbers)}. Remove them on one side"
            )
        return 0.5 * self.strength * highest.mean(dim=1)

    def offsets(self, embeddings: Tensor, *, group: dist.ProcessGroup | None = None) -> Tensor:
        """Returns m(x) of each sample.

        Args:
            embeddings: (N, D), finite; normalised here.
            group: the ranks that share the samples.
        Returns:
            (N,), see `functional.cohort_offsets`.
        """
        return cohort_offsets(embeddings, self.cohort, self.k, group=group)

    def corrections(self, embeddings: Tensor, *, group: dist.ProcessGroup | None = None) -> Tensor:
        """Returns ½ strength m(x), (N,): what the scores of a sample subtract from its cosines."""
        return 0.5 * self.strength * self.offsets(embeddings, group=group)

    def scores(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns the normalised scores of every pair.

        Args:
            a, b: (A, D) and (B, D).
        Returns:
            (A, B), in [−1 − strength, 1 + strength].
        """
        query, gallery = self.augment(a), self.augment(b, "gallery")
        with full_precision(query.device):
            return query @ gallery.T

    def augment(self, embeddings: Tensor, side: Literal["query", "gallery"] = "query") -> Tensor:
        """Returns vectors whose inner products, query with gallery, are the normalised scores.

        Args:
            embeddings: (N, D).
            side: "query" appends (−½ strength m, 1), "gallery" (1, −½ strength m).
        Returns:
            (N, D + 2). Search them by inner product; their cosines are meaningless.
        """
        check_choice(side, ("query", "gallery"), "side")
        half = self.corrections(embeddings)
        return both_sides(unit_rows(embeddings).to(half.dtype), half)[side == "gallery"]


def cohort_mask(labels: Ids, share: float) -> Tensor:
    """Returns which samples belong to the identities that are set aside as a cohort.

    The choice depends on the identities' names only, so that the same names are set aside in every file and process.

    Args:
        labels: (N,) integers or strings.
        share: share of the identities, in (0, 1); rounded to a whole number.
    Returns:
        (N,) bool, on the CPU.

    >>> cohort_mask(["anna", "anna", "ben", "carla"], 0.34).tolist()
    [False, False, True, False]
    """
    check_fraction(share, "share")
    names = names_of_samples(labels, len(labels))
    ordered = sorted(set(names.tolist()), key=lambda name: blake2b(name.encode(), digest_size=8).digest())
    aside = {*ordered[: round(share * len(ordered))]}
    return torch.tensor([name in aside for name in names.tolist()], device="cpu")


Format = Literal["pml_ext cohort normalization 2"]
Strength = Annotated[float, Meta(ge=0, le=2)]
_ROUNDING = 1e-12  # of the cosine of a sample with its copy, in float64


@dataclass(frozen=True)
class CohortRecord:
    """Settings of a saved normalisation; sha256: `checksum` of the cohort."""

    k: CountAbove0
    strength: Strength
    samples: CountAbove0
    embedding_dim: CountAbove0
    sha256: Sha256
    checkpoint: Checkpoint | None = None
    version: str = __version__
    format: Format = "pml_ext cohort normalization 2"


def checksum(cohort: Tensor, labels: np.ndarray | None) -> str:
    """Returns the SHA-256 of a cohort's type, shape, numbers and labels."""
    values = _little_endian(cohort)
    digest = hashlib.sha256(f"{values.dtype.str} {values.shape}".encode() + values.tobytes())
    if labels is not None:
        digest.update("\0".join(labels.tolist()).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def write_cohort(path: Path, cohort: Tensor, labels: np.ndarray | None, record: CohortRecord) -> None:
    """Write the file atomically; any program with NumPy can read it."""
    if path.suffix != ".npz":
        raise ValueError(f"a cohort is saved as .npz; got {path.name}")
    arrays: dict[str, Any] = {"cohort": _little_endian(cohort)}
    if labels is not None:
        arrays["labels"] = labels
    with replacing(path) as file:
        np.savez(file, record=np.array(encode_json(record).decode()), **arrays)


def read_cohort(path: Path) -> tuple[Tensor, np.ndarray | None, CohortRecord]:
    """Reads a file of `write_cohort`; raises ValueError for any other or a modified file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            cohort, text = torch.from_numpy(arrays["cohort"]), str(arrays["record"])
            labels = arrays["labels"].astype(str) if "labels" in arrays.files else None
        record = decode_json(text, CohortRecord)
    except FileNotFoundError:
        raise
    except (BadZipFile, KeyError, ValueError, TypeError, AttributeError, EOFError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not a saved cohort normalization: {what}") from error
    if checksum(cohort, labels) != record.sha256:
        raise ValueError(f"{path} was modified after it was saved (the checksum differs). Save the cohort again")
    return cohort, labels, record


def _little_endian(cohort: Tensor) -> np.ndarray:
    values = cohort.detach().cpu().numpy()
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<"))


@dataclass(frozen=True)
class CSLS:
    """Ranks by cross-domain similarity local scaling: gallery samples with many similar neighbours rank lower.

    The searched gallery is the cohort: each gallery sample's cosine with a query is reduced by half the mean of its
    k highest cosines with the other gallery samples. That is right for ranks only: for a threshold, error rates need a
    cohort of other identities (`CohortNormalization`).

    Args:
        k: number of nearest gallery samples to average.
    Source: Conneau et al., arXiv 1710.04087, eq. 3. Paper: the mean is over the k nearest queries; here: over the k
        nearest gallery samples, so that the ranks of one query do not depend on the others.

    >>> gallery = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> CSLS(k=1).corrections(gallery)
    tensor([0.4000, 0.4000, 0.3000])
    """

    k: int = 10

    def __post_init__(self) -> None:
        check_whole(self.k, "k", 1)

    def corrections(self, gallery: Tensor, *, group: dist.ProcessGroup | None = None) -> Tensor:
        """Returns (M,) numbers to subtract from the cosines with each gallery sample, (M, D)."""
        rows = torch.arange(len(gallery), device=gallery.device)
        return 0.5 * cohort_offsets(gallery, gallery, self.k, rows=rows, group=group)


def check_normalize(normalize: object) -> None:
    """Raise unless it is None or a CohortNormalization."""
    if normalize is not None and not isinstance(normalize, CohortNormalization):
        raise TypeError(f"normalize must be a CohortNormalization or None; got {type(normalize).__name__}")
