"""Score normalisation by a cohort: makes cosines comparable between samples, without training or labels."""

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal
from zipfile import BadZipFile

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_choice, check_embeddings, check_finite, check_in_range, check_whole, warn_caller
from pml_ext._files import replacing
from pml_ext._ops.normalize import unit_rows
from pml_ext._ops.numerics import full_precision
from pml_ext._pml import BaseDistance
from pml_ext._version import __version__
from pml_ext.functional.pairwise.pair_blocks import both_sides
from pml_ext.functional.retrieval.cohort import cohort_offsets
from pml_ext.metrics.cohort_tuning import NormalizationTrials, try_normalizations
from pml_ext.metrics.threshold.file import checkpoint_of, require_checkpoint
from pml_ext.metrics.threshold.structures import Checkpoint, CountAbove0, Sha256


class CohortNormalization:
    r"""Corrects each cosine by the mean similarity of its two samples to a cohort (symmetric score normalisation).

    $$s'(a, b) = \cos(a, b) - \frac{1}{2} \text{strength} (m(a) + m(b))$$

    m(x) is the mean of the k highest cosines of x with the cohort.

    s' is the inner product of vectors with two more columns (`augment`), so any index for inner products can search
    by it.

    The cohort must resemble the samples to compare; unlabelled gallery samples do. It needs more than a few dozen
    identities, and k should exceed the number of samples per identity. A cohort that does not resemble the samples
    reduces accuracy. Choose cohort, k and strength on validation classes.

    Args:
        cohort: (M, D), finite; normalised here. `fit` is an alias of the constructor.
        k: number of nearest cohort samples to average, 1 to M.
        strength: 0 leaves cosines unchanged, 1 subtracts the full mean.
        checkpoint: model file that computed the cohort, see `with_checkpoint`.
    Attributes:
        cohort: (M, D), of length 1.
    Raises:
        ValueError: fewer than k samples in the cohort; values out of range.
    Source: see `pml_ext.functional.cohort_offsets`. Paper (AS-norm): also divides by the standard deviation; here: no
        division, which makes the classes more equal.

    >>> generator = torch.Generator().manual_seed(0)
    >>> gallery = torch.randn(100, 8, generator=generator)
    >>> queries = torch.randn(5, 8, generator=generator)
    >>> normalization = CohortNormalization.fit(gallery, k=10)
    >>> rows = torch.arange(100)  # the gallery is the cohort
    >>> indexed = normalization.augment(gallery, "gallery", rows=rows)
    >>> scores = normalization.scores(queries, gallery, rows_b=rows)
    >>> torch.allclose(normalization.augment(queries) @ indexed.T, scores, atol=1e-6)
    True
    """

    def __init__(
        self, cohort: Tensor, k: int = 10, strength: float = 1.0, *, checkpoint: Checkpoint | None = None
    ) -> None:
        check_embeddings(cohort, "cohort")
        check_finite(cohort, "cohort")
        check_whole(k, "k")
        if not 1 <= k <= len(cohort):
            raise ValueError(f"k must be from 1 to {len(cohort)}, the cohort size; got {k}")
        check_in_range(strength, 0, 2, "strength")
        self.cohort, self.k, self.strength = unit_rows(cohort.detach()), k, float(strength)
        self.checkpoint = checkpoint

    @classmethod
    def fit(cls, cohort: Tensor, k: int = 10, strength: float = 1.0) -> "CohortNormalization":
        """Creates a normalisation from a cohort; nothing is trained."""
        return cls(cohort, k, strength)

    @staticmethod
    def tune(
        cohort: Tensor | None,
        embeddings: Tensor,
        labels: Tensor,
        *,
        ks: Sequence[int] = (5, 10, 20, 50, 100, 200),
        strengths: Sequence[float] = (0.5, 1.0),
        far: float = 1e-3,
        far_range: tuple[float, float] = (1e-2, 1e-1),
    ) -> NormalizationTrials:
        """Tries values of k and strength on validation classes, and measures OPIS and TAR for each.

        Args:
            cohort: (M, D). None uses the validation samples as the cohort, like a gallery in production; each sample
                is excluded from its own cohort.
            embeddings, labels: (N, D) and (N,) integers, of classes that the model was not trained on.
            ks: values of k; those above the cohort size are skipped.
            strengths: values of strength, from 0 to 2.
            far: FAR at which TAR is measured, at least 1 / impostor pairs.
            far_range: calibration range of OPIS, see `functional.opis`.
        Returns:
            NormalizationTrials. `best` has the lowest OPIS among trials that do not lower TAR; if None, do not
            normalise.
        Warns:
            UserWarning: the cohort does not resemble the samples, see `agreement`.

        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(300) % 60
        >>> crowding = torch.linspace(0, 3, 60)[:, None] * torch.eye(1, 16)
        >>> classes = torch.randn(60, 16, generator=generator) + crowding
        >>> embeddings = classes[labels] + 0.5 * torch.randn(300, 16, generator=generator)
        >>> trials = CohortNormalization.tune(None, embeddings, labels, ks=(5, 20))
        >>> trials.best.k, trials.best.strength, trials.best.opis < trials.plain.opis
        (20, 1.0, True)
        """
        own = cohort is None
        rows = torch.arange(len(embeddings), device=embeddings.device) if own else None
        given = embeddings if cohort is None else cohort
        trials = try_normalizations(
            given, embeddings, labels, rows=rows, ks=ks, strengths=strengths, far=far, far_range=far_range
        )
        if not own:
            warn_if_unsuitable(given, trials.trials[0].k, embeddings)
        return trials

    def with_checkpoint(self, path: str | Path) -> "CohortNormalization":
        """Returns a copy with the name and SHA-256 of the model file that computed the cohort.

        Raises:
            OSError: the file cannot be read.
        """
        bound = copy(self)
        bound.checkpoint = checkpoint_of(Path(path))
        return bound

    @property
    def record(self) -> "CohortRecord":
        """Returns k, strength, the cohort's SHA-256 and its checkpoint."""
        samples, dim = self.cohort.shape
        return CohortRecord(self.k, self.strength, samples, dim, self.sha256, self.checkpoint)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the cohort's numbers; identifies the cohort."""
        return checksum(self.cohort)

    def save(self, path: str | Path, *, checkpoint: str | Path | None = None) -> None:
        """Writes an .npz file with the cohort's numbers, k, strength and checkpoint.

        Args:
            checkpoint: model file that computed the cohort. Its SHA-256 is stored, and `load` compares it.
        """
        bound = self if checkpoint is None else self.with_checkpoint(checkpoint)
        write_cohort(Path(path), bound.cohort, bound.record)

    @classmethod
    def load(cls, path: str | Path, *, checkpoint: str | Path | None = None) -> "CohortNormalization":
        """Reads a file written by `save`.

        Args:
            checkpoint: model file in use; must be the one that computed the cohort.
        Warns:
            UserWarning: the cohort records a checkpoint, and none is given.
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
        cohort, record = read_cohort(Path(path))
        if checkpoint is not None:
            require_checkpoint(record.checkpoint, Path(checkpoint), Path(path))
        elif record.checkpoint is not None:
            warn_caller(
                f"{path} was computed by {record.checkpoint.file}, which was not compared with the model in use: "
                "pass checkpoint="
            )
        found = cls(cohort, record.k, record.strength, checkpoint=record.checkpoint)
        found.cohort = cohort  # bit by bit, as the checksum is that of the file
        return found

    def agreement(self, embeddings: Tensor) -> float:
        """Returns the correlation of m(x) by the cohort with m(x) by the samples themselves; needs no labels.

        Up to 2,000 samples are used. A value near 1 means that the cohort is dense in the same regions as the samples.
        In our measurements cohorts below 0.7 reduced accuracy, and cohorts above 0.8 improved it.

        Args:
            embeddings: (N, D), not in the cohort.
        Returns:
            A float in [−1, 1]; nan for one sample, or if all are equally close.
        """
        return cohort_agreement(self.cohort, self.k, embeddings)

    def offsets(
        self, embeddings: Tensor, *, rows: Tensor | None = None, group: dist.ProcessGroup | None = None
    ) -> Tensor:
        """Returns m(x) of each sample.

        Args:
            embeddings: (N, D), finite; normalised here.
            rows: (N,) rows of the samples in the cohort; each sample skips its own. None: the samples are not in it.
            group: the ranks that share the samples.
        Returns:
            (N,), see `functional.cohort_offsets`.
        """
        return cohort_offsets(embeddings, self.cohort, self.k, rows=rows, group=group)

    def scores(self, a: Tensor, b: Tensor, *, rows_a: Tensor | None = None, rows_b: Tensor | None = None) -> Tensor:
        """Returns the normalised scores of every pair.

        Args:
            a, b: (A, D) and (B, D).
            rows_a, rows_b: their rows in the cohort, see `offsets`.
        Returns:
            (A, B), in [−1 − 2 strength, 1 + 2 strength].
        """
        query, gallery = self.augment(a, rows=rows_a), self.augment(b, "gallery", rows=rows_b)
        with full_precision(query.device):
            return query @ gallery.T

    def augment(
        self, embeddings: Tensor, side: Literal["query", "gallery"] = "query", *, rows: Tensor | None = None
    ) -> Tensor:
        """Returns vectors whose inner products, query with gallery, are the normalised scores.

        Args:
            embeddings: (N, D).
            side: "query" appends (−½ strength m, 1), "gallery" (1, −½ strength m).
            rows: see `offsets`.
        Returns:
            (N, D + 2). Search them by inner product; their cosines are meaningless.
        """
        check_choice(side, ("query", "gallery"), "side")
        half = 0.5 * self.strength * self.offsets(embeddings, rows=rows)
        return both_sides(unit_rows(embeddings).to(half.dtype), half)[side == "gallery"]

    def distance(self) -> "CohortSimilarity":
        """Returns the normalised score as a PML similarity, for PML's losses, miners and calculators."""
        return CohortSimilarity(self.offsets, self.strength)


