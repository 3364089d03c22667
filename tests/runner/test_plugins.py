"""Parts of a user's own module and of installed packages."""

import json
import pickle
import re
import shlex
import sys
import traceback
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.runner import evaluate, load_config, registry, train
from pml_ext.runner import registry as registries
from pml_ext.runner.checks.check import problems
from pml_ext.runner.config.files import CONFIGS
from pml_ext.runner.config.load import read_config
from pml_ext.runner.data.datasets import ImageSet, OpenSet
from pml_ext.runner.data.transforms import build_transform
from pml_ext.runner.evaluation.run_metrics import Evaluation
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.losses.factory import build_losses
from pml_ext.runner.registry import (
    CALLBACK_REGISTRY,
    LOSS_REGISTRY,
    OPTIMIZER_REGISTRY,
    TRANSFORM_REGISTRY,
    Registry,
)

GUIDE = Path(__file__).parents[2] / "examples" / "guides" / "EXTENDING.md"
TAKEN = """
from pml_ext.runner.registry import LOSS_REGISTRY

@LOSS_REGISTRY.register("CITLoss")
def own(embeddings, labels):
    return 0 * embeddings.sum()
"""

UNREAD = """
from pml_ext.runner.registry import LOSS_REGISTRY

@LOSS_REGISTRY.register()
class Unread:
    __init__ = dict.update
"""


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, whose modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_imported", [])
    for item in vars(registries).values():
        if isinstance(item, Registry):
            list(item)
            monkeypatch.setattr(item, "_entries", dict(item._entries))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_guides_project_trains_and_the_run_names_its_module(folder, monkeypatch, capfd):
    (folder / "my_project.py").write_text("".join(blocks("python")[:3]), encoding="utf-8")
    (tree,) = blocks("yaml")
    command = re.match(r"\$ ((?:.*\\\n)*.*)\n", blocks("console")[0])
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", ""))
    assert words[:2] == ["pml-ext", "train"]
    (folder / "my.yml").write_text(tree.replace("Digits/sap_tcm.yml", str(CONFIGS.find("Digits/sap_tcm.yml"))))
    words[words.index("Digits/sap_tcm.yml")] = "my.yml"
    assert main([*words[1:], "TEST.REPORT", "False", "SOLVER.WARMUP_ITERS", "0"]) == 0
    shown = capfd.readouterr()
    assert "PullPush " in shown.err and "SupConLoss" in shown.err and "epoch 1\n" in shown.out
    found = json.loads(Path("logs/my_project/metrics.json").read_text(encoding="utf-8"))
    assert found["results"]["SmallDigits"]["precision_at_1"] > 0.9
    monkeypatch.setattr(registry, "_imported", [])
    assert main(["eval", "logs/my_project"]) == 2
    assert "my_project/config.yaml was made with parts of my_project: add --import my_project" in capfd.readouterr().err
    assert main(["eval", "logs/my_project", "--import", "my_project"]) == 0
    cfg = load_config("logs/my_project/config.yaml")
    assert cfg.MY_PROJECT == {"NOTE": "cameras apart", "SIDES": [1, 2]} and cfg.SOLVER.RESTARTS.CYCLES == 2
    capfd.readouterr()
    assert main(["list", "transforms", "--import", "my_project"]) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [row[0] for row in rows if row[0] in ("FLIP", "STRIPE", "CJ", "AUGMIX", "BLUR", "REA")] == [
        "FLIP", "STRIPE", "CJ", "AUGMIX", "BLUR", "REA",
    ]  # fmt: skip
    assert all(row[-2:] == ["(of", "my_project)"] for row in rows if row[0] in ("STRIPE", "BLUR"))


def test_a_function_as_a_loss_with_a_node_and_keys_of_its_own(folder):
    @LOSS_REGISTRY.register(node="LENGTH", keys={"TARGET": "length"})
    def length_loss(embeddings, labels, length=1.0):
        return (embeddings.norm(dim=1) - length).square().mean()

    keys = ["MODEL.LOSSES.LENGTH.TARGET", 3, "MODEL.LOSSES.LENGTH.SCALE", 0.5, "MODEL.MINER.NAME", "BatchHardMiner"]
    cfg = load_config("Digits/sap_tcm.yml", ["MODEL.LOSSES.NAME", ("length_loss",), *keys, "MODEL.DEVICE", "cpu"])
    (term,), losses = build_losses(cfg.MODEL.LOSSES, num_classes=3, output_size=lambda _: 2)
    assert losses["length_loss"](torch.tensor([[1.0, 0], [0, 5]]), torch.arange(2)).item() == 4
    assert (term.scale, term.is_mined) == (0.5, False)
    assert "MODEL.MINER.NAME = 'BatchHardMiner': none of the losses length_loss accepts a miner" in problems(cfg)


