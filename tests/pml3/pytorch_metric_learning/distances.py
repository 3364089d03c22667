"""Without the attributes of version 2 that nobody has said are here: is_inverted, maybe_normalize, smallest_dist."""

import torch
from torch import nn
from torch.nn.functional import normalize


class BaseDistance(nn.Module):
    def matrix(self, x, y):
        raise NotImplementedError

    def forward(self, x, y=None):
        return self.matrix(x, x if y is None else y)

    def margin(self, x, y):
        return x - y


class DotProductSimilarity(BaseDistance):
    def __init__(self, *, normalize_embeddings=False):
        super().__init__()
        self._unit = normalize_embeddings

    def matrix(self, x, y):
        return normalize(x) @ normalize(y).T if self._unit else x @ y.T

    def margin(self, x, y):
        return y - x


class CosineSimilarity(BaseDistance):
    def matrix(self, x, y):
        return normalize(x) @ normalize(y).T

    def margin(self, x, y):
        return y - x


class LpDistance(BaseDistance):
    def __init__(self, *, normalize_embeddings=True, p=2, power=1):
        super().__init__()
        self.normalize_embeddings, self.p, self.power = normalize_embeddings, p, power

    def matrix(self, x, y):
        if self.normalize_embeddings:
            x, y = normalize(x, p=self.p), normalize(y, p=self.p)
        return torch.cdist(x, y, p=self.p) ** self.power


class SNRDistance(BaseDistance):
    def matrix(self, x, y):
        return (x[:, None] - y).var(dim=2) / x.var(dim=1, keepdim=True)
