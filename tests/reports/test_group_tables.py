from pathlib import Path

import torch

from pml_ext.metrics import ThresholdReport
from pml_ext.reports.threshold_page import tables_by_group
from pml_ext.reports.wording import with_interval

LABELS = torch.arange(60).repeat_interleave(4)


def report(groups: list[str] | None) -> ThresholdReport:
    generator = torch.Generator().manual_seed(0)
    noise = torch.where(LABELS % 2 == 0, 0.4, 0.9)[:, None] * torch.randn(240, 8, generator=generator)
    x = torch.randn(60, 8, generator=generator)[LABELS] + noise
    return ThresholdReport.from_embeddings(x, LABELS, far=0.05, splits=0, groups=groups)


def test_rates_by_group_and_by_pair_of_groups(tmp_path: Path) -> None:
    found = report([("<Oslo>", "Rome")[label % 2] for label in LABELS.tolist()])
    assert found.groups is not None
    (heads, rows), (_, of_pairs) = tables_by_group(found)
    for row, group in zip(rows, found.groups.groups, strict=True):
        cells = dict(zip(heads, row, strict=True))
        assert (cells["group"], cells["samples"], cells["identities"]) == (group.label, "120", "30")
        assert group.far is not None and cells["FAR"] == with_interval(group.far)
        assert group.frr is not None and cells["FRR"] == with_interval(group.frr)
        ratio = next(r for r in found.groups.frr_ratios if r.one == group.label and r.to is None)
        assert cells["FRR to the mean"].startswith(f"{ratio.value:.3g} × (")
    between = found.groups.between[0].far
    assert between is not None and of_pairs == [["<Oslo>", "Rome", with_interval(between)]]
    found.save_page(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert '<td data-name="group">&lt;Oslo&gt;</td>' in text and "<Oslo>" not in text


def test_a_group_of_few_pairs_has_no_rate() -> None:
    names = ["many"] * 236 + ["few"] * 4
    rows = {row[0]: row for row in tables_by_group(report(names))[0][1]}
    assert rows["few"][3].startswith("too few pairs: 0 of ") and rows["few"][4] == "–"
    assert tables_by_group(report(None)) == []