def test_training_from_python_with_callbacks_by_name_and_as_objects(folder):
    seen: list[str] = []

    class Seen(lightning.Callback):
        def __init__(self, name="registered"):
            self.name = name

        def on_train_epoch_end(self, trainer, module):
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
        (UNREAD, "the arguments of Unread of own_losses cannot be read: "),
        (TAKEN, "CITLoss of own_losses has the name or node of CITLoss, which pml_ext.*, or with replace=True"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(folder, text, message):
    (folder / "own_loss.py").touch()
    if text is not None:
        (folder / "own_losses.py").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as raised:
        registry.import_modules(["own_losses"])
        load_config("Digits/sap_tcm.yml", ["MODEL.LOSSES.UNREAD.X", 1])
    assert "\n" not in str(raised.value)


OWN_METRIC = """
import torch
from pml_ext.metrics import AccuracyCalculator
from pml_ext.runner.registry import EVALUATOR_REGISTRY

@EVALUATOR_REGISTRY.register()
class WithSecondPlace(AccuracyCalculator):
    def requires_knn(self):
        return super().requires_knn() + ["second_place"]

    def calculate_second_place(self, knn_labels, query_labels, **kwargs):
        return (knn_labels[:, 1] == query_labels).float().mean().item()

    def calculate_mean_length(self, query, **kwargs):
        return 3 * query.norm(dim=1).mean()

@EVALUATOR_REGISTRY.register()
class OtherCalculator:
    def get_accuracy(self, *args): ...
"""


def test_a_metric_of_a_users_calculator_is_a_column_and_chooses_the_best_checkpoint(folder, capfd):
    (folder / "own_metric.py").write_text(OWN_METRIC, encoding="utf-8")
    options = ["TEST.EVALUATOR", "WithSecondPlace", "TEST.BEST", "second_place", "TEST.METRICS", '("cmc",)']
    options += ["TEST.RANKS", "(1,)", "MODEL.DEVICE", "cpu", "SOLVER.MAX_EPOCH", "1", "TEST.REPORT", "False"]
    command = ["train", "--import", "own_metric", "--config-file", "Digits/sap_tcm.yml", *options, "OUTPUT_DIR", "run"]
    assert main(command) == 0
    found = json.loads(Path("run/metrics.json").read_text(encoding="utf-8"))["results"]["Digits"]
    assert list(found) == ["precision_at_1", "mean_length", "second_place"] and found["mean_length"] == pytest.approx(3)
    assert 0.5 < found["second_place"] < found["precision_at_1"]
    table = capfd.readouterr().out.splitlines()
    header = next(line for line in table if "R@1" in line)
    assert header.split() == ["R@1", "↑", "mean_length", "↑", "second_place", "↑"]
    checks = ["check-config", "Digits/sap_tcm.yml", "--import", "own_metric", "MODEL.DEVICE", "cpu", "TEST.EVALUATOR"]
    for name, line in (
        ("WithSecondPlaces", "TEST.EVALUATOR = 'WithSecondPlaces': unknown; did you mean 'WithSecondPlace'"),
        ("OtherCalculator", "must be a subclass of pml_ext.metrics.AccuracyCalculator"),
    ):
        assert main([*checks, name]) == 1
        assert line in capfd.readouterr().out


def test_a_users_metric_ignores_cameras_and_junk(folder):
    (folder / "own_metric.py").write_text(OWN_METRIC, encoding="utf-8")
    registry.import_modules(["own_metric"])
    cfg = load_config(
        "Digits/sap_tcm.yml", ["TEST.EVALUATOR", "WithSecondPlace", "TEST.METRICS", ("cmc",), "TEST.RANKS", (1,)]
    )
    sets = [
        ImageSet([""] * len(identities), np.array(identities), np.zeros(len(identities), dtype=int), [])
        for identities in ([0, 1], [0, -1, 0, 1, 1])
    ]
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    gallery = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
    sets[1].cameras[2:] = 1
    found = Evaluation(cfg.TEST)(OpenSet(sets[0], *sets), [query, gallery])
    assert found["second_place"] == 1.0


OWN_PARTS = """
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchvision.transforms import v2
from pml_ext.runner.registry import OPTIMIZER_REGISTRY, SAMPLER_REGISTRY, SCHEDULER_REGISTRY, TRANSFORM_REGISTRY

@SAMPLER_REGISTRY.register()
def short(items, batch_size): ...

@SAMPLER_REGISTRY.register()
def chance(items, batch_size, instances, random, share): ...

@TRANSFORM_REGISTRY.register()
class Failing:
    def __init__(self, size=3):
        raise KeyError(size)

@TRANSFORM_REGISTRY.register()
def scaled(image):
    return image / 255

@TRANSFORM_REGISTRY.register()
class Inverted:
    def __call__(self, image):
        return 255 - image

TRANSFORM_REGISTRY.register(node="TURN")(v2.RandomRotation)

@OPTIMIZER_REGISTRY.register()
class Momentum(torch.optim.SGD):
    def __init__(self, params, lr, decay=0.0):
        super().__init__(params, lr, momentum=decay)

@OPTIMIZER_REGISTRY.register()
def nothing(groups): ...

SCHEDULER_REGISTRY.register()(ReduceLROnPlateau)
"""


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["DATALOADER.SAMPLER_TRAIN", "shorts"],
            "DATALOADER.SAMPLER_TRAIN: unknown value 'shorts'; did you mean 'short'",
        ),
        (
            ["DATALOADER.SAMPLER_TRAIN", "short"],
            r"short of own_parts must accept \(items, batch_size, instances, random\): too many positional arguments",
        ),
        (
            ["DATALOADER.SAMPLER_TRAIN", "chance"],
            "DATALOADER.CHANCE.SHARE must be set: chance of own_parts has no default for it",
        ),
        (
            ["INPUT.SCALED.ENABLED", True],
            r"must map a uint8 image \(1, H, W\).*; it returned torch.float32 \(1, 8, 8\)",
        ),
        (["SOLVER.OPT", "Momentum"], "SOLVER.MOMENTUM is already a key: register Momentum of own_parts with another"),
        (["SOLVER.OPT", "nothing"], "nothing of own_parts must be a torch.optim.Optimizer; it returns a NoneType"),
        (["SOLVER.ADAM.BETA", 0.9], "unknown key SOLVER.ADAM.BETA; did you mean SOLVER.ADAM.BETAS"),
        (
            ["SOLVER.SCHED", "ReduceLROnPlateau"],
            "ReduceLROnPlateau of own_parts must return an LRScheduler of torch that is stepped without a metric",
        ),
    ],
)
def test_what_is_wrong_with_own_parts_is_one_line(folder, overrides, line):
    (folder / "own_parts.py").write_text(OWN_PARTS, encoding="utf-8")
    registry.import_modules(["own_parts"])
    read = read_config("Digits/sap_tcm.yml", ["MODEL.DEVICE", "cpu", *overrides])
    (told,) = read.lines + problems(read.cfg, wrong=read.wrong)
    assert re.search(line, told), told


