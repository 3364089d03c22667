import errno
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import locked, replacing, write_atomically


def test_text_and_bytes(tmp_path):
    write_atomically(tmp_path / "t", "ε\n")
    write_atomically(str(tmp_path / "b"), b"\x00\xff")
    assert (tmp_path / "t").read_bytes() == "ε\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o666 & ~umask
    assert sorted(os.listdir(tmp_path)) == ["b", "t"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    write_atomically(tmp_path / "f", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=f"File too large: '{tmp_path}/f'"):
            write_atomically(tmp_path / "f", b"new" * 10_000)
        with (
            pytest.raises(OSError, match=f"requested and .* written: '{tmp_path}/f'"),
            replacing(tmp_path / "f") as file,
        ):
            np.save(file, np.zeros(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "f").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_readers_never_see_a_partial_file(tmp_path):
    path, contents = tmp_path / "f", {letter * 200_000 for letter in (b"a", b"b", b"c")}
    write_atomically(path, b"a" * 200_000)

    def write(content):
        for _ in range(4):
            write_atomically(path, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    seen = [path.read_bytes() for _ in range(50)]
    for thread in threads:
        thread.join()
    assert set(seen) <= contents
    assert os.listdir(tmp_path) == ["f"]


def test_links_are_followed_and_devices_written_directly(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
    (tmp_path / "null").symlink_to("/dev/null")
    write_atomically(tmp_path / "null", b"gone")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path, b"x")
    with pytest.raises(FileNotFoundError, match="none/f"):
        write_atomically(tmp_path / "none" / "f", b"x")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_one_message(number, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    path = tmp_path / ".lock"
    with pytest.raises(UserError, match=f"^{path} cannot be locked .*: use a folder on another"), locked(path):
        pass
