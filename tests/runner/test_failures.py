"""Errors that end a run become one message."""

from pathlib import Path

import pytest

from pml_ext._errors import UserError
from pml_ext.runner.failures import one_message

KILLED = "DataLoader worker (pid 7) is killed by signal: Killed. "


def fail_while_torch_reports_it(*, chained: bool) -> None:
    try:
        raise RuntimeError(KILLED)
    except RuntimeError as error:
        if chained:
            raise SystemError("a call returned a result with an exception set") from error
        raise ValueError("while that was handled")  # noqa: B904


@pytest.mark.parametrize("chained", [True, False])
def test_a_killed_worker_is_found_behind_another_error(chained: bool, tmp_path: Path) -> None:
    message = r"a process that loads images was .*\(DataLoader worker \(pid 7\) is killed"
    with pytest.raises(UserError, match=message), one_message(tmp_path):
        fail_while_torch_reports_it(chained=chained)


def test_a_broken_connection_to_a_worker_is_that_of_a_killed_one(tmp_path: Path) -> None:
    message = r"a process that loads images was ended from outside.*\(\[Errno 104\] Connection reset by peer\)"
    with pytest.raises(UserError, match=message), one_message(tmp_path):
        raise ConnectionResetError(104, "Connection reset by peer")


def test_a_bug_stays_what_it_is(tmp_path: Path) -> None:
    error = ZeroDivisionError("in the code")
    with pytest.raises(ZeroDivisionError) as caught, one_message(tmp_path):
        raise error
    assert caught.value is error and error.__cause__ is None
