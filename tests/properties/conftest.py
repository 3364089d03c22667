"""Hypothesis: twenty fixed examples of each property by day, two hundred with --nightly, new ones for hours on request.

pytest tests/properties --hypothesis-profile long
"""

from hypothesis import HealthCheck, settings

options = {"deadline": None, "suppress_health_check": list(HealthCheck)}  # rounding decides many examples
settings.register_profile("day", max_examples=20, derandomize=True, database=None, **options)
settings.register_profile("night", max_examples=200, derandomize=True, database=None, **options)
settings.register_profile("long", max_examples=20_000, print_blob=True, **options)
settings.load_profile("day")


def pytest_configure(config):
    if config.getoption("--nightly"):
        settings.load_profile("night")
