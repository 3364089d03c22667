"""What the tests of runs have in common."""

import resource

import pytest

from pml_ext.runner.config import defaults


@pytest.fixture(scope="package", autouse=True)
def _no_report_unless_asked_for():
    """TEST.REPORT is off: its figures take longer than the short runs of most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults._TEST, "REPORT", False)
        yield


@pytest.fixture
def full_disk():
    """No file may grow above 4 KiB meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
