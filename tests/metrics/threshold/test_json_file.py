"""Files that were damaged or edited after they were written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pml_ext.metrics import ThresholdReport
from pml_ext.metrics.threshold import json_file

LABELS = torch.arange(12).repeat_interleave(5)
CAMERAS = (torch.arange(60) % 5) // 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 6, generator=generator)[LABELS] + 0.5 * torch.randn(60, 6, generator=generator)
    path = tmp_path_factory.mktemp("report") / "r.json"
    ThresholdReport.from_embeddings(x, LABELS, far=0.05, splits=3, cameras=CAMERAS, data="a set").save(path)
    return path


def changed(saved: Path, change: Any, tmp_path: Path, sign: bool = True) -> Path:
    content = json.loads(saved.read_text())
    change(content)
    if sign:
        content["checksum"] = json_file._checksum(content)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(content))
    return path


def test_layout_does_not_matter(saved: Path, tmp_path: Path) -> None:
    assert ThresholdReport.load(changed(saved, lambda c: None, tmp_path, sign=False)) == ThresholdReport.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["far"].update(low=0.0),
        lambda c: c["frr"].update(high=1.0),
        lambda c: c["consistency"].update(opis=c["consistency"]["opis"] / 2),
        lambda c: c["stability"].update(mean_shift=0.0),
        lambda c: c.update(data="another set"),
        lambda c: c.update(made="2020-01-01T00:00:00+00:00"),
        lambda c: c.update(embedding_dim=c["embedding_dim"] + 1),
        lambda c: c["threshold"].update(cosine=0.5, distance=1.0),
        lambda c: c.update(checkpoint={"file": "a", "sha256": "0" * 64}),
        lambda c: c["alternatives"][0].update(cosine=0.9),
        lambda c: c.update(checksum="0" * 64),
    ],
)
def test_a_number_that_was_changed_does_not_go_with_the_checksum(change: Any, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"was changed after it was written: its checksum is another"):
        ThresholdReport.load(changed(saved, change, tmp_path, sign=False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["classes"][3].update(false_accepts=c["classes"][3]["false_accepts"] + 2), "contradicts itself"),
        (lambda c: c["far"].update(errors=c["far"]["errors"] - 1), "contradicts itself in far"),
        (lambda c: c.update(samples=61), "contradicts itself in samples"),
        (lambda c: c["classes"][0].update(label=1), "contradicts itself in"),
        (lambda c: c["classes"][0].update(label="a"), "contradicts itself in"),
        (lambda c: c["target"].update(value=1e-4), "contradicts itself in target"),
        (lambda c: c["cameras"].update(same_camera_pairs=True), "contradicts itself in"),
        (lambda c: c["cameras"].update(within=None), "contradicts itself in cameras"),
        (lambda c: c["alternatives"][0].update(target=1e-9), "contradicts itself in alternatives"),
        (lambda c: c["consistency"].update(opis=1e308), r"Expected `float` <= 1.0 - at `\$.consistency.opis"),
        (lambda c: c["consistency"].update(opis=10**400), r"Number out of range - at `\$.consistency.opis"),
        (lambda c: c["consistency"].update(far_range=[0.1, 0.01]), "contradicts itself in consistency"),
        (
            lambda c: c["stability"].update(mean_shift=3.0, max_shift=4.0),
            r"Expected `float` <= 2.0 - at `\$.stability.mean_shift",
        ),
        (lambda c: c["alternatives"][0].update(opis=-1.0), r"Expected `float` >= 0.0 - at `\$.alternatives\[0\].opis"),
        (lambda c: c.update(samples=10**400), "contradicts itself in samples"),
        (lambda c: c["cameras"].update(same_camera_pairs=1), "Expected `bool`, got `int`"),
        (lambda c: c.update(checksum="x"), "its checksum is another"),
        (lambda c: c.pop("checksum"), "has no 'checksum'"),
    ],
)
def test_what_contradicts_itself_is_refused_with_any_checksum(
    change: Any, message: str, saved: Path, tmp_path: Path
) -> None:
    sign = "checksum" not in message
    with pytest.raises(ValueError, match=message) as error:
        ThresholdReport.load(changed(saved, change, tmp_path, sign=sign))
    assert len(str(error.value)) < 600


def test_a_name_that_is_there_twice_is_refused(saved: Path, tmp_path: Path) -> None:
    text = saved.read_text()
    for name in ("cosine", "errors", "format"):
        path = tmp_path / "twice.json"
        path.write_text(text.replace(f'"{name}":', f'"{name}": 0, "{name}":', 1))
        with pytest.raises(ValueError, match=rf"not readable as JSON \('{name}' is there twice\)"):
            ThresholdReport.load(path)


def test_long_numbers_are_one_error(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text(saved.read_text().replace('"samples": 60', '"samples": 1' + "0" * 6000))
    with pytest.raises(ValueError, match="not readable as JSON"):
        ThresholdReport.load(path)
