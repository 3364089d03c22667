"""Raw pixels and the untrained network beside the trained one."""

import numpy as np
import torch

from pml_ext.runner.evaluation.baselines import raw_pixels


def test_raw_pixels_are_the_image_as_a_unit_vector_of_at_most_32_by_32() -> None:
    images = torch.randn(2, 3, 5, 4)
    for row, image in zip(raw_pixels(images), images, strict=True):
        np.testing.assert_allclose(row, image.numpy().ravel() / np.linalg.norm(image.numpy()), rtol=1e-5)
    assert torch.equal(raw_pixels(torch.zeros(1, 1, 2, 2)), torch.zeros(1, 4)), "a blank image is not nan"
    images = torch.randn(1, 2, 64, 16)
    halves = (images[:, :, 0::2] + images[:, :, 1::2]) / 2
    expected = (halves / halves.norm()).flatten(1)
    torch.testing.assert_close(raw_pixels(images), expected)
