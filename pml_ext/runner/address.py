"""The address at which the processes of several machines meet."""

from urllib.parse import urlsplit

from pml_ext._errors import UserError


def host_and_port(url: str) -> tuple[str, int]:
    """tcp://address:port, an IPv6 address in brackets: tcp://[::1]:29500.

    Raises:
        UserError: another form, or a port outside 1 to 65535.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # brackets without an IPv6 address in them, a port that is none
        host, port = None, None
    rest = parts.path or parts.query or parts.fragment or parts.username if host else ""
    if not host or not port or rest or parts.scheme != "tcp" or any(not c.isprintable() or c.isspace() for c in host):
        raise UserError(
            "--dist-url must be tcp://address:port with a port from 1 to 65535, and an IPv6 address in brackets "
            f"(tcp://[::1]:29500); got {url!r}"
        )
    return host, port