Format = Literal["pml_ext cohort normalization 1"]
Strength = Annotated[float, Meta(ge=0, le=2)]


@dataclass(frozen=True)
class CohortRecord:
    """Settings of a saved normalisation; sha256: `checksum` of the cohort's numbers."""

    k: CountAbove0
    strength: Strength
    samples: CountAbove0
    embedding_dim: CountAbove0
    sha256: Sha256
    checkpoint: Checkpoint | None = None
    version: str = __version__
    format: Format = "pml_ext cohort normalization 1"


def checksum(cohort: Tensor) -> str:
    """Returns the SHA-256 of a cohort's type, shape and numbers."""
    values = _little_endian(cohort)
    return hashlib.sha256(f"{values.dtype.str} {values.shape}".encode() + values.tobytes()).hexdigest()


def write_cohort(path: Path, cohort: Tensor, record: CohortRecord) -> None:
    """Write the file atomically; any program with NumPy can read it."""
    if path.suffix != ".npz":
        raise ValueError(f"a cohort is saved as .npz; got {path.name}")
    with replacing(path) as file:
        np.savez(file, cohort=_little_endian(cohort), record=np.array(msgspec.json.encode(record).decode()))


def read_cohort(path: Path) -> tuple[Tensor, CohortRecord]:
    """Reads a file of `write_cohort`; raises ValueError for any other or a modified file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found, text = torch.from_numpy(arrays["cohort"]), str(arrays["record"])
        record = msgspec.json.decode(text, type=CohortRecord)
    except FileNotFoundError:
        raise
    except (BadZipFile, KeyError, ValueError, TypeError, AttributeError, EOFError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not a saved cohort normalization: {what}") from error
    if checksum(found) != record.sha256:
        raise ValueError(f"{path} was modified after it was saved (the checksum differs). Save the cohort again")
    return found, record


def _little_endian(cohort: Tensor) -> np.ndarray:
    values = cohort.detach().cpu().numpy()
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<"))


_SAMPLED = 2000
_FEWEST = 50  # minimum number of samples for a meaningful correlation
# Training samples as cohort: 0.83 to 0.94 on Emoji and Grocery, where they help; 0.27 to 0.67 on Omniglot and Glyphs,
# where they reduce accuracy. One half of a gallery for the other half: 0.88 to 1.
_LOWEST = 0.75


def cohort_agreement(cohort: Tensor, k: int, embeddings: Tensor) -> float:
    """See `CohortNormalization.agreement`."""
    some = embeddings[torch.linspace(0, len(embeddings) - 1, min(len(embeddings), _SAMPLED)).long()]
    if len(some) < 2:
        return float("nan")
    rows = torch.arange(len(some), device=some.device)
    both = cohort_offsets(some, cohort, k), cohort_offsets(some, some, min(k, len(some) - 1), rows=rows)
    centred = [of - of.mean() for of in both]
    return float((centred[0] * centred[1]).sum() / (centred[0].norm() * centred[1].norm()))


def warn_if_unsuitable(cohort: Tensor, k: int, embeddings: Tensor) -> None:
    """Warn if the agreement is lower than that of useful cohorts."""
    if len(embeddings) >= _FEWEST and (agreement := cohort_agreement(cohort, k, embeddings)) < _LOWEST:
        warn_caller(
            f"the cohort does not resemble the embeddings (correlation {agreement:.2f}, expected at least "
            f"{_LOWEST}); normalisation may reduce accuracy. Use a cohort of samples like those to compare"
        )


class CohortSimilarity(BaseDistance):
    """`CohortNormalization.scores` as a distance object of pytorch-metric-learning; larger is closer.

    Offsets have no gradient. The samples are assumed not to be in the cohort.

    offsets: function from (N, D) rows to their (N,) m(x).

    >>> import torch
    >>> from pml_ext.metrics import CohortNormalization
    >>> similarity = CohortNormalization.fit(torch.eye(4), k=2, strength=0.0).distance()
    >>> similarity(torch.eye(4)[:2])
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(self, offsets: Callable[[Tensor], Tensor], strength: float) -> None:
        super().__init__(is_inverted=True)
        self.offsets, self.strength = offsets, strength

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor | None) -> Tensor:
        """Returns the (Q, R) normalised scores of normalised embeddings."""
        reference = query_emb if ref_emb is None else ref_emb
        offset, other = (self._half(points) for points in (query_emb, reference))
        return query_emb @ reference.T - offset[:, None] - other

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Returns the (P,) normalised scores of row i with row i."""
        return (query_emb * ref_emb).sum(dim=1) - self._half(query_emb) - self._half(ref_emb)

    def _half(self, points: Tensor) -> Tensor:
        return (0.5 * self.strength * self.offsets(points.detach())).to(points.dtype)


@dataclass(frozen=True)
class GalleryCohort:
    """Normalisation with the searched or compared samples as the cohort; each sample is excluded from its own.

    Args:
        k, strength: see `CohortNormalization`.

    >>> gallery = torch.eye(4)
    >>> GalleryCohort(k=2, strength=1.0).fit(gallery).offsets(gallery, rows=torch.arange(4)).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    k: int = 10
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_whole(self.k, "k", 1)
        check_in_range(self.strength, 0, 2, "strength")

    def fit(self, gallery: Tensor) -> CohortNormalization:
        """Returns the normalisation by one gallery, (M, D)."""
        return CohortNormalization.fit(gallery, self.k, self.strength)


