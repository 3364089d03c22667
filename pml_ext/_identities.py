"""Reserved identity numbers."""

JUNK = -1
"""Identity of junk: gallery items that count neither as a match nor as an error, as in Market-1501."""
