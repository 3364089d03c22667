"""Reported rates hold for people whom the report has not seen: examples/evidence/strangers.py on few, small sets."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from pml_ext._ops.numerics import one_thread

PAGE = Path(__file__).parents[3] / "examples" / "evidence" / "INTERVALS.md"
POPULATIONS = ("Gaussian", "crowded", "heavy-tailed")


def load_script():
    spec = spec_from_file_location("strangers", PAGE.with_name("strangers.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


strangers = load_script()


def outcomes_of(rate, draws, whom="strangers", **condition):
    """The outcomes of a rate, one a draw."""
    with one_thread():
        found = strangers.run(strangers.Condition("test", **condition), draws)
    return [outcome[whom, rate] for outcome in found]
