"""Noise floor of OPIS: its value if the classes differed only because each has few samples."""

import math

import numpy as np
import torch
from torch import Tensor

from pml_ext._ops.distributed import sum_over_ranks
from pml_ext._ops.numerics import full_precision, product_blocks
from pml_ext.functional.opis.utility import UtilityCurves, utility_of_rates
from pml_ext.functional.pairwise.pair_distances import PairDistances

_THRESHOLDS = 8  # of the calibration range
_PROBES = 1024  # samples whose false accepts are compared within their class
_ROWS = 64
_DRAWN = 10_000  # classes


def opis_noise_floor(pairs: PairDistances, curves: UtilityCurves) -> float:
    """Returns the OPIS expected of classes with equal true rates, which differ by the sampling of their images only.

    At each threshold every class draws its accepted pairs from binomial distributions with the mean rates of all
    classes. Pairs that share an image are alike, so that a class has fewer independent pairs than pairs: n / (1 + 2 (k
    − 2) ρ) for its n = k (k − 1) / 2 genuine pairs of k images, with the correlation ρ of two pairs of a class that
    share an image. Its impostor pairs are as many as give the variance of the false accept rate between images of a
    class, over k.

    Args:
        pairs: all pairs of the set, or sampled negative ones.
        curves: of these pairs.
    Returns:
        A fraction; nan without a threshold in the calibration range.
    Source: Hoeffding, Annals of Mathematical Statistics 19 (1948), variance of a mean over pairs.
    """
    low, high = curves.calibration_range.tolist()
    inside = ((curves.thresholds >= low) & (curves.thresholds <= high)).nonzero().flatten()
    if not len(inside):
        return math.nan
    places = inside[torch.linspace(0, len(inside) - 1, min(_THRESHOLDS, len(inside))).round().long()]
    thresholds = curves.thresholds[places]
    kept = (pairs.positive_pairs > 0) & (pairs.negative_pairs > 0)
    genuine = _independent_genuine(pairs, thresholds)[kept]
    impostors = _independent_impostors(pairs, thresholds)[kept]
    tpr, tnr = (rates[:, places].mean(dim=0).cpu() for rates in (curves.tpr, curves.tnr))
    generator = np.random.default_rng(0)
    variances = []
    for _ in range(max(1, _DRAWN // len(genuine))):
        drawn = utility_of_rates(_draw(generator, genuine, tpr), _draw(generator, impostors, tnr))
        variances.append((drawn - drawn.mean(dim=0)).square().mean())
    return float(torch.stack(variances).mean())


def _draw(generator: np.random.Generator, trials: Tensor, rates: Tensor) -> Tensor:
    """Returns (T, M) binomial shares. trials: (T, M), at least 1; a fraction is rounded at random."""
    whole = (trials + torch.from_numpy(generator.random(trials.shape))).floor().long()
    successes = generator.binomial(whole.numpy(), rates.clamp(0, 1).numpy())
    return torch.from_numpy(successes) / whole


def _independent_genuine(pairs: PairDistances, thresholds: Tensor) -> Tensor:
    """Returns the (T, M) numbers of independent genuine pairs of each class, on the CPU."""
    count = len(pairs.index)
    accepted = torch.zeros((count, len(thresholds)), dtype=torch.float64, device=pairs.unit.device)
    counted = torch.zeros(count, dtype=torch.float64, device=pairs.unit.device)
    cosines = 1 - thresholds.double() ** 2 / 2
    with full_precision(pairs.unit.device):
        for block in pairs.blocks(positives_only=True):
            flat, row, column = pairs.positive_places(block)
            is_accepted = (block.cosines.reshape(-1)[flat, None] >= cosines).double()
            for sample in (row + block.rows.start, column + block.columns.start):
                accepted.index_add_(0, sample, is_accepted)
                counted.index_add_(0, sample, torch.ones_like(is_accepted[:, 0]))
    accepted, counted = (sum_over_ranks(of, pairs.group) for of in (accepted, counted))
    classes = len(pairs.classes)

    def by_class(values: Tensor) -> Tensor:
        return values.new_zeros((classes, *values.shape[1:])).index_add_(0, pairs.index, values)

    total, within = by_class(counted) / 2, by_class(accepted) / 2
    sharing = by_class(counted * (counted - 1))  # ordered pairs of pairs that share an image
    both_sharing = by_class(accepted * (accepted - 1))
    apart, both_apart = total * (total - 1) - sharing, within * (within - 1) - both_sharing
    sizes = torch.bincount(pairs.index, minlength=classes).double()
    is_known = apart > 0
    if bool(is_known.any()):
        level = both_apart[is_known] / apart[is_known, None]
        weights = sizes[is_known, None]
    else:  # classes of at most three images: their rates count as equal
        is_known = sharing > 0
        level = (within.sum(dim=0) / total.sum()).square()
        weights = sizes[is_known, None]
    shared = both_sharing[is_known] / sharing[is_known, None] - level
    alone = within[is_known] / total[is_known, None] - level
    correlation = (weights * shared).sum() / (weights * alone).sum()
    correlation = correlation.nan_to_num(0.0).clamp(0, 1)
    independent = total / (1 + correlation * sharing / total.clamp_min(1))
    return independent.clamp_min(1)[:, None].expand(-1, len(thresholds)).cpu()


def _independent_impostors(pairs: PairDistances, thresholds: Tensor) -> Tensor:
    """Returns the (T, M) numbers of independent impostor pairs of each class, on the CPU, from whole classes."""
    sizes = torch.bincount(pairs.index, minlength=len(pairs.classes)).cpu()
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(0))
    order = order[sizes[order] > 1]
    order = order[: 1 + int((sizes[order].cumsum(0) < _PROBES).sum())]
    starts = (sizes.cumsum(0) - sizes)[order].tolist()
    probed = [
        torch.arange(start, start + size)
        for start, size in zip(starts, sizes[order].clamp_max(_PROBES).tolist(), strict=True)
    ]
    rate = _impostor_rates(pairs, torch.cat(probed), 1 - thresholds.double() ** 2 / 2)
    squares = [(of_class - of_class.mean(dim=0)).square().sum(dim=0) for of_class in rate.split([*map(len, probed)])]
    of_sample = torch.stack(squares).sum(dim=0) / (len(rate) - len(order))
    mean = rate.mean(dim=0)
    share = of_sample / (mean * (1 - mean)).clamp_min(1e-12)  # variance of a sample's rate, of one trial's
    of_class = share / sizes[:, None] + pairs.negative_pairs.cpu()[:, None].double().reciprocal()
    trials: Tensor = of_class.clamp_max(1).reciprocal()
    return trials


def _impostor_rates(pairs: PairDistances, samples: Tensor, cosines: Tensor) -> Tensor:
    """Returns the (S, M) float64 false accept rates of some samples at each cosine, on the CPU."""
    samples = samples.to(pairs.unit.device)
    sizes = torch.bincount(pairs.index)[pairs.index]
    rates = []
    for part, products in product_blocks(pairs.unit[samples], pairs.other, _ROWS):
        rows = samples[part]
        products.masked_fill_(pairs.index[rows, None] == pairs.index, -torch.inf)
        accepted = torch.stack([(products >= cosine).sum(dim=1) for cosine in cosines.to(products)], dim=1)
        rates.append(accepted.double() / (len(pairs.index) - sizes[rows, None]))
    return torch.cat(rates).cpu()
