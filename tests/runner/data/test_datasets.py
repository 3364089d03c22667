"""What a run loads of the data sets that its config names, and the sets that it draws, downloads or unpacks."""

import logging
import zipfile
from pathlib import Path

import pytest
import torch
import torchvision
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.cli import parse
from pml_ext.cli.arguments import config_files, trained_config, training_config
from pml_ext.runner.checks.rules import unsupported
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import ImageCheck, image_check, load_test_sets, load_train_set
from pml_ext.runner.data.datasets.handwriting import (
    ARCHIVES,
    TEST_ALPHABETS,
    TRAIN_ALPHABETS,
    digits_set,
    omniglot_set,
)
from pml_ext.runner.data.datasets.image_files import ImageFile, dataset_root, image_sets
from pml_ext.runner.engine.data_module import DataModule
from tests.runner.data.published_layouts import LAYOUTS, encoded_image, face_bin, write


def config(root, names=(), tests=(), **options):
    cfg = get_cfg()
    cfg.DATASETS.update({"ROOT": str(root), "NAMES": names, "TESTS": tests, **options})
    return cfg.DATASETS


# --- several sets, and parts of sets ---


def test_sets_are_joined_and_tests_can_be_trained_on_too(tmp_path, caplog):
    LAYOUTS["Market1501"](tmp_path)
    LAYOUTS["DukeMTMC"](tmp_path)
    with caplog.at_level(logging.INFO, logger="pml_ext"):
        train = load_train_set(config(tmp_path, ("Market1501", "DukeMTMC")), grey=False)
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3, 3, 4], "identities of different sets stay apart"
    assert train.images[13].shape == (3, 12, 6)
    assert "Market1501, train: 12 images, 3 identities, 4 cameras" in caplog.text
    combined = load_train_set(config(tmp_path, ("Market1501",), COMBINEALL=True), grey=False)
    assert len(combined) == 12 + 5, "junk and distractors are nobody to learn"
    assert len(set(combined.labels)) == 3 + 2


def test_identities_of_one_image_can_be_left_out(tmp_path):
    write(tmp_path / "mine", "anna/1.jpg", "ben/1.jpg", "ben/2.jpg", "carla/1.jpg", "dora/1.jpg", "dora/2.jpg")
    kept = load_train_set(config(tmp_path, ("folder:mine",), RM_LT=True), grey=False)
    assert [Path(name).parent.name for name in kept.names] == ["ben", "ben", "dora", "dora"]
    assert kept.labels.tolist() == [0, 0, 1, 1]


def test_sets_that_only_train_or_only_test(tmp_path):
    LAYOUTS["CASIAWebFace"](tmp_path)
    LAYOUTS["OccludedREID"](tmp_path)
    face_bin(tmp_path / "lfw.bin", [True])
    with pytest.raises(UserError, match=r"DATASETS.TESTS: CASIAWebFace has no test images"):
        load_test_sets(config(tmp_path, tests=("CASIAWebFace",)), grey=False)
    for name in ("LFW", "OccludedREID"):
        with pytest.raises(UserError, match=f"DATASETS.NAMES: {name} has no training images"):
            load_train_set(config(tmp_path, (name,)), grey=False)
    with pytest.raises(UserError, match=r"DATASETS\.NAMES: unknown value 'Digit'; did you mean 'Digits'"):
        load_train_set(config(tmp_path, ("Digit",)), grey=False)


def test_the_root_is_the_config_then_the_environment(monkeypatch):
    monkeypatch.delenv("FASTREID_DATASETS", raising=False)
    monkeypatch.delenv("PML_EXT_DATA", raising=False)
    assert dataset_root("") == Path("datasets")
    monkeypatch.setenv("PML_EXT_DATA", "b")
    assert dataset_root("") == Path("b")
    monkeypatch.setenv("FASTREID_DATASETS", "a")
    assert dataset_root("") == Path("a")
    assert dataset_root("c") == Path("c")


# --- aliases ---


def test_an_alias_is_read_from_ones_own_table_under_its_name(tmp_path):
    write(tmp_path, "1.png")
    (tmp_path / "people.csv").write_text("path,identity,split\n1.png,7,train\n1.png,8,query\n1.png,8,gallery\n")
    for name in ("NAIC", "Market1501"):  # the latter has layout, distractors and columns of its own, which do not count
        options = config(tmp_path, (name,), (name,), ALIASES=(f"{name}=file:people.csv",))
        assert len(load_train_set(options, grey=False)) == 1
        assert list(load_test_sets(options, grey=False)) == [name]
        options.COMBINEALL = True
        assert len(load_train_set(options, grey=False)) == 3


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        *(((entry,), "must be NAME=file:people.csv or") for entry in ("A=B", "=file:x", 5)),
        (("A=file:x.csv", "A=file:y.csv"), "must contain each name once"),
    ],
)  # fmt: skip
def test_aliases_that_mean_nothing(aliases, message):
    cfg = get_cfg()
    cfg.DATASETS.ALIASES = aliases
    assert any(message in str(problem) for problem in unsupported(cfg))


