"""The settings of a distance: whether it is a plain cosine, whose matrix has a faster kernel; or lies on the sphere."""

from typing import Any

from pml_ext._pml import WITHOUT_STATISTICS, BaseDistance, CosineSimilarity

_AS_MADE = {**vars(CosineSimilarity(**WITHOUT_STATISTICS)), "training": True}
_NAMES = ("normalize_embeddings", "p", "power")


def is_plain_cosine(distance: BaseDistance) -> bool:
    """A CosineSimilarity as it is made: not a subclass or stand-in, no statistics of norms, no hooks."""
    return type(distance) is CosineSimilarity and {**vars(distance), "training": True} == _AS_MADE


def settings_of(distance: BaseDistance) -> tuple[Any, ...]:
    """Whether it normalises, the order of its norm, and its power; None where it does not say."""
    return (True, 2, 1) if is_plain_cosine(distance) else tuple(getattr(distance, name, None) for name in _NAMES)


def is_on_sphere(distance: BaseDistance, *kinds: type) -> bool:
    """Whether it is of one of these kinds, plain (p=2, power=1), between unit vectors."""
    return isinstance(distance, kinds) and settings_of(distance) == (True, 2, 1)


def describe_distance(distance: BaseDistance) -> str:
    """For messages: LpDistance(normalize_embeddings=True, p=2, power=1)."""
    shown = [f"{name}={getattr(distance, name)!r}" for name in _NAMES if hasattr(distance, name)]
    return f"{type(distance).__name__}({', '.join(shown)})"
