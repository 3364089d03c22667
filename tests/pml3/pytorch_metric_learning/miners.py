from torch import Tensor, nn

from .distances import BaseDistance, LpDistance


class BaseMiner(nn.Module):
    """How it calls what it mines with is unknown: ours do that themselves."""

    def __init__(self, *, distance: BaseDistance | None = None) -> None:
        super().__init__()
        self.distance = self.default_distance() if distance is None else distance

    def default_distance(self) -> BaseDistance:
        return LpDistance()


class TripletMarginMiner(BaseMiner):
    def forward(self, embeddings: Tensor, labels: Tensor) -> None:
        raise NotImplementedError
