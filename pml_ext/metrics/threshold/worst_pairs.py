"""The worst pairs of a threshold report: impostors that are most alike, and genuine pairs that are least alike."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pml_ext._ops.numerics import full_precision
from pml_ext.functional.pairwise.pair_distances import PairDistances
from pml_ext.metrics.threshold.fields import Sample, WorstPair, WorstPairs
from pml_ext.metrics.threshold.samples import SampleSource

_LISTED = 6  # pairs of each kind
_DECIMALS = 9  # of cosines: those of copies then tie on every processor


def worst_pairs(pairs: PairDistances, ids: Tensor, names: Sequence[int | str], source: SampleSource) -> WorstPairs:
    """Returns the impostor pairs with the highest cosines and the genuine pairs with the lowest, worst first.

    ids, names: (N,) ids of the pairs' samples, and the name of each id. Genuine pairs are those that `pairs` counts.
    """
    impostors, genuine = list[tuple[float, int, int]](), list[tuple[float, int, int]]()  # of each block, the worst
    with full_precision(pairs.unit.device):
        for block in pairs.blocks():
            block.cosines.round_(decimals=_DECIMALS)
            first_row, first_column, width = block.rows.start, block.columns.start, block.cosines.shape[1]
            if block.mixed:
                flat, row, column = pairs.positive_places(block)
                lowest, place = block.cosines.view(-1)[flat].topk(min(_LISTED, len(flat)), largest=False)
                one, other = row[place] + first_row, column[place] + first_column
                genuine += zip(lowest.tolist(), one.tolist(), other.tolist(), strict=True)
                block.cosines.masked_fill_(~pairs.negative_mask(block), -torch.inf)
            highest, place = block.cosines.view(-1).topk(min(_LISTED, block.cosines.numel()))
            one, other = place // width + first_row, place % width + first_column
            impostors += zip((-highest).tolist(), one.tolist(), other.tolist(), strict=True)
    order = torch.argsort(ids, stable=True).tolist()

    def sample(place: int) -> Sample:
        row = order[place]
        return source.sample(row, names[int(ids[row])])

    def listed(found: list[tuple[float, int, int]], sign: int) -> tuple[WorstPair, ...]:
        pairs_of_kind = [entry for entry in sorted(found)[:_LISTED] if entry[0] < torch.inf]
        return tuple(WorstPair(sign * value, sample(one), sample(other)) for value, one, other in pairs_of_kind)

    return WorstPairs(listed(impostors, -1), listed(genuine, 1))
