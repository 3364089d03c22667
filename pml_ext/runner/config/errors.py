"""The error of a config."""

from pml_ext._errors import UserError


class ConfigError(UserError):
    """A config file, key or value that cannot be used as it is."""
