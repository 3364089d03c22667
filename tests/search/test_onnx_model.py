import sys

import pytest
import torch

from pml_ext._errors import UserError
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding
from pml_ext.search import onnx_model
from pml_ext.search.onnx_model import OnnxModel, export
from tests.search.models import by_hand, network_of, small_model


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


def test_the_file_takes_pixels_and_gives_unit_embeddings(trained, tmp_path):
    path = tmp_path / "model.onnx"
    assert export(trained, path) < 1e-5
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["last.ckpt", path.name])
    for batch in (1, 4):
        images = torch.randint(0, 256, (batch, 3, 12, 8)).float()
        embeddings = OnnxModel(path, "cpu")(images)
        torch.testing.assert_close(embeddings, expected(trained, images), atol=1e-5, rtol=0)


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


def test_16_bits_the_flip_test_and_the_size_that_a_crop_leaves_are_in_the_file(trained, tmp_path):
    images = torch.randint(0, 256, (3, 3, 10, 6)).float()
    plain = expected(trained, images)
    trained.INPUT.CROP.ENABLED, trained.INPUT.CROP.SIZE = True, [10, 6]
    assert export(trained, tmp_path / "half.onnx", half=True) < 5e-3
    found = OnnxModel(tmp_path / "half.onnx", "cpu")(images)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, plain, atol=5e-3, rtol=0)
    trained.TEST.FLIP.ENABLED = True
    export(trained, tmp_path / "flip.onnx")
    flipping = OnnxModel(tmp_path / "flip.onnx", "cpu")
    found = flipping(images)
    torch.testing.assert_close(found, flipping(images.flip(-1)))
    assert (found - plain).abs().max() > 1e-3
    assert (flipping.record.config["INPUT.CROP.SIZE"], flipping.record.embedding_dim) == ([10, 6], 6)


def test_mistakes_are_named(trained, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"m.onnx cannot be written: .*No such file"):
        export(trained, tmp_path / "nowhere" / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"ONNX needs onnxscript: pip install 'pml_ext\[export\]'"):
        export(trained, tmp_path / "m.onnx")
    trained.INPUT.SIZE_TEST = [0]
    with pytest.raises(UserError, match=r"INPUT.SIZE_TEST must be height and width; got \[0\]"):
        export(trained, tmp_path / "m.onnx")
