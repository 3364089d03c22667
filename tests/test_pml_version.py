"""Version 3 of pytorch-metric-learning is refused by its number, before any of its names is imported."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["losses", "miners"])
def test_version_3_is_refused_in_one_sentence(tmp_path, module):
    package = tmp_path / "pytorch_metric_learning"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "3.0.1"\n')
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()])])
    code = f"import pml_ext.{module}"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        "pml_ext._errors.UserError: pml_ext works with pytorch-metric-learning 2.8 and 2.9; got 3.0.1: pip install "
        "'pytorch-metric-learning>=2.8,<3'"
    )
