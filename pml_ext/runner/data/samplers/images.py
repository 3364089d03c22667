"""Batches of images drawn one by one."""

from collections.abc import Iterator

import numpy as np

from pml_ext.runner.data.samplers.joint import Draw, steps_per_epoch
from pml_ext.runner.data.samplers.members import Members


def shuffled(labels: np.ndarray, batch_size: int) -> Draw:
    """Every image once, but for the last that fill no batch; then anew."""

    def draw(random: np.random.Generator) -> Iterator[list[int]]:
        while True:
            order = random.permutation(len(labels))
            for i in range(steps_per_epoch(len(labels), batch_size)):
                # take wraps around, so a set smaller than one batch still fills it
                yield order.take(range(i * batch_size, (i + 1) * batch_size), mode="wrap").tolist()

    return draw


def balanced_by_frequency(labels: np.ndarray, batch_size: int) -> Draw:
    """Images with replacement, each with a chance of 1 / (images of its identity): identities come equally often."""
    members = Members(labels)

    def draw(random: np.random.Generator) -> Iterator[list[int]]:
        while True:
            yield members.draw(random.integers(len(members), size=batch_size), random).tolist()

    return draw
