"""Whole configs as users have them: each runs, or is refused with every reason named."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner.checks.config_table import TABLE, VARIED, section, varied_table
from tests.runner.checks.varied_configs import Varied, checked, each_network_once, last_configs, old_configs


@pytest.fixture(scope="module", autouse=True)
def _fast() -> Iterator[None]:
    with each_network_once():
        yield


@pytest.mark.parametrize("config", [*old_configs(), *last_configs()], ids=lambda config: config.name)
def test_a_varied_config(config: Varied, tmp_path: Path) -> None:
    read, lines, complete = checked(config, tmp_path)
    assert complete, (lines, config.reasons)
    if "spelled" in config.group:
        assert read.notes, "what was replaced is said"
        assert len(set(read.notes)) == len(read.notes), "and said once"


def test_there_are_more_than_two_hundred() -> None:
    assert len(old_configs()) == 144
    assert len({config.name for config in (*old_configs(), *last_configs())}) == 216


def test_the_table_counts_them_as_they_are() -> None:
    assert section(TABLE.read_text(), VARIED) == varied_table(), "python -m tests.runner.checks.config_table"
