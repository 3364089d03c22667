"""The noise floor of OPIS equals OPIS where all classes are alike."""

import numpy as np
import pytest
import torch
from pytest import approx

from pml_ext.functional.opis.noise_floor import opis_noise_floor
from pml_ext.functional.opis.utility import curves_of_pairs, opis_of_curves
from pml_ext.functional.pairwise.pair_distances import PairDistances, SampledPairDistances
from pml_ext.metrics import OPIS, AccuracyCalculator

DIM = 64


def identical_classes(images, classes, noise, seed):
    """Classes in random directions, with equal noise around each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(images)
    centres = torch.nn.functional.normalize(torch.randn(classes, DIM, generator=generator))
    return centres[labels] + noise / DIM**0.5 * torch.randn(len(labels), DIM, generator=generator), labels


def opis_and_floor(pairs):
    curves = curves_of_pairs(pairs, far_range=(0.01, 0.1), grid=20)
    return float(opis_of_curves(curves)), opis_noise_floor(pairs, curves)


@pytest.mark.parametrize(("images", "noise", "draws"), [(2, 1.2, 30), (4, 1.6, 6), (16, 1.26, 3)])
def test_the_floor_is_the_opis_of_identical_classes(images, noise, draws):
    found = [opis_and_floor(PairDistances(*identical_classes(images, 100, noise, seed))) for seed in range(draws)]
    opis, floor = np.mean(found, axis=0)
    assert floor == approx(opis, rel=0.15)


def test_classes_that_differ_lie_above_the_floor():
    x, labels = identical_classes(8, 100, 1.0, 0)
    noise = 1.4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)) / DIM**0.5
    x[labels < 50] += noise[labels < 50]
    opis, floor = opis_and_floor(PairDistances(x, labels))
    assert opis > 3 * floor
    x[labels >= 50] += noise[labels >= 50]
    opis, floor = opis_and_floor(PairDistances(x, labels))
    assert opis < 1.5 * floor


def test_classes_of_unequal_size_have_their_own_noise():
    """A class of two images has more noise than one of 16, so that the floor lies between theirs."""
    x, labels = identical_classes(16, 100, 1.4, 0)
    is_kept = (labels >= 50) | (torch.arange(len(labels)) % 16 < 2)
    mixed = opis_and_floor(PairDistances(x[is_kept], labels[is_kept]))[1]
    few = torch.arange(len(labels)) % 16 < 2
    two, sixteen = opis_and_floor(PairDistances(x[few], labels[few]))[1], opis_and_floor(PairDistances(x, labels))[1]
    assert mixed == approx((two + sixteen) / 2, rel=0.3)


def test_sampled_negative_pairs_raise_the_floor():
    x, labels = identical_classes(8, 60, 1.2, 0)
    sampled = SampledPairDistances(x, labels, negatives_per_positive=1, seed=0)
    assert opis_and_floor(sampled)[1] > 1.2 * opis_and_floor(PairDistances(x, labels))[1]


def test_metric_and_calculator_show_the_floor():
    x, labels = identical_classes(8, 60, 1.2, 0)
    metric = OPIS()
    metric.update(x, labels)
    floor = metric.compute()["opis_noise_floor"]
    assert floor == approx(opis_and_floor(PairDistances(x, labels))[1], rel=0.1)
    values = AccuracyCalculator(include=("opis", "opis_noise_floor")).get_accuracy(x, labels)
    assert values["opis_noise_floor"] == approx(floor, rel=1e-6)
