import pytest

from pml_ext._errors import UserError
from pml_ext.runner.address import host_and_port


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("tcp://127.0.0.1:29500", ("127.0.0.1", 29500)),
        ("tcp://node-0.cluster:1", ("node-0.cluster", 1)),
        ("tcp://[::1]:65535", ("::1", 65535)),
        ("tcp://[fe80::2]:80", ("fe80::2", 80)),
    ],
)
def test_addresses(url: str, expected: tuple[str, int]) -> None:
    assert host_and_port(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "", "tcp://", "127.0.0.1:29500", "http://127.0.0.1:80", "tcp://127.0.0.1", "tcp://:80", "tcp://a:0",
        "tcp://a:65536", "tcp://a:port", "tcp://a:-1", "tcp://::1:29500", "tcp://[::1", "tcp://[nonsense]:80",
        "tcp://a:80/path", "tcp://user@a:80", "tcp://a b:80",
    ],
)  # fmt: skip
def test_what_is_no_address_is_one_message(url: str) -> None:
    with pytest.raises(UserError, match="--dist-url must be tcp://address:port with a port from 1 to 65535"):
        host_and_port(url)
