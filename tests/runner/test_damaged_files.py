"""Every damaged or hostile file ends a run with one message and exit status 2, before any work and in bounded time.

Each maker of DAMAGED writes into a folder and returns config overrides that ask for what it wrote.
"""

import json
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets.handwriting import ARCHIVES
from pml_ext.runner.data.datasets.table import table_set
from pml_ext.runner.engine.data_module import DataModule
from tests.runner.data.published_layouts import MAGIC, encoded_image, records

Made = list[str]


def train_on(name, folder):
    return ["DATASETS.ROOT", str(folder), "DATASETS.NAMES", f'("{name}",)']


# --- tables ---


def table(content, *, suffix=".csv"):
    def make(folder):
        (folder / "good.png").write_bytes(encoded_image())
        file = folder / f"people{suffix}"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return train_on(f"file:{file.name}", folder)

    return make


def pipe_as_table(folder):
    os.mkfifo(folder / "people.csv")
    return train_on("file:people.csv", folder)


def pipe_as_image(folder):
    os.mkfifo(folder / "pipe.png")
    return table("path,identity,split\npipe.png,1,train\ngood.png,1,train\n")(folder)


def image(content):
    def make(folder):
        (folder / "bad.png").write_bytes(content)
        return table("path,identity,split\nbad.png,1,train\ngood.png,1,train\n")(folder)

    return make


# --- records ---


def record(labels, *, header=None, index=None):
    def make(folder):
        records(folder / "train.rec", [encoded_image(10 * i) for i in range(len(labels))], labels)
        if header is not None:
            content = bytearray((folder / "train.rec").read_bytes())
            assert struct.unpack_from("<I", content)[0] == MAGIC
            struct.pack_into(f"<{len(header)}f", content, 32, *header)
            (folder / "train.rec").write_bytes(content)
        if index is not None:
            (folder / "train.idx").write_text(index)
        return ["DATASETS.REC_PATH", str(folder / "train.rec")]

    return make


def pipe_as_record(folder):
    record([0.0, 1.0])(folder)
    (folder / "train.rec").unlink()
    os.mkfifo(folder / "train.rec")
    return ["DATASETS.REC_PATH", str(folder / "train.rec")]


# --- Omniglot's archives ---


def archives(change):
    def make(folder):
        for name in ARCHIVES:
            with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("images/Greek/character01/0394_01.png", encoded_image() + bytes(3000))
        change(folder / ARCHIVES[0])
        return train_on("Omniglot", folder)

    return make


def break_deflate(path):
    content = bytearray(path.read_bytes())
    start = 30 + len("images/Greek/character01/0394_01.png")
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)


def encrypt(path):
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)


# --- verification files of insightface ---

_DTYPE = b"cnumpy\ndtype\n(Vu1\nK\x00K\x01tR"
_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"


def pickled_array(dtype, length, raw):
    """A pickle of ([array], [True])."""
    state = b"(K\x01(J" + struct.pack("<i", length) + b"t" + dtype + b"\x89B" + struct.pack("<I", len(raw)) + raw + b"t"
    return b"\x80\x03(](" + _ARRAY + state + b"be](\x88et."


def object_dtype():
    """numpy's dtype of objects, its flags set to 0, so that bytes of the file would be taken as pointers."""
    dtype = b"cnumpy\ndtype\n(VO8\nK\x00K\x01tR(K\x03V|\nNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return pickled_array(dtype, 8, b"\x10" * 8)


def far_field():
    """A dtype whose only field lies 10^8 bytes behind its 8."""
    field = b"}Va\n(" + _DTYPE + b"J" + struct.pack("<i", 10**8) + b"ts"
    dtype = _DTYPE + b"(K\x03V|\nN(Va\nt" + field + b"K\x08K\x01K\x00tb"
    return pickled_array(dtype, 8, bytes(8))


def deep(levels):
    """Tuples in tuples, as the name of a dtype."""
    return b"\x80\x03cnumpy\ndtype\n(" + b")" + b"\x85" * levels + b"K\x00K\x01tR."


def laughter():
    """Thirty lists, each ten times the one before, as the flags."""
    content = b"\x80\x03(](C\x01aC\x01ae]q\x00"
    for i in range(30):
        content += b"](" + bytes([ord("h"), i]) * 10 + b"eq" + bytes([i + 1])
    return content + b"t."


class Command:
    def __reduce__(self):
        return os.system, ("touch hostile_pickle_was_run",)


HOSTILE_PICKLES: dict[str, tuple[bytes, str]] = {
    "objects": (object_dtype(), "got 1 images for 1 pairs"),
    "a far field": (far_field(), "got 1 images for 1 pairs"),
    "no content": (b"\x80\x03(](" + _ARRAY + b"e](\x88et.", "got 1 images for 1 pairs"),
    "a command": (pickle.dumps(([Command()], [True])), r"it contains posix\.system, but only arrays and bytes"),
    "three images": (pickle.dumps(([b"image"] * 3, [True])), "expected two images a pair; got 3 images for 1 pairs"),
    "texts": (pickle.dumps((["no bytes"] * 2, [True])), "an image must be bytes; got str"),
    "a cut file": (pickle.dumps(([b"image"] * 2, [True]))[:-4], "or damaged"),
    "an attribute for a function": (b"c_codecs\nencode\n}Vx\nK\x01sb.", "or damaged"),
    "an instance": (b"\x80\x03(ios\nsystem\n.", r"it contains os\.system"),
    "depth": (deep(200_000), "or damaged"),
    "laughter": (laughter(), "or damaged"),
    "a far place": (b"\x80\x02]r\xff\xff\xff\x7f.", "or damaged"),
    "no end": (b"\x80\x03](", "or damaged"),
    "two gigabytes": (b"\x80\x03B\xff\xff\xff\x7fabc.", "or damaged"),
    "a class changed": (b"\x80\x03c_codecs\nencode\nN}Vcontent\nK\x01s\x86b.", "or damaged"),
}
"""name -> (content of lfw.bin, the message)."""

