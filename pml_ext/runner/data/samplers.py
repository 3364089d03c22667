"""Samplers of joint batches (DATALOADER.SAMPLER_TRAIN), and each rank's share of a batch.

A sampler is called with (items, batch_size, instances, random) and yields lists of rows. A decorator registers it.
"""

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Sampler
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner.config.part_keys import arguments_from, construct
from pml_ext.runner.data.datasets.image_set import ImageSet
from pml_ext.runner.registry import SAMPLER_REGISTRY

OF_IMAGES = ("TrainingSampler", "ImbalancedDatasetSampler")
"""Samplers that draw images regardless of identity."""
BY_IDENTITY = ("NaiveIdentitySampler", "BalancedIdentitySampler", "UniformIdentitySampler")
"""Samplers that draw P identities with NUM_INSTANCE images each."""

Batches = Iterator[list[int]]
"""Infinite iterator over joint batches of rows."""
Random = np.random.Generator
Members = Sequence[np.ndarray]
"""The rows of each identity, in identity order."""


class Items(Sequence[tuple[Any, ...]]):
    """The training set for samplers: (image name, identity, camera, *more) of each row, created on access.

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
        sizes = np.unique(self.labels, return_counts=True)[1]
        return np.split(np.argsort(self.labels, kind="stable"), np.cumsum(sizes)[:-1])


@SAMPLER_REGISTRY.register("TrainingSampler")
def shuffled(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """Draws every image once per epoch in random order.

    The last incomplete batch is dropped. A set that is smaller than a batch repeats.
    """
    while True:
        order = random.permutation(len(items))
        for i in range(steps_per_epoch(len(items), batch_size)):
            yield order.take(range(i * batch_size, (i + 1) * batch_size), mode="wrap").tolist()


@SAMPLER_REGISTRY.register("ImbalancedDatasetSampler")
def balanced_by_frequency(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """Draws images with replacement, with equally likely identities."""
    members = items.members
    sizes = np.array([len(rows) for rows in members])
    while True:
        identities = random.integers(len(members), size=batch_size)
        places = random.integers(sizes[identities])
        yield [int(members[identity][-1 - place]) for identity, place in zip(identities, places, strict=True)]


@SAMPLER_REGISTRY.register("NaiveIdentitySampler")
def identities_by_size(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """Draws P×K images, identities about in proportion to their number of images.

    An identity with fewer than K unused images leaves the round. The round ends when fewer than P are left.
    """
    count = _identities_a_batch(items.members, batch_size, instances)
    return _from_decks(items.members, count, instances, random, until_used_up=True)


@SAMPLER_REGISTRY.register("BalancedIdentitySampler")
def identities_across_cameras(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """Draws P×K images, every identity once per round, from different cameras.

    The other K − 1 images are from other cameras than the first image, unless the identity has only one camera. They
    repeat if there are too few. Identities that do not fill a batch are reshuffled in the next round.
    """
    members, cameras = items.members, items.cameras
    count = _identities_a_batch(members, batch_size, instances)

    def rows_of(identity: int) -> list[int]:
        rows = members[identity]
        first = random.choice(rows)
        others = rows[cameras[rows] != cameras[first]]
        if not len(others):
            others = rows[rows != first] if len(rows) > 1 else rows
        further = random.choice(others, instances - 1, replace=len(others) < instances - 1)
        return [int(first), *further.tolist()]

    while True:
        order = random.permutation(len(members))
        for start in range(0, len(order) - count + 1, count):
            yield [row for identity in order[start : start + count] for row in rows_of(identity)]


@SAMPLER_REGISTRY.register("UniformIdentitySampler")
def identities_equally_often(items: Items, batch_size: int, instances: int, random: Random) -> Batches:
    """Draws P×K images, with equally likely identities (ours).

    An exhausted deck is reshuffled. With fewer than P identities, their counts in a batch differ by at most one.
    Source: Hermans et al., arXiv 1703.07737.
    """
    return _from_decks(items.members, batch_size // instances, instances, random, until_used_up=False)


def _from_decks(members: Members, count: int, instances: int, random: Random, *, until_used_up: bool) -> Batches:
    """Draws `count` different identities per batch, each with the next K images of its deck, its shuffled images.

    A remainder of fewer than K images is skipped. Images repeat if an identity has fewer than K.
    """

    def places_of_batch(remaining: int) -> list[int]:
        if count <= remaining:
            return random.choice(remaining, count, replace=False).tolist()  # type: ignore[no-any-return]
        rounds, more = divmod(count, remaining)
        return sorted([*range(remaining)] * rounds + random.choice(remaining, more, replace=False).tolist())

    decks = [rows.copy() for rows in members]
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
                batch += np.resize(deck[start : start + instances], instances).tolist()  # repeated if too few
                used[c] = start + instances
                if until_used_up and start + 2 * instances > len(deck):
                    used_up.append(place)
            # Moving the last into each gap takes 0.01 ms per batch of 128; np.setdiff1d took 30 ms for 500,000.
            for place in sorted(used_up, reverse=True):
                remaining -= 1
                left[place] = left[remaining]
            yield batch


def _identities_a_batch(members: Members, batch_size: int, instances: int) -> int:
    wanted = batch_size // instances
    if wanted > len(members):
        raise UserError(
            f"a batch needs SOLVER.IMS_PER_BATCH / DATALOADER.NUM_INSTANCE = {wanted} identities; "
            f"the training set has {len(members)}"
        )
    return wanted


class Drawn(NamedTuple):
    """One sample of a batch: a row of the image set, and the seed of its transform."""

    row: int
    seed: int


class JointBatchSampler(Sampler[list[Drawn]]):
    """Batches of an epoch, which depend only on (seed, epoch), split among ranks in order.

    Concatenating the ranks' batches in rank order gives the batch that a single process would draw. Every sample has
    a seed, so its transform does not depend on the process or on the samples loaded before it. An epoch has
    `steps` batches; batch_size is the size of the joint batch.
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
        # The loader draws its base seed from here and not from the model's generator.
        self.generator = torch.Generator()

    def set_epoch(self, epoch: int, *, first: int = 0) -> None:
        """Sets the epoch and the first batch to yield; the batches before it are drawn and skipped."""
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
    """Returns the number of complete joint batches in an epoch, at least 1."""
    return max(1, images // batch_size)


def build_sampler(
    options: CN, images: ImageSet, *, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
) -> JointBatchSampler:
    """Builds the sampler of the options, DATALOADER of the config; batch_size is the size of the joint batch.

    Draws a first batch at once, so that the sampler's errors are raised here.
    """
    entry, items = SAMPLER_REGISTRY.entry(options.SAMPLER_TRAIN), Items(images)
    arguments = arguments_from(options, entry)
    of = f"{SAMPLER_REGISTRY.key}: {entry.name} of {entry.module}"

    def draw(random: Random) -> Batches:
        arguments_by_place = items, batch_size, options.NUM_INSTANCE, random
        batches = construct(entry, SAMPLER_REGISTRY.key, *arguments_by_place, **arguments)
        return _checked(batches, of, batch_size, len(items))

    next(draw(np.random.default_rng([seed, 0])))
    steps = steps_per_epoch(len(items), batch_size)
    return JointBatchSampler(draw, steps, batch_size, seed=seed, rank=rank, world_size=world_size)


def require_callable(options: CN) -> None:
    """Raises a UserError if a sampler's keys are incomplete, or if it does not accept the samplers' arguments."""
    entry = SAMPLER_REGISTRY.entry(options.SAMPLER_TRAIN)
    arguments_by_place = "items", "batch_size", "instances", "random"
    try:
        inspect.signature(entry.part).bind(*arguments_by_place, **arguments_from(options, entry))
    except TypeError as error:
        name = f"{SAMPLER_REGISTRY.key}: {entry.name} of {entry.module}"
        raise UserError(f"{name} must accept ({', '.join(arguments_by_place)}): {error}") from error


def _checked(batches: Any, of: str, batch_size: int, images: int) -> Batches:
    """Yields the batches of a sampler; raises a UserError that starts with `of` if one is not valid."""
    must = f"{of} must yield lists of SOLVER.IMS_PER_BATCH = {batch_size} rows from 0 to {images - 1}, without end"
    if not isinstance(batches, Iterable):
        raise UserError(f"{must}; it returned {batches!r:.100}")
    for batch in batches:
        try:
            rows = list(map(operator.index, batch))
        except TypeError as error:
            raise UserError(f"{must}; it yielded {batch!r:.100}") from error
        if len(rows) != batch_size or min(rows) < 0 or max(rows) >= images:
            raise UserError(f"{must}; it yielded {len(rows)} rows: {rows!r:.100}")
        yield rows
    raise UserError(f"{must}; it yielded no more batches")
