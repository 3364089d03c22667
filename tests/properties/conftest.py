"""Two ways to run the property tests: fixed examples (the default), or new ones for any time.

pytest tests/properties --unlimited 20000      # examples per test, with a new seed; prints their counts
"""

import functools
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.errors import UnsatisfiedAssumption

_EXAMPLES = 60  # per test; all together stay well under three minutes
settings.register_profile("fixed", max_examples=_EXAMPLES, derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")

_counts: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    count = config.getoption("--unlimited", default=None)
    if count is not None:
        settings.register_profile(
            "unlimited", max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
        )
        settings.load_profile("unlimited")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count the examples of each test."""
    handles = {id(handle): handle for item in items if (handle := getattr(item.obj, "hypothesis", None))}  # type: ignore[attr-defined]
    for handle in handles.values():
        handle.inner_test = _counted(handle.inner_test)


def _counted(test: Any) -> Any:
    @functools.wraps(test)
    def once(*args: Any, **given: Any) -> None:
        _counts["tried"] += 1
        try:
            test(*args, **given)
        except UnsatisfiedAssumption:
            _counts["set aside: the loops have no answer, or a rounding decides"] += 1
            raise
        except Exception as error:
            _counts["wrong value" if isinstance(error, AssertionError) else f"error: {type(error).__name__}"] += 1
            raise
        except BaseException:  # hypothesis aborts examples that draw too much data
            _counts["given up by hypothesis"] += 1
            raise
        _counts["as the loops have it"] += 1

    return once


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--unlimited", default=None) is not None:
        for what, count in _counts.most_common():
            terminalreporter.write_line(f"{count:>9,}  {what}")
