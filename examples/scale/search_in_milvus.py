"""Search a gallery of `pml-ext embed` in Milvus, a vector database.

    pip install '.[scale]'
    python examples/scale/search_in_milvus.py load gallery
    python examples/scale/search_in_milvus.py search photos/ --gallery gallery --model logs/products -k 5 \
        --filter 'label != "mug" and not (path like "camera_3/%")'

Without --uri, Milvus is embedded and stores its data in GALLERY.milvus.db. With --uri http://HOST:19530 it is a server.
`load` follows the gallery: it adds new parts and deletes those that `pml-ext embed` has replaced or removed. Scores are
those of `pml-ext search`: cosines, or normalised scores if the gallery has a cohort. Both are inner products of
`gallery.vectors()` and `gallery.as_queries()`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from pymilvus import DataType, MilvusClient

from pml_ext import Embedder
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.images import embed_images, join_batches, list_images

NAME, ROWS_AT_ONCE = "images", 2_000
LISTS, PROBES = 1_024, 64  # of an inverted file; fewer probes are faster and miss more


def connect(uri: str) -> MilvusClient:
    client = MilvusClient(uri)
    if client.has_collection(NAME):
        client.load_collection(NAME)  # after a restart, an embedded database has it on disk only
    return client


def load(client: MilvusClient, gallery: Gallery) -> None:
    """Give the collection the rows of the gallery's parts, and no others."""
    if not client.has_collection(NAME):
        create(client, dim=next(gallery.vectors())[1].shape[1])
    client.delete(NAME, filter=f"part not in {json.dumps([*gallery.manifest.parts])}")
    for part, (first, vectors) in zip(gallery.manifest.parts, gallery.vectors(), strict=True):
        of_part = f"part == {json.dumps(part)}"
        if count(client, of_part) == len(vectors):
            continue
        client.delete(NAME, filter=of_part)  # rows of an interrupted run
        paths, labels = gallery.describe(range(first, first + len(vectors)))
        for start in range(0, len(vectors), ROWS_AT_ONCE):
            rows = range(start, min(start + ROWS_AT_ONCE, len(vectors)))
            client.insert(NAME, [
                {"key": f"{part}/{row}", "part": part, "path": paths[row], "vector": vectors[row],
                 "label": labels[row] if labels else ""}
                for row in rows
            ])  # fmt: skip
        print(f"{part}: {len(vectors):,} rows")


def create(client: MilvusClient, dim: int) -> None:
    schema = client.create_schema(auto_id=False)
    schema.add_field("key", DataType.VARCHAR, max_length=64, is_primary=True)
    schema.add_field("part", DataType.VARCHAR, max_length=64)
    schema.add_field("path", DataType.VARCHAR, max_length=4096)
    schema.add_field("label", DataType.VARCHAR, max_length=4096)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    index = client.prepare_index_params()
    index.add_index("vector", index_type="IVF_FLAT", metric_type="IP", params={"nlist": LISTS})
    client.create_collection(NAME, schema=schema, index_params=index, consistency_level="Strong")


def count(client: MilvusClient, rows: str) -> int:
    return int(client.query(NAME, filter=rows, output_fields=["count(*)"])[0]["count(*)"])


def search(
    client: MilvusClient, gallery: Gallery, embeddings: np.ndarray, k: int, rows: str = ""
) -> list[list[tuple[float, str, str]]]:
    """Returns score, path and label of the k hits of each unit row (Q, D); rows: a filter of Milvus, or ''."""
    hits = client.search(
        NAME, data=gallery.as_queries(embeddings), limit=k, filter=rows, output_fields=["path", "label"],
        search_params={"params": {"nprobe": PROBES}},
    )  # fmt: skip
    return [[(hit["distance"], hit["entity"]["path"], hit["entity"]["label"]) for hit in each] for each in hits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    loading = commands.add_parser("load")
    loading.add_argument("gallery")
    searching = commands.add_parser("search")
    searching.add_argument("images", help="an image, or a folder of images")
    searching.add_argument("--gallery", required=True)
    searching.add_argument("--model", required=True, help="OUTPUT_DIR of the run that embedded the gallery")
    searching.add_argument("-k", type=int, default=10)
    searching.add_argument("--filter", default="", help="a boolean expression of Milvus on path and label")
    for each in (loading, searching):
        each.add_argument("--uri", help="a Milvus server [default: embedded, in GALLERY.milvus.db]")
    options = parser.parse_args()
    gallery = Gallery.open(options.gallery)
    client = connect(options.uri or f"{gallery.folder}.milvus.db")
    if options.command == "load":
        load(client, gallery)
        return
    embedder = Embedder.from_run(options.model)
    if not embedder.record.same_model(gallery.record):
        raise SystemExit(f"{gallery.folder} is of another model: {gallery.record.weights}")
    queries = join_batches([*embed_images(embedder, list_images([options.images], Path.cwd()))])
    for problem in queries.problems:
        print(f"skipped: {problem}")
    answers = search(client, gallery, queries.embeddings, options.k, options.filter)
    for image, hits in zip(queries.images, answers, strict=True):
        print(image.name)
        for score, path, label in hits:
            print(f"  {score:7.4f}  {path}  {label}")


if __name__ == "__main__":
    main()
