"""LoOp: the closest points of two arcs, and of all arcs of a batch.

arcs.py has the closed form of LoOp (`closest_places_on_arcs`), segments.py that of straight segments. pair_matrix.py
puts it in the place of a batch's pairs; partners.py says which samples an arc joins.
"""
