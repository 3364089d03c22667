import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from pml_ext._errors import UserError
from pml_ext.cli import parse
from pml_ext.cli.arguments import config_files, trained_config, training_config
from pml_ext.runner.checks.supported import unsupported
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import ImageSet, load_test_sets, load_train_set
from pml_ext.runner.data.datasets.digits import digits_set
from pml_ext.runner.data.datasets.layout import dataset_root
from pml_ext.runner.data.datasets.omniglot import ARCHIVES, TEST_ALPHABETS, TRAIN_ALPHABETS, omniglot_set
from tests.conftest import real_data
from tests.runner.data.published_layouts import picture


def png(value: int = 255) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((6, 5), value, dtype=np.uint8)).save(content, "PNG")
    return content.getvalue()


def archives(folder: Path, damaged: dict[str, bytes] | None = None) -> None:
    """The two published archives in small: every alphabet with two characters of two drawers."""
    folder.mkdir(parents=True, exist_ok=True)
    halves = (TRAIN_ALPHABETS, ("Greek", "Latin", *TEST_ALPHABETS))  # Greek and Latin are in both
    for archive, alphabets in zip(ARCHIVES, halves, strict=True):
        with zipfile.ZipFile(folder / archive, "w") as file:
            for alphabet in alphabets:
                for character in (1, 2):
                    for drawer in (1, 2):
                        name = f"{archive[:-4]}/{alphabet}/character{character:02}/00{character}_{drawer:02}.png"
                        file.writestr(name, (damaged or {}).get(name, png()))


def test_digits_split_by_class() -> None:
    data = digits_set(Path(), True)
    assert set(data.train.identities) == {0, 1, 2, 3, 4}
    assert set(data.query.identities) == {5, 6, 7, 8, 9}
    assert len(data.train) + len(data.query) == 1797
    assert data.train.images[0].shape == (1, 8, 8)
    assert digits_set(Path(), False).train.images[0].shape == (3, 8, 8)
    pixels = torch.stack(list(data.train.images))
    assert (pixels.min(), pixels.max()) == (0, 255)


def test_omniglot_in_its_published_archives() -> None:
    data = omniglot_set(real_data("omniglot"), True)
    assert len(data.train) == 2720
    assert len(set(data.train.identities)) == 136
    assert len(data.query) == 2120
    assert len(set(data.query.identities)) == 106
    for part in (data.train, data.query):
        pairs = set(zip(part.identities.tolist(), part.cameras.tolist(), strict=True))
        assert len(pairs) == len(part), "one drawing per drawer and character"
        assert set(part.cameras) == set(range(1, 21))
    assert not {n.split("/")[-3] for n in data.train.names} & {n.split("/")[-3] for n in data.query.names}
    assert data.train.images[0].shape == (1, 105, 105)


def test_omniglot_lies_in_the_root_or_its_folder(tmp_path: Path) -> None:
    archives(tmp_path / "a")
    archives(tmp_path / "b" / "omniglot")
    for root in (tmp_path / "a", tmp_path / "b"):
        data = omniglot_set(root, True)
        assert (len(data.train), len(data.query)) == (20, 12)


def test_omniglot_reads_torchvisions_folder_and_downloads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(root: str, background: bool, download: bool) -> None:
        calls.append((root, background, download))
        for alphabet in (*TRAIN_ALPHABETS, *TEST_ALPHABETS):
            folder = Path(root) / "omniglot-py" / "images_background" / alphabet / "character01"
            folder.mkdir(parents=True)
            (folder / "0001_03.png").write_bytes(png())

    monkeypatch.setattr(torchvision.datasets, "Omniglot", download)
    data = omniglot_set(tmp_path, True)
    assert calls == [(str(tmp_path), True, True)]
    assert (len(data.train), len(data.query), set(data.query.cameras)) == (5, 3, {3})
    omniglot_set(tmp_path, True)
    assert len(calls) == 1, "what is there is not downloaded again"


def test_a_missing_omniglot_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(root: str, background: bool, download: bool) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torchvision.datasets, "Omniglot", download)
    with pytest.raises(UserError, match=r"could not download it \(no network\)\. Put images_background_small1\.zip"):
        omniglot_set(tmp_path, True)
    (tmp_path / "omniglot-py" / "images_background").mkdir(parents=True)
    with pytest.raises(UserError, match=r"no images of Balinese.*found: none"):
        omniglot_set(tmp_path, True)


