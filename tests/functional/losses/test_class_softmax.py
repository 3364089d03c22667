"""Softmax and discriminative loss over class vectors, by `PartialFC` in one process, against loops over classes."""

import math
from unittest.mock import patch

import pytest
import torch
from pytest import approx
from torch import nn
from torch.autograd import gradcheck
from torch.testing import assert_close

from pml_ext.functional.losses.class_softmax import (
    MARGINS,
    gradient_by_classes,
    gradient_by_samples,
    sharded_discriminative,
    sharded_softmax,
)
from pml_ext.losses import DiscriminativeLoss, PartialFC
from tests.oracles.heads import class_score

LAYERS = {"softmax": "Linear", "cosface": "CosSoftmax", "arcface": "ArcSoftmax", "circle": "CircleSoftmax"}
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


def dense(x, labels, weight, *, margin, scale, m, epsilon, above):
    """Loss and accuracy by loops over samples and classes."""
    rows = []
    for one, label in zip(x.tolist(), labels.tolist(), strict=True):
        logits = [
            class_score(LAYERS[margin], one, vector, c == label, scale, m, above)
            for c, vector in enumerate(weight.tolist())
        ]
        total = max(logits) + math.log(sum(math.exp(logit - max(logits)) for logit in logits))
        others = sum(total - logit for logit in logits) - (total - logits[label])
        rows.append((1 - epsilon) * (total - logits[label]) + epsilon / (len(logits) - 1) * others)
    vectors = weight if margin == "softmax" else nn.functional.normalize(weight)
    right = (x @ vectors.T).argmax(dim=1) == labels
    return torch.tensor(sum(rows) / len(rows), dtype=x.dtype), right.to(x.dtype).mean()


FORMULAS = [
    *((margin, 0.2 * (n % 2), 0) for n, margin in enumerate(MARGINS)),
    *((margin, 0.2 * (n % 2), 0.1) for n, margin in enumerate([*MARGINS][1:])),
]


@pytest.mark.parametrize(("margin", "epsilon", "filter_above"), FORMULAS)
def test_the_formula(margin, epsilon, filter_above):
    loss = PartialFC(3, 5, margin=margin, scale=4.0, epsilon=epsilon, filter_above=filter_above).double()
    nn.init.normal_(loss.weight)
    x, labels = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 4, 4, 2, 1, 3])
    x[0], x[1] = loss.weight[0].detach() + 0.01, 0.01 - 2 * loss.weight[4].detach()  # cosines of about 1 and −1
    expected = dense(
        x, labels, loss.weight, margin=margin, scale=4.0, m=loss.m, epsilon=epsilon, above=filter_above or math.inf
    )
    for dtype, tolerance in TOLERANCES.items():
        given = x.detach().to(dtype).requires_grad_()
        value = loss(given, labels)
        assert_close(value.double(), expected[0], rtol=tolerance, atol=tolerance)
        with torch.inference_mode():
            assert_close(loss(given, labels), value)
        value.backward()
        assert given.grad.dtype == dtype and given.grad.isfinite().all()
        assert loss.accuracy.item() == approx(expected[1].item())
    if margin != "circle":  # whose weights carry no gradient
        x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        assert gradcheck(lambda x, _: loss(x, labels[:4]), (x, loss.weight))


def test_the_discriminative_loss_is_that_of_one_layer():
    """DiscriminativeLoss, against its own oracle elsewhere, normalises and projects by other code."""
    ours = PartialFC(3, 5, margin="discriminative").double()
    other = DiscriminativeLoss(num_classes=5, embedding_size=3).double()
    nn.init.normal_(ours.weight)
    other.projection.weight.data.copy_(ours.weight.data)
    labels = torch.tensor([0, 4, 4, 2, 1, 3])
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    value = ours(x, labels)
    assert_close(value, other(x, labels))
    found = torch.autograd.grad(value, (x, ours.weight))
    expected = torch.autograd.grad(other(x, labels), (x, other.projection.weight))
    for one, two in zip(found, expected, strict=True):
        assert_close(one, two)
    assert gradcheck(lambda x, _: ours(x, labels), (x, ours.weight))
    whole = sharded_discriminative(x.detach(), ours.weight.detach(), labels)
    with patch("pml_ext._ops.numerics.ENTRIES", 7):
        assert_close(sharded_discriminative(x.detach(), ours.weight.detach(), labels).by_score, whole.by_score)
    assert ours.accuracy == (ours.weight @ x.T).argmax(0).eq(labels).double().mean()


@pytest.mark.parametrize("margin", ["cosface", "circle"])
def test_blocks_of_classes(margin):
    x, weight, own = torch.randn(4, 3), torch.randn(7, 3), torch.tensor([0, 6, 6, 3])
    options = {"margin": MARGINS[margin], "m": 0.4, "scale": 8.0}

    def losses_and_gradients():
        found = sharded_softmax(x, weight, own, **options)
        by_classes = gradient_by_classes(found, weight, torch.tensor(2.0))
        return found.losses, gradient_by_samples(found, weight), by_classes

    whole = losses_and_gradients()
    with patch("pml_ext._ops.numerics.ENTRIES", 6):
        assert_close(losses_and_gradients(), whole)


@pytest.mark.parametrize("margin", [*MARGINS, "discriminative"])
def test_singular_points_have_finite_gradients(margin):
    loss = PartialFC(3, 4, margin=margin)
    for dtype in (torch.float64, torch.float16):  # beside the classes' float32
        x = torch.stack([torch.zeros(3), loss.weight[3].detach(), -2 * loss.weight[3].detach()]).to(dtype)
        x.requires_grad_()
        loss(x, torch.tensor([0, 3, 3])).backward()
        for gradient, kind in ((x.grad, dtype), (loss.weight.grad, torch.float32)):
            assert gradient is not None and gradient.dtype == kind and gradient.isfinite().all()
    assert loss.accuracy.item() == approx(1 / 3), "a row of zeros is like all classes, and not right"
