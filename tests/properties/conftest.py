"""Two ways to run the property tests: fixed examples (the default), or new ones for as long as one likes.

pytest tests/properties --unlimited 20000      # so many examples a test, another seed each time
"""

import pytest
from hypothesis import HealthCheck, settings

_EXAMPLES = 60  # a test; all of them together stay well under three minutes
settings.register_profile("fixed", max_examples=_EXAMPLES, derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


def pytest_configure(config: pytest.Config) -> None:
    count = config.getoption("--unlimited", default=None)
    if count is not None:
        settings.register_profile(
            "unlimited", max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
        )
        settings.load_profile("unlimited")