def checked_config(options):
    (config,) = config_files(options).items()
    return config


def test_the_command_line_names_ones_own_data_for_a_config_as_it_is(tmp_path):
    path = tmp_path / "theirs.yml"
    precise = "TEST: {PRECISE_BN: {ENABLED: true, DATASET: NAICReID}}"
    path.write_text(f"DATASETS: {{NAMES: [NAICReID], TESTS: [NAICReID]}}\n{precise}")
    keys = {"DATASETS.NAMES", "DATASETS.TESTS", "TEST.PRECISE_BN.DATASET"}
    assert {problem.key for problem in unsupported(load_config(path))} >= keys
    for command, config_of in (("train", training_config), ("eval", trained_config), ("check-config", checked_config)):
        words = [command, str(path), "--dataset", "NAICReID=file:naic.csv", "--dataset", "B=folder:b"]
        cfg = load_config(*config_of(parse(words)[1]))
        assert cfg.DATASETS.ALIASES == ("NAICReID=file:naic.csv", "B=folder:b")
        assert not {problem.key for problem in unsupported(cfg)} & keys


# --- images that cannot be decoded ---


def test_unreadable_images_are_skipped_listed_and_limited(tmp_path, caplog):
    LAYOUTS["Market1501"](tmp_path)
    damaged = tmp_path / "Market-1501-v15.09.15" / "bounding_box_train" / "0007_c2s1_000070_02.jpg"
    damaged.write_bytes(encoded_image()[:-30])
    with caplog.at_level(logging.INFO, logger="pml_ext"):
        train = load_train_set(config(tmp_path, ("Market1501",), MAX_UNREADABLE=0.1), grey=False)
    assert len(train) == 11 and str(damaged) not in train.names
    found = "1 of 12 images of Market1501, train cannot be read"
    assert f"{found}; they are skipped (the first: image {damaged} cannot be decoded" in caplog.text
    said = rf"^{found} \(.*\). Set DATASETS.MAX_UNREADABLE 0.09 to continue"
    with pytest.raises(UserError, match=said):
        load_train_set(config(tmp_path, ("Market1501",)), grey=False)
    combined = config(tmp_path, ("Market1501",), MAX_UNREADABLE=0.09, COMBINEALL=True)
    assert len(load_train_set(combined, grey=False)) == 11 + 5
    for file in (tmp_path / "Market-1501-v15.09.15" / "query").iterdir():
        file.write_bytes(b"")
    with pytest.raises(UserError, match=r"of Market1501, query cannot be read .*the file is empty"):
        load_test_sets(config(tmp_path, tests=("Market1501",), MAX_UNREADABLE=1.0), grey=False)
    unchecked = load_train_set(config(tmp_path, ("Market1501",), CHECK_IMAGES=False), grey=False)
    with pytest.raises(UserError, match="cannot be decoded"):
        unchecked.images[unchecked.names.index(str(damaged))]


@pytest.mark.parametrize("options", [{"COMBINEALL": True}, {"RM_LT": True}])
@pytest.mark.parametrize("names", [("folder:mine",), ("folder:mine", "folder:other"), ("folder:other", "folder:mine")])
def test_a_training_set_without_a_readable_image_is_one_message(names, options, tmp_path):
    for name in names:
        write(
            tmp_path / name.removeprefix("folder:"),
            *(f"{identity}/{number}.jpg" for identity in "ab" for number in "12"),
        )
    for file in (tmp_path / "mine").rglob("*.jpg"):
        file.write_bytes(b"")
    cfg = get_cfg()
    cfg.DATASETS.update(config(tmp_path, names, **options))
    with pytest.raises(UserError, match=r"^4 of 4 images of folder:mine, train cannot be read \(.*file is empty"):
        DataModule(cfg)


