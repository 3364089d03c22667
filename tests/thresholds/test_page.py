import html
import json
import re

import pytest
import torch
from PIL import Image

from pml_ext._shared.errors import UserError
from pml_ext.thresholds import SampleSource, SearchPlan, ThresholdReport
from pml_ext.thresholds.page import group_tables
from pml_ext.thresholds.text import as_counts, meaning, percent, with_interval

pytestmark = pytest.mark.usefixtures("blank_figures")
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


def test_the_page_replaces_pages_only(tmp_path):
    found, page = report(), tmp_path / "notes.html"
    page.write_text("my notes", encoding="utf-8")
    with pytest.raises(UserError, match=r"notes\.html is there, and is no page of pml_ext"):
        found.save_page(page)
    assert page.read_text(encoding="utf-8") == "my notes"
    saved_page(found, tmp_path)
    saved_page(found, tmp_path)


def test_the_page_begins_with_the_sentence(tmp_path):
    found = report()
    text = saved_page(found, tmp_path)
    assert text.index(meaning(found)) < text.index("<table")


def test_a_page_about_searches_begins_with_searches(tmp_path):
    points, labels = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 20
    for options in ({"search": SearchPlan(15, fpir=0.3)}, {"far": 0.1, "search": SearchPlan(15)}):
        found = ThresholdReport.from_embeddings(points, labels, **options)
        found.save_page(tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text(encoding="utf-8")
        searches, pairs = text.index("Searches by gallery size"), text.index("at the threshold</th>")
        assert (searches < pairs) == ("far" not in options)
        assert ("A search returns a match if its" in text) == ("far" not in options)
        assert "Enrolled images of the searched identity: 2 (median)." in text


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


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
FIXED = {
    "95",
    "2",
    "1",
    "0",
    "5",
    "50",
    "20",
    "10",
}  # 95 % intervals, L2, utility from 0 to 1, limits of rejected classes


def numbers_of(value):
    """All numbers of a JSON file, as a page may write them."""
    if isinstance(value, dict):
        parts = [numbers_of(one) for one in value.values()]
        if {"rate", "pairs"} <= value.keys():
            _, total = counts = as_counts(value["rate"], value["pairs"])
            parts.append({f"{count:,}" for count in counts})
            parts.append({f"{float(f'{total * value[end]:.2g}'):,g}" for end in ("low", "high")})
        return set().union(*parts)
    if isinstance(value, list):
        return set().union({f"{len(value):,}", str(len(value))}, *map(numbers_of, value))
    if isinstance(value, bool) or value is None:
        return set()
    if isinstance(value, str):
        return set(NUMBER.findall(value))
    forms = [
        f"{value:,.0f}",
        f"{value:.4f}",
        f"{value:.3f}",
        f"{value:.3g}",
        f"{value:.4g}",
        f"{value:.3e}",
        f"{value:g}",
    ]
    return set().union(*(NUMBER.findall(form) for form in [*forms, str(value), percent(value)]))


def test_every_number_of_the_page_is_in_the_file(tmp_path):
    names = [("<Oslo>", "Rome")[label % 2] for label in PEOPLE.tolist()]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, generator=generator)[PEOPLE] + 0.6 * torch.randn(240, 8, generator=generator)
    cameras = torch.arange(240) % 2
    source = SampleSource(data="val.npz")
    found = ThresholdReport.from_embeddings(
        x, PEOPLE, far=0.02, confidence=0.9, groups=names, cameras=cameras, search=SearchPlan(20), source=source
    )
    found.save(tmp_path / "r.json")
    text = saved_page(found, tmp_path)
    shown = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL))
    content = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    rejected = sum((one["frr"] or 0) > 0.5 for one in content["classes"])
    derived = {str(rejected), percent(1 - content["target"]["confidence"]).split()[0]}
    derived |= {f"{abs(1 - distance**2 / 2):.4f}" for distance in content["consistency"]["distances"]}
    assert set(NUMBER.findall(shown)) - numbers_of(content) - FIXED - derived == set()


def test_the_page_shows_both_rates_with_their_intervals_and_counts(tmp_path):
    found = report()
    text = saved_page(found, tmp_path)
    for rate in (found.far, found.frr):
        cells = (
            percent(rate.rate),
            f"{percent(rate.low)} to {percent(rate.high)}",
            f"{rate.errors:,}",
            f"{rate.pairs:,}",
        )
        assert re.search(r"<td[^>]*>" + r"</td><td[^>]*>".join(map(re.escape, cells)) + "</td>", text)
    assert f"OPIS {found.consistency.opis:.3e}" in text and text.index("OPIS ") > text.index("Other thresholds")
    assert len(found.points) == 6 and [point.cosine for point in found.points] == sorted(
        (point.cosine for point in found.points), reverse=True
    )
    for point in found.points:
        assert f"{point.cosine:.4f}" in text and point.far.errors >= 1
