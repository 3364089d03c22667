"""A model as a function, against the network and the transforms put together by hand."""

import logging
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from pml_ext import Embedder
from pml_ext._errors import UserError
from pml_ext.runner.engine.exporting import export
from pml_ext.search.embedder import load_for_embedding
from tests.conftest import real_data
from tests.search.models import network_of, small_model


def real_pictures(count: int) -> list[np.ndarray]:
    """Pictures of emoji as RGB arrays, each cut to another size."""
    with zipfile.ZipFile(real_data("emoji_reid") / "emoji_reid.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith((".jpg", ".png"))][:count]
        pictures = [np.array(Image.open(BytesIO(archive.read(name))).convert("RGB")) for name in names]
    return [np.ascontiguousarray(p[: p.shape[0] - i, i % 3 :]) for i, p in enumerate(pictures)]


def by_hand(config: Path, weights: Path, pictures: list[np.ndarray], *, flip: bool = False) -> torch.Tensor:
    """The runner's definition: resize to SIZE_TEST (bicubic, antialiased), standardise, mean with the mirror image."""
    cfg, net = network_of(config, weights)
    mean, std = (torch.tensor(v)[:, None, None] for v in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
    resize = v2.Resize([12, 8], interpolation=InterpolationMode.BICUBIC)
    rows = []
    for picture in pictures:
        image = ((resize(torch.from_numpy(picture).permute(2, 0, 1)).float() - mean) / std)[None]
        with torch.no_grad():
            views = [image, image.flip(-1)] if flip else [image]
            feature = torch.stack([net.model.heads(net.model.backbone(view))[0] for view in views]).mean(dim=0)
        rows.append(feature / feature.norm())
    return torch.stack(rows)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("flip", [False, True])
def test_crops_of_any_size_and_kind(model: tuple[Path, Path], flip: bool) -> None:
    pictures = real_pictures(7)
    embedder = Embedder.from_config(*model, device="cpu", flip=flip, batch_size=3)
    expected = by_hand(*model, pictures, flip=flip)
    bgr = [picture[:, :, ::-1] for picture in pictures]
    tensors = [torch.from_numpy(picture).permute(2, 0, 1) for picture in pictures]
    for crops, order in (
        (pictures, "RGB"),
        (bgr, "BGR"),
        (tensors, "RGB"),
        ([t.flip(0) for t in tensors], "BGR"),
        ([Image.fromarray(p) for p in pictures], "BGR"),
    ):
        found = embedder(crops, order=order)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    one = embedder(pictures[0])
    assert one.shape == (1, embedder.embedding_dim) == (1, 6)
    batch = np.stack([pictures[0]] * 4)
    torch.testing.assert_close(embedder(batch), one.expand(4, 6), atol=1e-5, rtol=0)
    torch.testing.assert_close(embedder(torch.from_numpy(batch).permute(0, 3, 1, 2)), one.expand(4, 6))
    assert embedder([]).shape == (0, 6)
    assert embedder.size == (12, 8)
    on_device = Embedder.from_config(*model, device=torch.device("cpu"), flip=flip)
    torch.testing.assert_close(on_device(pictures), expected, atol=1e-5, rtol=0)


def test_grey_models_and_grey_crops(model: tuple[Path, Path], tmp_path: Path) -> None:
    picture = real_pictures(1)[0]
    grey = np.asarray(Image.fromarray(picture).convert("L"))
    colour = Embedder.from_config(*model, device="cpu")
    torch.testing.assert_close(colour(grey), colour(np.stack([grey] * 3, axis=2)))
    torch.testing.assert_close(colour(grey[:, :, None]), colour(grey))
    of_grey = Embedder.from_config(
        *small_model(tmp_path, MODEL__PIXEL_MEAN=[127.5], MODEL__PIXEL_STD=[127.5]), device="cpu"
    )
    torch.testing.assert_close(of_grey(picture), of_grey(grey))
    torch.testing.assert_close(of_grey(picture[:, :, ::-1], order="BGR"), of_grey(Image.fromarray(picture)))


def test_sizes_that_stay_as_they_are(tmp_path: Path) -> None:
    config, weights = small_model(tmp_path, INPUT__SIZE_TRAIN=[0], INPUT__SIZE_TEST=[0])
    embedder = Embedder.from_config(config, weights, device="cpu")
    pictures = [picture[:20, :12] for picture in real_pictures(2)] + [real_pictures(1)[0][:24, :16]]
    with pytest.raises(UserError, match=r"INPUT.SIZE_TEST must be height and width .*; got \[0\]"):
        _ = embedder.size
    together = embedder(pictures)
    for row, picture in zip(together, pictures, strict=True):
        torch.testing.assert_close(embedder(picture)[0], row, atol=1e-6, rtol=0)


def test_threads_get_what_one_gets(model: tuple[Path, Path]) -> None:
    embedder = Embedder.from_config(*model, device="cpu")
    pictures = real_pictures(16)
    expected = embedder(pictures)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: embedder(pictures[i % 16]), range(64)))
    torch.testing.assert_close(torch.cat(found), expected.repeat(4, 1), atol=1e-6, rtol=0)
    assert not embedder(pictures).requires_grad


