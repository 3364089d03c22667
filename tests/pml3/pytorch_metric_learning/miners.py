from torch import nn

from .distances import LpDistance


class BaseMiner(nn.Module):
    """How it calls what it mines with is unknown: ours do that themselves."""

    def __init__(self, *, distance=None):
        super().__init__()
        self.distance = self.default_distance() if distance is None else distance

    def default_distance(self):
        return LpDistance()


class TripletMarginMiner(BaseMiner):
    def forward(self, embeddings, labels):
        raise NotImplementedError