def test_unreadable_images_that_leave_one_of_each_identity_are_one_message(tmp_path):
    write(tmp_path / "mine", "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")
    for identity in "ab":
        (tmp_path / "mine" / identity / "2.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"^2 of 4 images of folder:mine, train cannot be read"):
        DataModule(
            load_config(
                None, ["DATASETS.ROOT", str(tmp_path), "DATASETS.NAMES", ("folder:mine",), "DATASETS.RM_LT", True]
            )
        )


def test_ranks_divide_the_files_and_share_what_they_find(tmp_path, monkeypatch):
    files = [tmp_path / f"{i}.jpg" for i in range(11)]
    for i, file in enumerate(files):
        file.write_bytes(b"" if i in (3, 4, 9) else encoded_image())
    images = image_sets([[ImageFile(file, i) for i, file in enumerate(files)]], grey=False)[0]
    said, decoded, read = list[str](), list[str](), image_check.require_image

    def exchange(text):
        said.append(text)
        return said

    def counted(path):
        decoded.append(path)
        read(path)

    monkeypatch.setattr(image_check, "exchange", exchange)
    monkeypatch.setattr(image_check, "require_image", counted)
    for rank in range(3):
        monkeypatch.setattr(image_check, "launched_rank_and_ranks", lambda rank=rank: (rank, 3))
        of_rank = ImageCheck(CN({"CHECK_IMAGES": True, "MAX_UNREADABLE": 0.5}))
        found = of_rank.readable("set", images)
    assert found.identities.tolist() == [0, 1, 2, 5, 6, 7, 8, 10], "the last one has heard all"
    assert of_rank.skipped == ["3 of 11 images of set cannot be read"]
    assert sorted(decoded) == sorted(map(str, files)), "no file twice"


# --- Digits and Omniglot ---


def archives(folder, damaged=None):
    """The two published archives in small: every alphabet with two characters of two drawers."""
    folder.mkdir(parents=True, exist_ok=True)
    halves = (TRAIN_ALPHABETS, ("Greek", "Latin", *TEST_ALPHABETS))  # Greek and Latin are in both
    for archive, alphabets in zip(ARCHIVES, halves, strict=True):
        with zipfile.ZipFile(folder / archive, "w") as file:
            for alphabet in alphabets:
                for character, drawer in ((1, 1), (1, 2), (2, 1), (2, 2)):
                    name = f"{archive[:-4]}/{alphabet}/character{character:02}/00{character}_{drawer:02}.png"
                    file.writestr(name, (damaged or {}).get(name, encoded_image()))


def test_digits_split_by_class():
    data = digits_set(Path(), True)
    assert set(data.train.identities) == {0, 1, 2, 3, 4}
    assert set(data.query.identities) == {5, 6, 7, 8, 9}
    assert len(data.train) + len(data.query) == 1797
    pixels = torch.stack(list(data.train.images))
    assert pixels.shape == (901, 1, 8, 8) and (pixels.min(), pixels.max()) == (0, 255)


def alphabet(name):
    return name.split("/")[-3]


def test_omniglot_in_its_published_archives(tmp_path):
    archives(tmp_path / "omniglot")
    data = omniglot_set(tmp_path, True)
    for part in (data.train, data.query):
        pairs = set(zip(part.identities.tolist(), part.cameras.tolist(), strict=True))
        assert len(pairs) == len(part), "one drawing per drawer and character"
    assert set(map(alphabet, data.train.names)) == set(TRAIN_ALPHABETS)
    assert set(map(alphabet, data.query.names)) == set(TEST_ALPHABETS)
    assert data.train.images[0].shape[0] == 1 and data.train.name_of(0) == "Balinese/01"


def test_omniglot_reads_torchvisions_folder_and_downloads_it(tmp_path, monkeypatch):
    calls = []

    def download(root, background, download):
        calls.append((root, background, download))
        for alphabet in (*TRAIN_ALPHABETS, *TEST_ALPHABETS):
            write(
                Path(root) / "omniglot-py/images_background",
                f"{alphabet}/character01/0001_03.png",
                content=encoded_image(),
            )

    monkeypatch.setattr(torchvision.datasets, "Omniglot", download)
    data = omniglot_set(tmp_path, True)
    assert (len(data.train), len(data.query), set(data.query.cameras)) == (5, 3, {3})
    omniglot_set(tmp_path, True)
    assert calls == [(str(tmp_path), True, True)], "what is there is not downloaded again"


def test_a_missing_or_damaged_omniglot_says_what_to_do(tmp_path, monkeypatch):
    def download(root, background, download):
        raise OSError("no network")

    monkeypatch.setattr(torchvision.datasets, "Omniglot", download)
    with pytest.raises(UserError, match=r"could not download it \(no network\)\. Put images_background_small1\.zip"):
        omniglot_set(tmp_path, True)
    folder = tmp_path / "omniglot"
    archives(folder)
    data = omniglot_set(tmp_path, True)
    assert (len(data.train), len(data.query)) == (20, 12), "the archives come before the folder"
    archives(folder, {"images_background_small1/Korean/character02/002_01.png": encoded_image()[:40]})
    with pytest.raises(UserError, match=r"image .*small1\.zip:.*Korean/character02/002_01\.png cannot be decoded"):
        omniglot_set(tmp_path, True)
    (folder / ARCHIVES[0]).write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"small1\.zip is damaged"):
        omniglot_set(tmp_path, True)
