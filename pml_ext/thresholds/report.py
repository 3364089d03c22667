"""Decision threshold of a deployed matcher, with its error rates overall and by class."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.numerics import normalise_
from pml_ext._shared.files import write_atomically
from pml_ext._shared.text import printable
from pml_ext.metrics.checkpoint import ModelFile, checkpoint_of, require_checkpoint
from pml_ext.metrics.labels import Ids
from pml_ext.metrics.normalization import CohortNormalization
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.thresholds.check import ThresholdCheck, check_threshold
from pml_ext.thresholds.fields import ThresholdFields
from pml_ext.thresholds.file import read_report, write_report
from pml_ext.thresholds.measure import measure_threshold
from pml_ext.thresholds.samples import (
    SampleSource,
    as_tensor,
    pair_scores,
    require_cohort,
    require_embeddings,
)
from pml_ext.thresholds.searches import SearchPlan
from pml_ext.thresholds.targets import choose_target

_ENTRIES = 2**20  # numbers of a block of embeddings


@dataclass(frozen=True)
class ThresholdReport(ThresholdFields):
    """A decision threshold from validation embeddings, with its error rates for each class.

    A pair is accepted if its cosine >= `cosine`, or equivalently if the L2 distance of the normalised embeddings is at
    most `distance` = sqrt(2 − 2 cosine). Rates are over all pairs of the set, computed in blocks in float64.

    Create a report with `from_embeddings` or `load`.

    Attributes:
        cosine: the threshold.
        far, frr: pooled over all pairs, with 95 % intervals for other classes of the same kind. The intervals account
            for the dependence between pairs of a class.
        classes: errors by class, in the order of the labels.
        consistency: OPIS; None if fewer than two classes have genuine and impostor pairs.
        samples, embedding_dim: size of the set.
        copies: number of samples whose embedding equals that of an earlier sample.
        version: version of pml_ext.
        checkpoint: model file, see `with_checkpoint`; None if not recorded.
        cameras: FRR across cameras and within a camera; None if cameras are unknown.
        groups: rates by group of samples; None without groups.
        normalization: the cohort that normalised the scores; `cosine` is then a threshold of normalised scores,
            `distance` sqrt(2 − 2 score), and scores beyond [−1, 1] count as −1 or 1. None: plain cosines.
        plain: FRR and OPIS of plain cosines at the same FAR, to see whether the cohort helps. None without a cohort, or
            if copies leave plain cosines no such threshold.
        support: errors that the choice rests on; None for utility.
        searches: rates in galleries of several sizes; None without a planned size.
        doubtful: labels that look wrong (wrong labels, one identity with two labels, two identities with one label,
            copies with different labels), and the threshold and the rates without their samples; None without such.
        data, made: name of the data; creation time of the report (UTC).
        points: rates at other thresholds, from few false accepts to a FAR of 10 %.
        worst_pairs: the most similar impostors and the least similar genuine pairs.
        sample_keys: digests of 1,000 samples, by which `check` recognises them.
        curves: contents of the figures; not saved in the file.

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
        labels: Ids,
        *,
        far: float | None = None,
        frr: float | None = None,
        target: Literal["utility"] | None = None,
        confidence: float | None = None,
        cameras: Ids | None = None,
        groups: Ids | None = None,
        search: SearchPlan | None = None,
        opis: OPISSettings | None = None,
        normalize: CohortNormalization | None = None,
        source: SampleSource | None = None,
    ) -> "ThresholdReport":
        """Choose the threshold for exactly one target, and measure it on all pairs.

        Pairs whose cosines differ by less than 1e-6 count as tied, so that the target is also met in float32. Among
        thresholds with equal decisions, the middle one is chosen.

        Args:
            embeddings: (N, D), one or more samples per class, finite, no zero rows; normalised here.
            labels: (N,) class ids, integers or strings.
            far: choose the largest distance threshold with a FAR of at most this, at least 1 / impostor pairs.
            frr: choose the smallest distance threshold with an FRR of at most this, at least 1 / genuine pairs.
            target: "utility": choose the largest harmonic mean of 1 − FAR and 1 − FRR.
            confidence: choose so that other identities like the set's meet the maximum rate with this probability, in
                (0, 1): its upper limit, clustered by identity, is at most the target. None: only the set meets it;
                other identities then exceed it about as often as not.
            cameras: (N,) integers or strings: the camera of each sample. Genuine pairs of one camera are easier than
                pairs in deployment. With cameras, threshold, FRR and OPIS use genuine pairs across cameras, and both
                FRRs are reported.
            groups: (N,) integers or strings, 2 to 50 different values: report rates by group and pair of groups.
            search: report rates in galleries; its `fpir` is the target if given.
            opis: FAR range, grid and epsilon, see `functional.epsilon_opis`. None: `OPISSettings()`.
            normalize: use normalised scores instead of cosines, with a cohort of other identities. The report stores k,
                strength and the cohort's SHA-256.
            source: names and images of the samples, for the page.
        Raises:
            TypeError: embeddings neither a tensor nor an array; none or several targets.
            ValueError: mismatched input; no genuine or no impostor pairs, or none across cameras; a target out of
                range, or one that needs more pairs or identities; a cohort that holds a judged sample or identity.
        Warns:
            UserWarning: samples that are copies of others.
        """
        chosen = choose_target(far, frr, target, None if search is None else search.fpir, confidence)
        rows: Tensor = as_tensor(embeddings)
        fields = measure_threshold(
            rows,
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
        """Returns the decisions for cosine similarities.

        Args:
            scores: any shape, finite, in [−1, 1] (with 1 % tolerance for 16-bit rounding); normalised scores may exceed
                that by the strength.
            normalized: pass True if the report uses normalised scores; `accept_pairs` normalises cosines.
        Returns:
            Bool of the same shape (a tensor for a tensor): score >= cosine, compared in float64.
        Raises:
            ValueError: values out of range, such as distances or NaN; normalised scores for a report on cosines, or
                cosines for one on normalised scores.
        """
        accepted: Tensor | np.ndarray = self._scores(scores, normalized) >= self.cosine
        return accepted

    def _scores(self, scores: Tensor | np.ndarray | float, normalized: bool) -> Any:
        """Returns checked scores in float64."""
        if normalized != (self.normalization is not None):
            if normalized:
                raise ValueError("the threshold is for cosines. Leave normalized out")
            raise ValueError(
                "the threshold is for normalised scores, not cosines. Normalise the scores and pass normalized=True, "
                "or pass embeddings and cohort to accept_pairs"
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
        """Returns the decisions for pairs of embeddings, computed in blocks of rows.

        Args:
            a, b: (P, D); row i of one is compared with row i of the other. D must be the report's.
            normalization: the report's cohort, required for a report on normalised scores.
        Returns:
            (P,) bool, an array for arrays.
        Raises:
            ValueError: different D or P; rows that are zero or not finite; a different normalization.
        """
        one, other = as_tensor(a), as_tensor(b)
        require_embeddings(one, "a", self.embedding_dim)
        require_embeddings(other, "b", self.embedding_dim)
        if len(one) != len(other):
            raise ValueError(f"a and b must have the same number of rows; got {len(one)} and {len(other)}")
        require_cohort(self.normalization, normalization)
        size = min(len(one), max(1, _ENTRIES // self.embedding_dim))
        # New memory for each block took most of the time.
        memory = one.new_empty((2, size, self.embedding_dim), dtype=torch.float64)
        scores = []
        for x, y in zip(one.split(size), other.split(size), strict=True):
            unit_x = normalise_(memory[0, : len(x)].copy_(x.detach()))
            unit_y = normalise_(memory[1, : len(x)].copy_(y.detach()))
            scores.append(pair_scores(unit_x, unit_y, normalization))
        accepted = self.accept(torch.cat(scores), normalized=normalization is not None)
        return accepted if isinstance(a, Tensor) else accepted.numpy()

    def check(
        self,
        embeddings: Tensor | np.ndarray,
        *,
        labels: Ids | None = None,
        frames: Ids | None = None,
        tracks: Ids | None = None,
        cameras: Ids | None = None,
        far_limit: float | None = None,
        frr_limit: float | None = None,
        normalization: CohortNormalization | None = None,
    ) -> ThresholdCheck:
        """Compare today's FAR and FRR at this threshold with limits.

        In production labels are unknown, but samples of one frame (image, moment) are different people, and samples of
        one track are the same person. Without labels, frames and tracks, every pair counts as an impostor pair. The
        accept rate is then an upper bound of FAR. Intervals assume independent classes, frames, tracks or samples:
        subsample frames that show the same people.

        A rate holds if its 95 % interval ends at or below the limit, and does not hold if it begins above. Otherwise it
        cannot be told, and the line says how many identities would decide. If only one of FAR and FRR was checked and
        it holds, the verdict is "cannot be told". Without a limit of yours, a FAR far below the report's (below its
        interval, and less than half the odds) cannot be told either: the model may be another one.

        If the threshold was chosen for searches, FPIR and FNIR are compared with their default limits, too. They are
        measured in the largest gallery of the report that the labels suffice for. Without labels, the verdict is at
        best "cannot be told".

        Without errors in the new data, the number of independent pairs is estimated from the clustering of the report's
        errors. Wrong labels raise both rates: a report on the new data lists those that look wrong.

        Args:
            embeddings: (N, D), computed with the same weights.
            labels: (N,) identities, integers or strings.
            frames, tracks: (N,) ids, instead of labels; one of both is enough.
            cameras: (N,) integers or strings; required with labels if the report's FRR is across cameras.
                Tracks without cameras are compared with the report's FRR within a camera.
            far_limit, frr_limit: highest rates that hold, in (0, 1). None: twice the odds of the report's rate, where
                odds are rate / (1 − rate), or the upper end of the report's interval if that is higher.
            normalization: see `accept_pairs`. It must hold none of these samples and labels.
        Raises:
            ValueError: different D; zero rows; rows of which more than 5 % are the report's own data; no pair with a
                known relation; labels combined with frames or tracks; cameras missing, or given for a report that
                counts all genuine pairs; a different normalization, or a cohort that holds one of these samples or
                labels.

        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(1600) % 400
        >>> people = torch.randn(400, 16, generator=generator)[labels]
        >>> seen, same, drifted = (people + s * torch.randn(1600, 16, generator=generator) for s in (0.5, 0.5, 1.5))
        >>> report = ThresholdReport.from_embeddings(seen, labels, far=0.01)
        >>> report.check(same, labels=labels).verdict, report.check(drifted, labels=labels).verdict
        ('holds', 'does not hold')
        """
        known = {"labels": labels, "frames": frames, "tracks": tracks, "cameras": cameras}
        return check_threshold(
            self, embeddings, known, far_limit=far_limit, frr_limit=frr_limit, normalization=normalization
        )

    def with_checkpoint(self, model: ModelFile) -> "ThresholdReport":
        """Returns a copy with the name and the hash of the model file that computed the embeddings.

        Args:
            model: the file, or `record.checkpoint` of an `Embedder` or a gallery, which have its hash.

        Raises:
            OSError: the file cannot be read.
        """
        return replace(self, checkpoint=checkpoint_of(model))

    def save(self, path: str | Path, *, checkpoint: ModelFile | None = None) -> None:
        """Write a JSON file, preferably next to the checkpoint.

        Args:
            checkpoint: model file, see `with_checkpoint`. Its hash is stored, and `load` compares it.
        """
        write_report(self if checkpoint is None else self.with_checkpoint(checkpoint), Path(path))

    @classmethod
    def load(cls, path: str | Path, *, checkpoint: ModelFile | None = None) -> "ThresholdReport":
        """Read a file written by `save`.

        Args:
            checkpoint: model file in use, or its record, see `with_checkpoint`; must be the one recorded in the report.
        Warns:
            UserWarning: the report records a checkpoint, and none is given.
        Raises:
            FileNotFoundError: no such file.
            ValueError: not a report; the report records another checkpoint, or none although one is given.
        """
        report = cls(**vars(read_report(Path(path))))
        require_checkpoint(report.checkpoint, checkpoint, path)
        return report

    def save_figure(self, path: str | Path) -> None:
        """Draw utilities, ROC and distances as a PNG (needs matplotlib, `curves`); overwrites an existing file."""
        from pml_ext.thresholds.figures import threshold_figures
        from pml_ext.thresholds.page import png_of

        write_atomically(path, png_of(threshold_figures(self)))

    def save_page(self, path: str | Path) -> None:
        """Write one HTML page with tables and the same figures (needs matplotlib, `curves`).

        Raises:
            UserError: the file exists and is not a page of pml_ext.
        """
        from pml_ext.reports.page import write_html
        from pml_ext.thresholds.figures import threshold_figures
        from pml_ext.thresholds.page import page_of

        write_html(Path(path), page_of(self, threshold_figures(self)))

    def summary(self) -> str:
        """Returns the report as lines of text."""
        from pml_ext.thresholds.text import summary_lines

        rows = summary_lines(self)
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {printable(text)}" for name, text in rows)
