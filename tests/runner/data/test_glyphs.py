"""Glyphs: what is drawn, and which characters are one."""

from pathlib import Path

import numpy as np
import pytest

from pml_ext._shared.errors import UserError
from pml_ext.runner.data.datasets import ImageSet
from pml_ext.runner.data.datasets.glyphs import Typeface, draw, glyphs_set, identities_of_looks

LETTERS = list("HOoÅß") + list("ΗΔΩ") + list("НЖж") + ["Ա", "ა"]


@pytest.fixture(scope="module")
def table():
    return draw(LETTERS)


@pytest.fixture(scope="module")
def whole():
    return glyphs_set(Path("nowhere"), True)


def test_latin_trains_and_other_scripts_test(whole):
    train, test = whole.train, whole.query
    assert whole.gallery is None
    # What FreeType's version may change is which images are equal, and so a few of them.
    assert len(np.unique(train.identities)) == pytest.approx(722, abs=10)
    assert len(np.unique(test.identities)) == pytest.approx(514, abs=10)
    assert (len(train), len(test)) == (pytest.approx(10575, abs=200), pytest.approx(6879, abs=200))
    assert not np.isin(test.identities, train.identities).any()
    scripts = {name.split("(")[1].split()[0] for name in test.names}
    assert scripts >= {"GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN"} and "LATIN" not in scripts


@pytest.mark.parametrize("part", ["train", "query"])
def test_every_letter_is_in_several_families_and_no_image_twice_in_one(whole, part):
    images: ImageSet = getattr(whole, part)
    families: dict[int, set[int]] = {}
    seen = set()
    for identity, family, image in zip(images.identities.tolist(), images.cameras.tolist(), images.images, strict=True):
        assert image.shape == (1, 32, 32)
        families.setdefault(identity, set()).add(family)
        seen.add((identity, family, image.numpy().tobytes()))
    assert all({0, 1, 2} <= found for found in families.values()) and len(seen) == len(images)


def test_characters_that_look_the_same_are_one_letter(table):
    letters = table.identities[np.isin(table.characters, list("HΗН"))]
    assert len(set(letters.tolist())) == 1, "of Latin, Greek and Cyrillic"
    for letter in "OoΔЖж":
        assert set(table.characters[table.identities == table.identities[table.characters == letter][0]]) == {letter}


def test_identities_against_nested_loops():
    random = np.random.default_rng(0)
    looks = random.integers(0, 256, (3, 8, 4, 4)).astype(np.uint8)
    near = 255 - np.round((255.0 - looks[:, 5]) * 0.8).astype(np.uint8)  # the same direction of ink
    looks[:, 1] = near
    looks[:, 7] = near
    looks[:2, 3] = looks[:2, 6]  # another look in the third family

    ink = 255.0 - looks.swapaxes(0, 1).reshape(8, -1)  # of all three families
    unit = ink / np.linalg.norm(ink, axis=1, keepdims=True)
    expected = list(range(8))
    for i, j in zip(*np.nonzero(np.triu(unit @ unit.T > 0.985, 1)), strict=True):
        expected = [expected[i] if e == expected[j] else e for e in expected]
    assert expected[5] == expected[7] == 1
    assert identities_of_looks(looks).tolist() == expected


def test_other_fonts_are_refused(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"differs from the data set's font \(SHA-256 [0-9a-f]{12}…, expected 0"):
        Typeface("DejaVuSans.ttf", "0" * 64)
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with pytest.raises(UserError, match=r"needs matplotlib's font DejaVuSans\.ttf: .*reinstall matplotlib"):
        Typeface("DejaVuSans.ttf", "0" * 64)
