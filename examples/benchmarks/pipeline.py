"""CPU time from file to batch: the runner's loader beside torchvision v2, FastReID's steps and what simplejpeg allows.

    OMP_NUM_THREADS=1 python examples/benchmarks/pipeline.py

Images are made here: 128×256 (ReID) and 112×112 (faces), smooth with a little noise, JPEG of quality 90, 4:2:0. Each
way ends with a batch as its loader hands it over. What the runner leaves for the device has a column of its own,
measured on the same core. Normalising counts for nobody: all do it in the model. `torchvision v2` is how the runner
once did it; `simplejpeg` is flip, pad + crop and erasing alone, also in the rows of colours.
"""

import argparse
import io
import os
import random
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import simplejpeg
import torch
from measure import median_times
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from yacs.config import CfgNode as CN

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets.decoding import decode_image, pixels_of
from pml_ext.runner.data.datasets.image_set import ImageSet, LazyImages
from pml_ext.runner.data.datasets.record_io import record_set
from pml_ext.runner.data.loaders import SeededImages, collate
from pml_ext.runner.data.samplers import Drawn
from pml_ext.runner.data.transforms import build_transform

HEIGHT, WIDTH, BORDER = 256, 128, 10
COLOUR = [0.485 * 255, 0.456 * 255, 0.406 * 255]
BICUBIC = InterpolationMode.BICUBIC
OURS, DEVICE, V2, FASTREID, FLOOR = (
    "runner, worker",
    "runner, device",
    "torchvision v2",
    "FastReID's steps",
    "simplejpeg",
)
SHIFTS, JITTER, AUTOAUG = ("flip, pad + crop, erasing", "+ colour jitter 0.5", "+ AutoAugment 0.1")
FIRST = "first batch of four times as many, ms"
Way = Callable[[], object]


def jpegs(count: int, height: int, width: int) -> list[bytes]:
    """Smooth images with a little noise."""
    chance, files = np.random.default_rng(0), []
    for _ in range(count):
        coarse = Image.fromarray(chance.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)) + chance.normal(
            0, 4, (height, width, 3)
        )
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file := io.BytesIO(), "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def config(row: str) -> CN:
    options = get_cfg().INPUT
    options.FLIP.ENABLED = options.PADDING.ENABLED = options.REA.ENABLED = True
    options.CJ.ENABLED, options.AUTOAUG.ENABLED, options.AUTOAUG.PROB = row != SHIFTS, row == AUTOAUG, 0.1
    return options


def steps_of(library: object, row: str) -> list[Callable]:
    """torchvision's classes, v1 or v2, in FastReID's order, between decoding and the conversion to float."""
    extra = [library.RandomApply([library.AutoAugment()], 0.1)] if row == AUTOAUG else []
    jitter = [] if row == SHIFTS else [library.RandomApply([library.ColorJitter(0.15, 0.15, 0.1, 0.1)], 0.5)]
    crop = [library.Pad(BORDER), library.RandomCrop([HEIGHT, WIDTH]), library.RandomHorizontalFlip(0.5)]
    return [*extra, library.Resize([HEIGHT, WIDTH], interpolation=BICUBIC), *crop, *jitter]


def by_v2(row: str) -> Callable[[bytes], Tensor]:
    """As the runner did before: Pillow decodes, v2 changes bytes, float32 leaves the worker."""
    steps = v2.Compose([*steps_of(v2, row), v2.ToDtype(torch.float32), v2.RandomErasing(0.5, value=COLOUR)])
    return partial(prepared_by_v2, steps)


def prepared_by_v2(steps: v2.Compose, content: bytes) -> Tensor:
    return steps(pixels_of(Image.open(io.BytesIO(content)), False))


def by_fastreid(row: str) -> Callable[[bytes], Tensor]:
    """Pillow images until the conversion to float32 in 0–255."""
    steps, erase = v1.Compose([*steps_of(v1, row), v1.PILToTensor()]), v1.RandomErasing(0.5, value=COLOUR)
    return partial(prepared_by_fastreid, steps, erase)


def prepared_by_fastreid(steps: v1.Compose, erase: v1.RandomErasing, content: bytes) -> Tensor:
    return erase(steps(Image.open(io.BytesIO(content)).convert("RGB")).float())


def by_simplejpeg(content: bytes) -> Tensor:
    """Flip, pad + crop and erasing as plainly as bytes allow."""
    padded = torch.zeros(HEIGHT + 2 * BORDER, WIDTH + 2 * BORDER, 3, dtype=torch.uint8)
    padded[BORDER:-BORDER, BORDER:-BORDER] = torch.from_numpy(simplejpeg.decode_jpeg(content))
    top, left = random.randrange(2 * BORDER + 1), random.randrange(2 * BORDER + 1)
    image = padded[top : top + HEIGHT, left : left + WIDTH]
    if random.random() < 0.5:
        image = image.flip(1)
    if random.random() < 0.5:
        area, ratio = HEIGHT * WIDTH * random.uniform(0.02, 0.33), random.uniform(0.3, 3.3)
        high, wide = min(int((area * ratio) ** 0.5), HEIGHT), min(int((area / ratio) ** 0.5), WIDTH)
        top, left = random.randrange(HEIGHT - high + 1), random.randrange(WIDTH - wide + 1)
        image[top : top + high, left : left + wide] = torch.tensor([124, 116, 104], dtype=torch.uint8)
    return image


class Prepared(Dataset[Tensor]):
    """Files, each as a way makes it ready."""

    def __init__(self, files: Sequence[bytes], way: Callable[[bytes], Tensor]) -> None:
        self.files, self.way = files, way

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> Tensor:
        return self.way(self.files[row])


