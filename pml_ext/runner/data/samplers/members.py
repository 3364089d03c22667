"""The rows of each identity."""

import copy

import numpy as np


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

    def draw(self, identities: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """A row of each of the identities, all of its rows equally likely."""
        rows: np.ndarray = self._rows[self._ends[identities] - 1 - random.integers(self.sizes[identities])]
        return rows
