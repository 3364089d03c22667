"""Version 3 of pytorch-metric-learning is refused by its number, before any of its names is imported."""

import os
import subprocess
import sys

CODE = """
for module in ("pml_ext.losses", "pml_ext.miners"):
    try:
        __import__(module)
    except ValueError as error:
        print(type(error).__name__, error)
"""


def test_version_3_is_refused_in_one_sentence(tmp_path):
    package = tmp_path / "pytorch_metric_learning"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "3.0.1"\n')
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()])])
    environment = {**os.environ, "PYTHONPATH": paths}
    shown = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True).stdout
    sentence = (
        "UserError pml_ext works with pytorch-metric-learning 2.8 and 2.9; got 3.0.1: pip install "
        "'pytorch-metric-learning>=2.8,<3'"
    )
    assert shown.splitlines() == [sentence, sentence]
