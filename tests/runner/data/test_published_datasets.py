"""Every published data set, in a small copy of its layout: one contract over the registry."""

import pytest

from pml_ext._shared.errors import UserError
from pml_ext.runner.data.datasets import ImageSet, OpenSet, PairSet, TemplateSet, data_set, load
from pml_ext.runner.registry import DATASET_REGISTRY
from tests.runner.data.published_layouts import ALL_LAYOUTS, LAYOUTS, write

ON_DISK = [name for name in DATASET_REGISTRY if not data_set(name).is_made]
OF_IMAGES = [name for name in ON_DISK if data_set(name).kind not in (PairSet, TemplateSet)]


@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_identities_and_cameras(name, tmp_path):
    layouts = [layout for layout in ALL_LAYOUTS if name in layout.sets]
    assert layouts, f"a small copy of {name} belongs in published_layouts.yml"
    for i, layout in enumerate(layouts):
        layout(tmp_path / str(i))
        check(name, layout, tmp_path / str(i))


def check(name, layout, root):
    data = load(name, root, False)
    assert type(data) is data_set(name).kind
    parts = [data.train, *data.parts] if isinstance(data, OpenSet) else [data]
    own_cameras: list[int] = []
    for images, rows in zip(parts, layout.sets[name], strict=True):
        assert list(images.names) == [str(root / layout.folder / row.path) for row in rows]
        assert [images.name_of(identity) for identity in images.identities.tolist()] == [row.identity for row in rows]
        assert [image.shape for image in images.images] == [(3, 12, 6)] * len(rows)
        for camera, row in zip(images.cameras.tolist(), rows, strict=True):
            if row.camera == "-":
                own_cameras.append(camera)
            else:
                assert camera == int(row.camera)
    assert len(own_cameras) == len(set(own_cameras)), "the camera protocol removes nothing"


@pytest.mark.parametrize("name", ON_DISK)
def test_a_wrong_layout_says_what_was_expected_and_what_is_there(name, tmp_path):
    (tmp_path / "something_else").mkdir()
    with pytest.raises(UserError, match=r"something_else") as error:
        load(name, tmp_path, False)
    assert str(tmp_path) in str(error.value) and str(error.value).startswith(f"{name}: ")


def test_the_root_may_be_the_folder_of_market1501(tmp_path):
    LAYOUTS["Market1501"](tmp_path)
    data = load("Market1501", tmp_path / "Market-1501-v15.09.15", False)
    assert isinstance(data, OpenSet) and len(data.train) == 12


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("MSMT17", "list_query.txt", "0000_x.jpg", r"list_query.txt, line 1: expected `0000/0000_000_01"),
        ("VeRiWild", "train_test_split/train_list.txt", "00009/77.jpg", "00009/77.jpg, but vehicle_info.txt does not"),
        ("CUB", "images.txt", "1", "not the published files"),
        ("CUBSharedClasses", "train_test_split.txt", "1 1\n2 yes\n", "line 2: expected `an image's number and 0 or 1`"),
        ("CUBSharedClasses", "train_test_split.txt", "1 1\n", "has no line for image 2 of images.txt"),
        ("AirportALERT", "filepath.txt", "cam1/11001/1.jpg", "filepath.txt, line 1: expected `cam1"),
        (
            "NAIC20_R1",
            "2020_NAIC/chusai/train/label.txt",
            "0.png,3",
            "label.txt, line 1: expected `00040591.png:15178`",
        ),
        ("NAIC20_R1", "2020_NAIC/chusai/train/label.txt", "", "label.txt contains no images"),
    ],
)
def test_a_damaged_list_names_its_line(name, file, text, message, tmp_path):
    LAYOUTS[name](tmp_path)
    (tmp_path / LAYOUTS[name].folder / file).write_text(text)
    with pytest.raises(UserError, match=message):
        load(name, tmp_path, False)


def test_the_first_lines_of_naics_list_count(tmp_path):
    LAYOUTS["NAIC20_R1"](tmp_path)
    lines = "".join(f"{i % 4:08}.png:{i % 3}\n" for i in range(40200))
    write(tmp_path, "naic/2020_NAIC/chusai/train/label.txt", content=lines.encode())
    data = load("NAIC20_R1", tmp_path, False)
    assert isinstance(data, ImageSet) and len(data) == 40188
