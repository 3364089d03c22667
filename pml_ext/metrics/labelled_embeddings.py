"""Metrics of precomputed embeddings with labels, as `pml-ext metrics` prints them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.custom_gradient import to_sphere
from pml_ext._shared.checks import check_directions, check_finite_embeddings, tensor_of, warn_caller
from pml_ext._shared.errors import UserError, import_library
from pml_ext._shared.identities import JUNK, check_matches, describe_similar_ids, is_junk
from pml_ext.metrics import keys
from pml_ext.metrics.calculator import AccuracyCalculator
from pml_ext.metrics.headings import STANDARD_METRICS, STANDARD_RANKS, named_metrics
from pml_ext.metrics.labels import values_of
from pml_ext.metrics.normalization import CohortNormalization
from pml_ext.metrics.opis_settings import OPISSettings

_BLOCK = 16_384  # distractors that are compared at once


@dataclass(frozen=True)
class LabelledEmbeddings:
    """Embeddings of a set with the identities and cameras of its samples.

    Args:
        embeddings: (N, D), a tensor or an array, finite; normalised by the metrics.
        labels: (N,) integers or strings; −1 is junk, which every metric ignores. None: distractors of unknown identity.
        cameras: (N,) integers or strings; None: unknown.
        name: name of the set in error messages.
    Raises:
        ValueError: labels or cameras of another length or type, or None or nan among them; embeddings of another shape
            or type, not finite, or zero but for junk.

    >>> LabelledEmbeddings(torch.eye(2), np.array(["ann", "bob"])).name
    'the set'
    """

    embeddings: Tensor
    labels: np.ndarray | None
    cameras: np.ndarray | None = None
    name: str = "the set"

    def __post_init__(self) -> None:
        embeddings, name = tensor_of(self.embeddings), f"{self.name}: embeddings"
        if not embeddings.is_floating_point() and not embeddings.is_complex():
            embeddings = embeddings.float()
        check_finite_embeddings(embeddings, name)
        object.__setattr__(self, "embeddings", embeddings)
        for column in ("labels", "cameras"):
            values = getattr(self, column)
            if values is not None:
                ids = values_of(values, len(embeddings), f"{self.name}: {column}")
                object.__setattr__(self, column, ids)
        is_judged = np.ones(len(embeddings), dtype=bool) if self.labels is None else ~is_junk(self.labels)
        check_directions(embeddings[torch.from_numpy(is_judged)], name)


@dataclass(frozen=True)
class NumberedEmbeddings:
    """A set with labels and cameras as numbers that the queries and the gallery share; JUNK is ignored."""

    name: str
    embeddings: Tensor
    labels: Tensor
    cameras: Tensor
    identity_names: dict[int, str]  # label by number

    def without_junk(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns embeddings, labels and cameras."""
        rows = self.labels != JUNK
        return self.embeddings.float()[rows], self.labels[rows], self.cameras[rows]


def number_labels(query: LabelledEmbeddings, gallery: LabelledEmbeddings | None) -> list[NumberedEmbeddings]:
    """Number the labels and cameras of both sets; without cameras no two samples share one.

    Raises:
        UserError: the sets have different dimensions, other kinds of labels, or cameras in one of them only.
    """
    sets = [query] if gallery is None else [query, gallery]
    dims = [part.embeddings.shape[1] for part in sets]
    if dims[-1] != dims[0]:
        raise UserError(f"{sets[-1].name} must have {dims[0]} dimensions, as {query.name}; got {dims[-1]}")
    if any(part.labels is None for part in sets):
        raise UserError("queries and gallery must have labels; only distractors may have none")
    known_labels = [part.labels for part in sets if part.labels is not None]
    labels, names = _number("labels", known_labels)
    for ids, values in zip(labels, known_labels, strict=True):
        ids[torch.from_numpy(is_junk(values))] = JUNK
    known_cameras = [part.cameras for part in sets if part.cameras is not None]
    if known_cameras and len(known_cameras) < len(sets):
        owner = "gallery has" if query.cameras is None else "queries have"
        raise UserError(f"cameras must be in both files or in none; only the {owner} them")
    if not known_cameras:  # so that the camera rule removes nothing
        counts = np.cumsum([len(ids) for ids in labels])
        known_cameras = np.split(np.arange(counts[-1]), counts[:-1])
    cameras, _ = _number("cameras", known_cameras)
    identity_names = {number: str(name) for number, name in enumerate(names.tolist())}
    return [
        NumberedEmbeddings(part.name, part.embeddings, ids, camera_ids, identity_names)
        for part, ids, camera_ids in zip(sets, labels, cameras, strict=True)
    ]


def _number(what: str, arrays: Sequence[np.ndarray]) -> tuple[list[Tensor], np.ndarray]:
    """Number the integers or strings of all arrays 0, 1, … consistently; returns the numbers and the values."""
    if len({values.dtype.kind for values in arrays}) > 1:
        kinds = " and ".join(str(values.dtype) for values in arrays)
        raise UserError(f"{what} must be of the same kind in both files; got {kinds}")
    are_texts = len(arrays) == 2 and arrays[0].dtype.kind == "U"
    if are_texts and (sentence := describe_similar_ids(what, *(np.unique(values).tolist() for values in arrays))):
        warn_caller(sentence)
    names, ids = np.unique(np.concatenate(arrays), return_inverse=True)
    numbers = torch.from_numpy(ids.astype(np.int64))
    return list(torch.split(numbers, [len(values) for values in arrays])), names


def check_matches_of(parts: Sequence[NumberedEmbeddings]) -> list[str]:
    """Returns or raises what `check_matches` does for the queries and the gallery, if any."""
    return check_matches(parts[0].name, *((part.labels.numpy(), part.cameras.numpy()) for part in parts))


