"""Two ways to run the property tests: fixed examples (the default), or new ones for hours.

pytest tests/properties --hypothesis-profile long
"""

from hypothesis import HealthCheck, settings

options = {"deadline": None, "suppress_health_check": list(HealthCheck)}  # rounding decides many examples
settings.register_profile("fixed", max_examples=60, derandomize=True, database=None, **options)
settings.register_profile("long", max_examples=20_000, print_blob=True, **options)
settings.load_profile("fixed")
