"""LoOp: the closest points of two arcs (arcs.py) or straight segments (segments.py).

partners.py decides which samples an arc joins; pair_matrix.py replaces a batch's pairs by the closest points.
"""
