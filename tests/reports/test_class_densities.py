"""Densities of classes on the circle."""

import numpy as np
import torch

from pml_ext.reports.class_densities import angle_densities, density_picture
from tests.reports.small_set import image_set, overhang


def test_the_density_is_that_of_a_wrapped_normal_and_integrates_to_1() -> None:
    at = torch.linspace(-torch.pi, torch.pi, 7201, dtype=torch.float64)
    angles = torch.tensor([3.1, -0.5, 0.7], dtype=torch.float64)
    found = angle_densities(angles, at)
    assert abs(torch.trapezoid(found, at) - 1) < 1e-6
    width = np.deg2rad(5)
    turns = [2 * np.pi * turn for turn in (-1, 0, 1)]
    normal = sum(np.exp(-((at.numpy() - a - t) ** 2) / (2 * width**2)) for a in angles.tolist() for t in turns)
    expected = normal / (3 * width * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(found, expected, atol=0.01 * expected.max())


def test_the_ten_largest_classes_have_a_line_and_junk_has_none() -> None:
    identities = np.repeat([-1, *range(12)], [9, *range(1, 13)])
    picture = density_picture(image_set(identities, np.zeros_like(identities)), torch.randn(len(identities), 2))
    assert "10 of 12 classes" in picture.caption and overhang(picture) < 1
    (axes,) = picture.figure(True).axes
    assert [line.get_label() for line in axes.lines] == [f"identity {label}" for label in range(2, 12)]
