"""Normalised scores at work: a cohort from a threshold report through embed, search, Embedder and an exported file."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import Embedder
from pml_ext.cli import main
from pml_ext.metrics import CohortNormalization, GalleryCohort, ThresholdReport
from pml_ext.search.gallery import Gallery
from pml_ext.search.readers import read_embeddings
from tests.search.models import small_model
from tests.search.pictures import extract

pytest.importorskip("faiss")


def offsets_by_loops(rows: np.ndarray, cohort: np.ndarray, k: int, *, own: bool = False) -> np.ndarray:
    """m(x) in float64; own: row i is row i of the cohort and leaves itself out."""
    unit = [[value / np.linalg.norm(row) for value in row] for row in rows.astype(float)]
    others = [[value / np.linalg.norm(row) for value in row] for row in cohort.astype(float)]
    found = []
    for i, x in enumerate(unit):
        cosines = [sum(a * b for a, b in zip(x, c, strict=True)) for j, c in enumerate(others) if not (own and i == j)]
        found.append(sum(sorted(cosines)[-k:]) / k)
    return np.array(found)


def hits(shown: str) -> list[tuple[float, str, str]]:
    found = re.findall(r"^ +\d+ +(-?\d\.\d+)(?:  (accept|reject))?  (.+)$", shown, re.M)
    return [(float(score), decision, path) for score, decision, path in found]


class Shop:
    """A folder with a model, pictures of emoji for a cohort, for validation and for a gallery, and what was made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config, self.weights = small_model(folder / "model")
        pictures = extract(folder / "pictures", 160)
        self.cohort, self.validation, self.gallery = pictures[:60], pictures[60:120], pictures[120:]
        self.model = ["--model", str(self.config), "MODEL.WEIGHTS", str(self.weights)]
        self.embedder = Embedder.from_config(self.config, self.weights, device="cpu")
        rows = {name: self.embed(getattr(self, name)) for name in ("cohort", "validation", "gallery")}
        self.rows = {name: value.numpy() for name, value in rows.items()}
        self.normalization = CohortNormalization.fit(rows["cohort"], 12, 1.0).with_checkpoint(self.weights)
        self.normalization.save(folder / "cohort.npz")
        labels = torch.arange(60) // 4
        for name, normalize in (("plain", None), ("cohort", self.normalization), ("gallery", GalleryCohort(9, 0.5))):
            report = ThresholdReport.from_embeddings(
                rows["validation"], labels, far=0.3, splits=0, normalize=normalize
            )  # fmt: skip
            report.save(folder / f"{name}.json", checkpoint=self.weights)
        assert main(["embed", *self.model, *map(str, self.gallery), "--output", str(folder / "plain")]) == 0
        words = [*map(str, self.gallery), "--normalize", str(folder / "cohort.npz"), "--output", str(folder / "g")]
        assert main(["embed", *self.model, *words]) == 0

    def embed(self, pictures: list[Path]) -> torch.Tensor:
        return self.embedder([Image.open(picture) for picture in pictures])

    def scores(self, query: int, k: int, strength: float, cohort: np.ndarray, *, own: bool = False) -> np.ndarray:
        """Of a validation picture with the gallery, in float64."""
        x, gallery = self.rows["validation"][query].astype(float), self.rows["gallery"].astype(float)
        m_gallery = offsets_by_loops(gallery, cohort, k, own=own)
        return gallery @ x - 0.5 * strength * (offsets_by_loops(x[None], cohort, k) + m_gallery)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


