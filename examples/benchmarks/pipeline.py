"""CPU time from file to batch: the runner's loader beside FastReID's steps.

    OMP_NUM_THREADS=1 python examples/benchmarks/pipeline.py

Images are made here: 128×256 as of people, smooth with a little noise, JPEG of quality 90, 4:2:0. Each way ends with a
batch as its loader hands it over. Normalising counts for nobody: all do it in the model.
"""

import io
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from measure import CPU, Row, median_times, parser_of, show_table
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets.decoding import decode_image
from pml_ext.runner.data.datasets.image_set import ImageSet, LazyImages
from pml_ext.runner.data.loaders import SeededImages, collate
from pml_ext.runner.data.samplers import Drawn
from pml_ext.runner.data.transforms import build_transform

HEIGHT, WIDTH, BORDER = 256, 128, 10
COLOUR = [0.485 * 255, 0.456 * 255, 0.406 * 255]
OURS, FASTREID = "runner", "FastReID's steps"
Way = Callable[[], object]


def jpegs(count: int) -> list[bytes]:
    """Smooth images with a little noise."""
    chance, files = np.random.default_rng(0), []
    for _ in range(count):
        coarse = Image.fromarray(chance.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
        pixels = smooth + chance.normal(0, 4, (HEIGHT, WIDTH, 3))
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def by_fastreid() -> Callable[[bytes], Tensor]:
    """Resizing, pad + crop, flip and erasing in FastReID's order, on Pillow images until they are float32 in 0–255."""
    resize = v1.Resize([HEIGHT, WIDTH], interpolation=InterpolationMode.BICUBIC)
    crop = [v1.Pad(BORDER), v1.RandomCrop([HEIGHT, WIDTH]), v1.RandomHorizontalFlip(0.5)]
    steps = v1.Compose([resize, *crop, v1.PILToTensor()])
    erase = v1.RandomErasing(0.5, value=COLOUR)
    return lambda content: erase(steps(Image.open(io.BytesIO(content)).convert("RGB")).float())


def decode(content: bytes) -> Tensor:
    return decode_image(content, "an image", False)


def runner_set(files: Sequence[bytes]) -> SeededImages:
    options = get_cfg().INPUT
    options.FLIP.ENABLED = options.PADDING.ENABLED = options.REA.ENABLED = True
    nobody = np.zeros(len(files), dtype=np.int64)
    images = ImageSet(LazyImages(list(files), decode), nobody, nobody, ["an image"] * len(files))
    return SeededImages(images, build_transform(options, training=True))


def augmented(files: Sequence[bytes]) -> dict[str, Way]:
    """The ways to a training batch."""
    data, prepared = runner_set(files), by_fastreid()
    drawn = [Drawn(i, i) for i in range(len(files))]
    return {
        OURS: lambda: collate([data[one] for one in drawn]),
        FASTREID: lambda: default_collate([prepared(content) for content in files]),
    }


def decoded(files: Sequence[bytes]) -> dict[str, Way]:
    return {
        OURS: lambda: [decode(content) for content in files],
        FASTREID: lambda: [np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content in files],
    }


def rows_of(count: int, seconds: float) -> Iterator[Row]:
    files = jpegs(count)
    for name, ways in (("flip, pad + crop, erasing", augmented(files)), ("decode only", decoded(files))):
        times = median_times(ways, CPU, seconds)
        cells = [f"{1e6 * times[way] / count:,.0f}" if way in times else "–" for way in (OURS, FASTREID)]
        yield name, cells


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--images", type=int, default=64, help="in a batch")
    parser.add_argument("--seconds", type=float, default=15, help="of CPU for each row of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = rows_of(options.images, options.seconds)
    show_table("Images from file to batch, µs of CPU each", (OURS, FASTREID), rows, options.results)


if __name__ == "__main__":
    main()
