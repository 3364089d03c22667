"""Random faults, as many as one likes, counted: `python -m tests.campaign --help`.

Wrong calls, damaged files and killed runs, each from a seed that is printed with what it found. What a campaign finds
becomes a plain test; CI runs only a small part of it, tests/campaign/test_campaign.py.
"""
