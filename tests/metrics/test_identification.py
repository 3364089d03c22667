"""IJB's 1:N protocol against loops over templates, probe by probe."""

import math

import pytest
import torch
from pytest import approx

from pml_ext.metrics import (
    IdentificationEvaluator,
    SearchProtocol,
    StreamingVerification,
    TemplateSubjects,
)
from tests.oracles import metrics as oracle
from tests.oracles.verification import cosine
from tests.refusals import refusals

FPIRS, RANKS = (0.2, 0.1, 0.01), (1, 2, 5)
IDS = torch.arange(70)
BLOCKS = (1, 7, 30, 22)


def protocol(several=False):
    """Templates 0 to 9 are gallery 1 and 10 to 19 gallery 2, of a subject each or of two templates; the rest probes."""
    subjects = torch.cat([(IDS[:20] // 2 if several else IDS[:20]) + 100, torch.arange(50) % 25 + 98])
    parts = (TemplateSubjects(IDS[of], subjects[of]) for of in (slice(20, None), slice(10), slice(10, 20)))
    probes, *galleries = parts
    return SearchProtocol(probes, tuple(galleries))


def faces():
    generator = torch.Generator().manual_seed(0)
    people = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    of = torch.cat([IDS[:20] + 2, torch.arange(50) % 25])
    x = people[of] + 0.5 * torch.randn(70, 4, generator=generator, dtype=torch.float64)
    x[30] = x[31]  # ties
    return x


def rates_by_loops(x, of, gallery, cameras=None):
    enrolled = list(zip(*(column.tolist() for column in of.galleries[gallery]), strict=True))
    mated, others = [], []
    for probe, subject in zip(*(column.tolist() for column in of.probes), strict=True):
        best = {}
        for template, owner in enrolled:
            if cameras and owner == subject and cameras[template] == cameras[probe]:
                continue
            best[owner] = max(best.get(owner, -2.0), cosine(x[probe], x[template]))
        if subject in best:
            own = best.pop(subject)
            mated.append((own, 1 + sum(score >= own for score in best.values())))
        else:
            others.append(max(best.values()))
    found = {f"rank_{r}": sum(place <= r for _, place in mated) / len(mated) for r in RANKS}
    for fpir in FPIRS:
        allowed = [
            t for t in [*others, *(own for own, _ in mated)] if sum(o >= t for o in others) <= fpir * len(others)
        ]
        rate = sum(own >= min(allowed, default=2.0) and place == 1 for own, place in mated) / len(mated)
        found[f"tpir_at_fpir_{fpir:.0e}".replace("e-0", "e-")] = rate if fpir * len(others) >= 1 else math.nan
    return found


@pytest.mark.parametrize("several", [False, True])
def test_rates_equal_loops_over_two_galleries(several):
    x, of = faces(), protocol(several)
    found = IdentificationEvaluator(FPIRS, RANKS).of_templates(x, IDS, IDS, of)
    one, other = (rates_by_loops(x.tolist(), of, gallery) for gallery in (0, 1))
    assert one != other and 0 < one["rank_1"] < 1 and 0 < one["tpir_at_fpir_2e-1"] < one["rank_1"]
    expected = {name: (one[name] + other[name]) / 2 for name in one}
    assert {name: found[name] for name in expected} == approx(expected, abs=1e-12, nan_ok=True)
    assert math.isnan(found["tpir_at_fpir_1e-2"]), "one false positive would be more than 1 %"
    assert found["mated"] + found["non_mated"] == 2 * 50


@pytest.mark.parametrize(("farther", "first"), [(0.0, 0), (3e-7, 0), (3e-6, 1)])
def test_cosines_within_a_millionth_tie(farther, first):
    """Another subject ranks first, or an unknown probe is refused with the match, if it is farther by rounding only."""
    angles = torch.tensor([0.0, 1.0, 1.0 + farther, 3.0, 2.0 + farther], dtype=torch.float64)
    x = torch.stack([angles.cos(), angles.sin()], dim=1)
    ranks = IdentificationEvaluator((), (1,)).of_blocks(x[:1], IDS[:1], [(x[1:4], IDS[:3])])
    assert ranks["rank_1"] == first
    searches = IdentificationEvaluator((0.5,), ()).of_blocks(x[[0, 4, 4]], IDS[[0, 9, 9]], [(x[1:2], IDS[:1])])
    assert searches["tpir_at_fpir_5e-1"] == first


def test_images_of_a_template_are_averaged_by_medium():
    x, of = faces(), protocol()
    shifted = torch.cat([x + 0.1, x - 0.1])
    both, media = torch.cat([IDS, IDS]), torch.arange(140)
    evaluator = IdentificationEvaluator((0.2,), (1,))
    assert evaluator.of_templates(shifted, both, media, of) == evaluator.of_templates(x, IDS, IDS, of)


def of_templates(**change):
    return lambda: IdentificationEvaluator().of_templates(faces(), IDS, IDS, protocol()._replace(**change))


def of_blocks(*blocks):
    cameras = IDS[:3] if any(len(block) == 3 for block in blocks) else None
    return lambda: IdentificationEvaluator().of_blocks(torch.eye(3), IDS[:3], blocks, cameras=cameras)


NOTHING, STRANGERS = TemplateSubjects(IDS[:0], IDS[:0]), TemplateSubjects(IDS[:1], torch.tensor([999]))


@pytest.mark.parametrize(("all_mated", "with_cameras"), [(False, False), (True, False), (True, True)])
def test_a_gallery_in_blocks_equals_loops(all_mated, with_cameras):
    """Rows of the probe's subject and camera are as if they were not there."""
    generator = torch.Generator().manual_seed(1)
    people = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    # Subjects of several rows, which lie in different blocks; 30 to 39 are no probe's.
    of = torch.cat([torch.arange(30) % (15 if all_mated else 30), torch.arange(60) % 15])
    of[60:] = torch.where(torch.arange(30) % 2 == 0, of[60:], 30 + torch.arange(30) % 10)
    x = people[of] + 1.2 * torch.randn(90, 4, generator=generator, dtype=torch.float64)
    pairs = StreamingVerification(fars=(0.1, 0.01))
    columns, cameras = [x, of], None
    if with_cameras:
        cameras = torch.randint(3, (90,), generator=generator)
        columns.append(cameras)
    blocks = zip(*(column[30:].split(BLOCKS) for column in columns), strict=True)
    given = None if cameras is None else cameras[:30]
    found = IdentificationEvaluator(FPIRS, RANKS).of_blocks(x[:30], of[:30], blocks, cameras=given, verification=pairs)
    protocol = SearchProtocol(TemplateSubjects(IDS[:30], of[:30]), (TemplateSubjects(torch.arange(30, 90), of[30:]),))
    expected = rates_by_loops(x.tolist(), protocol, 0, None if cameras is None else cameras.tolist())
    same = of[:30, None] == of[30:]
    counted = ~same if with_cameras else torch.ones_like(same)
    if with_cameras:
        counted |= cameras[:30, None] != cameras[30:]
    scores = torch.cosine_similarity(x[:30, None], x[30:], dim=2)[counted].tolist()
    for far in (0.1, 0.01):
        name = f"tar_at_far_{far:.0e}".replace("e-0", "e-")
        expected[name] = oracle.tar_at_far(scores, same[counted].tolist(), far)
    expected |= {"genuine": int(same[counted].sum()), "impostors": int((~same).sum())}
    assert {name: (found | pairs.compute())[name] for name in expected} == approx(expected, abs=1e-12, nan_ok=True)
    if not with_cameras:
        assert (found["mated"], found["non_mated"]) == ((30, 0) if all_mated else (15, 15))
    assert 0 < found["rank_1"] < found["rank_5"] < 1


REFUSED = [
    (of_templates(galleries=(STRANGERS,)), "gallery 1 must have the subjects of some but not all probes"),
    (of_templates(galleries=()), "at least one gallery"),
    (
        of_templates(galleries=(TemplateSubjects(IDS[:2], IDS[:1]),)),
        r"subjects of gallery 1 must have shape \(2,\)",
    ),
    (of_templates(galleries=(NOTHING,)), "gallery 1 must list at least one template"),
    (of_templates(probes=TemplateSubjects(IDS[:1] + 70, IDS[:1])), "template 70 is listed but has no image"),
    (
        of_blocks((torch.eye(3), IDS[5:8])),
        "gallery must have the subject of at least one of the 3 probes; got none",
    ),
    (of_blocks((torch.eye(2), IDS[:2])), "gallery must have 3 dimensions, as the probes; got 2"),
    (of_blocks((torch.eye(3), IDS[:2])), "the subjects of gallery"),
    (of_blocks((torch.eye(3) * math.nan, IDS[:3])), "gallery"),
    (of_blocks((torch.eye(3), IDS[:3], IDS[:2])), "the cameras of gallery must"),
    # The second block is not of distractors.
    (
        of_blocks((torch.eye(3), IDS[:3], IDS[1:4]), (torch.eye(3), IDS[:3])),
        "must have cameras if the probes",
    ),
]
test_what_cannot_be_searched_is_an_error = refusals(REFUSED)
