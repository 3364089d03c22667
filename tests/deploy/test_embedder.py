"""A model as a function, against the network and the transforms put together by hand."""

import json
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from pml_ext import Embedder
from pml_ext._shared.errors import UserError
from pml_ext.runner.config.network_keys import load_for_embedding
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding
from tests.deploy import models
from tests.deploy.images import extract
from tests.deploy.models import exported_model, network_of, small_model

Model = tuple[Path, Path]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Photographs as RGB arrays, each cut to another size."""
    found = [np.array(Image.open(path)) for path in extract(tmp_path_factory.mktemp("images"), 7)]
    return [np.ascontiguousarray(p[: p.shape[0] - i, i % 3 :]) for i, p in enumerate(found)]


def by_hand(config, weights, images, *, flip=False):
    """The runner's definition: resize to SIZE_TEST (bicubic, antialiased), standardise, mean with the mirror image."""
    resize = v2.Resize([12, 8], interpolation=InterpolationMode.BICUBIC)
    resized = [resize(torch.from_numpy(pixels).permute(2, 0, 1)) for pixels in images]
    return models.by_hand(*network_of(config, weights), torch.stack(resized), flip=flip)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("model"))


def test_crops_of_any_size_and_kind(model, images):
    flipped = Embedder.from_config(*model, device="cpu", flip=True)(images)
    torch.testing.assert_close(flipped, by_hand(*model, images, flip=True), atol=1e-5, rtol=0)
    embedder = Embedder.from_config(*model, device=torch.device("cpu"), batch_size=3)
    expected = by_hand(*model, images)
    tensors = [torch.from_numpy(pixels).permute(2, 0, 1) for pixels in images]
    for crops, order in (
        (images, "RGB"),
        ([pixels[:, :, ::-1] for pixels in images], "BGR"),
        (tensors, "RGB"),
        ([t.flip(0) for t in tensors], "BGR"),
        ([Image.fromarray(p) for p in images], "BGR"),
    ):
        torch.testing.assert_close(embedder(crops, order=order), expected, atol=1e-5, rtol=0)
    one = embedder(images[0])
    assert one.shape == (1, embedder.embedding_dim) == (1, 6) and one.dtype == torch.float32
    batch = np.stack([images[0]] * 4)
    torch.testing.assert_close(embedder(batch), one.expand(4, 6), atol=1e-5, rtol=0)
    torch.testing.assert_close(embedder(torch.from_numpy(batch).permute(0, 3, 1, 2)), one.expand(4, 6))
    assert embedder([]).shape == (0, 6) and embedder.size == (12, 8)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: embedder(images[i % 7]), range(56)))
    torch.testing.assert_close(torch.cat(found), expected.repeat(8, 1), atol=1e-5, rtol=0)


def test_grey_models_and_grey_crops(model, images, tmp_path):
    pixels = images[0]
    grey = np.asarray(Image.fromarray(pixels).convert("L"))
    colour = Embedder.from_config(*model, device="cpu")
    expected = colour(np.stack([grey] * 3, axis=2))
    for crop in (grey, grey[:, :, None], torch.from_numpy(grey.copy())[None]):
        torch.testing.assert_close(colour(crop, order="BGR"), expected)
    config = small_model(tmp_path, MODEL__PIXEL_MEAN=[127.5], MODEL__PIXEL_STD=[127.5])
    of_grey = Embedder.from_config(*config, device="cpu")
    torch.testing.assert_close(of_grey(pixels), of_grey(grey))
    torch.testing.assert_close(of_grey(pixels[:, :, ::-1], order="BGR"), of_grey(Image.fromarray(pixels)))


def test_sizes_that_stay_as_they_are(images, tmp_path):
    config, weights = small_model(tmp_path, INPUT__SIZE_TRAIN=[0], INPUT__SIZE_TEST=[0])
    embedder = Embedder.from_config(config, weights, device="cpu")
    crops = [images[0][:20, :12], images[1][:24, :16], images[2][:20, :12]]
    with pytest.raises(UserError, match=r"INPUT.SIZE_TEST must be height and width .*; got \[0\]"):
        _ = embedder.size
    for row, crop in zip(embedder(crops), crops, strict=True):
        torch.testing.assert_close(embedder(crop)[0], row, atol=1e-6, rtol=0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_16_bits_are_close(model, images, device, caplog):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with caplog.at_level(logging.WARNING, logger="pml_ext"):
        half = Embedder.from_config(*model, device=device, half=True)
    assert ("half=True on a CPU is slower" in caplog.text) == (device == "cpu")
    assert half.record.precision == "float16"
    found, expected = half(images), by_hand(*model, images)
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=0)
    assert not torch.equal(found, expected) and found.dtype == torch.float32


