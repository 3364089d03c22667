"""Each reduces a term by itself; their own contract is unknown, so that nothing of ours may call or extend them."""

from torch import nn


class _Reducer(nn.Module):
    def reduce(self, losses):
        raise NotImplementedError


class MeanReducer(_Reducer):
    def reduce(self, losses):
        return losses.mean()


class SumReducer(_Reducer):
    def reduce(self, losses):
        return losses.sum()


class AvgNonZeroReducer(_Reducer):
    def reduce(self, losses):
        return losses.sum() / (losses > 0).sum().clamp(min=1)


class MultipleReducers(nn.Module):
    def __init__(self, reducers):
        super().__init__()


class DivisorReducer(_Reducer):
    pass
