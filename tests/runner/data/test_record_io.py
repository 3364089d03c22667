"""Headers of more records than a float of 32 bits can count."""

import struct
from pathlib import Path

import numpy as np
import pytest

from pml_ext._errors import UserError
from pml_ext.runner.data.datasets.record_io import RecordFile, _end_of_images, record_set
from tests.runner.data.published_layouts import MAGIC, records


def written(path: Path, bodies: list[tuple[list[float], bytes]], *, shift: int = 0) -> np.ndarray:
    """Writes records of (labels, image) and gives their offsets; shift: bytes of nothing before the first."""
    content, offsets = bytearray(shift), []
    for labels, image in bodies:
        offsets.append(len(content))
        further = len(labels) if len(labels) > 1 else 0
        body = struct.pack("<IfQQ", further, labels[0] if not further else 9.0, 0, 0)
        body += struct.pack(f"<{further}f", *labels[:further]) + image
        content += struct.pack("<II", MAGIC, len(body)) + body + b"\0" * (-len(body) % 4)
    path.write_bytes(content)
    return np.array(offsets, dtype=np.int64)


@pytest.mark.parametrize("shift", [0, 4, 3])
def test_first_labels_are_those_of_each_record(shift: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    bodies = [
        (random.integers(2**24, size=1 + i % 4).astype(float).tolist(), random.bytes(i * 7 % 30)) for i in range(200)
    ]
    offsets = written(tmp_path / "a.rec", bodies, shift=shift)  # the last record ends with the file
    file = RecordFile(tmp_path / "a.rec")
    assert file.first_labels(offsets).tolist() == [labels[0] for labels, _ in bodies]
    assert file.first_labels(offsets).tolist() == [file.labels(int(offset))[0] for offset in offsets]
    for wrong, message in ((offsets[-1] + 4, "no record|truncated"), (10**9, "is truncated"), (-1, "is truncated")):
        with pytest.raises((UserError, OSError), match=message):
            file.first_labels(np.append(offsets, wrong))


@pytest.mark.parametrize("end", [2**24 - 1, 2**24, 17_091_657, 17_091_658, 17_091_659, *range(42_474_557, 42_474_562)])
@pytest.mark.parametrize("with_identities", [True, False])
def test_the_end_of_the_images_is_exact_where_record_0_rounds_it(
    end: int, with_identities: bool, tmp_path: Path
) -> None:
    keys = np.arange(end - 4, end + 5 * with_identities)
    places = written(tmp_path / "a.rec", [([3.0], b"jpeg") if key < end else ([1.0, 2.0], b"") for key in keys])
    assert _end_of_images(np.float32(end), keys, places, RecordFile(tmp_path / "a.rec")) == end


def test_a_missing_image_is_an_error_beyond_2_to_24_too(tmp_path: Path) -> None:
    keys = np.arange(17_091_650, 17_091_655)
    places = written(tmp_path / "a.rec", [([3.0], b"jpeg")] * 5)
    end = _end_of_images(np.float32(17_091_660), keys, places, RecordFile(tmp_path / "a.rec"))
    assert end == 17_091_659, "one less, for the number may be rounded; the index has fewer"


@pytest.mark.parametrize("index", ["0\t0\n1\t1.5\n", "0 0 1\n", "0\t0\n\n1\t9\n", "0\tx\n", "0\t0\n-1\t5\n", "é"])
def test_an_index_of_other_than_two_numbers_a_line(index: str, tmp_path: Path) -> None:
    records(tmp_path / "train.rec", [b"x"], [0.0])
    (tmp_path / "train.idx").write_text(index)
    with pytest.raises(UserError, match=r"record index .*train.idx cannot be read"):
        record_set(tmp_path / "train.rec", False)


def test_an_index_in_any_order_names_each_record(tmp_path: Path) -> None:
    records(tmp_path / "train.rec", [b"x"] * 5, [0.0, 7.0, 7.0, 2.0, 5.0])
    index = tmp_path / "train.idx"
    index.write_text("\r\n".join(reversed(index.read_text().split("\n")[:-1])) + "\n")
    data = record_set(tmp_path / "train.rec", False)
    assert data.identities.tolist() == [0, 7, 7, 2, 5]
    assert list(data.names) == [f"{tmp_path}/train.rec[{i}]" for i in range(1, 6)]
    index.write_text("")
    with pytest.raises(UserError, match="holds no images"):
        record_set(tmp_path / "train.rec", False)
