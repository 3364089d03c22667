"""OPIS as an object that collects batches, on one process or several."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from pml_ext._checks import check_embeddings, check_finite, check_labels, check_switch
from pml_ext._ops.distributed import gather_rows
from pml_ext.functional.operating_points.calibration import utility_curves
from pml_ext.functional.operating_points.score import OPISAtRange, opis_sensitivity
from pml_ext.functional.operating_points.utility import UtilityCurves, epsilon_opis_of_curves, opis_of_curves
from pml_ext.metrics import keys
from pml_ext.metrics.opis_settings import OPISSettings


class OPIS:
    """OPIS and ε-OPIS of all batches handed to `update`, with the calling convention of torchmetrics.

    >>> angles = torch.tensor([0.0, 0.4, 1.0, 1.3, 3.1, 2.2])
    >>> embeddings, labels = torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([0, 0, 1, 1, 2, 2])
    >>> metric = OPIS(far_range=(0.2, 0.6))
    >>> metric.update(embeddings[:4], labels[:4])
    >>> metric.update(embeddings[4:], labels[4:])
    >>> found = metric.compute()
    >>> round(found["opis"], 4), found["classes"]
    (0.0235, 3)

    Where torch.distributed is initialised, every rank updates with its own batches, and `compute`, called on all of
    them, gathers the embeddings, shares the pairs among the ranks and returns the same result on each.

    Args:
        far_range, grid, negatives_per_positive, seed, exact: see `functional.utility_curves`.
        epsilon: see `functional.epsilon_opis`.
        device: where the batches are kept and compared; None: where the first one is.
        sync_on_compute: False: each rank's own batches alone.
        process_group: the ranks that compute together; None: all.
    Raises:
        ValueError: far_range, grid, epsilon or negatives_per_positive out of range.
    """

    higher_is_better = False
    is_differentiable = False
    full_state_update = False

    def __init__(
        self,
        *,
        far_range: tuple[float, float] = (1e-2, 1e-1),
        grid: int = 100,
        epsilon: float = 0.1,
        negatives_per_positive: int | None = None,
        seed: int = 0,
        exact: bool = False,
        device: torch.device | str | None = None,
        sync_on_compute: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        OPISSettings(far_range, grid, epsilon, negatives_per_positive, seed)  # raises where one is out of range
        check_switch(exact, "exact")
        check_switch(sync_on_compute, "sync_on_compute")
        self.far_range, self.grid, self.epsilon = far_range, grid, epsilon
        self._options: dict[str, Any] = {
            "grid": grid,
            "negatives_per_positive": negatives_per_positive,
            "seed": seed,
            "exact": exact,
        }
        self._device = None if device is None else torch.device(device)
        self._sync, self._group = sync_on_compute, process_group
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._embeddings: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, embeddings: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            embeddings: (n, D) floating, finite; need not be normalised. Kept in their precision.
            labels: (n,) integer class ids.
        Raises:
            ValueError: other shapes or types, another D than before, NaN or infinity.
        """
        check_embeddings(embeddings)
        labels = check_labels(labels, len(embeddings))
        check_finite(embeddings)
        if self._embeddings and embeddings.shape[1] != self._embeddings[0].shape[1]:
            raise ValueError(
                f"embeddings must have {self._embeddings[0].shape[1]} columns as in the batches before; "
                f"got {embeddings.shape[1]}. Call reset() before measuring another model"
            )
        device = self._device or (self._embeddings[0].device if self._embeddings else embeddings.device)
        # Copies: the caller may write the next batch into the same memory.
        self._embeddings.append(embeddings.detach().to(device, copy=True))
        self._labels.append(labels.detach().to(device, torch.int64, copy=True))

    def compute(self) -> dict[str, Any]:
        """Measure all batches so far.

        Returns:
            opis, epsilon_opis, d_min, d_max: floats, the last two the distances that bound the calibration range;
            classes: how many were compared; samples: how many there were, of all ranks;
            curves: `UtilityCurves` behind the scores, on the device.
        Raises:
            RuntimeError: before any update.
            TooFewClassesError: (a ValueError) fewer than two classes with positive and negative pairs, or too few
                negative pairs for far_range.
        """
        embeddings, labels, group = self._collected()
        curves: UtilityCurves = utility_curves(
            embeddings, labels, far_range=self.far_range, group=group, **self._options
        )
        d_min, d_max = curves.calibration_range.tolist()
        return {
            keys.OPIS: float(opis_of_curves(curves)),
            keys.EPSILON_OPIS: float(epsilon_opis_of_curves(curves, self.epsilon)),
            "d_min": d_min,
            "d_max": d_max,
            "classes": len(curves.classes),
            "samples": len(labels),
            "curves": curves,
        }

    def sensitivity(self, far_ranges: Sequence[tuple[float, float]]) -> list[OPISAtRange]:
        """The scores over several calibration ranges, see `functional.opis_sensitivity`."""
        embeddings, labels, group = self._collected()
        return opis_sensitivity(
            embeddings, labels, far_ranges=far_ranges, epsilon=self.epsilon, group=group, **self._options
        )

    def _collected(self) -> tuple[Tensor, Tensor, dist.ProcessGroup | None]:
        """All samples, of all ranks where they compute together, and the group of these ranks."""
        together = self._sync and dist.is_available() and dist.is_initialized()
        group = (self._group or dist.group.WORLD) if together else None
        if group is None:
            if not self._embeddings:
                raise RuntimeError("compute() needs at least one update(embeddings, labels) before it; got none")
            return torch.cat(self._embeddings), torch.cat(self._labels), None
        embeddings, labels = self._own(group)
        return gather_rows(embeddings, group), gather_rows(labels, group), group

    def _own(self, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        """This rank's samples in the columns and the type that all ranks agree on; it may have none."""
        device = self._embeddings[0].device if self._embeddings else self._device or _device_of(group)
        dtype = torch.promote_types(self._embeddings[0].dtype, torch.float32) if self._embeddings else torch.float32
        columns = self._embeddings[0].shape[1] if self._embeddings else 0
        given = torch.tensor([[columns, int(dtype == torch.float64)]], device=device)
        all_given = gather_rows(given, group)
        known = all_given[all_given[:, 0] > 0]
        if not len(known):
            raise RuntimeError("compute() needs at least one update(embeddings, labels) on some rank; got none on any")
        if len(set(known[:, 0].tolist())) > 1:
            raise ValueError(
                f"embeddings must have the same number of columns on all ranks; got {all_given[:, 0].tolist()}"
            )
        dtype = torch.float64 if bool(known[:, 1].any()) else torch.float32
        empty = torch.empty((0, int(known[0, 0])), dtype=dtype, device=device)
        no_labels = torch.empty(0, dtype=torch.int64, device=device)
        return torch.cat([empty, *(x.to(dtype) for x in self._embeddings)]), torch.cat([no_labels, *self._labels])


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Where a rank without data takes part in the exchange."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")
    )
