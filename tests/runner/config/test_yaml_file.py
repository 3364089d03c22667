"""Hostile and damaged YAML: one message each, in little time and memory."""

import os
import re
import tracemalloc
from pathlib import Path

import pytest

from pml_ext._errors import UserError
from pml_ext.runner.config.load import load_config

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
# text, what the message says
HOSTILE = {
    "aliases that stand for 9^9 words": (f"{BOMB}MODEL: {{HEADS: *i}}", "MODEL.HEADS holds the keys"),
    "an alias of itself": ("SOLVER: {STEPS: &s [*s]}", "SOLVER.STEPS must hold float or int"),
    "a 13th month": ("SEED: 2021-13-45", "not a usable YAML file: month must be"),
    "5,000 digits": (f"SEED: {'9' * 5000}", "not a usable YAML file"),
    "deep nesting": ("[" * 20_000, "not a usable YAML file: maximum recursion depth"),
    "a number of 10,000 digits": (
        f"SOLVER: {{GAMMA: 0x{'F' * 9000}}}",
        "not a usable YAML file: a number beyond 64 bits",
    ),
    "a NUL": ("SEED: \0", "not a usable YAML file"),
    "a NUL in the base's name": ('_BASE_: "a\\0b"', "embedded null byte"),
    "a home that nobody has": ("_BASE_: ~no_such_user/a.yml", "~no_such_user/a.yml (_BASE_ of "),
    "a list as a key": ("? [SEED]\n: 1", "a key must be a word"),
    "a key twice": ("SEED: 1\nSOLVER:\n  GAMMA: 1\n\n  GAMMA: 2", "c.yml: duplicate key 'GAMMA' in lines 3 and 5"),
}


@pytest.mark.parametrize("text, message", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_a_short_message(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.yml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_config(file)
    assert message in str(caught.value)
    assert max(map(len, str(caught.value).splitlines())) < 2000


def test_an_anchor_bomb_takes_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "c.yml"
    file.write_text(f"{BOMB}MODEL: {{HEADS: *i}}")
    tracemalloc.start()
    try:
        with pytest.raises(UserError):
            load_config(file)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_a_pipe_as_config_or_as_its_base_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "base.yml")
    (tmp_path / "c.yml").write_text("_BASE_: base.yml")
    for name in ("base.yml", "c.yml"):
        with pytest.raises(UserError, match=r"base\.yml.*: .*not a regular file"):
            load_config(tmp_path / name)


def test_a_path_that_is_nearly_right_is_named(tmp_path: Path) -> None:
    (tmp_path / "Glyphs").mkdir()
    (tmp_path / "Glyphs" / "smoothap_tcm.yml").write_text("SEED: 1")
    for wrong, near in (("Glyph/triplet.yml", "Glyphs"), ("Glyphs/smothap_tcm.yml", "Glyphs/smoothap_tcm.yml")):
        with pytest.raises(UserError, match=f"did you mean {re.escape(str(tmp_path / near))}\\?$"):
            load_config(tmp_path / wrong)
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "Market1501" / "a.yml")
    assert "did you mean" not in str(caught.value)
