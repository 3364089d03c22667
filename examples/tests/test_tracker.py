"""tracker.py of the scripts against the trackers' preprocessing, reimplemented, and a direct call of the network."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from pml_ext import Embedder
from tests.deploy.images import extract
from tests.deploy.models import by_hand, network_of, small_model

cv2 = pytest.importorskip("cv2", reason="pip install opencv-python-headless")
SCRIPT = Path(__file__).parents[2] / "examples" / "scripts" / "tracker.py"
CORNERS = np.array([[3.7, 2.2, 40.9, 60.4, 0.9], [-5.0, -3.0, 25.5, 30.5, 0.8], [30.0, 20.0, 500.0, 90.49, 0.7]])


@pytest.fixture(scope="module")
def tracker():
    spec = importlib.util.spec_from_file_location("tracker", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("model"), INPUT__SIZE_TRAIN=[24, 16], INPUT__SIZE_TEST=[24, 16])


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    """Six photographs as one BGR frame of about 96 × 128."""
    images = [cv2.imread(str(path)) for path in extract(tmp_path_factory.mktemp("images"), 6)]
    tiles = [cv2.resize(image, (44, 50)) for image in images]
    return np.vstack([np.hstack(tiles[:3]), np.hstack(tiles[3:])])


def features(model, crops):
    """Of float RGB crops (h, w, 3) in 0–255: FastReID's models standardise inside, and the interfaces normalise."""
    batch = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2)
    return by_hand(*network_of(*model), batch)


def test_bot_sort(tracker, model, frame):
    height, width = frame.shape[:2]
    crops = []
    for box in CORNERS:
        x1, y1, x2, y2 = (int(value) for value in box[:4])
        patch = frame[max(0, y1) : min(height - 1, y2), max(0, x1) : min(width - 1, x2), :]
        crops.append(cv2.resize(patch[:, :, ::-1], (16, 24), interpolation=cv2.INTER_LINEAR))
    interface = tracker.FastReIDInterface(*map(str, model), "cpu", batch_size=2)
    found = interface.inference(frame, CORNERS)
    assert found.shape == (3, 6) and found.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(found), features(model, crops), atol=1e-5, rtol=0)
    assert interface.inference(frame, np.zeros((0, 5))) == [] == interface.inference(frame, None)


def test_deep_oc_sort(tracker, model, frame):
    height, width = frame.shape[:2]
    boxes = np.round(CORNERS[:, :4]).astype(np.int32)
    boxes[:, [0, 2]] = boxes[:, [0, 2]].clip(0, width)
    boxes[:, [1, 3]] = boxes[:, [1, 3]].clip(0, height)
    crops = [cv2.cvtColor(frame[y1:y2, x1:x2], cv2.COLOR_BGR2RGB) for x1, y1, x2, y2 in boxes]
    crops = [cv2.resize(crop, (128, 384), interpolation=cv2.INTER_LINEAR) for crop in crops]
    computer = tracker.EmbeddingComputer(*map(str, model), "cpu")
    found = computer.compute_embedding(frame, CORNERS, "video:1")
    torch.testing.assert_close(torch.from_numpy(found), features(model, crops), atol=1e-5, rtol=0)


def test_strongsort(tracker, model, frame):
    image = Image.fromarray(np.ascontiguousarray(frame[:, :, ::-1]))
    boxes = np.array([[3.7, 2.2, 40.4, 60.6], [-5.0, -3.0, 25.5, 30.5], [100.0, 60.0, 50.0, 90.0]])
    crops = [image.crop((b[0], b[1], b[0] + b[2], b[1] + b[3])) for b in boxes]
    transform = v2.Compose([v2.Resize((24, 16)), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    expected = features(model, [(transform(crop) * 255).numpy().transpose(1, 2, 0) for crop in crops])
    found = tracker.strongsort_features(Embedder.from_config(*model, device="cpu"), image, boxes)
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=0)


def test_the_script(tracker, model, frame, tmp_path, capsys):
    cv2.imwrite(str(tmp_path / "frame.png"), frame)
    tracker.main(*map(str, model), str(tmp_path / "frame.png"))
    assert -1 <= float(capsys.readouterr().out.removeprefix("cosine of the frame's halves ")) <= 1
