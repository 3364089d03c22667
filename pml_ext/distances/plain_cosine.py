"""Where a distance is nothing but the cosine, its matrix may be computed in a cheaper way."""

from pml_ext._pml import BaseDistance, CosineSimilarity

_AS_MADE = {**vars(CosineSimilarity(collect_stats=False)), "training": True}


def is_plain_cosine(distance: BaseDistance) -> bool:
    """A cosine matrix is all that this distance computes, and nobody watches it.

    No subclass or stand-in, no statistics of norms, no hooks: a CosineSimilarity in the state in which it is made.
    """
    return type(distance) is CosineSimilarity and {**vars(distance), "training": True} == _AS_MADE
