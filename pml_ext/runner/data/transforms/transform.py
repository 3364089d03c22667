"""A picture's way to the network: steps of one picture where it is read, then steps of a batch on the device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

Draws = Sequence[np.ndarray]
"""What each step of a batch drew, (K,) of a picture or (B, K) of a batch; arrays, because tensors go to the device."""


class BatchStep(ABC):
    """A step that draws its random numbers where a picture is read, and changes whole batches where the network is.

    What it does to a picture is a function of the picture and of what was drawn for it alone.
    """

    @abstractmethod
    def draw(self, picture: Tensor) -> np.ndarray:
        """(K,) random numbers for a picture (C, H, W), from torch's generator."""

    @abstractmethod
    def apply(self, pictures: Tensor, draws: np.ndarray) -> Tensor:
        """The pictures (B, C, H, W) in 0–255, changed as (B, K) numbers say."""

    def __call__(self, picture: Tensor) -> Tensor:
        """Both at once, of one picture (C, H, W)."""
        return self.apply(picture[None], self.draw(picture)[None])[0]


Step = Callable[[Tensor], Tensor]


class Transform:
    """Steps in their order; the batch steps at their end wait for the device, so that bytes travel and not floats.

    Called with a picture (C, h, w) it does all steps at once. `prepare` and `finish` do the same in two places.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        end = len(steps)
        while end > 0 and isinstance(steps[end - 1], BatchStep):
            end -= 1
        self.of_picture, self.of_batch = list(steps[:end]), [s for s in steps[end:] if isinstance(s, BatchStep)]

    def prepare(self, picture: Tensor) -> tuple[Tensor, Draws]:
        """The steps before the batch steps, and what the batch steps drew."""
        for step in self.of_picture:
            picture = step(picture)
        return picture, [step.draw(picture) for step in self.of_batch]

    def finish(self, pictures: Tensor, draws: Draws) -> Tensor:
        """The batch steps on prepared pictures (B, C, H, W) and what was drawn for each."""
        for step, drawn in zip(self.of_batch, draws, strict=True):
            pictures = step.apply(pictures, drawn)
        return pictures

    def __call__(self, picture: Tensor) -> Tensor:
        prepared, draws = self.prepare(picture)
        return self.finish(prepared[None], [drawn[None] for drawn in draws])[0]
