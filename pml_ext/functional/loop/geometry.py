"""The two curves that LoOp lays through samples of a class, and how their pair entries behave."""

from typing import Any, NamedTuple

from pml_ext.functional.loop.arcs import Arc, closest_places_on_arcs
from pml_ext.functional.loop.segments import Segment, closest_places_on_segments


class Geometry(NamedTuple):
    """What joins two samples, what finds the closest places of two, and how their pair entries behave."""

    curve: Any
    closest_places: Any
    sign: int  # 1 where a larger entry is closer
    of_itself: float  # the entry of a sample with itself


GEOMETRIES = {
    "arc": Geometry(Arc, closest_places_on_arcs, 1, 1.0),
    "segment": Geometry(Segment, closest_places_on_segments, -1, 0.0),
}
