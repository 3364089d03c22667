"""`pml-ext list`: stored lists are the registries', and FastReID's imports are ours."""

import json
from importlib import import_module
from pathlib import Path

from pml_ext.cli import main
from pml_ext.runner.checks import listing
from pml_ext.runner.checks.listing import LIBRARIES, STORED, fastreid_names
from tests.runner.checks.part_names import part_names


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


def test_stored_lists_are_those_of_the_registries():
    stored = json.loads((Path(listing.__file__).parent / STORED).read_text(encoding="utf-8"))
    current = part_names()
    for kind, text in current["names"].items():
        library = LIBRARIES.get(kind)
        if library is None or stored["versions"][library] == current["versions"][library]:
            run = f"run: python -m tests.runner.checks.part_names > pml_ext/runner/checks/{STORED}"
            assert stored["names"][kind] == text, run


def test_another_version_of_the_library_is_listed_as_it_is(monkeypatch):
    monkeypatch.setattr(listing, "version", lambda library: "0.1+cpu")
    monkeypatch.setattr(listing, "registered_names", lambda kind: f"live {kind}")
    assert listing.list_names("losses") == "live losses"
    assert listing.list_names("samplers").startswith("DATALOADER.SAMPLER_TRAIN")
    assert listing.list_names("samplers", has_own_parts=True) == "live samplers"
