"""Raw pixels and the untrained network beside the trained one."""

import numpy as np
import pytest
import torch
from yacs.config import CfgNode as CN

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets import ImageSet, OpenSet
from pml_ext.runner.evaluation.baselines import measure_raw_pixels, raw_pixels, worse_than_before
from pml_ext.runner.evaluation.evaluate import Evaluation


def test_raw_pixels_are_the_picture_as_a_unit_vector_of_at_most_32_by_32() -> None:
    images = torch.randn(2, 3, 5, 4)
    for row, image in zip(raw_pixels(images), images, strict=True):
        np.testing.assert_allclose(row, image.numpy().ravel() / np.linalg.norm(image.numpy()), rtol=1e-5)
    assert torch.equal(raw_pixels(torch.zeros(1, 1, 2, 2)), torch.zeros(1, 4)), "a blank picture is not nan"
    images = torch.randn(1, 2, 64, 16)
    halves = (images[:, :, 0::2] + images[:, :, 1::2]) / 2
    expected = (halves / halves.norm()).flatten(1)
    torch.testing.assert_close(raw_pixels(images), expected)


def test_raw_pixels_of_every_image_are_measured() -> None:
    identities = np.repeat(np.arange(6), 4)
    images = torch.randint(0, 256, (24, 1, 4, 4), dtype=torch.uint8)
    data = ImageSet(list(images), identities, np.arange(24), [""] * 24)
    loader = [{"images": images[i : i + 10]} for i in (0, 10, 20)]
    options, sets = CN({"PIXEL_MEAN": [0.0], "PIXEL_STD": [255.0]}), {"Set": OpenSet(data, data)}
    found = measure_raw_pixels(options, Evaluation(get_cfg().TEST), sets, [loader])  # type: ignore[list-item]
    assert found.results["Set"]["precision_at_1"] < 1
    torch.testing.assert_close(found.features["Set"][0], raw_pixels(images.float()))


@pytest.mark.parametrize(("metric", "before", "after"), [("opis", 1e-3, 2e-3), ("precision_at_1", 0.5, 0.4)])
def test_a_worse_result_is_a_sentence_in_either_direction(metric: str, before: float, after: float) -> None:
    for values in ({metric: before}, {}):
        assert not worse_than_before(metric, {metric: after}, values)
    assert not worse_than_before(metric, {metric: before}, {metric: before})
    assert "made the network worse" in str(worse_than_before(metric, {metric: before}, {metric: after}))
