"""P×K batches: K images of each of P identities, an identity's images next to each other."""

from collections.abc import Iterator, Sequence

import numpy as np

from pml_ext._errors import UserError
from pml_ext.runner.data.samplers.joint import Draw
from pml_ext.runner.data.samplers.members import Members


def identities_in_decks(labels: np.ndarray, batch_size: int, instances: int, *, until_used_up: bool) -> Draw:
    """P different identities a batch, each with the next K images of its deck, a shuffle of all its images.

    Fewer than K left over are skipped. Images repeat where an identity has fewer than K. Until used up (FastReID's
    NaiveIdentitySampler) an identity with fewer than K unused images leaves the round, which ends when fewer than P are
    left, so that identities come about as often as they have images. Otherwise all are equally likely (Hermans et al.
    2017), and a deck that is used up is shuffled anew. If there are fewer than P, each is drawn equally often, or once
    more than others.
    """
    members = Members(labels)
    count = batch_size // instances if not until_used_up else _identities_a_batch(members, batch_size, instances)

    def places_of_batch(remaining: int, random: np.random.Generator) -> list[int]:
        if count <= remaining:
            return random.choice(remaining, count, replace=False).tolist()  # type: ignore[no-any-return]
        rounds, more = divmod(count, remaining)
        return sorted([*range(remaining)] * rounds + random.choice(remaining, more, replace=False).tolist())

    def draw(random: np.random.Generator) -> Iterator[list[int]]:
        decks = members.copy()
        while True:
            used = np.zeros(len(members), dtype=np.int64)
            left, remaining = np.arange(len(members)), len(members)
            while remaining >= count or not until_used_up:
                batch: list[int] = []
                used_up: list[int] = []
                for place in places_of_batch(remaining, random):
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

    return draw


def identities_across_cameras(labels: np.ndarray, cameras: np.ndarray, batch_size: int, instances: int) -> Draw:
    """FastReID's BalancedIdentitySampler: every identity once a round, its K − 1 further images from other cameras.

    The further images are of the first one's camera only where the identity was seen by no other, and repeat where
    there are too few. Identities that fill no batch wait for the next round's shuffle.
    """
    members = Members(labels)
    count = _identities_a_batch(members, batch_size, instances)

    def of_one(own: np.ndarray, random: np.random.Generator) -> list[int]:
        first = random.choice(own)
        others = own[cameras[own] != cameras[first]]
        if not len(others):
            others = own[own != first] if len(own) > 1 else own
        further = random.choice(others, instances - 1, replace=len(others) < instances - 1)
        return [int(first), *further.tolist()]

    def draw(random: np.random.Generator) -> Iterator[list[int]]:
        while True:
            order = random.permutation(len(members))
            for start in range(0, len(order) - count + 1, count):
                yield [row for c in order[start : start + count] for row in of_one(members[c], random)]

    return draw


def identities_by_camera(
    labels: np.ndarray, cameras: np.ndarray, batch_size: int, instances: int, weights: Sequence[int]
) -> Draw:
    """FastReID's SetReWeightSampler: weights[c] identities of camera c (in order of ids) a turn, whole turns a batch.

    An identity is drawn with a chance proportional to its number of images; its images are of any camera. FastReID's
    own never yields: it asks for a batch that is larger than, and equal to, one turn.
    """
    members, known = Members(labels), np.unique(cameras)
    turn = sum(weights) * instances
    if len(weights) != len(known) or min(weights) < 0 or turn == 0 or batch_size % turn:
        raise UserError(
            f"DATALOADER.SET_WEIGHT must give a number of identities for each of the {len(known)} cameras, and "
            f"SOLVER.IMS_PER_BATCH be a multiple of their sum × NUM_INSTANCE; got {list(weights)} and {batch_size}"
        )
    identities = np.unique(labels, return_inverse=True)[1]
    pools = [np.unique(identities[cameras == camera]) for camera in known]
    for camera, pool, weight in zip(known, pools, weights, strict=True):
        if len(pool) < weight:
            raise UserError(
                f"DATALOADER.SET_WEIGHT asks for {weight} identities of camera {camera}: it saw {len(pool)}"
            )
    sizes = members.sizes

    def draw(random: np.random.Generator) -> Iterator[list[int]]:
        while True:
            batch: list[int] = []
            for _ in range(batch_size // turn):
                for pool, weight in zip(pools, weights, strict=True):
                    for c in random.choice(pool, weight, replace=False, p=sizes[pool] / sizes[pool].sum()):
                        batch += _at_least(instances, random.permutation(members[c]))[:instances]
            yield batch

    return draw


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
