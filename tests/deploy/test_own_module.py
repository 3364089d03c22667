"""A module of the user's own: crops in, unit rows out, a gallery and searches, without a config or a run."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models import squeezenet1_1
from torchvision.transforms import InterpolationMode, v2

from pml_ext import Embedder
from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.images import embed_folder
from pml_ext.deploy.neighbours import search
from pml_ext.runner import registry
from tests.deploy.images import extract
from tests.deploy.models import small_model

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SETTINGS: dict[str, Any] = {"size": (32, 24), "mean": MEAN, "std": STD, "device": "cpu", "batch_size": 5}


def untrained(seed=0):
    """The first layers of a torchvision network, pooled: 64 channels."""
    torch.manual_seed(seed)
    return nn.Sequential(squeezenet1_1().features[:3], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(64))


def by_hand(module, images):
    """torchvision's preprocessing to 32×24, one image at a time."""
    resize = v2.Resize([32, 24], interpolation=InterpolationMode.BICUBIC)
    normalize = v2.Normalize([value / 255 for value in MEAN], [value / 255 for value in STD])
    rows = []
    for path in images:
        pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)
        with torch.no_grad():
            rows.append(module.eval()(normalize(resize(pixels) / 255)[None])[0])
    return nn.functional.normalize(torch.stack(rows))


def test_a_torchvision_network_embeds_and_searches(tmp_path, capsys):
    images = extract(tmp_path / "images", 12)
    module = untrained()
    embedder = Embedder(module, **SETTINGS)
    assert not module.training and embedder.embedding_dim == 64 and embedder.size == (32, 24)
    expected = by_hand(module, images)
    found = embedder([Image.open(path) for path in images])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    classes = images[0].parents[1]
    gallery = embed_folder(embedder, classes, tmp_path / "g", label_by_folder=True)
    hits = search(gallery, gallery.as_queries(found[:3].numpy()), 4)
    np.testing.assert_allclose(hits.scores, np.sort(expected[:3] @ expected.T)[:, ::-1][:, :4], atol=1e-5)
    best, labels = gallery.describe([hits.rows[0, 0]])
    assert tmp_path / best[0] == images[0] and labels == [images[0].parent.name]
    capsys.readouterr()
    assert main(["search", str(images[0]), "--gallery", str(tmp_path / "g")]) == 2
    said = capsys.readouterr().err
    assert (
        said.count("\n") == 1 and "g has no model that could embed an image, it was made by the module torch.nn" in said
    )
    assert "give a file of embeddings as QUERY" in said
    images[0].unlink()
    same = Embedder(untrained(), **SETTINGS)
    assert embed_folder(same, [classes], tmp_path / "g", label_by_folder=True, prune=True).rows == 11


def test_a_gallery_tells_modules_apart(tmp_path):
    (image,) = extract(tmp_path / "images", 1)
    embed_folder(Embedder(untrained(), **SETTINGS), image, tmp_path / "g")
    buffer = untrained()
    buffer.get_buffer("3.running_var").mul_(1.5)
    for module, change in (
        (untrained(1), {}),
        (buffer, {}),
        (untrained(), {"size": (24, 32)}),
    ):
        with pytest.raises(UserError, match="cannot be compared; give another --output"):
            embed_folder(Embedder(module, **SETTINGS | change), image, tmp_path / "g")
    assert Gallery.open(tmp_path / "g").rows == 1


class _TwoOutputs(nn.Module):
    def forward(self, images):
        return images.mean((2, 3)), images


@pytest.mark.parametrize(
    ("module", "change", "message"),
    [
        (nn.Identity(), {}, r"one embedding per image, shape \(2, D\); got \(2, 3, 32, 24\)"),
        (_TwoOutputs(), {}, r"one embedding per image, shape \(2, D\); got tuple"),
        (nn.Flatten(), {"mean": (0, 0)}, "must have 3 values each, or 1 for grey images"),
        (nn.Flatten(), {"std": (0.229, 0.224, 0.225)}, "pixels from 0 to 255; .* Multiply both by 255"),
    ],
)
def test_mistakes_are_named(module, change, message):
    with pytest.raises(ValueError, match=message):
        Embedder(module, **SETTINGS | change)


def test_modules_that_a_run_was_made_with_are_imported(tmp_path, monkeypatch):
    config, weights = small_model(tmp_path / "model")
    config.write_text(config.read_text("utf-8").replace("IMPORTS: []", "IMPORTS: [own_parts_of_search]"), "utf-8")
    (tmp_path / "own_parts_of_search.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_imported", [])
    with pytest.raises(UserError, match="was made with parts of own_parts_of_search: add --import own_parts_of_search"):
        Embedder.from_config(config, weights, device="cpu")
    embedder = Embedder.from_config(config, weights, device="cpu", imports=["own_parts_of_search"])
    assert embedder(np.zeros((20, 20, 3), np.uint8)).shape == (1, 6)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_a_module_in_another_precision_gets_images_of_its_type(kind):
    crop = np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)
    expected = Embedder(untrained(), **SETTINGS)(crop)
    found = Embedder(untrained().to(kind), **SETTINGS)(crop)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=4e-2 if kind == torch.bfloat16 else 5e-3, rtol=0)
