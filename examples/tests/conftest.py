"""The tests of pages, scripts, notebooks, evidence and benchmarks: `pytest --nightly` runs them, or their own paths."""

from tests.conftest import _seeded, installed, made_once  # noqa: F401