Normalization = CohortNormalization | GalleryCohort


def check_normalize(normalize: object) -> None:
    """Raise unless it is None, a CohortNormalization or a GalleryCohort."""
    if normalize is not None and not isinstance(normalize, Normalization):
        raise TypeError(
            f"normalize must be a CohortNormalization, a GalleryCohort or None; got {type(normalize).__name__}"
        )


def offsets_of_pairs(
    normalize: Normalization | None, embeddings: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor | None:
    """Returns (N,) offsets for comparing all samples with each other; warns about an unsuitable cohort."""
    return None if normalize is None else offsets_of_search(normalize, embeddings, embeddings, True, group)[1]


def offsets_of_search(
    normalize: Normalization,
    query: Tensor,
    gallery: Tensor,
    gallery_includes_query: bool,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the offsets of queries and of the gallery."""
    rows = None
    if isinstance(normalize, GalleryCohort):
        fitted, rows = normalize.fit(gallery), torch.arange(len(gallery), device=gallery.device)
    else:
        fitted = normalize
        warn_if_unsuitable(fitted.cohort, fitted.k, gallery)
    of_gallery = 0.5 * fitted.strength * fitted.offsets(gallery, rows=rows, group=group)
    if gallery_includes_query:
        return of_gallery[: len(query)], of_gallery
    return 0.5 * fitted.strength * fitted.offsets(query, group=group), of_gallery