def standard_metrics(
    query: LabelledEmbeddings,
    gallery: LabelledEmbeddings | None = None,
    *,
    normalize: CohortNormalization | None = None,
) -> dict[str, float]:
    """Compute a run's standard metrics of queries against a gallery, or against each other.

    Gallery samples with the query's label and camera are ignored, as is junk. All values are fractions; see
    `AccuracyCalculator` for their definitions.

    Args:
        query, gallery: sets with labels; both have cameras, or none. gallery None: each sample searches all others.
        normalize: adds normalized_<name> of every metric that depends on scores, by normalised scores.
    Raises:
        UserError: (a ValueError) inconsistent sets, no query with a match, a cohort with a measured sample or identity,
            embeddings that are not finite.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = np.repeat(["ann", "bob", "cy", "dee"], 10)
    >>> centres = torch.randn(4, 8, generator=generator).repeat_interleave(10, dim=0)
    >>> query = LabelledEmbeddings(centres + 0.1 * torch.randn(40, 8, generator=generator), labels)
    >>> standard_metrics(query)["reid_mean_average_precision"]
    1.0
    """
    import_library("faiss", needed_for="the clustering behind NMI", install="faiss-cpu")
    parts = number_labels(query, gallery)
    check_matches_of(parts)
    names = named_metrics(STANDARD_METRICS, STANDARD_RANKS)
    values = _measure(parts, names)
    if normalize is not None:
        sets = [query] if gallery is None else [query, gallery]
        labels = np.concatenate([part.labels.astype(str) for part in sets if part.labels is not None])
        try:
            normalize.corrections_of_judged(torch.cat([part.embeddings for part in sets]), labels)
        except ValueError as error:
            raise UserError(f"{query.name}: {error}") from error
        # Without labels, because those of the parts are numbers.
        cohort = CohortNormalization.fit(normalize.cohort, normalize.k, normalize.strength)
        names = [name for name in names if keys.follows_scores(name)]
        for name, value in _measure(parts, names, normalize=cohort).items():
            values[keys.normalized(name)] = value
    return values


def _measure(parts: Sequence[NumberedEmbeddings], names: list[str], **options: Any) -> dict[str, float]:
    settings = asdict(OPISSettings()) | options
    calculator = AccuracyCalculator(include=names, ranks=STANDARD_RANKS, device=torch.device("cpu"), **settings)
    units = [to_sphere(part.embeddings.double()) for part in parts]
    reference: dict[str, Any] = {}
    if len(parts) == 2:
        gallery = parts[1]
        reference = {"reference": units[1], "reference_labels": gallery.labels, "reference_cameras": gallery.cameras}
    try:
        values = calculator.get_accuracy(units[0], parts[0].labels, query_cameras=parts[0].cameras, **reference)
    except ValueError as error:
        raise UserError(f"{parts[0].name}: {error}") from error
    return {name: float(values[name]) for name in names}


def metrics_among_distractors(
    query: LabelledEmbeddings, gallery: LabelledEmbeddings | None, distractors: LabelledEmbeddings
) -> dict[str, float]:
    """Compute TAR at FAR over all pairs of a query and a gallery sample, TPIR at FPIR, and ranks of identities.

    Gallery samples with the query's identity and camera are ignored, as are junk and the query itself.

    Args:
        query, gallery: see `standard_metrics`.
        distractors: more gallery samples, of other identities; without labels no two of them share an identity.
    Raises:
        UserError: (a ValueError) inconsistent sets, or a distractor with an identity of the queries or the gallery.
    Source: Kemelmacher-Shlizerman et al., The MegaFace Benchmark, CVPR 2016.

    >>> faces = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]])
    >>> query, gallery = (LabelledEmbeddings(rows, np.arange(2)) for rows in faces.split(2))
    >>> metrics_among_distractors(query, gallery, LabelledEmbeddings(-faces, None))["rank_1"]
    1.0
    """
    parts = number_labels(query, gallery)
    probes, probe_ids, probe_cameras = parts[0].without_junk()
    # Imported here: torchmetrics, which they extend, imports matplotlib and torchvision.
    from pml_ext.metrics.identification import IdentificationEvaluator
    from pml_ext.metrics.verification import StreamingVerification

    pairs = StreamingVerification()
    blocks = chain([parts[-1].without_junk()], _distractor_blocks(distractors, parts[0]))
    try:
        values = IdentificationEvaluator().of_blocks(
            probes, probe_ids, blocks, cameras=probe_cameras, verification=pairs
        )
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{query.name}: {error}") from error
    return pairs.compute() | values


def _distractor_blocks(distractors: LabelledEmbeddings, query: NumberedEmbeddings) -> Iterator[tuple[Tensor, Tensor]]:
    """Returns embeddings and identities of distractors, without junk."""
    embeddings, labels, name = distractors.embeddings, distractors.labels, distractors.name
    dim = query.embeddings.shape[1]
    if embeddings.shape[1] != dim:
        raise UserError(f"{name} must have {dim} dimensions, as {query.name}; got {embeddings.shape[1]}")
    if labels is not None:
        is_known = ~is_junk(labels)
        embeddings, labels = embeddings[torch.from_numpy(is_known)], labels[is_known]
    numbers = np.arange(len(embeddings))
    if labels is not None:
        names, numbers = np.unique(labels.astype(str), return_inverse=True)
        if common := {*query.identity_names.values()}.intersection(names.tolist()):
            raise UserError(f"{name} must have other identities than {query.name} and its gallery; got {min(common)}")
    ids = torch.from_numpy(numbers) + len(query.identity_names)
    return zip(embeddings.float().split(_BLOCK), ids.split(_BLOCK), strict=True)
