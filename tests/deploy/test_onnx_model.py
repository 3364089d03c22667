import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext._shared.errors import UserError
from pml_ext.deploy import onnx_model
from pml_ext.deploy.embedder import Embedder
from pml_ext.deploy.onnx_model import OnnxModel, export
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding
from tests.deploy.models import by_hand, network_of, small_model


@pytest.fixture
def trained(tmp_path):
    """A config with weights, as a run leaves them."""
    config, weights = small_model(tmp_path)
    cfg = network_of(config, weights)[0]
    cfg.MODEL.WEIGHTS = str(weights)
    config.unlink()
    return cfg


def expected(cfg, images):
    net = PixelsToEmbedding(cfg).eval()
    net.model.load_state_dict(torch.load(cfg.MODEL.WEIGHTS, weights_only=True)["state_dict"], strict=False)
    return by_hand(cfg, net, images)


def test_the_file_takes_pixels_of_the_size_that_a_crop_leaves(trained, tmp_path):
    """In 16 bits; 32 bits and the flip test: tests/deploy/test_embedder.py."""
    trained.INPUT.CROP.ENABLED, trained.INPUT.CROP.SIZE = True, [10, 6]
    path = tmp_path / "model.onnx"
    assert 1e-5 < export(trained, path, half=True) < 5e-3
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["last.ckpt", path.name])
    model = OnnxModel(path, "cpu")
    for batch in (1, 4):
        images = torch.randint(0, 256, (batch, 3, 10, 6)).float()
        torch.testing.assert_close(model(images), expected(trained, images), atol=5e-3, rtol=0)
    assert (model.record.config["INPUT.CROP.SIZE"], model.record.embedding_dim) == ([10, 6], 6)


@pytest.mark.nightly  # an export takes seconds
@pytest.mark.parametrize("mean", [[123.7, 116.3, 103.5], [127.5]])
def test_the_guides_recipe_embeds_as_the_package(mean, tmp_path):
    """Colour and grey models, on images of the network's size in every mode that the recipe names."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript", reason="pip install 'pml_ext[export]'")
    config, weights = small_model(tmp_path / "model", MODEL__PIXEL_MEAN=mean, MODEL__PIXEL_STD=[57.0] * len(mean))
    cfg = network_of(config, weights)[0]
    cfg.MODEL.WEIGHTS = str(weights)
    export(cfg, tmp_path / "model.onnx")
    guide = Path(__file__).parents[2] / "examples" / "guides" / "USING_A_MODEL.md"
    recipe: dict[str, Any] = {}
    exec(re.search(r"```python\n(# onnx_embed.py\n.+?)```", guide.read_text(encoding="utf-8"), re.S)[1], recipe)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    embedder = Embedder.from_config(config, weights, device="cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 4), dtype=np.uint8)
    images = {mode: Image.fromarray(pixels).convert(mode) for mode in ("RGBA", "RGB", "L", "P")}
    images["I;16"] = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    for mode, image in images.items():
        path = str(tmp_path / f"{mode[0]}{len(mode)}.png")
        image.save(path)
        np.testing.assert_allclose(recipe["embed"](session, path), embedder(path)[0], atol=1e-3, err_msg=mode)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda found: found + 0.01, r"from the model's by 1.0e-02, more than 1e-04; not written"),
        (lambda found: found * torch.nan, r"from the model's by nan"),
    ],
)
def test_a_file_that_differs_is_not_left(trained, tmp_path, monkeypatch, broken, message):
    network = PixelsToEmbedding.load(trained)
    monkeypatch.setattr(onnx_model, "_write_onnx", lambda model, images, record, path: path.touch())
    monkeypatch.setattr(onnx_model, "OnnxModel", lambda path, device: lambda images: broken(network(images)))
    with pytest.raises(UserError, match=message):
        export(trained, tmp_path / "model.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


def test_mistakes_are_named(trained, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"m.onnx cannot be written: .*No such file"):
        patch.setattr(onnx_model, "_write_onnx", lambda model, images, record, path: path.touch())
        export(trained, tmp_path / "nowhere" / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"ONNX needs onnxscript: pip install 'pml_ext\[export\]'"):
        export(trained, tmp_path / "m.onnx")
    for size in ([0], [16]):  # [16]: images of any shape, whose shorter side becomes 16
        trained.INPUT.SIZE_TEST = size
        with pytest.raises(UserError, match=rf"INPUT.SIZE_TEST must be height and width; got \[{size[0]}\]"):
            export(trained, tmp_path / "m.onnx")
