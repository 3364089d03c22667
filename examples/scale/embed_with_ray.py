"""Embed images on Ray into a gallery that `pml-ext search` reads. The same command resumes. pip install '.[scale]'

    python examples/scale/embed_with_ray.py IMAGES --model logs/products --output gallery --workers 2 [--address auto]

IMAGES is an image, a folder, or a Parquet table with columns path, label and bytes. All machines must see these files.
"""

import argparse
from pathlib import Path

import numpy as np
import ray

from pml_ext import Embedder
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.images import Listed, add_part, embed_images, is_unchanged, list_images, report_problems


class Worker:
    def __init__(self, embedder: Embedder, folder: Path) -> None:
        self.embedder, self.gallery = embedder, Gallery.open(folder, may_be_empty=True)
        self.hashes = dict(zip(self.gallery.column("path"), self.gallery.column("content_hash"), strict=True))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        rows = zip(batch["path"], batch["label"], batch.get("bytes", [None] * len(batch["path"])), strict=True)
        images = [Listed(self.gallery.base / path, str(path), str(label), content) for path, label, content in rows]
        changed = [image for image in images if not is_unchanged(image, self.hashes.get(image.name))]
        return {"problem": add_part(self.gallery, [*embed_images(self.embedder, changed)])}


def embed(images: str, model: str, output: Path, *, workers: int, gpus: float, rows: int) -> None:
    embedder = Embedder.from_run(model)
    gallery = Gallery.create(output.absolute(), embedder.record, has_labels=True, cohort=None)
    if images.endswith(".parquet"):
        count = ray.data.read_parquet(images).count()
        table = ray.data.read_parquet(images, override_num_blocks=count // rows + 1, num_cpus=0)
    else:
        listed = list_images([images], gallery.base, label_by_folder=True)
        items = [{"path": image.name, "label": image.label} for image in listed]
        table = ray.data.from_items(items, override_num_blocks=len(items) // rows + 1)
    pool = ray.data.ActorPoolStrategy(min_size=1, max_size=workers)  # the first leaves a core to list a table's files
    of_workers = {"fn_constructor_args": (embedder, gallery.folder), "compute": pool, "num_cpus": 1, "num_gpus": gpus}
    problems = [row["problem"] for row in table.map_batches(Worker, batch_size=rows, **of_workers).iter_rows()]
    gallery = Gallery.open(gallery.folder, may_be_empty=True)
    last = {path: row for row, path in enumerate(gallery.column("path"))}
    gallery.keep(np.isin(np.arange(gallery.rows), [*last.values()]))  # neither changed images nor a batch twice
    report_problems(gallery, problems, table.count())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images")
    parser.add_argument("--model", required=True, help="OUTPUT_DIR of a run")
    parser.add_argument("--output", required=True, type=Path, help="folder of a new or an existing gallery")
    parser.add_argument("--address", help="a cluster's address, or auto [default: this machine]")
    for name, kind, default in (("--workers", int, 1), ("--gpus", float, 0), ("--rows", int, 4_096)):
        parser.add_argument(name, type=kind, default=default, help="workers, GPUs of each, and images of a part")
    options = vars(parser.parse_args())
    ray.init(options.pop("address"))
    embed(**options)
