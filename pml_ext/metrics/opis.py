"""OPIS as a torchmetrics metric that accumulates batches, in one process or several."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from torchmetrics.utilities.distributed import gather_all_tensors

from pml_ext._ops.distributed import gather_rows
from pml_ext._shared.checks import check_embeddings, check_finite, check_labels, check_switch
from pml_ext._shared.settings import CheckedSettings
from pml_ext.functional.opis.score import OPISAtRange, opis_sensitivity
from pml_ext.functional.opis.utility import TooFewClassesError, epsilon_opis_of_curves, opis_of_curves, utility_curves
from pml_ext.metrics import keys
from pml_ext.metrics.normalization import CohortNormalization, check_normalize
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.metrics.undefined import warn_meaningless_opis, warn_undefined

_SCORES = (keys.OPIS, keys.EPSILON_OPIS)


class OPIS(CheckedSettings, Metric):
    r"""Operating-point inconsistency score (OPIS) and ε-OPIS of all batches, as a torchmetrics.Metric.

    $$\text{OPIS} = \frac{1}{T} \sum_i \text{mean}_d (U_i(d) - \bar{U}(d))^2$$

    is the variance of the utility U between the T classes. ε-OPIS is the squared gap between the utilities of the worst
    and the best classes. Both are averaged over the distances d of the calibration range; see `functional.opis` and
    `functional.epsilon_opis`.

    >>> angles = torch.tensor([0.0, 0.4, 1.0, 1.3, 3.1, 2.2])
    >>> embeddings = torch.stack([angles.cos(), angles.sin()], dim=1)
    >>> labels = torch.tensor([0, 0, 1, 1, 2, 2])
    >>> metric = OPIS(far_range=(0.2, 0.6))
    >>> metric.update(embeddings[:4], labels[:4])
    >>> metric.update(embeddings[4:], labels[4:])
    >>> values = metric.compute()
    >>> round(values["opis"], 4), values["classes"]
    (0.0235, 3)

    If torch.distributed is initialised, every rank updates with its batches. `compute`, called on all ranks,
    gathers the embeddings, shards the pairs and returns the same result on each rank. Calling the object (torchmetrics'
    forward) measures one batch and copies all earlier ones; use `update` in loops.

    Args:
        far_range, grid: see `functional.utility_curves`.
        epsilon: see `functional.epsilon_opis`.
        normalize: use normalised scores, with a cohort of other identities. None: cosines.
        device: device on which batches are stored and compared; None: device of the first batch.
        sync_on_compute: False: use each rank's batches only.
        process_group: process group of the ranks that compute together; None: all ranks.
        options: further options of torchmetrics.Metric.
    Raises:
        ValueError: far_range, grid or epsilon out of range; in `compute`, a cohort that holds a measured sample or
            identity.
    """

    higher_is_better = False
    is_differentiable = False
    full_state_update = False
    embeddings: list[Tensor] | Tensor
    labels: list[Tensor] | Tensor

    def __init__(
        self,
        *,
        far_range: tuple[float, float] = (1e-2, 1e-1),
        grid: int = 100,
        epsilon: float = 0.1,
        normalize: CohortNormalization | None = None,
        device: torch.device | str | None = None,
        sync_on_compute: bool = True,
        process_group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        OPISSettings(far_range, grid, epsilon)  # raises if a value is out of range
        check_normalize(normalize)
        check_switch(sync_on_compute, "sync_on_compute")
        # A cached result would ignore merged states.
        options = {"compute_with_cache": False} | options
        super().__init__(sync_on_compute=sync_on_compute, process_group=process_group, **options)
        self.far_range, self.grid, self.epsilon = far_range, grid, epsilon
        self.normalize = normalize
        self._kept_on = None if device is None else torch.device(device)
        self.add_state("embeddings", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, embeddings: Tensor, labels: Tensor) -> None:
        """Adds a batch.

        Args:
            embeddings: (n, D) floating, finite; need not be normalised. Stored in their precision.
            labels: (n,) integer class ids.
        Raises:
            ValueError: wrong shapes or types, a different D than before, NaN or infinity.
        """
        check_embeddings(embeddings)
        labels = check_labels(labels, len(embeddings))
        check_finite(embeddings)
        assert isinstance(self.embeddings, list) and isinstance(self.labels, list)
        if self.embeddings and embeddings.shape[1] != self.embeddings[0].shape[1]:
            raise ValueError(
                f"embeddings must have {self.embeddings[0].shape[1]} columns like earlier batches; "
                f"got {embeddings.shape[1]}. Call reset() before measuring another model"
            )
        device = self.embeddings[0].device if self.embeddings else self._kept_on or embeddings.device
        # Copies: the caller may write the next batch into the same memory.
        self.embeddings.append(embeddings.detach().to(device, copy=True))
        self.labels.append(labels.detach().to(device, copy=True))

    def compute(self) -> dict[str, Any]:
        """Computes the scores over all batches.

        Returns:
            opis, epsilon_opis: floats;
            d_min, d_max: floats, distances that bound the calibration range;
            classes, samples: numbers of compared classes and of samples, over all ranks;
            curves: `UtilityCurves` of the scores, on the device.
            If fewer than two classes have positive and negative pairs, or far_range needs more negative pairs, warns
            and returns nan, curves None and classes 0. Also warns if a low value is meaningless, because no threshold
            separates the classes.
        Raises:
            RuntimeError: before any update.
        """
        embeddings, labels, offsets, group = self._collected()
        values: dict[str, Any] = dict.fromkeys((*_SCORES, "d_min", "d_max"), float("nan"))
        values |= {"classes": 0, "samples": len(labels), "curves": None}
        try:
            curves = utility_curves(
                embeddings, labels, far_range=self.far_range, grid=self.grid, group=group, offsets=offsets
            )
        except TooFewClassesError as error:
            warn_undefined((name, str(error)) for name in _SCORES)
            return values
        warn_meaningless_opis((keys.OPIS, keys.EPSILON_OPIS), curves)
        d_min, d_max = curves.calibration_range.tolist()
        scores = {
            keys.OPIS: float(opis_of_curves(curves)),
            keys.EPSILON_OPIS: float(epsilon_opis_of_curves(curves, self.epsilon)),
        }
        return values | scores | {"d_min": d_min, "d_max": d_max, "classes": len(curves.classes), "curves": curves}

    def sensitivity(self, far_ranges: Sequence[tuple[float, float]]) -> list[OPISAtRange]:
        """Returns the scores over several calibration ranges; see `functional.opis_sensitivity`, also for errors."""
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self.sync_on_compute):
            embeddings, labels, offsets, group = self._collected()
            return opis_sensitivity(
                embeddings,
                labels,
                far_ranges=far_ranges,
                epsilon=self.epsilon,
                grid=self.grid,
                group=group,
                offsets=offsets,
            )

    def _collected(self) -> tuple[Tensor, Tensor, Tensor | None, dist.ProcessGroup | None]:
        """Returns embeddings, labels and offsets of all samples (of all ranks, if gathered), and the ranks' group."""
        if not len(self.embeddings):
            raise RuntimeError("compute() needs at least one update(embeddings, labels) before it; got none")
        group = (self.process_group or dist.group.WORLD) if self._is_synced else None
        embeddings, labels, offsets = dim_zero_cat(self.embeddings), dim_zero_cat(self.labels), None
        if self.normalize is not None:
            offsets = self.normalize.corrections_of_judged(embeddings, labels, group=group)
        return embeddings, labels, offsets, group

    def _sync_dist(self, dist_sync_fn: Any = gather_all_tensors, process_group: Any = None) -> None:
        """Gather like torchmetrics, with the number of columns and the type that all ranks share."""
        self.embeddings, self.labels = self._of_this_rank(process_group or self.process_group or dist.group.WORLD)
        super()._sync_dist(dist_sync_fn, process_group)

    def _of_this_rank(self, group: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Returns this rank's samples (possibly none) for gathering."""
        kept = dim_zero_cat(self.embeddings) if len(self.embeddings) else None
        # Device of a rank without data, for the exchange.
        elsewhere = self._kept_on or torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
        device = elsewhere if kept is None else kept.device
        shape = [0, 0] if kept is None else [kept.shape[1], int(kept.dtype == torch.float64)]
        all_shapes = gather_rows(torch.tensor([shape], device=device), group)
        known = all_shapes[all_shapes[:, 0] > 0]
        if not len(known):
            raise RuntimeError("compute() needs at least one update(embeddings, labels) on some rank; got none on any")
        if len(set(known[:, 0].tolist())) > 1:
            raise ValueError(
                f"embeddings must have the same number of columns on all ranks; got {all_shapes[:, 0].tolist()}"
            )
        dtype = torch.float64 if bool(known[:, 1].any()) else torch.float32
        if kept is None:
            labels = torch.empty(0, dtype=torch.int64, device=device)
            return [torch.empty((0, int(known[0, 0])), dtype=dtype, device=device)], [labels]
        return [kept.to(dtype)], [dim_zero_cat(self.labels)]
