"""insightface's records and verification files, and IJB's templates."""

import io
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from pml_ext._shared.errors import UserError
from pml_ext.runner.data.datasets import PairSet, TemplateSet, load
from pml_ext.runner.data.datasets.faces import LANDMARKS, RecordFile, align, record_set
from tests.runner.data import published_layouts as layouts
from tests.runner.data.published_layouts import MAGIC, encoded_image, records, write_records

# --- records ---


def test_headers_are_those_of_each_record(tmp_path):
    random = np.random.default_rng(0)
    bodies = [
        (random.integers(2**24, size=1 + i % 4).astype(float).tolist(), random.bytes(i * 7 % 30)) for i in range(200)
    ]
    offsets = np.array(write_records(tmp_path / "a.rec", bodies))  # the last record ends with the file
    file = RecordFile(tmp_path / "a.rec")
    labels, has_image = file.headers(offsets)
    assert labels.tolist() == [labels[0] for labels, _ in bodies]
    assert has_image.tolist() == [len(image) > 0 for _, image in bodies]
    for wrong in (offsets[-1] + 4, 2, 10**9, -4, -1):
        with pytest.raises(UserError, match=f"no record at byte {wrong}: "):
            file.headers(np.append(offsets, wrong))


def test_images_of_records_in_any_order_of_the_index(tmp_path):
    values = [10, 120, 250, 60, 90]
    path, index = tmp_path / "train.rec", tmp_path / "train.idx"
    records(path, [encoded_image(value, "PNG") for value in values], [0.0, 7.0, 7.0, 2.0, 5.0])
    lines = index.read_text().splitlines()
    index.write_text("\r\n".join(reversed(lines)) + "\n")
    data = record_set(path, False)
    assert data.identities.tolist() == [0, 7, 7, 2, 5]
    assert list(data.names) == [f"{path}[{i}]" for i in range(1, 6)]
    assert [int(image.float().mean()) for image in data.images] == values
    again = pickle.loads(pickle.dumps(data.images))  # as a loader's worker gets it
    assert torch.equal(again[2], data.images[2])


def test_a_record_that_holds_the_magic_number_is_put_together(tmp_path):
    # A bitmap keeps its pixels as they are: the magic number comes twice.
    pixels = np.frombuffer(struct.pack("<I", MAGIC) * 3, dtype=np.uint8).reshape(2, 2, 3)[:, :, ::-1]
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "BMP")
    records(tmp_path / "train.rec", [content.getvalue()], [0.0])
    assert record_set(tmp_path / "train.rec", False).images[0].permute(1, 2, 0).tolist() == pixels.tolist()


def test_truncated_and_damaged_records(tmp_path):
    path = tmp_path / "train.rec"
    records(path, [encoded_image(9), encoded_image(200)], [0.0, 1.0], identities=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    data = record_set(path, False)
    assert data.images[0].shape == (3, 12, 6)
    with pytest.raises(UserError, match=r"train.rec at byte \d+ cannot be read, the file is damaged or truncated"):
        data.images[1]
    for content in (whole[: len(whole) // 2], b"\0" * len(whole)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"no record at byte \d+: the file or its index is damaged or truncated"):
            record_set(path, False)


# --- pairs ---

ARRAYS = [np.frombuffer(encoded_image(10 * i, "PNG"), dtype=np.uint8) for i in range(4)]


@pytest.mark.parametrize(
    ("images", "same"),
    [
        ([array.tobytes() for array in ARRAYS], [True, False]),
        (ARRAYS, [np.True_, np.False_]),
        (ARRAYS, (1, 0)),
    ],
)
def test_verification_files_of_insightface(images, same, tmp_path):
    (tmp_path / "faces_emore").mkdir()
    (tmp_path / "faces_emore" / "lfw.bin").write_bytes(pickle.dumps((images, same), protocol=2))
    data = load("LFW", tmp_path, False)
    assert isinstance(data, PairSet) and data.same.tolist() == [True, False]
    assert [image.unique().tolist() for image in data.images.images] == [[0], [10], [20], [30]]


# --- templates ---


@pytest.mark.parametrize("name", ["IJBB", "IJBC"])
def test_ijb_templates(name, tmp_path):
    layouts.ijb(tmp_path, name)
    data = load(name, tmp_path, False)
    assert isinstance(data, TemplateSet)
    assert data.media.template_ids.tolist() == [1, 1, 1, 2, 3, 4]
    assert data.pairs.same.tolist() == [True, False, False]
    assert data.images.images[4].shape == (3, 112, 112)


def test_ijb_lists_that_do_not_fit(tmp_path):
    layouts.ijb(tmp_path)
    points = tmp_path / "IJBC" / "meta" / "ijbc_name_5pts_score.txt"
    good = points.read_text()
    for text, message in (
        (good.replace("5.jpg", "7.jpg"), "name_5pts_score.txt has no landmarks for 5.jpg"),
        ("1.jpg 3 4\n", "line 1: expected `image x1 y1"),
    ):
        points.write_text(text)
        with pytest.raises(UserError, match=message):
            load("IJBC", tmp_path, False)
    media = points.with_name("ijbc_face_tid_mid.txt")
    points.write_text(good.replace("5.jpg", "../5.jpg"))
    media.write_text(media.read_text().replace("5.jpg", "../5.jpg"))
    with pytest.raises(UserError, match=r"ijbc_face_tid_mid.txt: paths must be inside .*got '../5.jpg'"):
        load("IJBC", tmp_path, False)


def test_alignment_undoes_a_turn_a_shift_and_a_scale():
    rows, columns = torch.meshgrid(torch.arange(112.0), torch.arange(112.0), indexing="ij")
    face = torch.stack([rows + columns, 2 * rows, 2 * columns]).to(torch.uint8)
    assert (align(face, LANDMARKS).int() - face.int()).abs().max() <= 1, "landmarks in their places change nothing"
    turned = face.rot90(1, (1, 2))  # counter-clockwise: x' = y, y' = 111 − x
    places = np.stack([LANDMARKS[:, 1], 111 - LANDMARKS[:, 0]], 1)
    assert (align(turned, places).int() - face.int()).abs().max() <= 1
    large = torch.nn.functional.interpolate(face[None].float(), scale_factor=2, mode="bilinear")[0].round()
    aligned = align(large.to(torch.uint8), 2 * LANDMARKS + 0.5)
    assert (aligned.int() - face.int())[:, 1:-1, 1:-1].abs().max() <= 2
