"""The error of a user's input: a file, a value or a machine that cannot be used as it is."""


class UserError(ValueError):
    """A mistake that the message alone explains; the command line prints it without a traceback."""
