"""Embed images on a Ray cluster into a gallery that `pml-ext index` and `pml-ext search` read.

    pip install 'pml_ext[scale]'
    python examples/scale/embed_with_ray.py images/ --model logs/products --output gallery --workers 2
    python examples/scale/embed_with_ray.py images.parquet --model … --output … --address auto --gpus-per-worker 1

IMAGES is an image, a folder of images, or a Parquet table with the columns path, bytes and, if used, label. The gallery,
the model and a folder of images must be on a file system that all machines share. Images whose path is in the gallery are
skipped, so that the same command resumes. Each batch becomes one part of the gallery; a worker that dies loses its batch,
which Ray gives to another one.
"""

import argparse
from pathlib import Path

import numpy as np
import ray

from pml_ext import Embedder
from pml_ext.search.gallery import Gallery
from pml_ext.search.images import Listed, add_part, embed_images, list_images


class Worker:
    """Embeds batches of images and writes each as a part of the gallery."""

    def __init__(self, model: str, output: Path) -> None:
        self.embedder = Embedder.from_run(model)
        self.gallery = Gallery.open(output, may_be_empty=True)
        self.known = set(self.gallery.column("path"))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        labels = batch.get("label", [Path(path).parent.name for path in batch["path"]])
        contents = batch.get("bytes", [None] * len(labels))
        listed = [
            Listed(self.gallery.base / path, path, str(label), content)
            for path, label, content in zip(batch["path"], labels, contents, strict=True)
            if path not in self.known
        ]
        batches = [*embed_images(self.embedder, listed)]
        add_part(self.gallery, batches)
        return {"problem": [problem for each in batches for problem in each.problems]}


def embed(images: str, model: str, output: Path, *, workers: int, gpus: float, rows: int, has_labels: bool) -> Gallery:
    gallery = Gallery.create(output, Embedder.from_run(model).record, has_labels=has_labels, cohort=None)
    if images.endswith(".parquet"):
        table = ray.data.read_parquet(images)
    else:
        table = ray.data.from_items([{"path": image.name} for image in list_images([images], gallery.base)])
    problems = table.map_batches(
        Worker, fn_constructor_args=(model, output), batch_size=rows, concurrency=workers, num_cpus=1, num_gpus=gpus
    )
    for row in problems.iter_rows():
        print(f"skipped: {row['problem']}")
    gallery = Gallery.open(output)
    last = {path: row for row, path in enumerate(gallery.column("path"))}
    gallery.keep(np.isin(np.arange(gallery.rows), [*last.values()]))  # a batch that was repeated is there twice
    return gallery


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images")
    parser.add_argument("--model", required=True, help="OUTPUT_DIR of a run")
    parser.add_argument("--output", type=Path, required=True, help="folder of a new or an existing gallery")
    parser.add_argument("--label-by-folder", action="store_true", help="store labels: the column, or folder names")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus-per-worker", type=float, default=0)
    parser.add_argument("--rows-per-part", type=int, default=4_096)
    parser.add_argument("--address", help="a cluster's address, or auto [default: this machine]")
    options = parser.parse_args()
    ray.init(options.address)
    gallery = embed(
        options.images, options.model, options.output.absolute(), workers=options.workers,
        gpus=options.gpus_per_worker, rows=options.rows_per_part, has_labels=options.label_by_folder,
    )  # fmt: skip
    print(f"{gallery.folder}: {gallery.rows:,} embeddings")


if __name__ == "__main__":
    main()
