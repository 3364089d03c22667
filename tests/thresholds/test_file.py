"""threshold.json: read again, damaged, of an earlier version, and read by other programs."""

import json
import runpy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch

from pml_ext.metrics import CohortNormalization
from pml_ext.thresholds import SampleSource, SearchPlan, ThresholdReport
from pml_ext.thresholds.file import _checksum

EXAMPLES = Path(__file__).parents[2] / "examples"
MANY = torch.arange(400) % 100


@pytest.mark.parametrize(
    ("change", "is_signed", "message"),
    [
        (lambda c: c["far"].update(low=0.0), False, "it was modified after it was saved"),
        (lambda c: c.pop("checksum"), False, "it was modified after it was saved"),
        (lambda c: c.pop("far"), True, "Object missing required field `far`"),
        (lambda c: c["classes"][2].update(samples=1.5), True, r"Expected `int`, got `float` - at `\$.classes\[2\]"),
        (lambda c: c["consistency"].update(opis=1e308), True, r"Expected `float` <= 1.0 - at `\$.consistency.opis"),
        (lambda c: c["threshold"].update(cosine=1.5), True, "Expected `float` <= 1.0"),
        (lambda c: c.update(format="report 9"), True, "expected the format .* 4., got 'report 9'. Create it again"),
    ],
)
def test_changed_reports_are_refused(change, is_signed, message, of_each_kind, tmp_path):
    content = json.loads((of_each_kind / "plain.json").read_text(encoding="utf-8"))
    change(content)
    if is_signed:
        content["checksum"] = _checksum(content)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"c\.json is not a threshold report: " + message):
        ThresholdReport.load(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x02pickle", b"[1]", b"[" * 100_000, b'{"format": 1e999}', "cut"])
def test_other_files_are_refused(content, of_each_kind, tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes((of_each_kind / "plain.json").read_bytes()[:-50] if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=r"r\.json is not a threshold report: "):
        ThresholdReport.load(path)
    with pytest.raises(FileNotFoundError):
        ThresholdReport.load(tmp_path / "none.json")


def example(name):
    path = EXAMPLES / f"{name}.py"
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def embeddings(seed):
    generator = torch.Generator().manual_seed(seed)
    people = torch.randn(100, 12, generator=generator)
    return people[MANY] + 0.6 * torch.randn(400, 12, generator=generator)


def reports():
    fitted = CohortNormalization.fit(embeddings(1), 20, 0.9)
    of = {
        "plain": {"far": 0.01},
        "searches": {"search": SearchPlan(50, 0.2), "cameras": torch.arange(400) // 200},
        "groups": {"far": 0.01, "groups": MANY % 3, "source": SampleSource(data="a set")},
        "normalised": {"far": 0.01, "normalize": fitted},
    }
    return {name: ThresholdReport.from_embeddings(embeddings(0), MANY, **given) for name, given in of.items()}


@pytest.fixture(scope="module")
def of_each_kind(tmp_path_factory):
    """A folder with a report of each kind, which the file gives back as it was."""
    folder = tmp_path_factory.mktemp("reports")
    for name, report in reports().items():
        report.save(folder / f"{name}.json")
        assert ThresholdReport.load(folder / f"{name}.json") == report
    return folder


def test_the_schema_in_the_repository_is_that_of_the_fields():
    assert json.loads((EXAMPLES / "tools" / "threshold.schema.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(example("tools/threshold_schema").threshold_schema())
    )


def test_every_report_fits_the_schema_and_a_damaged_one_does_not(of_each_kind):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((EXAMPLES / "tools" / "threshold.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    for file in of_each_kind.glob("*.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        assert not list(validator.iter_errors(content)), file.name
        assert list(validator.iter_errors(content | {"samples": "many"}))
        assert list(validator.iter_errors(content | {"another": 1}))
        del content["threshold"]["cosine"]
        assert list(validator.iter_errors(content))


@pytest.mark.parametrize(
    ("name", "labels"), [("plain", None), ("normalised", None), ("normalised", [f"other {i}" for i in MANY.tolist()])]
)
def test_numpy_decides_as_accept_does(name, labels, tmp_path):
    x, fitted, cohort_file = embeddings(0), None, None
    a, b = torch.triu_indices(400, 400, 1)[:, ::7]
    if name == "normalised":
        fitted, cohort_file = CohortNormalization.fit(embeddings(1), 20, 0.9, labels=labels), tmp_path / "cohort.npz"
        fitted.save(cohort_file)
    report = ThresholdReport.from_embeddings(x, MANY, far=0.01, normalize=fitted)
    report.save(tmp_path / "threshold.json")
    expected = report.accept_pairs(x[a], x[b], normalization=fitted)
    arguments = (tmp_path / "threshold.json", x[a].numpy(), x[b].numpy(), cohort_file)
    found = example("scripts/decide_with_numpy").decide(*arguments)
    assert found.tolist() == expected.tolist() and 0 < int(found.sum()) < len(found)
    assert "torch" not in (EXAMPLES / "scripts" / "decide_with_numpy.py").read_text(encoding="utf-8").split('"""')[2]


def test_the_numpy_script_prints_its_decisions(of_each_kind, tmp_path, monkeypatch, capsys):
    script, report = EXAMPLES / "scripts" / "decide_with_numpy.py", of_each_kind / "plain.json"
    rows = {"a": embeddings(0)[:5].numpy(), "b": embeddings(0)[100:105].numpy()}
    files = []
    for name, values in rows.items():
        files.append(str(tmp_path / f"{name}.npy"))
        np.save(files[-1], values)
    monkeypatch.setattr("sys.argv", [str(script), str(report), *files])
    runpy.run_path(str(script), run_name="__main__")
    expected = ThresholdReport.load(report).accept_pairs(rows["a"], rows["b"]).tolist()
    assert capsys.readouterr().out.split() == [str(accepted) for accepted in expected]
    monkeypatch.setattr("sys.argv", [str(script)])
    with pytest.raises(SystemExit, match=r"usage: python decide_with_numpy.py threshold.json a.npy b.npy"):
        runpy.run_path(str(script), run_name="__main__")


def test_numpy_refuses_other_files_and_embeddings_and_decides_in_blocks(of_each_kind, monkeypatch, tmp_path):
    module, rows = example("scripts/decide_with_numpy"), embeddings(0).numpy()
    plain = of_each_kind / "plain.json"
    content = json.loads(plain.read_text(encoding="utf-8"))
    for change, message in (
        ({"samples": 3}, "was modified after it was saved"),
        ({"format": "pml_ext threshold report 2"}, "must have the format .* 4'; got .* 2'. Create it"),
    ):
        (tmp_path / "t.json").write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=message):
            module.decide(tmp_path / "t.json", rows, rows)
    for wrong in (rows[:, :6], rows[:7], rows[0]):
        with pytest.raises(ValueError, match=r"a and b must both have shape \(P, 12\)"):
            module.decide(plain, rows, wrong)
    for value in (np.nan, np.inf, 0.0):
        damaged = rows.copy()
        damaged[3] = value
        with pytest.raises(ValueError, match="b must be finite, without rows of zeros"):
            module.decide(plain, rows, damaged)
    CohortNormalization.fit(embeddings(1), 20, 0.9).save(tmp_path / "cohort.npz")
    arguments = of_each_kind / "normalised.json", rows, rows[::-1], tmp_path / "cohort.npz"
    at_once = module.decide(*arguments)
    monkeypatch.setattr(module, "ENTRIES", 2000)
    assert (module.decide(*arguments) == at_once).all()
    assert module.decide(plain, 1e-200 * rows.astype(np.float64), 1e200 * rows.astype(np.float64)).all()


def test_numpy_refuses_a_missing_another_and_a_modified_cohort(of_each_kind, tmp_path):
    decide, rows = example("scripts/decide_with_numpy").decide, embeddings(0)[:2].numpy()
    own, path = CohortNormalization.fit(embeddings(1), 20, 0.9), tmp_path / "cohort.npz"
    own.save(path)
    assert len(decide(of_each_kind / "normalised.json", rows, rows, path)) == 2
    for name, given in (("normalised", None), ("plain", path)):
        with pytest.raises(ValueError, match="cohort_file must be given for a report on normalised scores, and for no"):
            decide(of_each_kind / f"{name}.json", rows, rows, given)
    with pytest.raises(FileNotFoundError):
        decide(of_each_kind / "normalised.json", rows, rows, tmp_path / "none.npz")
    with np.load(path) as file:
        arrays = dict(file)
    arrays["cohort"][0] = arrays["cohort"][1]
    np.savez(tmp_path / "edited.npz", **arrays)
    CohortNormalization.fit(embeddings(2), 20, 0.9).save(tmp_path / "another.npz")
    CohortNormalization.fit(embeddings(1), 20, 0.9, labels=MANY).save(tmp_path / "labelled.npz")
    for name in ("edited", "another", "labelled"):
        with pytest.raises(ValueError, match="is not the report's cohort, or was modified: its SHA-256 must be"):
            decide(of_each_kind / "normalised.json", rows, rows, tmp_path / f"{name}.npz")
