"""examples/scale: a gallery by Ray equals one of `pml-ext embed`; hits of Milvus equal those of `pml-ext search`.

With MILVUS_URI=http://127.0.0.1:19530 the script's collection lies on that server, and is replaced.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pml_ext import Embedder
from pml_ext.deploy.gallery import Gallery
from pml_ext.deploy.images import embed_folder
from pml_ext.deploy.neighbours import search
from tests.deploy.galleries import add, clustered, create, create_with_cohort
from tests.deploy.models import small_model

SCALE = Path(__file__).parents[2] / "examples" / "scale"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray about itself


def script(name):
    spec = importlib.util.spec_from_file_location(name, SCALE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Ray pickles the worker's class by value, as it does that of a script
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def milvus(tmp_path):
    """The script and a database without its collection."""
    pymilvus = pytest.importorskip("pymilvus", reason="pip install 'pml_ext[scale]'")
    if not (server := os.environ.get("MILVUS_URI")):
        pytest.importorskip("milvus_lite", reason="pip install 'pml_ext[scale]'")
    module, client = script("search_in_milvus"), pymilvus.MilvusClient(server or str(tmp_path / "milvus.db"))
    client.drop_collection(module.NAME)
    yield module, client
    client.close()


def assert_same_hits(milvus, gallery, queries, k=10):
    module, client = milvus
    exact = search(gallery, gallery.as_queries(queries), k)
    hits = module.search(client, gallery, queries, k)
    assert [len(each) for each in hits] == [k] * len(queries)
    np.testing.assert_allclose([[hit[0] for hit in each] for each in hits], exact.scores, atol=1e-5)
    paths, labels = gallery.describe(range(gallery.rows))
    label_of = {path: label for each in hits for _, path, label in each}
    assert label_of.items() <= dict(zip(paths, labels or [""] * len(paths), strict=True)).items()


@pytest.mark.parametrize("is_normalized", [False, True])
def test_hits_equal_an_exact_search(milvus, tmp_path, is_normalized):
    module, client = milvus
    gallery = create_with_cohort(tmp_path, 80, 5)[0] if is_normalized else create(tmp_path / "g", 8, labels=True)
    add(gallery, clustered(900), parts=3)
    module.load(client, Gallery.open(gallery.folder))
    assert_same_hits(milvus, gallery, clustered(6, seed=3))


def test_the_collection_follows_the_gallery(milvus, tmp_path):
    module, client = milvus
    gallery = add(create(tmp_path / "g", 8, labels=True), clustered(600), parts=2)
    module.load(client, gallery)
    first_part = next(iter(gallery.manifest.parts))
    client.delete(module.NAME, filter=f"part == {json.dumps(first_part)} and label == 'class 0'")  # as if interrupted
    gallery.keep(np.arange(600) % 5 != 0)
    add(gallery, clustered(70, seed=7), first=600)
    module.load(client, gallery)
    assert module.count(client, "") == gallery.rows == 550
    assert_same_hits(milvus, gallery, clustered(6, seed=3))


def test_a_filter_selects_labels(milvus, tmp_path):
    module, client = milvus
    gallery = add(create(tmp_path / "g", 8, labels=True), clustered(300))
    module.load(client, gallery)
    for hits in module.search(client, gallery, clustered(3, seed=3), 20, "label == 'class 2'"):
        assert len(hits) == 20 and {label for _, _, label in hits} == {"class 2"}


def test_the_benchmark_searches_in_another_process_than_it_loads(milvus, tmp_path):
    command = [sys.executable, "examples/benchmarks/search.py", "--rows", "2000", "--dim", "8", "--folder", tmp_path]
    for more in ([], ["--milvus"]):
        printed = subprocess.run(
            [*command, *more], cwd=SCALE.parents[1], check=True, capture_output=True, text=True
        ).stdout
        assert "| 2,000 × 8 | " in printed


@pytest.fixture(scope="module")
def ray_script():
    """The script, on as many cores as its two workers take."""
    ray = pytest.importorskip("ray", reason="pip install 'pml_ext[scale]'")
    pytest.importorskip("ray.data", reason="pip install 'pml_ext[scale]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    module = script("embed_with_ray")
    ray.cloudpickle.register_pickle_by_value(module)
    yield module
    ray.shutdown()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder."""
    folder = tmp_path_factory.mktemp("run")
    config, weights = small_model(folder / "model")
    (folder / "checkpoints").mkdir()
    config.rename(folder / "config.yaml")
    weights.rename(folder / "checkpoints" / "last.ckpt")
    return folder


