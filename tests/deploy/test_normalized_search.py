"""Normalised scores at work: a cohort through embed and search."""

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext import Embedder
from pml_ext.cli import main
from pml_ext.deploy.gallery import Gallery
from pml_ext.metrics import CohortNormalization
from pml_ext.thresholds import ThresholdReport
from tests.cli.embedding_files import failure, hits
from tests.deploy.images import extract
from tests.deploy.models import small_model


class Shop:
    """A model, photographs for a cohort, for validation and for a gallery, and galleries and reports of them."""

    def __init__(self, folder):
        self.folder = folder
        self.config, self.weights = small_model(folder / "model")
        images = extract(folder / "images", 120)
        self.images = {"cohort": images[:60], "validation": images[60:90], "gallery": images[90:]}
        embedder = Embedder.from_config(self.config, self.weights, device="cpu")
        rows = {}
        for name, paths in self.images.items():
            rows[name] = embedder([Image.open(path) for path in paths])
        self.rows = {name: value.numpy() for name, value in rows.items()}
        cohort = CohortNormalization.fit(rows["cohort"], 12, 1.0).with_checkpoint(self.weights)
        cohort.save(folder / "cohort.npz")
        for name, normalize in (("plain", None), ("cohort", cohort)):
            ThresholdReport.from_embeddings(
                rows["validation"], torch.arange(30) // 3, far=0.3, normalize=normalize
            ).save(folder / f"{name}.json", checkpoint=self.weights)
        self.embed = ["embed", "--model", str(self.config), "MODEL.WEIGHTS", str(self.weights)]
        self.embed += ["MODEL.DEVICE", "cpu", *map(str, self.images["gallery"])]
        assert main([*self.embed, "--output", str(folder / "p")]) == 0
        assert main([*self.embed, "--cohort", str(folder / "cohort.npz"), "--output", str(folder / "n")]) == 0

    def search(self, query, gallery, report):
        words = ["search", str(query), "--gallery", str(self.folder / gallery), "-k", "30"]
        return [*words, "--threshold", str(self.folder / f"{report}.json")]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return Shop(tmp_path_factory.mktemp("shop"))


def test_a_search_has_normalised_scores_and_decides_by_them(shop, tmp_path, capsys):
    cohort = CohortNormalization.load(shop.folder / "cohort.npz", checkpoint=shop.weights)
    gallery = torch.from_numpy(shop.rows["gallery"]).double()
    ((_, vectors),) = Gallery.open(shop.folder / "n").vectors()
    np.testing.assert_allclose(vectors, cohort.augment(gallery, "gallery"), atol=1e-6)
    expected = cohort.scores(torch.from_numpy(shop.rows["validation"][3:4]).double(), gallery)[0].numpy()
    order = (-expected).argsort()
    cosine = ThresholdReport.load(shop.folder / "cohort.json", checkpoint=shop.weights).cosine
    np.savez(tmp_path / "q.npz", embeddings=shop.rows["validation"][3:4])
    for query in (shop.images["validation"][3], tmp_path / "q.npz"):
        page = tmp_path / "hits.html"
        assert main([*shop.search(query, "n", "cohort"), "--output", str(page)]) == 0
        shown = capsys.readouterr().out
        scores, decisions, paths = zip(*hits(shown), strict=True)
        assert list(scores) == pytest.approx(expected[order].tolist(), abs=1e-4)
        assert list(paths) == [str(shop.images["gallery"][row].relative_to(shop.folder)) for row in order]
        assert list(decisions) == ["accept" if score >= cosine else "reject" for score in expected[order]]
        assert len(set(decisions)) == 2 and f"threshold: score {cosine:.4f}" in shown
        assert "k = 12, strength = 1, SHA-256" in shown and "1. score " in page.read_text()


def test_scores_that_do_not_belong_together(shop, tmp_path, capfd):
    cohort = torch.from_numpy(shop.rows["cohort"])
    (tmp_path / "other.pth").write_bytes(b"another model")
    CohortNormalization.fit(cohort, 12).save(tmp_path / "other.npz", checkpoint=tmp_path / "other.pth")
    CohortNormalization.fit(cohort, 12).save(tmp_path / "nameless.npz")
    CohortNormalization.fit(torch.eye(7), 2).save(tmp_path / "wide.npz", checkpoint=shop.weights)
    CohortNormalization.fit(cohort, 11).save(tmp_path / "k.npz", checkpoint=shop.weights)
    edited = tmp_path / "edited.npz"
    with np.load(shop.folder / "cohort.npz") as arrays:
        np.savez(edited, **{**arrays, "cohort": arrays["cohort"][::-1]})
    new = [*shop.embed, "--output", str(tmp_path / "h"), "--cohort"]
    query = shop.images["validation"][0]
    for words, message in (
        ([*new, str(tmp_path / "other.npz")], "other.npz is of the checkpoint other.pth with SHA-256 "),
        ([*new, str(tmp_path / "nameless.npz")], "nameless.npz records no checkpoint to compare"),
        ([*new, str(tmp_path / "wide.npz")], "is about embeddings of 7 dimensions; those of the model have 6"),
        (
            [*shop.embed, "--output", str(shop.folder / "n"), "--cohort", str(tmp_path / "k.npz")],
            "without this cohort",
        ),
        (shop.search(query, "p", "cohort"), "are plain cosines: embed into another gallery"),
        (shop.search(query, "n", "plain"), "is of scores that are plain cosines, those of "),
        ([*new, str(edited)], "edited.npz was modified after it was saved (the checksum differs)"),
    ):
        assert message in failure(capfd, *words)
