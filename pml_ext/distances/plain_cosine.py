"""Whether a distance is a plain cosine, whose matrix has a faster kernel."""

from pml_ext._pml import BaseDistance, CosineSimilarity

_AS_MADE = {**vars(CosineSimilarity(collect_stats=False)), "training": True}


def is_plain_cosine(distance: BaseDistance) -> bool:
    """A CosineSimilarity as it is made: not a subclass or stand-in, no statistics of norms, no hooks."""
    return type(distance) is CosineSimilarity and {**vars(distance), "training": True} == _AS_MADE