def test_another_process_loads_the_model_from_its_files(model, images, tmp_path, monkeypatch):
    monkeypatch.chdir(model[0].parent)
    embedder = Embedder.from_config("config.yml", "last.ckpt", device="cpu", flip=True, batch_size=3)
    text = pickle.dumps(embedder)
    assert len(text) < 2_000
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(text)
    assert again.record == embedder.record and again.batch_size == 3
    torch.testing.assert_close(again(images), embedder(images))
    glyphs = PixelsToEmbedding(load_for_embedding("Glyphs/triplet.yml", []), flip=False).model
    torch.save({"state_dict": glyphs.state_dict()}, tmp_path / "glyphs.ckpt")
    bundled = Embedder.from_config("Glyphs/triplet.yml", tmp_path / "glyphs.ckpt", device="cpu")
    assert pickle.loads(pickle.dumps(bundled)).record == bundled.record
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    module = Embedder(network, size=(8, 8), mean=[0.0] * 3, std=[1.0] * 3, device="cpu")
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(images), module(images))


def test_an_onnx_file_is_enough(model, images, tmp_path, made_once):
    """16 bits and a crop: test_onnx_model.py."""
    pytest.importorskip("onnxscript", reason="pip install 'pml_ext[export]'")
    file = tmp_path / "model.onnx"
    file.write_bytes((made_once("exported model", exported_model) / "model.onnx").read_bytes())
    embedder = Embedder.from_onnx(file, device=torch.device("cpu"), batch_size=2)
    found = embedder([pixels[:, :, ::-1] for pixels in images], order="BGR")
    torch.testing.assert_close(found, by_hand(*model, images, flip=True), atol=1e-5, rtol=0)
    assert embedder.record.same_model(Embedder.from_config(*model, device="cpu", flip=True).record)
    torch.testing.assert_close(pickle.loads(pickle.dumps(embedder))(images), embedder(images))
    assert not embedder.record.same_model(Embedder.from_config(*model, device="cpu").record)
    whole = file.read_bytes()
    for place in range(1, 12, 3):  # a changed bit anywhere
        content = bytearray(whole)
        content[len(content) * place // 12] ^= 1 << place % 8
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"model\.onnx"):
            Embedder.from_onnx(file, device="cpu")


def test_files_that_are_no_export_of_ours(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    foreign = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    record = {"format": "pml_ext model 3", "config": {}, "weights": "w", "sha256": "0" * 64, "embedding_dim": 1}
    for properties, message in (
        ({}, r"has no record of its model: write it with pml-ext export"),
        (
            {"pml_ext": '{"format": "pml_ext model 3", "config": 3}'},
            "the record of its model is damaged, or of another",
        ),
        ({"pml_ext": json.dumps(record)}, "was changed after it was exported: its checksum is another"),
    ):
        onnx.helper.set_model_props(foreign, properties)
        onnx.save(foreign, tmp_path / "foreign.onnx")
        with pytest.raises(UserError, match=message):
            Embedder.from_onnx(tmp_path / "foreign.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(UserError, match="not an ONNX file that onnxruntime can run"):
        Embedder.from_onnx(tmp_path / "broken.onnx")
    with pytest.raises(UserError, match="no ONNX file at nowhere"):
        Embedder.from_onnx("nowhere.onnx")


PIXELS = np.zeros((5, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("crops", "kind", "message"),
    [
        ([PIXELS, PIXELS[:0]], ValueError, "image 1 is empty, 0×4: is the box outside of the frame"),
        (np.zeros((5, 4, 5), dtype=np.uint8), ValueError, r"image 0 must be an array of shape .*; got \(5, 4, 5\)"),
        (["a.jpg"], ValueError, r"image a\.jpg cannot be read: .*No such file"),
        ([PIXELS, None], TypeError, "image 1 must be a path, the bytes of an image file, .*; got NoneType"),
    ],
)
def test_crops_that_do_not_fit(model, crops, kind, message):
    with pytest.raises(kind, match=message):
        Embedder.from_config(*model, device="cpu")(crops)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "cuda:99"}, r"device = cuda.*: torch sees .* here; use cpu or auto"),
        ({"weights": None}, r"weights must name a checkpoint, or the config.s MODEL\.WEIGHTS"),
        ({"weights": "nowhere.pth"}, "no weights file at nowhere"),
        ({"half": "yes"}, "half must be True or False; got 'yes'"),
        ({"overrides": "MODEL.DEVICE cpu"}, "overrides must be a sequence of KEY VALUE words; got 'MODEL.DEVICE cpu'"),
        ({"imports": ["no_such_module"]}, "--import no_such_module: no module of that name"),
    ],
)
def test_arguments_that_do_not_fit(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        Embedder.from_config(model[0], **{"weights": model[1], "device": "cpu", **arguments})  # type: ignore[arg-type]


def test_an_embedding_that_is_not_finite_is_an_error(model, tmp_path):
    state = torch.load(model[1], weights_only=True)["state_dict"]
    state["heads.bottleneck.0.running_mean"] *= torch.inf
    torch.save(state, tmp_path / "bad.pth")
    embedder = Embedder.from_config(model[0], tmp_path / "bad.pth", device="cpu")
    with pytest.raises(ValueError, match="2 images cannot be embedded: the embedding of image 0 is not finite"):
        embedder([PIXELS, PIXELS])
    with pytest.raises(ValueError, match="order must be RGB or BGR; got 'rgb'"):
        embedder(PIXELS, order="rgb")
