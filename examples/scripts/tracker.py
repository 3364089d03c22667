"""Drop-in appearance features for BoT-SORT, Deep-OC-SORT and StrongSORT without FastReID.

Each crops and resizes boxes like the tracker's own interface (bilinearly, by OpenCV or Pillow; evaluation of the model
resizes bicubically), so that existing thresholds stay valid. `Embedder` does the rest.

    python examples/scripts/tracker.py config.yaml last.ckpt frame.jpg
"""

import sys

import cv2
import numpy as np
from PIL import Image

from pml_ext import Embedder


class FastReIDInterface:
    """BoT-SORT's fast_reid.fast_reid_interfece.FastReIDInterface."""

    overrides: tuple[str, ...] = ()

    def __init__(self, config_file: str, weights_path: str, device: str, batch_size: int = 8) -> None:
        where, half = ("cpu", False) if str(device) == "cpu" else ("cuda", True)
        options = {"device": where, "half": half, "batch_size": batch_size, "overrides": self.overrides}
        self.embedder = Embedder.from_config(config_file, weights_path, **options)

    def features(self, frame: np.ndarray, boxes: np.ndarray) -> np.ndarray:
        crops = [cv2.resize(frame[y:bottom, x:right], self.embedder.size[::-1]) for x, y, right, bottom in boxes]
        return self.embedder(crops, order="BGR").numpy()

    def inference(self, image: np.ndarray, detections: np.ndarray) -> np.ndarray | list[float]:
        """Boxes (N, 4 or more: left, top, right, bottom) of a BGR frame to (N, D)."""
        if detections is None or np.size(detections) == 0:
            return []
        high, wide = image.shape[:2]
        boxes = detections[:, :4].astype(int)
        return self.features(image, np.clip(boxes, 0, [wide - 1, high - 1, wide - 1, high - 1]))


class EmbeddingComputer(FastReIDInterface):
    """Deep-OC-SORT's interface for its FastReID models, without the grid: always crops of 384×128."""

    overrides = ("INPUT.SIZE_TEST", "[384, 128]")

    def compute_embedding(self, img: np.ndarray, bbox: np.ndarray, tag: str = "") -> np.ndarray:
        high, wide = img.shape[:2]
        return self.features(img, np.clip(np.round(bbox[:, :4]).astype(int), 0, [wide, high, wide, high]))


def strongsort_features(embedder: Embedder, frame: Image.Image, boxes: np.ndarray) -> np.ndarray:
    """StrongSORT's others/generate_detections.py: boxes (N, 4: left, top, width, height) to (N, D) unit vectors."""
    crops = [frame.crop((x, y, x + w, y + h)) for x, y, w, h in boxes[:, :4].tolist()]
    high, wide = embedder.size
    return embedder([crop.resize((wide, high), Image.Resampling.BILINEAR) for crop in crops]).numpy()


def main(config_file: str, weights_path: str, image_path: str) -> None:
    frame = cv2.imread(image_path)
    high, wide = frame.shape[:2]
    halves = np.array([[0, 0, wide / 2, high], [wide / 2, 0, wide, high]])
    left, right = FastReIDInterface(config_file, weights_path, "cpu").inference(frame, halves)
    print(f"cosine of the frame's halves {left @ right:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
