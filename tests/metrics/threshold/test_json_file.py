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


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["far"].update(low=0.0),
        lambda c: c["threshold"].update(cosine=0.5, distance=1.0),
        lambda c: c.update(checkpoint={"file": "a", "sha256": "0" * 64}),
        lambda c: c.update(checksum="0" * 64),
        lambda c: c.pop("checksum"),
    ],
)
def test_a_number_that_was_changed_does_not_go_with_the_checksum(change: Any, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="changed after it was written, as its checksum shows"):
        ThresholdReport.load(changed(saved, change, tmp_path, sign=False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("far"), "Object missing required field `far`"),
        (lambda c: c["classes"][2].update(samples=1.5), r"Expected `int`, got `float` - at `\$.classes\[2\].samples"),
        (lambda c: c["consistency"].update(opis=1e308), r"Expected `float` <= 1.0 - at `\$.consistency.opis"),
        (lambda c: c["threshold"].update(cosine=1.5), "Expected `float` <= 1.0"),
        (lambda c: c.update(format="pml_ext threshold report 9"), "expected the format .* 2., got 'pml_ext .* 9'"),
    ],
)
def test_a_report_of_another_version_is_refused(change: Any, message: str, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"c\.json is not a threshold report: " + message):
        ThresholdReport.load(changed(saved, change, tmp_path))


@pytest.mark.parametrize("content", [b"", b"\x80\x02pickle", b"[1]", b"[" * 100_000, b'{"format": 1e999}', "cut"])
def test_other_files_are_refused(content: bytes | str, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(saved.read_bytes()[:-50] if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=r"r\.json is not a threshold report: "):
        ThresholdReport.load(path)
    with pytest.raises(FileNotFoundError):
        ThresholdReport.load(tmp_path / "none.json")
