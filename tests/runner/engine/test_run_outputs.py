"""The worst pairs of a run's threshold, by the user's names and as images."""

import json
from base64 import b64decode
from dataclasses import replace
from io import BytesIO

import pytest
import torch
from PIL import Image

from pml_ext.cli import main
from pml_ext.metrics import OPISSettings
from pml_ext.runner.data.datasets import OpenSet, load
from pml_ext.runner.engine.run_outputs import write_threshold
from pml_ext.thresholds import ThresholdReport
from tests.runner.data.published_layouts import encoded_image

PEOPLE = ["ben", "anna", "anna", "ben", "carl", "carl"]


@pytest.fixture
def people(tmp_path):
    """A table whose gallery has somebody that no query looks for."""
    rows = ["path,identity,camera,split"]
    for i, (name, split) in enumerate(zip(PEOPLE, ["query", "query", *["gallery"] * 4], strict=True)):
        (tmp_path / f"{i}.png").write_bytes(encoded_image(40 * i, "PNG"))
        rows.append(f"{i}.png,{name},{i},{split}")
    (tmp_path / "people.csv").write_text("\n".join(rows))
    data = load("file:people.csv", tmp_path, False)
    assert isinstance(data, OpenSet)
    return data


def test_the_page_has_the_users_names_and_the_images(people, tmp_path):
    features = [torch.eye(4)[:2], torch.tensor([[0.2, 1.0, 0, 0], [1.0, 0.1, 0, 0], [0, 0, 1.0, 0], [0, 0.1, 1.0, 0]])]
    weights = tmp_path / "last.ckpt"
    weights.write_bytes(b"")
    names = {identity: name.replace("anna", "none") for identity, name in people.query.identity_names.items()}
    people = OpenSet(*(replace(part, identity_names=names) for part in (people.train, *people.parts)))
    options = {"opis": OPISSettings(), "weights": weights}
    files = write_threshold(tmp_path / "threshold_p", people, features, far=0.5, **options)
    page = files[1].read_text()
    for shown in ("none", "ben", "row 3", "0.png"):  # a class folder may be named none
        assert shown in page
    assert "carl" not in page and "row 4" not in page, "nobody looks for carl"
    images = page.split("Most similar samples of different classes")[1].split("data:image/jpeg;base64,")[1:]
    assert len(images) == 2 * (4 + 2), "four pairs of two people, two of one"
    Image.open(BytesIO(b64decode(images[0].split('"')[0]))).verify()
    assert write_threshold(tmp_path / "threshold_p", people, features, far=1e-9, **options) == []
    assert not any(file.exists() for file in files), "they are of another FAR"


DIGITS_RUN = "Digits/sap_tcm.yml"


def run(output, *opts):
    quick = ["SOLVER.MAX_EPOCH", "1", "TEST.EVAL_PERIOD", "1", "SOLVER.CHECKPOINT_PERIOD", "1", "MODEL.DEVICE", "cpu"]
    opts = ("OUTPUT_DIR", str(output), *quick, "TEST.THRESHOLD.ENABLED", "True", *opts)
    return main(["train", DIGITS_RUN, *opts])


def test_a_run_leaves_the_report_of_its_checkpoint(trained):
    best = trained / "checkpoints" / "best.ckpt"
    found = ThresholdReport.load(trained / "threshold_Digits.json", checkpoint=best)
    assert (found.target.value, found.samples, [c.label for c in found.classes]) == (0.01, 896, [5, 6, 7, 8, 9])
    assert 0.009 < found.far.rate <= 0.01
    assert found.consistency is not None
    results = json.loads((trained / "metrics.json").read_text())["results"]
    assert found.consistency.opis == pytest.approx(results["Digits"]["opis"], rel=1e-4)
    shown = (trained / "train.log").read_text()
    assert all(f"threshold_Digits.{kind}" in shown for kind in ("json", "html", "png"))


def test_a_run_that_cannot_have_its_report_has_a_warning(tmp_path, capfd):
    assert run(tmp_path, "TEST.THRESHOLD.FAR", "1e-9") == 0
    assert "no report threshold_Digits: FAR 1e-09 needs at least 1000000000 impostor pairs" in capfd.readouterr().err
    assert (tmp_path / "metrics.json").is_file() and not list(tmp_path.glob("threshold_*"))
