"""Label errors that embeddings show: wrong labels, identities with two labels, labels of two identities, and copies."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pml_ext._copies import find_copies, vector_keys
from pml_ext._ops.normalize import unit_rows
from pml_ext.metrics.threshold.fields import DoubtfulLabel, LabelError
from pml_ext.metrics.threshold.samples import SampleSource

# Limits in standard deviations of a mean cosine.
_REJECTED = -5.0  # a sample is not of its label
_ALIKE = -2.0  # two groups of samples may be one identity
_CENTRED = -1.0  # 84 % of the groups of one identity are above
_NEARLY_ALIKE = -5.0
_SPLIT = -6.0  # two parts of a label are not one identity
_SHARES_OF_LABELS = (0.95, 0.995)  # less alike than the levels below which parts of a label are unrelated, or nearly
_MIN_LABELS = 10
_TIMES_CHANCE = 3  # as many samples with a right label would look like another label
_CONTROLS = 1000
_SHIFTS = 8
_BLOCK_ROWS = 1024
_MAD = 1.4826  # standard deviation of a normal distribution per median absolute deviation


@dataclass(frozen=True)
class _Groups:
    """G groups of samples: (G, D) sums and (G,) numbers of unit rows, mean cosines inside, and their variances."""

    sums: Tensor
    sizes: Tensor
    inside: Tensor
    variances: Tensor

    def rows(self, places: Tensor | slice) -> "_Groups":
        """Returns some of the groups."""
        return _Groups(self.sums[places], self.sizes[places], self.inside[places], self.variances[places])


@dataclass(frozen=True)
class _Spread:
    """Median and variance of the mean cosines inside labels, and the variance of a single genuine pair."""

    median: Tensor
    of_labels: Tensor
    of_pair: Tensor

    @classmethod
    def of(cls, unit: Tensor, ids: Tensor, sums: Tensor, sizes: Tensor) -> "_Spread":
        """Estimates by medians, which a tenth of wrong labels hardly changes. sums, sizes: of the labels."""
        pairs = sizes * (sizes - 1) / 2
        inside = ((sums * sums).sum(dim=1) - sizes) / (2 * pairs)
        median = inside[pairs > 0].median()
        off_median = (inside - median)[pairs > 0]
        of_labels = (_MAD * off_median.abs().median()) ** 2
        size = sizes[ids]
        off_label = ((sums[ids] * unit).sum(dim=1) - 1) / (size - 1) - inside[ids]
        # n - 1 of the label's pairs have the sample, so that their mean is correlated with the mean of all
        scaled = (off_label * (size * (size - 1) / (size - 2)).sqrt())[size >= 3]
        if len(scaled) < _MIN_LABELS:
            scaled = off_median * pairs[pairs > 0].sqrt()
        return cls(median, of_labels, (_MAD * scaled.abs().median()).clamp_min(1e-6) ** 2)

    def groups(self, sums: Tensor, sizes: Tensor) -> _Groups:
        """Returns groups with these sums and sizes."""
        pairs = sizes * (sizes - 1) / 2
        inside = ((sums * sums).sum(dim=1) - sizes) / (2 * pairs).clamp_min(1)
        return _Groups(sums, sizes, inside, self.of_pair / pairs.clamp_min(1))

    def deviations(self, one: _Groups, other: _Groups, cosines: Tensor) -> Tensor:
        """Returns by how many standard deviations mean cosines between groups differ from those inside them.

        A group of one sample has no pair inside: the other group's cosines then count, or the median.
        """
        weight, other_weight = (one.sizes > 1).double(), (other.sizes > 1).double()
        total = weight + other_weight
        expected = (weight * one.inside + other_weight * other.inside) / total.clamp_min(1)
        variances = (weight * one.variances + other_weight * other.variances) / total.clamp_min(1) ** 2
        expected = torch.where(total > 0, expected, self.median)
        variances = torch.where(total > 0, variances, self.of_labels)
        return (cosines - expected) / (variances + self.of_pair / (one.sizes * other.sizes)).sqrt()


def find_doubtful_labels(
    embeddings: Tensor, ids: Tensor, names: Sequence[int | str], source: SampleSource
) -> tuple[tuple[DoubtfulLabel, ...], Tensor]:
    """Find labels that the embeddings contradict, by mean cosines inside and between labels.

    Two groups of samples look like one identity if the mean cosine between them is at the level of pairs inside them.
    In crowded sets labels look alike by chance, as the tail of many that are nearly alike. Nothing is listed for such
    sets, nor for fewer than 10 labels, except for copies.

    Args:
        embeddings: (N, D); cosines are compared, also if a cohort normalises the scores.
        ids, names: (N,) ids of the labels, on the CPU, and the name of each id.
    Returns:
        Doubtful labels, and an (N,) mask of the samples that remain without them. Of an identity with two labels, the
        label with more samples remains.
    Source: to compare a sample with the level inside the other label is the idea of confident learning (Northcutt,
        Jiang and Chuang, JAIR 70, 2021).
    """
    return _Search(embeddings, ids, names, source).results()


class _Search:
    """Collects doubtful labels of one set."""

    def __init__(self, embeddings: Tensor, ids: Tensor, names: Sequence[int | str], source: SampleSource) -> None:
        self.embeddings, self.ids, self.names, self.source = embeddings, ids, names, source
        self.unit = unit_rows(embeddings.cpu().double())
        self.doubtful: list[DoubtfulLabel] = []
        self.remaining = torch.ones(len(ids), dtype=torch.bool)
        self.has_twin = torch.zeros(len(names), dtype=torch.bool)

    def results(self) -> tuple[tuple[DoubtfulLabel, ...], Tensor]:
        self._add_copies()
        sizes = torch.bincount(self.ids)
        if int((sizes > 1).sum()) >= _MIN_LABELS:
            self._reject()
            self._add_mixed_labels()
            self._add_pairs_of_labels()
            self._add_wrong_labels()
        return tuple(self.doubtful), self.remaining

    def _add(self, kind: LabelError, rows: Tensor, other: int | None, cosine: float, left_out: Tensor) -> None:
        """Add one doubtful label of the samples at `rows`; other: id of the other label."""
        label = self.names[int(self.ids[rows[0]])]
        other_label = None if other is None else self.names[other]
        samples = tuple(self.source.sample(row, self.names[int(self.ids[row])]) for row in rows.tolist())
        self.doubtful.append(DoubtfulLabel(kind, label, other_label, cosine, samples))
        self.remaining[left_out] = False

    def _add_copies(self) -> None:
        keys = vector_keys(self.embeddings.detach().double().cpu().numpy())
        for row, first in find_copies(keys):
            if self.ids[row] != self.ids[first]:
                rows = torch.tensor([row, first])
                self._add("copies", rows, int(self.ids[first]), 1.0, rows)

    def _reject(self) -> None:
        """Compare each sample with the others of its label, twice: the second time without those rejected first."""
        kept = torch.ones(len(self.ids), dtype=torch.bool)
        for _ in range(2):
            self._set_labels(kept)
            member = kept.double()
            labels = self.labels
            others = self.spread.groups(
                labels.sums[self.ids] - member[:, None] * self.unit, labels.sizes[self.ids] - member
            )
            cosines = (others.sums * self.unit).sum(dim=1) / others.sizes
            deviations = self.spread.deviations(self._singles(self.unit), others, cosines)
            kept = torch.where(deviations.isnan(), kept, deviations >= _REJECTED)
        self._set_labels(kept)
        self.rejected = ~kept

    def _set_labels(self, kept: Tensor) -> None:
        unit, ids = self.unit[kept], self.ids[kept]
        sums = unit.new_zeros(len(self.names), unit.shape[1]).index_add(0, ids, unit)
        sizes = torch.bincount(ids, minlength=len(self.names)).double()
        self.spread = _Spread.of(unit, ids, sums, sizes)
        self.labels = self.spread.groups(sums, sizes)

    def _singles(self, unit: Tensor) -> _Groups:
        return self.spread.groups(unit, unit.new_ones(len(unit)))

    def _add_mixed_labels(self) -> None:
        """Add labels of two unrelated parts: the samples nearest to the two that are least alike."""
        ids, unit = self.ids, self.unit
        sums = torch.zeros_like(self.labels.sums).index_add(0, ids, unit)
        seeds = _first_smallest((sums[ids] * unit).sum(dim=1), ids, len(self.names))
        to_seed = (unit * unit[seeds[ids]]).sum(dim=1)
        others = _first_smallest(to_seed, ids, len(self.names))
        to_other = (unit * unit[others[ids]]).sum(dim=1)
        part = 2 * ids + (to_other > to_seed)
        count = 2 * len(self.names)
        sums = unit.new_zeros(count, unit.shape[1]).index_add(0, part, unit)
        parts = self.spread.groups(sums, torch.bincount(part, minlength=count).double())
        one, other = parts.rows(slice(0, None, 2)), parts.rows(slice(1, None, 2))
        cosines = (one.sums * other.sums).sum(dim=1) / (one.sizes * other.sizes)
        is_split = self.spread.deviations(one, other, cosines) < _SPLIT
        is_split &= torch.minimum(one.sizes, other.sizes) >= 2
        unrelated, related = self._levels_between_labels()
        mixed = (is_split & (cosines < unrelated)).nonzero().flatten()
        if len(mixed) <= int((is_split & (cosines >= unrelated) & (cosines < related)).sum()):
            return
        for label in mixed:
            rows = (ids == label).nonzero().flatten()
            self._add("two identities, one label", rows, None, float(cosines[label]), rows)

    def _levels_between_labels(self) -> Tensor:
        """Returns the mean cosines that 5 % and 0.5 % of pairs of labels exceed."""
        means = self.labels.sums / self.labels.sizes[:, None]
        between = torch.cat([(means * means.roll(shift, 0)).sum(dim=1) for shift in range(1, _SHIFTS + 1)])
        return between.nanquantile(torch.tensor(_SHARES_OF_LABELS).double())

    def _compare(self, groups: _Groups, others: _Groups) -> tuple[Tensor, Tensor]:
        """Returns (G, H) mean cosines between groups, and their deviations; nan for groups without samples."""
        columns = (values[:, None] for values in (groups.sizes, groups.inside, groups.variances))
        group = _Groups(groups.sums, *columns)
        cosines = group.sums @ others.sums.T / (group.sizes * others.sizes)
        return cosines, self.spread.deviations(group, others, cosines)

    def _add_pairs_of_labels(self) -> None:
        """Add pairs of labels that look like one identity.

        The deviations of such pairs lie around 0. Where most of those above the limit lie close to it, they are the
        tail of different identities.
        """
        alike, centred = list[tuple[int, int, float]](), 0
        for first in range(0, len(self.names), _BLOCK_ROWS):
            cosines, deviations = self._compare(self.labels.rows(slice(first, first + _BLOCK_ROWS)), self.labels)
            is_pair = torch.ones_like(cosines, dtype=torch.bool).triu(first + 1)
            centred += int((is_pair & (deviations >= _CENTRED)).sum())
            one, other = (is_pair & (deviations >= _ALIKE)).nonzero(as_tuple=True)
            alike += zip((one + first).tolist(), other.tolist(), cosines[one, other].tolist(), strict=True)
            if len(alike) > len(self.names):  # too crowded to tell
                return
        if 2 * centred <= len(alike):
            return
        sizes = torch.bincount(self.ids)
        for one_label, other_label, cosine in alike:
            left_out, remains = sorted((other_label, one_label), key=lambda label: int(sizes[label]))
            self.has_twin[[left_out, remains]] = True
            rows = (self.ids == left_out).nonzero().flatten()
            self._add("one identity, two labels", rows, remains, cosine, rows)

    def _add_wrong_labels(self) -> None:
        """Add rejected samples that look like another label, if they do so more often than others by chance."""
        rejected = (self.rejected & self.remaining).nonzero().flatten()
        accepted = (~self.rejected & ~self.has_twin[self.ids]).nonzero().flatten()
        controls = accepted[:: 1 + len(accepted) // _CONTROLS]
        if not len(rejected) or not len(controls):
            return
        # A label of two samples loses both if one is wrong: these samples count as groups of one.
        alone = self.rejected & (self.labels.sizes[self.ids] == 0)
        sums = torch.cat([self.labels.sums, self.unit[alone]])
        sizes = torch.cat([self.labels.sizes, self.labels.sizes.new_ones(int(alone.sum()))])
        others = self.spread.groups(sums, sizes)
        ids = torch.cat([torch.arange(len(self.names)), self.ids[alone]])
        cosines, labels, deviations = self._best_other_labels(rejected, others, ids)
        is_alike = deviations >= _ALIKE
        nearly = int((deviations >= _NEARLY_ALIKE).sum()) - int(is_alike.sum())
        by_chance = (self._best_other_labels(controls, others, ids)[2] >= _ALIKE).double().mean() * len(rejected)
        # A single one is often an image that resembles another identity.
        if int(is_alike.sum()) <= 1 + max(nearly, _TIMES_CHANCE * float(by_chance)):
            return
        for place in is_alike.nonzero().flatten():
            row = rejected[place, None]
            self._add("wrong label", row, int(labels[place]), float(cosines[place]), row)

    def _best_other_labels(self, rows: Tensor, others: _Groups, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the highest mean cosine of samples with a group of another label, this label, and the deviation."""
        best = []
        for block in rows.split(_BLOCK_ROWS):
            cosines, deviations = self._compare(self._singles(self.unit[block]), others)
            is_same = self.ids[block, None] == ids
            highest, group = cosines.nan_to_num(-torch.inf).masked_fill(is_same, -torch.inf).max(dim=1)
            best.append((highest, ids[group], deviations.gather(1, group[:, None])[:, 0]))
        highest, labels, deviations = (torch.cat(parts) for parts in zip(*best, strict=True))
        return highest, labels, deviations


def _first_smallest(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """Returns (count,) places of the smallest of the (N,) values with each id."""
    order = torch.argsort(values, descending=True)
    return torch.zeros(count, dtype=torch.int64).scatter_(0, ids[order], order)
