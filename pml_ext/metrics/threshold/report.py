"""One threshold for a deployed matcher, and how unevenly it treats the classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from pml_ext._checks import check_fraction, warn_caller
from pml_ext._files import write_atomically
from pml_ext._ops.normalize import normalise_
from pml_ext._text import printable
from pml_ext.metrics.normalization import CohortNormalization, Normalization
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.metrics.threshold.check import ThresholdCheck, check_threshold
from pml_ext.metrics.threshold.file import checkpoint_of, read_report, write_report
from pml_ext.metrics.threshold.measure import choose_target, measure_threshold
from pml_ext.metrics.threshold.samples import (
    Labels,
    SampleSource,
    as_tensor,
    pair_scores,
    require_cohort,
    require_embeddings,
)
from pml_ext.metrics.threshold.searches import SearchPlan
from pml_ext.metrics.threshold.structures import ThresholdFields

_ENTRIES = 2**20  # numbers of a block of embeddings


@dataclass(frozen=True)
class ThresholdReport(ThresholdFields):
    """A decision threshold from validation embeddings, and what it does to each class.

    A pair is accepted when its cosine >= `cosine`, which is when the L2 distance of the normalised embeddings
    <= `distance` = sqrt(2 − 2 cosine). All pairs of the set are counted, in blocks and in float64.

    Make one with `from_embeddings` or `load`.

    Attributes:
        cosine: the threshold.
        far, frr: pooled over all pairs, with 95 % intervals for other classes of the same kind. A pair's errors
            depend on its classes, and an interval that took pairs for independent would be far too narrow.
        classes: by class, in the order of the labels.
        consistency: None with fewer than two classes that have a genuine and an impostor pair.
        samples, embedding_dim: of the set.
        copies: samples whose embedding equals that of an earlier one.
        version: of pml_ext.
        checkpoint: None where none was named, see `with_checkpoint`.
        cameras: genuine pairs across cameras and within one; None where cameras are not known.
        groups: rates by group of samples; None without groups.
        calibration: from cosine to likelihood ratio, see `probability`; None with too few classes.
        normalization: the cohort that normalised the scores; `cosine` is then a threshold of normalised scores,
            `distance` sqrt(2 − 2 score), and scores beyond [−1, 1] count as −1 or 1. None: plain cosines.
        searches: rates in galleries of several sizes; None without a planned size.
        data, made: what the embeddings are of; when the report was made (UTC).
        curves, worst_pairs: what figure and page show; not kept in the file.

    >>> import torch
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
    >>> report = ThresholdReport.from_embeddings(embeddings, ["anna", "anna", "ben", "ben"], frr=0.5)
    >>> round(report.cosine, 3), report.far.rate, report.frr.rate
    (0.709, 0.25, 0.0)
    >>> report.accept(torch.tensor([0.9, 0.7])).tolist()
    [True, False]
    """

    @classmethod
    def from_embeddings(
        cls,
        embeddings: Tensor | np.ndarray,
        labels: Labels,
        *,
        far: float | None = None,
        frr: float | None = None,
        target: Literal["utility"] | None = None,
        cameras: Labels | None = None,
        groups: Labels | None = None,
        search: SearchPlan | None = None,
        opis: OPISSettings | None = None,
        normalize: Normalization | None = None,
        source: SampleSource | None = None,
    ) -> "ThresholdReport":
        """Choose the threshold for exactly one target, and measure it on all pairs.

        Pairs whose cosines differ by less than 1e-6 count as tied, so that the target is met in float32 too. Of
        all thresholds that decide alike the middle one is taken.

        Args:
            embeddings: (N, D) of one or more samples a class, finite, no zero rows; normalised here.
            labels: (N,) class ids, integers or strings.
            far: the largest threshold (in distance) whose FAR is at most this, at least 1 / impostor pairs.
            frr: the smallest threshold (in distance) whose FRR is at most this, at least 1 / genuine pairs.
            target: "utility": the largest harmonic mean of 1 − FAR and 1 − FRR.
            cameras: (N,) integers or strings: the camera of each sample. Genuine pairs of one camera are easier than
                those that a deployed matcher sees: where cameras are known, threshold, FRR and OPIS are of genuine
                pairs across cameras, and both FRRs are reported.
            groups: (N,) integers or strings, 2 to 50 different: rates by group and pair of groups.
            search: rates in galleries; with its `fpir`, the target is that of searches.
            opis: FAR range, grid and epsilon, see `functional.epsilon_opis`; its seed is also that of the pairs
                that the calibration draws. None: `OPISSettings()`.
            normalize: decide by normalised scores instead of cosines, by a `CohortNormalization` or, with a
                `GalleryCohort`, by the embeddings themselves. The report keeps k, strength and the cohort's SHA-256.
            source: names and images of the samples, for the page.
        Raises:
            TypeError: embeddings neither a tensor nor an array; none or several targets.
            ValueError: input that does not fit; no genuine or no impostor pair, or none of two cameras; a target out
                of range or that needs more pairs.
        Warns:
            UserWarning: samples that are copies of others.
        """
        chosen = choose_target(far, frr, target, None if search is None else search.fpir)
        fields = measure_threshold(
            as_tensor(embeddings),
            labels,
            chosen,
            cameras=cameras,
            groups=groups,
            search=search,
            opis=opis or OPISSettings(),
            normalize=normalize,
            source=source or SampleSource(),
        )
        return cls(**vars(fields))

    @overload
    def accept(self, scores: Tensor, *, normalized: bool = ...) -> Tensor: ...
    @overload
    def accept(self, scores: np.ndarray | float, *, normalized: bool = ...) -> np.ndarray: ...
    def accept(self, scores: Tensor | np.ndarray | float, *, normalized: bool = False) -> Tensor | np.ndarray:
        """Decide about cosine similarities.

        Args:
            scores: any shape, finite, in [−1, 1] (to 1 %, as 16 bits round); normalised ones may exceed that by the
                strength.
            normalized: True for a report on normalised scores, which plain cosines are not: `accept_pairs` normalises
                them.
        Returns:
            bool of the same shape, a tensor for a tensor: score >= cosine, compared in float64.
        Raises:
            ValueError: values out of range, such as distances or NaN; normalised scores for a report on cosines, or
                cosines for one on normalised scores.
        """
        accepted: Tensor | np.ndarray = self._scores(scores, normalized) >= self.cosine
        return accepted

    def _scores(self, scores: Tensor | np.ndarray | float, normalized: bool) -> Any:
        """Scores in float64, after checks."""
        if normalized != (self.normalization is not None):
            if normalized:
                raise ValueError("the threshold is of plain cosines: leave normalized out")
            raise ValueError(
                "the threshold is of normalised scores, not of cosines: normalise them and give normalized=True, "
                "or give accept_pairs the embeddings and the cohort"
            )
        wide: Any = scores.double() if isinstance(scores, Tensor) else np.asarray(scores, dtype=np.float64)
        limit = 1.0 if self.normalization is None else 1.0 + self.normalization.strength
        if not bool((abs(wide) <= limit + 0.01).all()):
            kind = "normalised scores" if normalized else "cosine similarities"
            raise ValueError(
                f"scores must be {kind} in [{-limit:g}, {limit:g}], not NaN; got values from {float(wide.min()):.4g} "
                f"to {float(wide.max()):.4g}"
            )
        return wide

    @overload
    def accept_pairs(self, a: Tensor, b: Tensor, *, normalization: CohortNormalization | None = ...) -> Tensor: ...
    @overload
    def accept_pairs(
        self, a: np.ndarray, b: np.ndarray, *, normalization: CohortNormalization | None = ...
    ) -> np.ndarray: ...
    def accept_pairs(
        self, a: Tensor | np.ndarray, b: Tensor | np.ndarray, *, normalization: CohortNormalization | None = None
    ) -> Tensor | np.ndarray:
        """Decide about pairs of embeddings, in blocks of rows.

        Args:
            a, b: (P, D), row i of one against row i of the other; D as of the embeddings that the threshold is from.
            normalization: of a report on normalised scores: that of the report, or with the gallery as cohort, today's
                gallery with the report's k and strength. a and b count as not being in the cohort.
        Returns:
            (P,) bool, an array for arrays.
        Raises:
            ValueError: another D or P; rows that are zero or not finite; another normalization.
        """
        one, other = as_tensor(a), as_tensor(b)
        require_embeddings(one, "a", self.embedding_dim)
        require_embeddings(other, "b", self.embedding_dim)
        if len(one) != len(other):
            raise ValueError(f"a and b must have the same number of rows; got {len(one)} and {len(other)}")
        require_cohort(self.normalization, normalization)
        size = min(len(one), max(1, _ENTRIES // self.embedding_dim))
        # Memory of their own, block by block, took most of the time.
        memory = one.new_empty((2, size, self.embedding_dim), dtype=torch.float64)
        scores = []
        for x, y in zip(one.split(size), other.split(size), strict=True):
            unit_x = normalise_(memory[0, : len(x)].copy_(x.detach()))
            unit_y = normalise_(memory[1, : len(x)].copy_(y.detach()))
            scores.append(pair_scores(unit_x, unit_y, normalization))
        accepted = self.accept(torch.cat(scores), normalized=normalization is not None)
        return accepted if isinstance(a, Tensor) else accepted.numpy()

    @overload
    def probability(self, scores: Tensor, *, prior: float, normalized: bool = ...) -> Tensor: ...
    @overload
    def probability(self, scores: np.ndarray | float, *, prior: float, normalized: bool = ...) -> np.ndarray: ...
    def probability(
        self, scores: Tensor | np.ndarray | float, *, prior: float, normalized: bool = False
    ) -> Tensor | np.ndarray:
        """Probability that pairs are of one identity, by the report's calibration.

        Args:
            scores, normalized: as for `accept`.
            prior: share of genuine pairs among those that are compared, in (0, 1): 1 / (N + 1) where each of N + 1
                people is as likely.
        Returns:
            the same shape, float64, a tensor for a tensor.
        Raises:
            ValueError: scores that `accept` refuses; a prior out of range; a report without calibration: too few
                classes, or from before it had one.
        """
        check_fraction(prior, "prior")
        if self.calibration is None:
            raise ValueError(
                "the report has no calibration: make it again, with genuine pairs of at least four classes"
            )
        ratio = self.calibration.slope * self._scores(scores, normalized) + self.calibration.intercept
        chance = torch.sigmoid(torch.as_tensor(ratio + math.log(prior / (1 - prior))))
        return chance if isinstance(scores, Tensor) else chance.numpy()

    def check(
        self,
        embeddings: Tensor | np.ndarray,
        *,
        labels: Labels | None = None,
        frames: Labels | None = None,
        tracks: Labels | None = None,
        cameras: Labels | None = None,
        look: int = 1,
        normalization: CohortNormalization | None = None,
        rows: Sequence[int] | None = None,
    ) -> ThresholdCheck:
        """Compare today's FAR and FRR at this threshold with the report's.

        At work labels are unknown, but samples of one frame (image, moment) are different people, and samples of one
        track are the same. Without any of them every pair counts as an impostor pair: its acceptance rate bounds FAR
        from above, so that it can confirm the threshold but not refute it. Intervals take classes, frames or tracks
        for independent: leave out most of many frames that show the same people.

        A rate holds up to twice the report's odds, or up to the report's interval if that is wider. Odds are
        rate / (1 − rate): a rate of 1 % holds up to nearly 2 %, one of 50 % up to 67 %.

        Without any error today, the interval is of as many independent pairs as the report's errors show, per pair and
        at most per identity. If the threshold fails only with samples that match another class and not their own, the
        verdict is "cannot be told" and `doubtful_labels` has them.

        Args:
            embeddings: (N, D) of the same weights.
            labels: (N,) integers or strings, identities.
            frames, tracks: (N,) instead of labels; one of them is enough.
            cameras: (N,) integers or strings, if the report's FRR is across cameras: with labels they are required.
                Tracks without cameras are compared with the report's FRR within a camera.
            look: 1 for the first check, 2 for the second, …: the n-th is made with an error rate of 0.05 · 6 / (π n)²,
                so that over all checks a threshold that holds is refuted with a probability of at most 5 %.
            normalization: see `accept_pairs`; None: of a report with the gallery as cohort, these embeddings are it.
            rows: N numbers that name the samples in `doubtful_labels`; None: 0, 1, …
        Raises:
            ValueError: another D; zero rows; no pair known to be the same or different; labels beside frames or tracks;
                cameras missing, or given for a report that counts all genuine pairs; another normalization.

        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(1600) % 400
        >>> people = torch.randn(400, 16, generator=generator)[labels]
        >>> seen, drifted = (people + s * torch.randn(1600, 16, generator=generator) for s in (0.5, 1.5))
        >>> report = ThresholdReport.from_embeddings(seen, labels, far=0.01)
        >>> report.check(seen, labels=labels).verdict, report.check(drifted, labels=labels).verdict
        ('holds', 'does not hold')
        """
        known = {"labels": labels, "frames": frames, "tracks": tracks, "cameras": cameras}
        return check_threshold(self, embeddings, known, look=look, normalization=normalization, rows=rows)

    def with_checkpoint(self, path: str | Path) -> "ThresholdReport":
        """The same report, with the name and the hash of the model file that the embeddings are from.

        Raises:
            OSError: a file that cannot be read.
        """
        return replace(self, checkpoint=checkpoint_of(Path(path)))

    def save(self, path: str | Path, *, checkpoint: str | Path | None = None) -> None:
        """Write JSON, best beside the checkpoint.

        Args:
            checkpoint: the model file, as `with_checkpoint`; its hash is kept, and `load` compares it.
        """
        write_report(self if checkpoint is None else self.with_checkpoint(checkpoint), Path(path))

    @classmethod
    def load(cls, path: str | Path, *, checkpoint: str | Path | None = None) -> "ThresholdReport":
        """Read what `save` wrote.

        Args:
            checkpoint: the model file in use; it must be the one that the report was saved with.
        Warns:
            UserWarning: a report of a checkpoint, and none to compare it with.
        Raises:
            FileNotFoundError: no such file.
            ValueError: not such a report; a report of another checkpoint, or of none where one is given.
        """
        report = cls(**vars(read_report(Path(path), checkpoint)))
        if checkpoint is None and report.checkpoint is not None:
            warn_caller(
                f"{path} is of the checkpoint {report.checkpoint.file}, which was compared with nothing: give "
                "checkpoint=, the model file in use"
            )
        return report

    def save_figure(self, path: str | Path) -> None:
        """Draw utilities, ROC and distances as a PNG (needs matplotlib, `curves`)."""
        from pml_ext.reports.threshold_figures import threshold_figures
        from pml_ext.reports.threshold_page import png_of

        write_atomically(path, png_of(threshold_figures(self)))

    def save_page(self, path: str | Path) -> None:
        """Write one HTML page with tables and the same figures (needs matplotlib, `curves`)."""
        from pml_ext.reports.threshold_figures import threshold_figures
        from pml_ext.reports.threshold_page import page_of

        write_atomically(path, page_of(self, threshold_figures(self)))

    def summary(self) -> str:
        """The report as lines of text."""
        from pml_ext.reports.threshold_text import summary_lines

        rows = summary_lines(self)
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {printable(text)}" for name, text in rows)
