"""A table of what is refused, as a test."""

import pytest


def refusals(cases, *, of=None):
    """A test for each case: a function, its arguments by name if there are any, and what the error says.

    of: the function, if it is the same in all cases and they do not name it.
    """

    @pytest.mark.parametrize("case", cases)
    def test(case):
        call, *options, message = case if of is None else (of, *case)
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=message):
            call(**(options[0] if options else {}))

    return test