def decode(content: bytes) -> Tensor:
    return decode_image(content, "an image", False)


def runner_set(files: Sequence[bytes], row: str) -> SeededImages:
    nobody = np.zeros(len(files), dtype=np.int64)
    images = ImageSet(LazyImages(list(files), decode), nobody, nobody, ["an image"] * len(files))
    return SeededImages(images, build_transform(config(row), training=True))


def batch_of(files: Sequence[bytes], way: Callable[[bytes], Tensor]) -> Way:
    return lambda: default_collate([way(content) for content in files])


def augmented(files: Sequence[bytes], row: str) -> dict[str, Way]:
    """The ways to a training batch of a row of the table."""
    data = runner_set(files, row)
    drawn = [Drawn(i, i) for i in range(len(files))]
    batch = collate([data[one] for one in drawn])
    images, draws = batch["images"], batch["draws"]
    return {
        FLOOR: batch_of(files, by_simplejpeg),
        OURS: lambda: collate([data[one] for one in drawn]),
        DEVICE: lambda: data.transform.finish(images, draws),
        V2: batch_of(files, by_v2(row)),
        FASTREID: batch_of(files, by_fastreid(row)),
    }


def decoded(files: Sequence[bytes]) -> dict[str, Way]:
    return {
        FLOOR: lambda: [simplejpeg.decode_jpeg(content) for content in files],
        OURS: lambda: [decode(content) for content in files],
        V2: lambda: [pixels_of(Image.open(io.BytesIO(content)), False) for content in files],
        FASTREID: lambda: [np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content in files],
    }


def records(files: Sequence[bytes], folder: Path) -> dict[str, Way]:
    """Faces of an MXNet record file, each decoded."""
    path, places, content = folder / "train.rec", [], b""
    for label, face in enumerate(files):
        record = struct.pack("<IfQQ", 0, label, 0, 0) + face
        places.append((len(content), len(record)))
        content += struct.pack("<II", 0xCED7230A, len(record)) + record + bytes(-len(record) % 4)
    path.write_bytes(content)
    path.with_suffix(".idx").write_text("".join(f"{i}\t{place}\n" for i, (place, _) in enumerate(places)))
    images, descriptor = record_set(path, False).images, os.open(path, os.O_RDONLY)

    def face_at(place: int, length: int) -> bytes:
        return os.pread(descriptor, length, place + 8)[24:]

    return {
        FLOOR: lambda: [simplejpeg.decode_jpeg(face_at(*place)) for place in places],
        OURS: lambda: [images[row] for row in range(len(places))],
        FASTREID: lambda: [np.asarray(Image.open(io.BytesIO(face_at(*p))).convert("RGB")) for p in places],
    }


def first_batches(files: Sequence[bytes], rounds: int) -> dict[str, float]:
    """Seconds on the clock until two fresh workers have sent the first batch, medians of interleaved rounds."""
    drawn = [Drawn(i, i) for i in range(len(files))]
    loaders = {
        FLOOR: DataLoader(Prepared(files, by_simplejpeg), len(files), num_workers=2),
        OURS: DataLoader(runner_set(files, SHIFTS), batch_sampler=[drawn], num_workers=2, collate_fn=collate),
        V2: DataLoader(Prepared(files, by_v2(SHIFTS)), len(files), num_workers=2),
        FASTREID: DataLoader(Prepared(files, by_fastreid(SHIFTS)), len(files), num_workers=2),
    }
    taken: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, loader in loaders.items():
            start = time.perf_counter()
            next(iter(loader))
            taken[name].append(time.perf_counter() - start)
    return {name: median(seconds) for name, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64, help="in a batch")
    parser.add_argument("--seconds", type=float, default=15, help="of CPU for each row of the table")
    parser.add_argument("--rounds", type=int, default=9, help="of first batches")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cpu, names = torch.device("cpu"), (FLOOR, OURS, DEVICE, V2, FASTREID)
    people, faces = jpegs(options.images, HEIGHT, WIDTH), jpegs(options.images, 112, 112)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = {row: augmented(people, row) for row in (SHIFTS, JITTER, AUTOAUG)}
        cases |= {"decode only": decoded(people), "faces from .rec": records(faces, Path(folder))}
        for row, ways in cases.items():
            seconds = median_times(ways, cpu, options.seconds)
            found[row] = {name: 1e6 * value / options.images for name, value in seconds.items()}
    found[FIRST] = {name: 1e3 * s for name, s in first_batches(people * 4, options.rounds).items()}

    print("µs of CPU an image\n\n| |", " | ".join(names), "|\n|---|" + " ---: |" * len(names))
    for row, by_name in found.items():
        print(f"| {row} |", " | ".join(f"{by_name[name]:,.0f}" if name in by_name else "–" for name in names), "|")
    floors = {SHIFTS: 1.15, JITTER: 1.3, "decode only": 1.15, "faces from .rec": 1.2, FIRST: 1.3}
    goals = [
        (f"{row}: worker / simplejpeg", found[row][OURS] / found[row][FLOOR], limit) for row, limit in floors.items()
    ]
    for row, by_name in found.items():
        whole, what = by_name[OURS] + by_name.get(DEVICE, 0), "worker and device" if DEVICE in by_name else "worker"
        limit = 0.6 if row == AUTOAUG else 1
        goals.append((f"{row}: {what} / FastReID's", whole / by_name[FASTREID], limit))
    print("\n| goal | limit | measured | |\n|---|---|---|---|")
    for text, ratio, limit in goals:
        print(f"| {text} | {limit:g} | {ratio:.2f} | {'met' if ratio <= limit else 'missed'} |")


if __name__ == "__main__":
    main()
