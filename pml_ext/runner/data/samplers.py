"""How the joint batches of an epoch are drawn (DATALOADER.SAMPLER_TRAIN), and each rank's part of them.

A sampler is called with (items, batch_size, instances, random) and yields lists of rows. It registers by a decorator.
"""

import copy
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.config.part_keys import arguments_from, construct
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.registry import SAMPLER_REGISTRY

Batches = Iterator[list[int]]
"""Joint batches of rows, without end."""
Random = np.random.Generator


class Members:
    """The rows of each identity, in the order of the identities: views of one array, and no object an identity."""

    def __init__(self, labels: np.ndarray) -> None:
        """labels: (N,) class ids."""
        self._rows = np.argsort(labels, kind="stable")
        self.sizes = np.unique(labels, return_counts=True)[1]
        self._ends = np.cumsum(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, identity: int) -> np.ndarray:
        end = self._ends[identity]
        return self._rows[end - self.sizes[identity] : end]

    def copy(self) -> "Members":
        """One whose rows can be shuffled."""
        own = copy.copy(self)
        own._rows = self._rows.copy()
        return own

    def draw(self, identities: np.ndarray, random: Random) -> np.ndarray:
        """A row of each of the identities, all of its rows equally likely."""
        rows: np.ndarray = self._rows[self._ends[identities] - 1 - random.integers(self.sizes[identities])]
        return rows


class Items(Sequence[tuple[Any, ...]]):
    """The training set as samplers see it: (image name, identity, camera, *more) of each row, made when
    asked for.

    `labels` (N,) are class ids from 0 on, `cameras` (N,) integers.
    """

    def __init__(self, images: ImageSet) -> None:
        self._images, self.labels, self.cameras = images, images.labels, images.cameras

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, row: int) -> tuple[Any, ...]:  # type: ignore[override]
        images = self._images
        identity = int(images.identities[row])
        more = () if images.more is None else images.more[row]
        return images.names[row], images.identity_names.get(identity, identity), int(images.cameras[row]), *more

    @cached_property
    def members(self) -> Members:
        return Members(self.labels)


