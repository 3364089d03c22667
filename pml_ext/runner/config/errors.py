"""The error of a config."""


class ConfigError(ValueError):
    """A config file, key or value that cannot be used as it is."""
