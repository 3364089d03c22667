"""What the tests of runs have in common."""

from collections.abc import Iterator

import pytest
from yacs.config import CfgNode as CN

from pml_ext.runner.config import defaults


@pytest.fixture(scope="package", autouse=True)
def _no_report_unless_asked_for() -> Iterator[None]:
    """TEST.REPORT is off: its pictures take longer than the short runs of most tests."""
    whole = defaults._test

    def without_report() -> CN:
        test = whole()
        test.REPORT = False
        return test

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defaults, "_test", without_report)
        yield
