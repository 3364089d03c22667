from tests.runner.conftest import _no_report_unless_asked_for  # noqa: F401
