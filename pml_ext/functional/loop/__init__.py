"""LoOp: the closest points of two arcs or straight segments (arcs.py).

partners.py decides which samples an arc joins; pair_matrix.py replaces a batch's pairs by the closest points.
"""
