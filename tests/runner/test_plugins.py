"""Parts of a user's own module and of installed packages."""

import sys
from collections.abc import Iterator
from pathlib import Path

import lightning
import pytest

from pml_ext._errors import UserError
from pml_ext.cli import main
from pml_ext.runner import evaluate, load_config, plugins, train
from pml_ext.runner.registry import CALLBACK_REGISTRY, LOSS_REGISTRY, Registry

DIGITS = Path(__file__).parents[2] / "fastreid_configs" / "Digits" / "sap_tcm.yml"
LOSSES = """
import torch
from pml_ext.runner.registry import LOSS_REGISTRY

@LOSS_REGISTRY.register()
class OwnPairLoss(torch.nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, labels):
        distances, same = torch.cdist(embeddings, embeddings), labels[:, None] == labels
        return (distances * same).mean() + torch.relu(self.margin - distances * ~same).mean()

@LOSS_REGISTRY.register(node="LENGTH", keys={"TARGET": "length"})
def length_loss(embeddings, labels, length=1.0):
    return (embeddings.norm(dim=1) - length).square().mean()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, whose modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plugins, "_imported", [])
    for registry in (LOSS_REGISTRY, CALLBACK_REGISTRY):
        list(registry)
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_users_losses_train_on_two_processes_and_the_run_names_their_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "own_losses.py").write_text(LOSSES, encoding="utf-8")
    own = ["--import", "own_losses", "MODEL.LOSSES.NAME", '("OwnPairLoss", "length_loss")', "MODEL.DEVICE", "cpu"]
    own += ["MODEL.LOSSES.OWNPAIRLOSS.MARGIN", "0.5", "MODEL.LOSSES.LENGTH.TARGET", "2.5", "SOLVER.MAX_EPOCH", "1"]
    assert main(["check-config", str(DIGITS), *own]) == 0
    own += ["OUTPUT_DIR", "run", "TEST.REPORT", "False", "DATALOADER.NUM_INSTANCE", "8", "--num-gpus", "2"]
    assert main(["train", "--config-file", str(DIGITS), *own]) == 0
    assert "OwnPairLoss 0." in capfd.readouterr().err
    monkeypatch.setattr(plugins, "_imported", [])
    assert main(["eval", "run"]) == 2
    assert "run/config.yaml was made with parts of own_losses: add --import own_losses" in capfd.readouterr().err
    assert main(["eval", "run", "--import", "own_losses"]) == 0


def test_training_from_python_with_callbacks_by_name_and_as_objects(folder: Path) -> None:
    seen: list[str] = []

    class Seen(lightning.Callback):
        def __init__(self, name: str = "registered") -> None:
            self.name = name

        def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
            seen.append(self.name)

    CALLBACK_REGISTRY.register()(Seen)
    overrides = ["MODEL.DEVICE", "cpu", "SOLVER.MAX_EPOCH", 1, "TEST.REPORT", False, "CALLBACKS", ("Seen",)]
    cfg = load_config("Digits/sap_tcm.yml", [*overrides, "OUTPUT_DIR", "run"])
    results = train(cfg, callbacks=[Seen("given")])
    assert seen == ["registered", "given"]
    measured = load_config("run/config.yaml", ["MODEL.WEIGHTS", "run/checkpoints/last.ckpt", "OUTPUT_DIR", "again"])
    assert evaluate(measured) == results
    with pytest.raises(UserError, match="CALLBACKS = 'Seem': unknown; did you mean 'Seen'"):
        train(load_config("run/config.yaml", ["CALLBACKS", ("Seem",)]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no module of that name in .* or the environment; did you mean own_loss"),
        ("import nothing_like_this", "ModuleNotFoundError: .*nothing_like_this.* line 1"),
        ("\n\n1 / 0", r"ZeroDivisionError: .*own_losses\.py, line 3"),
        (LOSSES.replace("OwnPairLoss", "CITLoss"), "CITLoss of own_losses has the name of a part that pml_ext"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(folder: Path, text: str | None, message: str) -> None:
    (folder / "own_loss.py").touch()
    if text is not None:
        (folder / "own_losses.py").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as raised:
        plugins.import_modules(["own_losses"])
    assert "\n" not in str(raised.value)


def test_plug_ins_of_installed_packages_register_and_a_broken_one_is_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in (("good_plugin", LOSSES), ("bad_plugin", "1 / 0")):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[pml_ext.plugins]\n{name} = {name}\n", encoding="utf-8")
    sys.path.insert(0, str(folder))
    monkeypatch.setattr(plugins, "_installed", [])
    monkeypatch.setattr("pml_ext.runner.plugins.log.propagate", True)
    plugins.import_installed()
    assert "OwnPairLoss" in LOSS_REGISTRY
    assert "the plug-in bad_plugin of bad_plugin cannot be imported: division by zero" in caplog.text
    caplog.clear()
    plugins.import_installed()
    assert not caplog.text


def test_a_name_again_from_the_same_module_replaces_the_part() -> None:
    registry = Registry("KEY")
    first = registry.register("part")(lambda: 1)
    second = registry.register("part")(lambda: 2)
    assert registry.get("part") is second is not first