def test_damaged_omniglot_files(tmp_path: Path) -> None:
    name = "images_background_small1/Korean/character02/002_01.png"
    archives(tmp_path, {name: png()[:40]})
    with pytest.raises(UserError, match=r"image .*small1\.zip:.*Korean/character02/002_01\.png cannot be decoded"):
        omniglot_set(tmp_path, True)
    whole = (tmp_path / ARCHIVES[0]).read_bytes()
    (tmp_path / ARCHIVES[0]).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"small1\.zip is damaged"):
        omniglot_set(tmp_path, True)
    (tmp_path / ARCHIVES[0]).unlink()
    with pytest.raises(UserError, match=r"needs both .* holds only images_background_small2\.zip"):
        omniglot_set(tmp_path, True)


def test_the_root_is_the_config_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTREID_DATASETS", raising=False)
    monkeypatch.delenv("PML_EXT_DATA", raising=False)
    assert dataset_root("") == Path("datasets")
    monkeypatch.setenv("PML_EXT_DATA", "b")
    assert dataset_root("") == Path("b")
    monkeypatch.setenv("FASTREID_DATASETS", "a")
    assert dataset_root("") == Path("a")
    assert dataset_root("c") == Path("c")


def test_joined_sets_keep_their_identities_apart() -> None:
    def part(identities: list[int]) -> ImageSet:
        count = len(identities)
        return ImageSet([torch.zeros(1, 1, 1)] * count, np.array(identities), np.zeros(count), ["x"] * count)

    joined = ImageSet.joined([part([7, 3, 7]), part([3, 9])])
    assert joined.labels.tolist() == [1, 0, 1, 2, 3]


def test_unknown_data_sets_list_the_known(tmp_path: Path) -> None:
    path = tmp_path / "c.yml"
    path.write_text("DATASETS: {NAMES: [Digit], TESTS: [Digits]}")
    cfg = load_config(path)
    with pytest.raises(
        UserError,
        match=r"DATASETS\.NAMES: unknown value 'Digit'; did you mean 'Digits'",
    ):
        load_train_set(cfg.DATASETS, grey=False)
    assert list(load_test_sets(cfg.DATASETS, grey=False)) == ["Digits"]


def test_an_alias_is_read_from_ones_own_table_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(picture(40, "PNG"))
    (tmp_path / "people.csv").write_text("path,identity,split\n1.png,7,train\n1.png,8,query\n1.png,8,gallery\n")
    options = get_cfg().DATASETS
    options.ROOT = str(tmp_path)
    for name in ("NAIC", "Market1501"):  # the latter has layout, distractors and columns of its own, which do not count
        options.NAMES = options.TESTS = (name,)
        options.ALIASES = (f"{name}=file:people.csv",)
        assert len(load_train_set(options, grey=False)) == 1
        assert list(load_test_sets(options, grey=False)) == [name]
        options.COMBINEALL = True
        assert len(load_train_set(options, grey=False)) == 3
        options.COMBINEALL = False


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        (("NAIC",), "DATASETS.ALIASES = 'NAIC': must be NAME=file:people.csv or NAME=folder:path"),
        (("NAIC=Market1501",), "must be NAME=file:people.csv or NAME=folder:path"),
        (("=file:x.csv",), "must be NAME=file:people.csv or NAME=folder:path"),
        (("NAIC=file:",), "must be NAME=file:people.csv or NAME=folder:path"),
        (("A=file:x.csv", "A=file:y.csv"), "must name each data set once"),
        ((5,), "must be NAME=file:people.csv or NAME=folder:path"),
    ],
)
def test_aliases_that_mean_nothing(aliases: tuple, message: str) -> None:
    cfg = get_cfg()
    cfg.DATASETS.ALIASES = aliases
    assert any(message in str(problem) for problem in unsupported(cfg))


def test_the_command_line_names_ones_own_data_for_a_config_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "theirs.yml"
    precise = "TEST: {PRECISE_BN: {ENABLED: true, DATASET: NAICReID}}"
    path.write_text(f"DATASETS: {{NAMES: [NAICReID], TESTS: [NAICReID]}}\n{precise}")
    assert not [problem for problem in unsupported(load_config(path)) if "ALIASES" in problem.key]
    assert {problem.key for problem in unsupported(load_config(path))} >= {
        "DATASETS.NAMES", "DATASETS.TESTS", "TEST.PRECISE_BN.DATASET"
    }  # fmt: skip
    for command, config_of in (("train", training_config), ("eval", trained_config), ("check-config", config_files)):
        words = [command, str(path), "--dataset", "NAICReID=file:naic.csv", "--dataset", "B=folder:b"]
        cfg = load_config(path, config_of(parse(words)[1])[1])
        assert cfg.DATASETS.ALIASES == ("NAICReID=file:naic.csv", "B=folder:b")
        assert not {p.key for p in unsupported(cfg)} & {"DATASETS.NAMES", "DATASETS.TESTS", "TEST.PRECISE_BN.DATASET"}
