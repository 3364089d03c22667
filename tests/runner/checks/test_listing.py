"""`pml-ext list fastreid-names`: FastReID's imports and ours."""

from importlib import import_module

from pml_ext.cli import main
from pml_ext.runner.checks.listing import fastreid_names


def test_each_name_of_ours_can_be_imported(capfd):
    rows = fastreid_names()
    assert len({theirs for theirs, _, _ in rows}) == len(rows) and all(
        theirs.startswith("fastreid.") for theirs, _, _ in rows
    )
    for _, ours, note in rows:
        assert ours or note
        module, _, name = ours.rpartition(".")
        assert not ours or hasattr(import_module(module), name), ours
    assert main(["list", "fastreid-names"]) == 0
    shown = capfd.readouterr().out
    assert "fastreid.modeling.meta_arch.Baseline                  pml_ext.runner.Baseline\n" in shown
    assert "pml-ext train --num-gpus N" in shown
