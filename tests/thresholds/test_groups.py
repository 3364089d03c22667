"""Rates by group, against loops over all pairs."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from pytest import approx
from scipy.stats import t

from pml_ext.thresholds import ThresholdReport

LABELS = [i % 40 for i in range(160)]
SEX = ["f" if label < 16 else "m" for label in LABELS]


def embeddings(seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    centres[:16] += 1.0  # one group's identities lie closer together
    return centres[LABELS] + 0.5 * torch.randn(160, 5, generator=generator, dtype=torch.float64)


def counts(x, cosine, groups, left_out=-1, cameras=None):
    """[errors, pairs] of ("far", g, h) and ("frr", g)."""
    unit = (x / x.norm(dim=1, keepdim=True)).tolist()
    found = {}
    for i, j in combinations(range(len(LABELS)), 2):
        if left_out in (LABELS[i], LABELS[j]):
            continue
        accepted = sum(a * b for a, b in zip(unit[i], unit[j], strict=True)) >= cosine
        if LABELS[i] != LABELS[j]:
            cell = found.setdefault(("far", *sorted((groups[i], groups[j]))), [0, 0])
            cell[0] += accepted
            cell[1] += 1
        elif cameras is None or cameras[i] != cameras[j]:
            for group in {groups[i], groups[j]}:
                cell = found.setdefault(("frr", group), [0, 0])
                cell[0] += not accepted
                cell[1] += 1
    return found


@pytest.fixture
def report():
    return ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.05, groups=SEX)


def test_rates_are_those_of_loops(report):
    loops = counts(embeddings(), report.cosine, SEX)
    for group in report.groups.groups:
        assert [group.far.errors, group.far.pairs] == loops["far", group.label, group.label]
        assert [group.frr.errors, group.frr.pairs] == loops["frr", group.label]
        assert group.far.low < group.far.rate < group.far.high
    (between,) = report.groups.between
    assert between.labels == ("f", "m")
    assert [between.far.errors, between.far.pairs] == loops["far", "f", "m"]
    assert [(g.samples, g.identities) for g in report.groups.groups] == [(64, 16), (96, 24)]


def test_the_ratio_of_the_extremes_is_that_of_loops(report):
    def ratios(found):
        far = {g: max(0.5, found["far", g, g][0]) / found["far", g, g][1] for g in "fm"}
        frr = {g: max(0.5, found["frr", g][0]) / found["frr", g][1] for g in "fm"}
        return [math.log(far["f"] / far["m"]), math.log(frr["f"] / frr["m"])]

    value = ratios(counts(embeddings(), report.cosine, SEX))
    without = np.array([ratios(counts(embeddings(), report.cosine, SEX, label)) for label in range(40)])
    for kind, (found,) in enumerate((report.groups.far_ratios, report.groups.frr_ratios)):
        sign = 1 if found.one == "f" else -1
        assert {found.one, found.to} == {"f", "m"} and found.value > 1
        spread = sum(rows[:, kind].var() * (len(rows) - 1) for rows in (without[:16], without[16:]))
        half = t.ppf(0.975, 15) * math.sqrt(spread)
        expected = [math.exp(sign * value[kind] + end * half) for end in (0, -1, 1)]
        assert (found.value, found.low, found.high) == approx(expected, rel=1e-10)


def test_identities_in_several_groups():
    site, cameras = [i // 80 for i in range(160)], [i // 40 % 2 for i in range(160)]
    found = ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.05, groups=site, cameras=cameras)
    loops = counts(embeddings(), found.cosine, site, cameras=cameras)
    for group in found.groups.groups:
        assert [group.frr.errors, group.frr.pairs] == loops["frr", group.label]
        assert [group.far.errors, group.far.pairs] == loops["far", group.label, group.label]


def test_a_group_with_too_few_pairs_says_so_and_has_no_number():
    groups = ["few" if label == 0 else sex for label, sex in zip(LABELS, SEX, strict=True)]
    found = ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.05, groups=groups)
    few = found.groups.groups[1]
    assert (few.label, few.far, few.frr, few.impostor_pairs, few.genuine_pairs) == ("few", None, None, 0, 6)
    assert found.groups.needed_impostor_pairs == round(5 / found.far.rate)
    assert "few" not in [ratio.one for ratio in found.groups.far_ratios]
    line = f"FAR not given: 0 pairs, at least {found.groups.needed_impostor_pairs} are needed"
    assert line in found.summary()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (SEX[:-1], r"groups must have shape \(160,\), one label per embedding; got \(159,\)"),
        (list(range(160)), "groups must have 2 to 50 different values; got 160"),
        (np.full(160, 0.5), "groups must be integers"),
    ],
)
def test_groups_that_do_not_fit(groups, message):
    with pytest.raises(ValueError, match=message):
        ThresholdReport.from_embeddings(embeddings(), LABELS, far=0.05, groups=groups)


def test_too_many_groups_are_refused_before_any_pair_is_counted():
    with pytest.raises(ValueError, match="groups must have 2 to 50 different values; got 1"):
        ThresholdReport.from_embeddings(embeddings(), list(range(160)), far=0.05, groups=["all"] * 160)


def test_a_ratio_to_a_group_without_errors_is_at_least():
    generator = torch.Generator().manual_seed(0)
    people = torch.randn(60, 8, generator=generator)
    people[30:] += 0.75  # east's identities are alike
    x = people.repeat_interleave(5, dim=0) + 0.3 * torch.randn(300, 8, generator=generator)
    groups = ["north"] * 150 + ["east"] * 150
    report = ThresholdReport.from_embeddings(x, [i // 5 for i in range(300)], far=6e-4, groups=groups)
    (ratio,), (east, north) = report.groups.far_ratios, (group.far for group in report.groups.groups)
    assert north.errors == 0
    assert (ratio.value, ratio.low, ratio.high) == (None, east.low / north.high, None)
    assert f"FAR of east is at least {ratio.low:.3g} times that of north, which has no error" in report.summary()