def test_an_optimizer_is_checked_with_the_parameters_that_a_run_trains(folder):
    shapes = []

    @OPTIMIZER_REGISTRY.register()
    class Recorded(torch.optim.SGD):
        def __init__(self, params, lr):
            shapes.extend(parameter.shape for group in params for parameter in group["params"])
            super().__init__(params, lr)

    cfg = load_config("Digits/sap_tcm.yml", ["MODEL.DEVICE", "cpu", "SOLVER.OPT", "Recorded"])
    assert not problems(cfg)
    assert sorted(shapes) == sorted(parameter.shape for parameter in build_model(cfg, num_classes=2).parameters())


def test_a_constructor_that_fails_is_named_with_its_key(folder):
    (folder / "own_parts.py").write_text(OWN_PARTS, encoding="utf-8")
    registry.import_modules(["own_parts"])
    with pytest.raises(KeyError) as raised:
        problems(load_config("Digits/sap_tcm.yml", ["INPUT.FAILING.ENABLED", True]))
    line = "INPUT.FAILING: this error was raised in FAILING of own_parts."
    assert line in "".join(traceback.format_exception(raised.value))


def test_own_transforms_act_in_their_place_and_travel_to_workers(folder):
    (folder / "own_parts.py").write_text(OWN_PARTS, encoding="utf-8")
    registry.import_modules(["own_parts"])
    turned = ["INPUT.TURN.ENABLED", True, "INPUT.TURN.DEGREES", 20]
    cfg = load_config("Digits/sap_tcm.yml", ["INPUT.INVERTED.ENABLED", True, *turned])
    steps = pickle.loads(pickle.dumps(build_transform(cfg.INPUT, training=True))).steps
    assert [type(step).__name__ for step in steps] == ["partial", "Inverted", "RandomRotation"]
    assert steps[2].degrees == [-20, 20]
    assert len(build_transform(cfg.INPUT, training=False).steps) == 1


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"node": "FLIP"}, "INPUT: FLIP of tests.runner.test_plugins has the name or node of FLIP, which pml_ext"),
        ({"after": "FLOP"}, "TURN of tests.runner.test_plugins: no part has the node FLOP; did you mean 'FLIP'"),
    ],
)
def test_a_transform_needs_a_node_and_a_place_of_its_own(folder, place, message):
    with pytest.raises(UserError, match=message):
        TRANSFORM_REGISTRY.register(**{"node": "TURN", **place})(v2.RandomRotation)


def test_plug_ins_of_installed_packages_register_and_a_broken_one_is_a_warning(folder, monkeypatch, caplog):
    for name, text in (("good_plugin", TAKEN.replace("CITLoss", "OwnLoss")), ("bad_plugin", "1 / 0")):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[pml_ext.plugins]\n{name} = {name}\n", encoding="utf-8")
    sys.path.insert(0, str(folder))
    monkeypatch.setattr(registry, "_installed", [])
    monkeypatch.setattr("pml_ext.runner.registry.log.propagate", True)
    registry.import_installed()
    assert "OwnLoss" in LOSS_REGISTRY
    assert "the plug-in bad_plugin of bad_plugin cannot be imported: division by zero" in caplog.text
    caplog.clear()
    registry.import_installed()
    assert not caplog.text


def test_a_name_again_from_the_same_module_replaces_the_part():
    registry = Registry("KEY")
    first = registry.register("part")(lambda: 1)
    second = registry.register("part")(lambda: 2)
    assert registry.get("part") is second is not first
