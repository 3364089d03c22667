"""The curves that a run keeps, and several runs in one figure."""

import numpy as np
import pytest
import torch

from pml_ext._shared.errors import UserError
from pml_ext.metrics.opis_settings import OPISSettings
from pml_ext.runner.report.curves import compared_curves, curves_file, read_curves
from pml_ext.runner.report.run_page import _curves_of_set, _threshold_figures
from tests.oracles import metrics as oracle
from tests.runner.report.small_set import overhang, small_set
from tests.runner.report.test_comparison import run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of the small set: as it is, and with more noise."""
    data, features = small_set()
    noisy = [f + 0.3 * torch.randn_like(f) for f in features]
    folders = {}
    for name, embeddings in {"first": features, "_second $": noisy}.items():
        folders[name] = run(tmp_path_factory.mktemp("runs") / name, 0.5, "0.1")
        curves = _curves_of_set(data, embeddings, OPISSettings())
        _threshold_figures(curves_file(folders[name], "Set"), data, embeddings, curves, 1e-2)
    return folders


def test_the_rates_and_utilities_are_those_of_loops_over_all_pairs(runs):
    kept = read_curves(curves_file(runs["first"], "Set"))
    data, features = small_set()
    labels = np.concatenate([part.identities for part in data.parts])
    pairs = oracle.all_pairs(torch.cat(features).double().numpy()[labels >= 0].tolist(), labels[labels >= 0].tolist())
    genuine = [distance for distance, a, b in pairs if a == b]
    impostor = [distance for distance, a, b in pairs if a != b]
    assert kept.impostors == len(impostor)
    points = zip(kept.fars, kept.tars, strict=True)
    first = len(kept.distances) - len(kept.fars)
    for distance, point in zip(kept.distances[first:], points, strict=True):
        expected = [np.mean(np.array(kind) <= distance) for kind in (impostor, genuine)]
        assert point == pytest.approx(tuple(expected), abs=2e-3)
    steps = (100, 200, 300)
    of_classes = oracle.rates(pairs, [kept.distances[step] for step in steps]).values()
    for place, step in enumerate(steps):
        utilities = [oracle.harmonic(tpr[place], tnr[place]) for tpr, tnr in of_classes]
        assert [row[step] for row in kept.utilities] == pytest.approx(np.quantile(utilities, (0.1, 0.5, 0.9)), abs=5e-3)


def test_one_figure_has_the_lines_of_all_runs(runs):
    (figure,) = compared_curves("Set", runs)
    assert overhang(figure) < 0.01
    utility, det = (panel.axes[0] for panel in figure.panel_figures)
    for place, folder in enumerate(runs.values()):
        kept = read_curves(curves_file(folder, "Set"))
        np.testing.assert_array_equal(
            utility.lines[place].get_xydata().T, [1 - np.square(kept.distances) / 2, kept.utilities[1]]
        )
        np.testing.assert_array_equal(det.lines[place].get_xydata().T, [kept.fars, 1 - np.array(kept.tars)])
    assert len(utility.collections) == 2, "a band for each"


def test_a_run_without_curves_is_named(runs, tmp_path):
    other = run(tmp_path / "other", 0.5, "0.1")
    with pytest.raises(ValueError, match=r"^other: no curves_Set\.json, which a run with TEST.REPORT writes"):
        compared_curves("Set", {**runs, "other": other})


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_damaged_file_is_refused(content, tmp_path):
    (tmp_path / "curves_Set.json").write_text(content)
    with pytest.raises(UserError, match=r"curves_Set\.json is not a file that a run writes"):
        read_curves(tmp_path / "curves_Set.json")
