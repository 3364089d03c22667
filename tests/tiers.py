"""The two tiers of tests: `pytest` runs the daily one, `pytest --nightly` everything."""

import pytest


def by_night(*values):
    """Parameters of a test that only `pytest --nightly` runs."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