DAMAGED: dict[str, tuple[Callable[[Path], Made], str]] = {
    "table: NUL": (table("path,identity,split\na\0b.png,1,train\n"), r"embedded null byte"),
    "table: more cells": (table("path,identity,split\n1.png,1,train,5\n"), r"Row #2: Expected 3 columns, got 4"),
    "table: a column twice": (
        table("path,identity,split,path\n1,1,train,2\n"),
        r"people\.csv: path, path all mean path: keep one of them",
    ),
    "table: pipe": (pipe_as_table, r"people\.csv cannot be read: .*not a regular file"),
    "table: not UTF-8": (
        table(b"path,identity,split\n\xff.png,1,train\n"),
        r"people\.csv cannot be read: .*invalid UTF8",
    ),
    "table: not Parquet": (table(b"PAR1 no", suffix=".parquet"), r"people\.parquet cannot be read"),
    "image: pipe": (pipe_as_image, r"pipe\.png cannot be read: .*not a regular file"),
    "image: cut": (image(encoded_image()[:-60]), r"bad\.png cannot be decoded"),
    **{
        f"record: label {value}": (
            record([0.0, value]),
            rf"the identity of record 2 must be an integer .*; got {shown}",
        )
        for value, shown in ((np.nan, "nan"), (3e38, r"3e\+38"), (1.5, r"1\.5"), (-3.0, "-3"))
    },
    "record: a count of 10^10": (
        record([0.0, 1.0], header=[1e10, 1e10]),
        r"its first record announces 10000000000 images; its index has 2",
    ),
    "record: empty index": (record([0.0], index=""), r"train\.rec contains no images"),
    "record: no number in the index": (record([0.0], index="0\t0\n1\t1.5\n"), r"train\.idx cannot be read"),
    "record: negative place": (record([0.0, 1.0], index="0\t-5\n1\t0\n"), "no record at byte -5"),
    "record: place beyond 2^63": (record([0.0], index=f"0\t{2**63}\n"), "no record at byte"),
    "record: pipe": (pipe_as_record, r"train\.rec cannot be read"),
    "Omniglot: deflate": (archives(break_deflate), rf"{ARCHIVES[0]} is damaged \(.*\): download it again"),
    "Omniglot: password": (archives(encrypt), rf"{ARCHIVES[0]} is damaged \(.*encrypted"),
}
"""name -> (maker, the message)."""

DIGITS = "Digits/sap_tcm.yml"


@pytest.fixture
def bounded():
    """What hangs is a failure."""

    def stop(*_):
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def damaged(name, folder):
    """Overrides that ask for a damaged file, and the message of its error."""
    make, message = DAMAGED[name]
    (folder / "data").mkdir()
    return ["MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(folder / "out"), *make(folder / "data")], message


@pytest.fixture(scope="module")
def digits():
    return load_config(DIGITS, [])


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_message(name, digits, tmp_path):
    overrides, message = damaged(name, tmp_path)
    cfg = digits.clone()
    cfg.merge_from_list(overrides)
    with pytest.raises(UserError, match=message) as refusal:
        DataModule(cfg)
    assert len(str(refusal.value)) < 2000


@pytest.mark.usefixtures("bounded")
def test_the_command_prints_the_message_and_ends(tmp_path, capfd):
    overrides, message = damaged("image: cut", tmp_path)
    assert main(["train", DIGITS, *overrides]) == 2
    shown = capfd.readouterr()
    errors = [line for line in shown.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.search(message, errors[0]), errors[0]
    assert "Traceback" not in shown.err + shown.out


def test_identities_beyond_64_bits_are_names_like_any_other(tmp_path):
    rows = "".join(f"good.png,{2**63 + i},train\n" for i in range(2))
    table(f"path,identity,split\n{rows}")(tmp_path)
    assert table_set(tmp_path / "people.csv", False).train.identities.tolist() == [0, 1]


READ = """
import json, sys
from pathlib import Path
from pml_ext import UserError
from pml_ext.runner.data.datasets.faces import read_bin
for path in map(Path, sys.argv[1:]):
    try:
        read_bin(path, False)
        print(json.dumps([path.parent.name, "read"]), flush=True)
    except UserError as error:
        print(json.dumps([path.parent.name, str(error)]), flush=True)
"""


def test_hostile_verification_files_build_and_run_nothing(tmp_path):
    """In a process of its own, which a pointer out of a file would end."""
    paths = []
    for i, (content, _) in enumerate(HOSTILE_PICKLES.values()):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "lfw.bin").write_bytes(content)
        paths.append(str(tmp_path / str(i) / "lfw.bin"))
    done = subprocess.run(
        [sys.executable, "-c", READ, *paths], capture_output=True, text=True, timeout=120, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = dict(json.loads(line) for line in done.stdout.splitlines())
    for i, (name, (_, message)) in enumerate(HOSTILE_PICKLES.items()):
        assert re.search(message, said[str(i)]), (name, said[str(i)][:300])
        assert len(said[str(i)]) < 500
    assert not list(tmp_path.rglob("hostile_pickle_was_run"))
