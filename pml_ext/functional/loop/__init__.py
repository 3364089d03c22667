"""LoOp: the closest points of two arcs, and of all arcs of a batch.

arcs.py has the closed form for arcs (`closest_places_on_arcs`), segments.py for straight segments. partners.py decides
which samples an arc joins; pair_matrix.py replaces a batch's pairs by the closest points.
"""
