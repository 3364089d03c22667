"""Runs on several ranks: one process imports everything once for all of them."""

from functools import partial

import pytest

from tests.runner.engine import test_distributed, test_partial_fc
from tests.runner.engine.forked_ranks import run_on_ranks


@pytest.fixture(scope="session")
def of_ranks(made_once, request):
    """The folder with what the `commands` of both modules leave."""
    return made_once("runs_of_ranks", partial(_run, request.config.getoption("--nightly")))


def _run(is_nightly, folder):
    modules = test_distributed, test_partial_fc
    run_on_ranks(*[command for module in modules for command in module.commands(folder, is_nightly)])
