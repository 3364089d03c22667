"""Numbers that stand for no identity."""

JUNK = -1
"""A gallery item that counts neither as a match nor as a mistake, as in Market-1501."""