def write_images(folder, count):
    generator = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class {number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (20, 16, 3), dtype=np.uint8)).save(path)
    (folder / "class 1" / "broken.png").write_bytes(path.read_bytes()[:90])


def rows_of(gallery):
    vectors = np.concatenate([block for _, block in gallery.vectors()])
    texts = zip(*(gallery.column(name) for name in ("path", "label", "content_hash")), strict=True)
    return dict(zip(texts, vectors, strict=True))


def assert_same_rows(first, second):
    first, second = rows_of(first), rows_of(second)
    assert first.keys() == second.keys()
    for key, vector in first.items():
        np.testing.assert_allclose(vector, second[key], atol=1e-6)


def embed(script, images, run, output):
    script.embed(str(images), str(run), output, workers=2, gpus=0, rows=8)
    return Gallery.open(output)


def test_folders_and_tables_equal_the_command(ray_script, run, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    write_images(tmp_path / "images", 50)
    expected = embed_folder(Embedder.from_run(run), tmp_path / "images", tmp_path / "g", label_by_folder=True)
    gallery = embed(ray_script, tmp_path / "images", run, tmp_path / "by_ray")
    assert_same_rows(gallery, expected)
    assert len(gallery.manifest.parts) == 7
    assert "broken.png" in (gallery.folder / "unreadable.txt").read_text(encoding="utf-8")
    paths = [*(tmp_path / "images").rglob("*.png")]
    columns = {
        "path": [str(path.relative_to(tmp_path)) for path in paths],
        "label": [path.parent.name for path in paths],
        "bytes": [path.read_bytes() for path in paths],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "images.parquet")
    assert_same_rows(embed(ray_script, tmp_path / "images.parquet", run, tmp_path / "of_table"), expected)


def test_a_repeated_command_adds_what_is_missing(ray_script, run, tmp_path):
    images, output = tmp_path / "images", tmp_path / "by_ray"
    write_images(images, 20)
    parts = {*embed(ray_script, images, run, output).manifest.parts}
    write_images(images, 30)
    gallery = embed(ray_script, images, run, output)
    assert gallery.rows == 30 and parts < {*gallery.manifest.parts}
    Image.new("RGB", (16, 20), "red").save(images / "class 0" / "0.png")
    assert_same_rows(
        embed(ray_script, images, run, output),
        embed_folder(Embedder.from_run(run), images, tmp_path / "g", label_by_folder=True),
    )


def test_a_killed_worker_costs_its_part_only(ray_script, run, tmp_path, monkeypatch):
    """The first batch of images 0 to 7 kills its worker after the part is written, and once more before it is."""

    class Dying(ray_script.Worker):
        def __call__(self, batch):
            marks = [self.gallery.folder.parent / name for name in ("died early", "died late")]
            if not marks[0].exists():
                marks[0].touch()
                os.kill(os.getpid(), signal.SIGKILL)
            answer = super().__call__(batch)
            if not marks[1].exists():
                marks[1].touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

    monkeypatch.setattr(ray_script, "Worker", Dying)
    write_images(tmp_path / "images", 40)
    gallery = embed(ray_script, tmp_path / "images", run, tmp_path / "by_ray")
    assert (tmp_path / "died early").exists() and (tmp_path / "died late").exists()
    expected = embed_folder(Embedder.from_run(run), tmp_path / "images", tmp_path / "g", label_by_folder=True)
    assert_same_rows(gallery, expected)
