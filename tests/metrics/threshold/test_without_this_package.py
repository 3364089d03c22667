"""threshold.json for other programs: its schema, and a dozen lines of NumPy that decide as `accept` does."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pml_ext.metrics import CohortNormalization, ThresholdReport

EXAMPLES = Path(__file__).parents[3] / "examples"
LABELS = torch.arange(400) % 100
# Nothing is crowded here, so there is nothing to agree on.
pytestmark = pytest.mark.filterwarnings("ignore:the cohort is of another kind")


def example(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def embeddings(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    people = torch.randn(100, 12, generator=generator)
    return people[LABELS] + 0.6 * torch.randn(400, 12, generator=generator)


def reports() -> dict[str, ThresholdReport]:
    fitted = CohortNormalization.fit(embeddings(1), 20, 0.9)
    of: dict[str, dict[str, Any]] = {
        "plain": {"far": 0.01, "splits": 2},
        "searches": {"fpir": 0.2, "gallery_size": 50, "extrapolate": True, "cameras": torch.arange(400) // 200},
        "groups": {"far": 0.01, "groups": LABELS % 3, "data": "a set"},
        "normalised": {"far": 0.01, "normalize": fitted},
    }
    return {name: ThresholdReport.from_embeddings(embeddings(0), LABELS, **given) for name, given in of.items()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    for name, report in reports().items():
        report.save(folder / f"{name}.json")
    return folder


def test_the_schema_in_the_repository_is_that_of_the_fields() -> None:
    assert json.loads((EXAMPLES / "threshold.schema.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(example("threshold_schema").threshold_schema())
    )


def test_every_report_fits_the_schema_and_a_damaged_one_does_not(saved: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((EXAMPLES / "threshold.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    for file in saved.glob("*.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        assert not list(validator.iter_errors(content)), file.name
        assert list(validator.iter_errors(content | {"samples": "many"}))
        assert list(validator.iter_errors(content | {"another": 1}))
        del content["threshold"]["cosine"]
        assert list(validator.iter_errors(content))


@pytest.mark.parametrize("name", ["plain", "normalised"])
def test_numpy_decides_as_accept_does(name: str, saved: Path) -> None:
    report = ThresholdReport.load(saved / f"{name}.json")
    fitted = CohortNormalization.fit(embeddings(1), 20, 0.9) if name == "normalised" else None
    a = embeddings(0)[torch.arange(400).repeat_interleave(20)]
    b = embeddings(0)[torch.randperm(400, generator=torch.Generator().manual_seed(0)).repeat(20)]
    same = torch.cat([b[: len(b) // 2], a[len(a) // 2 :].roll(100, 0)])
    expected = report.accept_pairs(a, same, normalization=fitted)
    cohort = None if fitted is None else embeddings(1).numpy()
    found = example("decide_with_numpy").decide(str(saved / f"{name}.json"), a.numpy(), same.numpy(), cohort)
    assert found.tolist() == expected.tolist() and 0 < int(found.sum()) < len(found)
    assert "torch" not in (EXAMPLES / "decide_with_numpy.py").read_text(encoding="utf-8").split('"""')[2]