def test_16_bits_are_close(model: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    pictures = real_pictures(5)
    with caplog.at_level(logging.WARNING, logger="pml_ext"):
        half = Embedder.from_config(*model, device="cpu", half=True)
    assert "half=True on a CPU is slower" in caplog.text
    assert half.record.precision == "float16"
    found, expected = half(pictures), by_hand(*model, pictures)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=0)
    assert not torch.equal(found, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_16_bits_on_a_gpu(model: tuple[Path, Path]) -> None:
    pictures = real_pictures(5)
    found = Embedder.from_config(*model, device="cuda", half=True)(pictures)
    torch.testing.assert_close(found, by_hand(*model, pictures), atol=5e-3, rtol=0)


@pytest.mark.parametrize("half", [False, True])
def test_an_onnx_file_is_enough(model: tuple[Path, Path], tmp_path: Path, half: bool) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'pml_ext[export]'")
    cfg = load_for_embedding(model[0], ["MODEL.WEIGHTS", str(model[1]), "TEST.FLIP.ENABLED", "True"])
    export(cfg, tmp_path / "model.onnx", "onnx", half=half)
    embedder = Embedder.from_onnx(tmp_path / "model.onnx", device=torch.device("cpu"), batch_size=2)
    pictures = real_pictures(5)
    found = embedder([picture[:, :, ::-1] for picture in pictures], order="BGR")
    torch.testing.assert_close(found, by_hand(*model, pictures, flip=True), atol=5e-3 if half else 1e-5, rtol=0)
    assert embedder.embedding_dim == 6
    assert embedder.record.same_model(Embedder.from_config(*model, device="cpu", flip=True).record)
    assert not embedder.record.same_model(Embedder.from_config(*model, device="cpu").record)


def test_files_that_are_no_export_of_ours(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [info], [
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    ])  # fmt: skip
    foreign = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(UserError, match=r"has no record of its model: write it with pml-ext export --format onnx"):
        Embedder.from_onnx(tmp_path / "foreign.onnx")
    onnx.helper.set_model_props(foreign, {"pml_ext": '{"format": "pml_ext model 3", "config": 3}'})
    onnx.save(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(UserError, match=r"the record of its model is damaged, or of another version of pml_ext"):
        Embedder.from_onnx(tmp_path / "foreign.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(UserError, match="not an ONNX file that onnxruntime can run"):
        Embedder.from_onnx(tmp_path / "broken.onnx")
    with pytest.raises(UserError, match="no ONNX file at nowhere"):
        Embedder.from_onnx("nowhere.onnx")


def test_keys_that_shape_no_network_are_said_and_left_out(
    model: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "old.yml"
    text = f"_BASE_: {model[0]}\nSOLVER: {{BASE_LR: fast, MY_KEY: 1}}\nINPUT: {{MY_AUGMENTATION: {{ENABLED: True}}}}\n"
    other.write_text(text + "MY_PROJECT: {A: 1}\nDATASETS: {NAMES: [Nobodys]}\nMODEL: {LOSSES: {NAME: [MyLoss]}}\n")
    with caplog.at_level(logging.WARNING, logger="pml_ext"):
        embedder = Embedder.from_config(other, model[1], device="cpu")
    (message,) = [record.getMessage() for record in caplog.records]
    for key in ("SOLVER.BASE_LR", "SOLVER.MY_KEY", "INPUT.MY_AUGMENTATION", "MY_PROJECT"):
        assert message.count(f"{key} ") + message.count(f"{key};") + message.count(f"{key}.") >= 1, message
    picture = real_pictures(1)
    torch.testing.assert_close(embedder(picture), by_hand(*model, picture), atol=1e-5, rtol=0)


def test_keys_of_the_network_are_not(model: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.yml"
    for text, message in (
        ("MODEL: {HEADS: {MY_NECK: 1}}", "unknown key MODEL.HEADS.MY_NECK"),
        ("INPUT: {SIZE_TEST: large}", "INPUT.SIZE_TEST must be of type list"),
        ("MODEL: {META_ARCHITECTURE: MoCo}", "MODEL.META_ARCHITECTURE = 'MoCo': momentum contrast"),
        ("MODEL: {BACKBONE: {NAME: build_my_backbone}}", "NAME = 'build_my_backbone': unknown"),
    ):
        other.write_text(f"_BASE_: {model[0]}\n{text}\n")
        with pytest.raises(UserError, match=message):
            Embedder.from_config(other, model[1], device="cpu")


def test_mistakes_are_named(model: tuple[Path, Path]) -> None:
    embedder = Embedder.from_config(*model, device="cpu")
    picture = np.zeros((5, 4, 3), dtype=np.uint8)
    for crops, kind, message in (
        (
            [picture, picture.astype(np.float32)],
            ValueError,
            "crop 1 must hold pixels from 0 to 255 as uint8; got float",
        ),
        ([picture, picture[:0]], ValueError, "crop 1 is empty, 0×4: is the box outside of the frame"),
        (np.zeros((5, 4, 4), dtype=np.uint8), ValueError, r"the crop must be an array of shape .*; got \(5, 4, 4\)"),
        (torch.zeros(5, 4, 3, dtype=torch.uint8), ValueError, r"a tensor of shape \(1 or 3, h, w\); got \(5, 4, 3\)"),
        (["a.jpg"], TypeError, "crop 0 must be an array, a tensor or a Pillow image; got str"),
        (None, TypeError, "the crop must be an array, a tensor or a Pillow image; got NoneType"),
    ):
        with pytest.raises(kind, match=message):
            embedder(crops)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order must be RGB or BGR; got 'rgb'"):
        embedder(picture, order="rgb")
    with pytest.raises(UserError, match=r"device = cuda.*: torch sees .* here; take cpu, or auto"):
        Embedder.from_config(*model, device="cuda:99" if torch.cuda.is_available() else "cuda")
    with pytest.raises(UserError, match="device must be cpu, cuda, cuda:1 and so on, or auto; got 'gpu'"):
        Embedder.from_config(*model, device="gpu")
    with pytest.raises(UserError, match=r"weights must name a checkpoint, or the config.s MODEL\.WEIGHTS"):
        Embedder.from_config(model[0], device="cpu")
    with pytest.raises(UserError, match="no weights file at nowhere"):
        Embedder.from_config(model[0], "nowhere.pth", device="cpu")
    for arguments, message in (
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"batch_size": "4"}, "batch_size must be a whole number; got '4'"),
        ({"half": "yes"}, "half must be True or False; got 'yes'"),
        ({"flip": "no"}, "flip must be True or False; got 'no'"),
        ({"overrides": "MODEL.DEVICE cpu"}, "overrides must be a sequence of KEY VALUE words; got 'MODEL.DEVICE cpu'"),
        ({"overrides": ["TEST.FLIP.ENABLED"]}, "overrides must be KEY VALUE pairs; got an odd number of words"),
    ):
        with pytest.raises(ValueError, match=message):
            Embedder.from_config(*model, **{"device": "cpu", **arguments})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be a whole number; got '4'"):
        Embedder.from_onnx("model.onnx", batch_size="4")  # type: ignore[arg-type]


def test_an_embedding_that_is_no_number_is_an_error(model: tuple[Path, Path], tmp_path: Path) -> None:
    state = torch.load(model[1], weights_only=True)["state_dict"]
    state["heads.bottleneck.0.running_mean"] *= torch.inf
    torch.save(state, tmp_path / "bad.pth")
    embedder = Embedder.from_config(model[0], tmp_path / "bad.pth", device="cpu")
    with pytest.raises(ValueError, match="the embeddings of 2 crops are not finite, first of crop 0"):
        embedder(real_pictures(2))