@SAMPLER_REGISTRY.register("TrainingSampler")
def shuffled(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """Every image once an epoch, shuffled.

    The last images that fill no batch are left out; a set that is smaller than a batch repeats.
    """
    while True:
        order = random.permutation(len(items))
        for i in range(steps_per_epoch(len(items), batch_size)):
            yield order.take(range(i * batch_size, (i + 1) * batch_size), mode="wrap").tolist()


@SAMPLER_REGISTRY.register("ImbalancedDatasetSampler")
def balanced_by_frequency(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """Images with replacement, identities equally likely."""
    members = items.members
    while True:
        yield members.draw(random.integers(len(members), size=batch_size), random).tolist()


@SAMPLER_REGISTRY.register("NaiveIdentitySampler")
def identities_by_size(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """P×K, identities about as often as they have images.

    An identity with fewer than K unused images leaves the round, which ends when fewer than P are left.
    """
    count = _identities_a_batch(items.members, batch_size, instances)
    return _from_decks(items.members, count, instances, random, until_used_up=True)


@SAMPLER_REGISTRY.register("BalancedIdentitySampler")
def identities_across_cameras(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """P×K, every identity once a round, images of different cameras.

    The K − 1 further images are of the first one's camera only where the identity was seen by no other, and repeat
    where there are too few. Identities that fill no batch wait for the next round's shuffle.
    """
    members, cameras = items.members, items.cameras
    count = _identities_a_batch(members, batch_size, instances)

    def rows_of(identity: int) -> list[int]:
        own = members[identity]
        first = random.choice(own)
        others = own[cameras[own] != cameras[first]]
        if not len(others):
            others = own[own != first] if len(own) > 1 else own
        further = random.choice(others, instances - 1, replace=len(others) < instances - 1)
        return [int(first), *further.tolist()]

    while True:
        order = random.permutation(len(members))
        for start in range(0, len(order) - count + 1, count):
            yield [row for identity in order[start : start + count] for row in rows_of(identity)]


@SAMPLER_REGISTRY.register("UniformIdentitySampler")
def identities_equally_often(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """P×K, identities equally likely (ours).

    A deck that is used up is shuffled anew. With fewer than P identities, each is drawn equally often, or once more
    than others. Source: Hermans et al., arXiv 1703.07737.
    """
    return _from_decks(items.members, batch_size // instances, instances, random, until_used_up=False)


def _from_decks(members: Members, count: int, instances: int, random: Random, *, until_used_up: bool) -> Batches:
    """`count` different identities a batch, each with the next K images of its deck, a shuffle of all its images.

    Fewer than K left over are skipped. Images repeat where an identity has fewer than K.
    """

    def places_of_batch(remaining: int) -> list[int]:
        if count <= remaining:
            return random.choice(remaining, count, replace=False).tolist()  # type: ignore[no-any-return]
        rounds, more = divmod(count, remaining)
        return sorted([*range(remaining)] * rounds + random.choice(remaining, more, replace=False).tolist())

    decks = members.copy()
    while True:
        used = np.zeros(len(members), dtype=np.int64)
        left, remaining = np.arange(len(members)), len(members)
        while remaining >= count or not until_used_up:
            batch: list[int] = []
            used_up: list[int] = []
            for place in places_of_batch(remaining):
                c = int(left[place])
                deck = decks[c]
                start = int(used[c])
                if start == 0 or start + instances > len(deck):
                    random.shuffle(deck)
                    start = 0
                batch += _at_least(instances, deck[start : start + instances])[:instances]
                used[c] = start + instances
                if until_used_up and start + 2 * instances > len(deck):
                    used_up.append(place)
            # Moving the last into each gap takes 0.01 ms a batch of 128; np.setdiff1d took 30 ms of 500,000.
            for place in sorted(used_up, reverse=True):
                remaining -= 1
                left[place] = left[remaining]
            yield batch


def _at_least(count: int, rows: np.ndarray) -> list[int]:
    """The rows, over and over until there are `count` of them."""
    whole: list[int] = np.tile(rows, max(1, -(-count // len(rows)))).tolist()
    return whole


def _identities_a_batch(members: Members, batch_size: int, instances: int) -> int:
    wanted = batch_size // instances
    if wanted > len(members):
        raise UserError(
            f"a batch needs SOLVER.IMS_PER_BATCH / DATALOADER.NUM_INSTANCE = {wanted} identities; "
            f"the training set has {len(members)}"
        )
    return wanted


class Drawn(NamedTuple):
    """One sample of a batch: a row of the image set, and the seed of all that is random about it."""

    row: int
    seed: int


class JointBatchSampler(Sampler[list[Drawn]]):
    """Batches of an epoch, a function of (seed, epoch) alone, split among ranks in order.

    Concatenating the ranks' batches in rank order gives the batch that one process would draw. Every sample brings
    its own seed, so that its transforms come out the same in whichever process it is loaded and after whichever others.
    An epoch has `steps` batches; batch_size is of the joint batch.
    """

    def __init__(
        self,
        draw: Callable[[Random], Batches],
        steps: int,
        batch_size: int,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.draw, self.steps, self.seed = draw, steps, seed
        self.share, self.rank, self.epoch, self.first = batch_size // world_size, rank, 0, 0
        # The loader takes a number from here each time it begins, instead of one of the model's.
        self.generator = torch.Generator()

    def set_epoch(self, epoch: int, *, first: int = 0) -> None:
        """Draw the batches of an epoch from the first-th on; those before are drawn too, but not given out."""
        self.epoch, self.first = epoch, first

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[Drawn]]:
        batches = self.draw(np.random.default_rng([self.seed, self.epoch]))
        seeds = np.random.default_rng([self.seed, self.epoch, 1])
        for step in range(self.steps):
            batch = next(batches)
            joint = list(map(Drawn, batch, seeds.integers(2**63, size=len(batch)).tolist()))
            if step >= self.first:
                yield joint[self.rank * self.share : (self.rank + 1) * self.share]


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Joint batches of an epoch: whole ones only, but at least one."""
    return max(1, images // batch_size)


def build_sampler(
    options: CN, images: ImageSet, *, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
) -> JointBatchSampler:
    """The sampler that the options, DATALOADER of the config, name; batch_size is of the joint batch of all ranks.

    A first batch is drawn at once, for the sampler's errors.
    """
    entry, items = SAMPLER_REGISTRY.entry(options.SAMPLER_TRAIN), Items(images)
    arguments = arguments_from(options, entry)
    of = f"{SAMPLER_REGISTRY.key}: {entry.name} of {entry.module}"

    def draw(random: Random) -> Batches:
        given = items, batch_size, options.NUM_INSTANCE, random
        batches = construct(entry, SAMPLER_REGISTRY.key, *given, **arguments)
        return _checked(batches, of, batch_size, len(items))

    next(draw(np.random.default_rng([seed, 0])))
    steps = steps_per_epoch(len(items), batch_size)
    return JointBatchSampler(draw, steps, batch_size, seed=seed, rank=rank, world_size=world_size)


def require_callable(options: CN) -> None:
    """Raise a UserError if a sampler's keys are incomplete, or it cannot be called with what samplers are given."""
    entry = SAMPLER_REGISTRY.entry(options.SAMPLER_TRAIN)
    given = "items", "batch_size", "instances", "random"
    try:
        inspect.signature(entry.part).bind(*given, **arguments_from(options, entry))
    except TypeError as error:
        name = f"{SAMPLER_REGISTRY.key}: {entry.name} of {entry.module}"
        raise UserError(f"{name} must take ({', '.join(given)}): {error}") from error


def _checked(batches: Any, of: str, batch_size: int, images: int) -> Batches:
    """The batches of a sampler; a UserError that begins with `of` for anything else."""
    must = f"{of} must give lists of SOLVER.IMS_PER_BATCH = {batch_size} rows, each from 0 to {images - 1}, without end"
    if not isinstance(batches, Iterable):
        raise UserError(f"{must}; it gave {batches!r:.100}")
    for batch in batches:
        try:
            rows = list(map(operator.index, batch))
        except TypeError as error:
            raise UserError(f"{must}; it gave {batch!r:.100}") from error
        if len(rows) != batch_size or min(rows) < 0 or max(rows) >= images:
            raise UserError(f"{must}; it gave {len(rows)} rows: {rows!r:.100}")
        yield rows
    raise UserError(f"{must}; it gave no more batches")