def test_a_search_has_normalised_scores_and_decides_by_them(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, page = shop.folder / "g", tmp_path / "hits.html"
    kept = Gallery.open(index).column("offset")
    np.testing.assert_allclose(kept, offsets_by_loops(shop.rows["gallery"], shop.rows["cohort"], 12), atol=1e-6)
    words = ["search", str(shop.validation[3]), "--gallery", str(index), "-k", "40", "MODEL.DEVICE", "cpu"]
    assert main([*words, "--threshold", str(shop.folder / "cohort.json"), "--output", str(page)]) == 0
    shown = capsys.readouterr().out
    expected = shop.scores(3, 12, 1.0, shop.rows["cohort"])
    cosine = ThresholdReport.load(shop.folder / "cohort.json", checkpoint=shop.weights).cosine
    order = (-expected).argsort()
    assert [score for score, _, _ in hits(shown)] == pytest.approx(expected[order].tolist(), abs=1e-4)
    paths = [str(shop.gallery[row].relative_to(shop.folder)) for row in order]
    assert [path for _, _, path in hits(shown)] == paths
    decided = ["accept" if score >= cosine else "reject" for score in expected[order]]
    assert [decision for _, decision, _ in hits(shown)] == decided and len(set(decided)) == 2
    assert f"threshold: score {cosine:.4f}" in shown and "scores: normalised by " in shown
    assert "k = 12, strength = 1, SHA-256" in shown and "1. score " in page.read_text()
    # A file of queries, with offsets of its own or without.
    np.savez(tmp_path / "q.npz", embeddings=shop.rows["validation"][3:4])
    for query in (tmp_path / "q.npz", index):
        assert main(["search", str(query), "--gallery", str(index), "-k", "40"]) == 0
        found = [score for score, _, _ in hits(capsys.readouterr().out)]
        if query != index:
            assert found == pytest.approx(expected[order].tolist(), abs=1e-4)
        else:
            scores = shop.normalization.scores(*[torch.from_numpy(shop.rows["gallery"])] * 2)
            assert found[:40] == pytest.approx(scores[0].sort(descending=True).values.tolist(), abs=1e-4)


def test_the_gallery_as_cohort(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", str(shop.validation[5]), "--gallery", str(shop.folder / "plain"), "-k", "40"]
    assert main([*words, "--threshold", str(shop.folder / "gallery.json"), "MODEL.DEVICE", "cpu"]) == 0
    shown = capsys.readouterr().out
    expected = np.sort(shop.scores(5, 9, 0.5, shop.rows["gallery"], own=True))[::-1]
    assert [score for score, _, _ in hits(shown)] == pytest.approx(expected.tolist(), abs=1e-4)
    assert "scores: normalised by the gallery itself (k = 9, strength = 0.5)" in shown


def test_more_images_have_offsets_too(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures, gallery = extract(tmp_path / "pictures", 30), tmp_path / "g"
    words = ["embed", *shop.model, "--output", str(gallery)]
    assert main([*words, *map(str, pictures[:20]), "--normalize", str(shop.folder / "cohort.npz")]) == 0
    shop.normalization.fit(torch.from_numpy(shop.rows["cohort"]), 11).save(tmp_path / "o.npz", checkpoint=shop.weights)
    assert main([*words, *map(str, pictures), "--normalize", str(tmp_path / "o.npz")]) == 2
    assert f"{gallery} was made without this cohort" in capsys.readouterr().err
    Image.open(pictures[4]).rotate(90).save(pictures[7])
    pictures[2].unlink()
    assert main([*words, *map(str, [*pictures[:2], *pictures[3:]]), "--prune"]) == 0  # the gallery has the cohort
    embeddings = read_embeddings(gallery, need_labels=False).embeddings.numpy()
    np.testing.assert_allclose(
        Gallery.open(gallery).column("offset"), offsets_by_loops(embeddings, shop.rows["cohort"], 12), atol=1e-6
    )


def test_an_embedder_with_a_cohort(shop: Shop) -> None:
    a, b = shop.embed(shop.validation[:5]), shop.embed(shop.gallery)
    torch.testing.assert_close(shop.embedder.similarity(a, b), a @ b.T)
    normalised = Embedder.from_config(shop.config, shop.weights, device="cpu", cohort=shop.folder / "cohort.npz")
    expected = np.stack([shop.scores(row, 12, 1.0, shop.rows["cohort"]) for row in range(5)])
    np.testing.assert_allclose(normalised.similarity(a, b), expected, atol=1e-5)
    with pytest.raises(ValueError, match="b must have 6 columns; got 5"):
        shop.embedder.similarity(a, b[:, :5])


def test_scores_that_do_not_belong_together(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cohort = torch.from_numpy(shop.rows["cohort"])
    (tmp_path / "other.pth").write_bytes(b"another model")
    made = {
        "other.npz": CohortNormalization.fit(cohort, 12).with_checkpoint(tmp_path / "other.pth"),
        "nameless.npz": CohortNormalization.fit(cohort, 12),
        "wide.npz": CohortNormalization.fit(torch.eye(7), 2).with_checkpoint(shop.weights),
    }
    for name, normalization in made.items():
        normalization.save(tmp_path / name)
    with np.load(shop.folder / "cohort.npz") as arrays:
        record = json.loads(str(arrays["record"]))
        np.savez(tmp_path / "k.npz", cohort=arrays["cohort"], record=json.dumps(record | {"k": 61}))
    picture, query = str(shop.gallery[0]), str(shop.validation[0])
    embed = ["embed", *shop.model, picture, "--output", str(tmp_path / "h"), "--normalize"]
    plain, normalised = (["search", query, "--gallery", str(shop.folder / name)] for name in ("plain", "g"))
    for words, message in (
        ([*embed, str(tmp_path / "other.npz")], r"other.npz is of the model other.pth \(SHA-256 .*are of"),
        ([*embed, str(tmp_path / "nameless.npz")], r"nameless.npz names no model, so it may be another"),
        ([*embed, str(tmp_path / "wide.npz")], r"is about embeddings of 7 dimensions; the model's embeddings have 6"),
        ([*embed, str(tmp_path / "k.npz")], r"k must be from 1 to 60, the samples of the cohort; got 61"),
        ([*embed, str(tmp_path / "other.pth")], r"other.pth is not a saved cohort normalization"),
        ([*embed, str(tmp_path / "none.npz")], r"no cohort at .*none.npz"),
        (
            [*plain, "--threshold", str(shop.folder / "cohort.json")],
            r"of scores that are normalised by .* plain cos",
        ),
        ([*normalised, "--threshold", str(shop.folder / "plain.json")], r"are plain cosines, those of .*g are normali"),
        ([*normalised, "--threshold", str(shop.folder / "gallery.json")], r"normalised by a cohort .*the gallery\)"),
    ):
        assert main(words) == 2, words
        said = capsys.readouterr().err
        (error,) = [line for line in said.splitlines() if not line.startswith("weights from")]
        assert re.search(message, error), said
    read = read_embeddings(shop.folder / "g", need_labels=False)  # as other commands do
    np.testing.assert_allclose(read.embeddings, shop.rows["gallery"], atol=1e-6)
