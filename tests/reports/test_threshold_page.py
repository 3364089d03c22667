import torch
from PIL import Image

from pml_ext.metrics import SampleSource, ThresholdReport
from pml_ext.reports.threshold_page import group_tables
from pml_ext.reports.threshold_text import meaning, with_interval

LABELS = torch.arange(20).repeat_interleave(6)
PEOPLE = torch.arange(60).repeat_interleave(4)


def embeddings():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 6, generator=generator)[LABELS] + 0.6 * torch.randn(120, 6, generator=generator)


def report(**options):
    return ThresholdReport.from_embeddings(embeddings(), LABELS, **{"far": 1e-2, **options})


def saved_page(found, folder):
    found.save_page(folder / "r.html")
    return (folder / "r.html").read_text(encoding="utf-8")


def test_the_page_begins_with_the_sentence(tmp_path):
    found = report()
    text = saved_page(found, tmp_path)
    assert text.index(meaning(found)) < text.index("<table")


def test_the_worst_pairs_are_shown_with_their_images_and_rows(tmp_path):
    paths: list[str | None] = []
    for i in range(120):
        path = tmp_path / f"{i}.png"
        Image.new("L", (20, 20), i).save(path)
        paths.append(str(path) if i % 3 else None)
    found = report(source=SampleSource([5000 + i for i in range(120)], paths))
    text = saved_page(found, tmp_path)
    worst = found.worst_pairs
    assert worst is not None
    samples = [s for pair in (*worst.impostors, *worst.genuine) for s in (pair.one, pair.other)]
    assert len(samples) == 24
    assert text.count("data:image/jpeg;base64,") == sum(sample.path is not None for sample in samples)
    names = [(f'title="{sample.label}"', f'title="row {sample.row}"') for sample in samples]
    assert all(label in text and row in text for label, row in names)
    assert text.count(">✗ wrongly accepted<") == sum(pair.cosine >= found.cosine for pair in worst.impostors) > 0
    assert text.count(">✗ wrongly rejected<") == sum(pair.cosine < found.cosine for pair in worst.genuine) > 0


def report_by(groups):
    generator = torch.Generator().manual_seed(0)
    noise = torch.where(PEOPLE % 2 == 0, 0.4, 0.9)[:, None] * torch.randn(240, 8, generator=generator)
    x = torch.randn(60, 8, generator=generator)[PEOPLE] + noise
    return ThresholdReport.from_embeddings(x, PEOPLE, far=0.05, groups=groups)


def test_rates_by_group_and_by_pair_of_groups(tmp_path):
    found = report_by([("<Oslo>", "Rome")[label % 2] for label in PEOPLE.tolist()])
    assert found.groups is not None
    (heads, rows), (_, of_pairs) = group_tables(found)
    for row, group in zip(rows, found.groups.groups, strict=True):
        cells = dict(zip(heads, row, strict=True))
        assert (cells["group"], cells["samples"], cells["identities"]) == (group.label, "120", "30")
        assert group.far is not None and cells["wrongly accepted"] == with_interval(group.far)
        assert group.frr is not None and cells["wrongly rejected"] == with_interval(group.frr)
    between = found.groups.between[0].far
    assert between is not None and of_pairs == [["<Oslo>", "Rome", with_interval(between)]]
    found.save_page(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert '<td data-name="group">&lt;Oslo&gt;</td>' in text and "<Oslo>" not in text
    assert f"The rate of false rejects of {found.groups.frr_ratios[0].one} is" in text.replace("&lt;Oslo&gt;", "<Oslo>")


def test_a_group_of_few_pairs_has_no_rate():
    names = ["many"] * 236 + ["few"] * 4
    rows = {row[0]: row for row in group_tables(report_by(names))[0][1]}
    assert rows["few"][3].startswith("too few pairs: 0 of ")
    assert group_tables(report_by(None)) == []
