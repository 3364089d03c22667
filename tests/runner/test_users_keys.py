"""Config keys of a user's project: those that CONFIG_REGISTRY's functions add, and those of the user's parts."""

import traceback
import warnings

import pytest
import torch
import yaml
from torch import nn
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext.runner import Baseline, DataModule, EmbeddingHead, TrainingModule, build_backbone, load_config
from pml_ext.runner.checks.check import CANNOT_RUN, check_files, problems
from pml_ext.runner.config.load import read_config
from pml_ext.runner.config.network_keys import load_for_embedding, shaping
from pml_ext.runner.config.yaml_file import leaves, value_of
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.interfaces import with_feature_size
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding
from pml_ext.runner.registry import (
    BACKBONE_REGISTRY,
    CALLBACK_REGISTRY,
    CONFIG_REGISTRY,
    EVALUATOR_REGISTRY,
    LOSS_REGISTRY,
    META_ARCH_REGISTRY,
    REID_HEADS_REGISTRY,
    SAMPLER_REGISTRY,
    SCHEDULER_REGISTRY,
    TRANSFORM_REGISTRY,
    unused_parts,
)
from tests.runner.test_plugins import folder as folder


def test_keys_of_a_project_are_its_own(folder):
    @CONFIG_REGISTRY.register()
    def add_my_config(cfg):
        cfg.MODEL.LOSSES.SAP.LEVEL = 1
        cfg.MODEL.BACKBONES = CN({"NAMES": ("a",), "PATH": None})
        cfg.INPUT.FLIP.ENABLED = True
        cfg.INPUT.FLIP.LEVEL = cfg.SOLVER.LEVEL = 2
        cfg.MY = CN({"NOTE": "", "RATE": 0.5})

    keys = ["MODEL.BACKBONES.PATH", "x.pth", "MY.RATE", "1", "INPUT.FLIP.LEVEL", 3, "MODEL.DEVICE", "cpu"]
    cfg = load_config("Digits/sap_tcm.yml", keys)
    assert (cfg.MY.RATE, cfg.MODEL.BACKBONES.PATH, cfg.MODEL.LOSSES.SAP.LEVEL) == (1.0, "x.pth", 1)
    assert problems(cfg) == []
    (folder / "config.yaml").write_text(cfg.dump())
    assert load_config("config.yaml") == cfg
    kept = shaping(load_for_embedding("config.yaml"))
    assert (kept["MODEL.BACKBONES.PATH"], kept["MY.RATE"], kept["INPUT.FLIP.LEVEL"]) == ("x.pth", 1.0, 3)
    with pytest.raises(UserError, match=r"unknown key MY\.RATES; did you mean MY\.RATE\?"):
        load_config("Digits/sap_tcm.yml", ["MY.RATES", 1])


def test_a_group_that_a_project_assigns_keeps_our_other_keys(folder):
    @CONFIG_REGISTRY.register()
    def add_my_config(cfg):
        cfg.KD = CN({"MODEL_CONFIG": "", "TEMPERATURE": 4.0})
        cfg.MODEL.LOSSES.TRI = CN({"MARGIN": 0.7})
        cfg.MODEL.HEADS = CN({"POOL_LAYER": "gem", "PARTS": 3, "SCALE": 1})
        cfg.SOLVER.STEPS = [5]

    words = ["KD.MODEL_CONFIG", "teacher.yml", "MODEL.DEVICE", "cpu", "MODEL.HEADS.SCALE", 6.5]
    cfg = load_config("Digits/sap_tcm.yml", words)
    assert (cfg.KD.MODEL_CONFIG, cfg.KD.TEMPERATURE, cfg.KD.EMA.MOMENTUM) == ("teacher.yml", 4.0, 0.999)
    assert (cfg.MODEL.LOSSES.TRI.MARGIN, cfg.MODEL.LOSSES.TRI.HARD_MINING) == (0.7, False)
    assert (cfg.MODEL.HEADS.PARTS, cfg.MODEL.HEADS.NAME, cfg.MODEL.HEADS.PFC.ENABLED) == (3, "EmbeddingHead", False)
    assert cfg.MODEL.HEADS.SCALE == 6.5


def test_groups_in_groups_and_frozen_or_open_ones_are_kept_too(folder):
    @CONFIG_REGISTRY.register()
    def add_my_config(cfg):
        cfg.MODEL = CN({"HEADS": CN({"PARTS": 2})})
        cfg.MY = CN({"RATE": 0.5}, new_allowed=True)
        cfg.freeze()

    cfg = load_config("Digits/sap_tcm.yml", ["MY.FURTHER", "(1, 2)", "MY.RATE", 1, "MODEL.DEVICE", "cpu"])
    assert (cfg.MODEL.HEADS.PARTS, cfg.MODEL.BACKBONE.FEAT_DIM, cfg.MODEL.LOSSES.CE.EPSILON) == (2, 64, 0.0)
    assert (cfg.MY.FURTHER, cfg.MY.RATE) == ((1, 2), 1.0) and problems(cfg) == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("MODEL.MINER", "", "sets MODEL.MINER to a value, but MODEL.MINER is a group of keys: use another name"),
        ("TEST.EVALUATOR", CN({"NAME": ""}), "sets TEST.EVALUATOR to a group of keys, but TEST.EVALUATOR is a value"),
    ],
)
def test_a_group_is_not_a_value(folder, key, value, message):
    @CONFIG_REGISTRY.register()
    def add_my_config(cfg):
        node, _, name = key.partition(".")
        cfg[node][name] = value

    with pytest.raises(UserError, match=f"add_my_config of {__name__} {message}"):
        load_config("Digits/sap_tcm.yml")


def test_a_loss_in_place_of_ours_has_its_own_keys_in_baselines_arguments(folder):
    @LOSS_REGISTRY.register(replace=True)
    class CrossEntropyLoss(nn.Module):
        def __init__(self, smoothing=0.1):
            super().__init__()

        def forward(self, embeddings, labels):
            return embeddings.mean()

    @LOSS_REGISTRY.register("TripletLoss", node="MYTRI", replace=True)
    def triplet(embeddings, labels, margin=0.2):
        return embeddings.mean()

    cfg = load_config("Digits/sap_tcm.yml", ["MODEL.DEVICE", "cpu", "MODEL.LOSSES.NAME", ("CrossEntropyLoss",)])
    assert problems(cfg) == []
    arguments = Baseline.from_config(with_feature_size(cfg, build_backbone(cfg)))["loss_kwargs"]
    assert arguments["ce"] == {"scale": 1.0, "smoothing": 0.1} and arguments["tri"] == {}


def test_keys_of_users_samplers_schedules_transforms_and_evaluators_have_the_users_values(folder):
    @SAMPLER_REGISTRY.register(flat="SET_WEIGHT")
    def SetReWeightSampler(items, batch_size, instances, random, set_weight):
        yield [0]

    @SCHEDULER_REGISTRY.register(flat="DELAY_EPOCHS")
    def delayed(optimizer, max_epochs, delay_epochs):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1 + delay_epochs)

    @TRANSFORM_REGISTRY.register(node="CROP", replace=True)
    def crop(image, scale=0.5):
        return image

    @TRANSFORM_REGISTRY.register(node="REA", replace=True)
    def erase(image, prob=0.5):  # for grey images, too, although the default of our VALUE has three colours
        return image

    @EVALUATOR_REGISTRY.register()
    class Euclidean:
        def __init__(self, cfg, num_query):
            pass

        def process(self, batch, outputs):
            return {}

        def evaluate(self, rows):
            return {}

    keys = ["DATALOADER.SAMPLER_TRAIN", "SetReWeightSampler", "DATALOADER.SET_WEIGHT", [1, 2]]
    keys += ["SOLVER.SCHED", "delayed", "SOLVER.DELAY_EPOCHS", 3, "TEST.EVALUATOR", "Euclidean"]
    keys += ["TEST.METRIC", "euclidean", "TEST.RERANK.ENABLED", True, "TEST.RERANK.K1", 3]
    keys += ["INPUT.CROP.ENABLED", True, "INPUT.CROP.SIZE", [8], "INPUT.CROP.SCALE", "0.25", "INPUT.REA.ENABLED", True]
    cfg = load_config("Digits/sap_tcm.yml", ["MODEL.DEVICE", "cpu", *keys])
    assert problems(cfg) == [] and cfg.INPUT.CROP.SCALE == 0.25


def test_a_transform_in_place_of_ours_may_have_arguments_without_defaults(folder):
    @TRANSFORM_REGISTRY.register(node="REA", replace=True)
    class Erase:
        def __init__(self, prob, share):
            pass

        def __call__(self, image):
            return image

    words = ["MODEL.DEVICE", "cpu", "INPUT.REA.ENABLED", True]
    cfg = load_config("Digits/sap_tcm.yml", words)
    assert cfg.INPUT.REA.PROB == 0.5
    assert problems(cfg) == [f"INPUT.REA.SHARE must be set: REA of {__name__} has no default for it"]
    assert problems(load_config("Digits/sap_tcm.yml", [*words, "INPUT.REA.SHARE", 0.1])) == []


def test_old_names_of_layers_are_those_of_a_users_head_unless_it_is_built_on_ours(folder):
    @REID_HEADS_REGISTRY.register()
    class Old(nn.Module):
        def __init__(self, cfg):
            super().__init__()

    @REID_HEADS_REGISTRY.register()
    class OnOurs(EmbeddingHead):
        pass

    (folder / "old.yml").write_text("INPUT: {DO_PAD: True}\nMODEL: {HEADS: {POOL_LAYER: avgpool, CLS_LAYER: linear}}")
    heads = {name: load_config("old.yml", ["MODEL.HEADS.NAME", name]).MODEL.HEADS for name in ("Old", "OnOurs")}
    assert (heads["Old"].POOL_LAYER, heads["Old"].CLS_LAYER) == ("avgpool", "linear")
    assert (heads["OnOurs"].POOL_LAYER, heads["OnOurs"].CLS_LAYER) == ("GlobalAvgPool", "Linear")


def test_old_names_and_keys_that_a_project_has_keep_its_meaning(folder):
    @REID_HEADS_REGISTRY.register()
    class BNneckHead(EmbeddingHead):
        pass

    @SCHEDULER_REGISTRY.register()
    def WarmupMultiStepLR(optimizer, steps_per_epoch):
        return torch.optim.lr_scheduler.StepLR(optimizer, steps_per_epoch)

    @BACKBONE_REGISTRY.register()
    def build_hrnet_backbone(cfg):
        return nn.Conv2d(3, {"18": 8}[cfg.MODEL.BACKBONE.DEPTH], 3)

    @LOSS_REGISTRY.register("CircleLoss", replace=True)
    def circle(embeddings, labels, alpha=64.0):
        return embeddings.mean()

    @CONFIG_REGISTRY.register()
    def add_my_config(cfg):
        cfg.TEST.RECALLS = [1, 2]
        cfg.DATALOADER.PK_SAMPLER = False
        cfg.SOLVER.update({"LOG_PERIOD": 200, "SWA": 0, "MAX_ITER": 7})

    network = {
        "HEADS": {"NAME": "BNneckHead"},
        "BACKBONE": {"NAME": "build_hrnet_backbone", "DEPTH": 18},
        "LOSSES": {"CIRCLE": {"ALPHA": 32}},
    }
    solver = {"SCHED": "WarmupMultiStepLR", "LOG_PERIOD": 50, "SWA": 0, "MAX_ITER": 9}
    tree = {"MODEL": network, "DATALOADER": {"PK_SAMPLER": True}, "SOLVER": solver, "TEST": {"RECALLS": [3]}}
    (folder / "mine.yml").write_text(yaml.safe_dump(tree))
    read = read_config("mine.yml")
    assert (read.notes, read.lines) == ([], [])
    expected = dict(leaves(tree)) | {"MODEL.BACKBONE.DEPTH": "18"}
    assert {key: value_of(read.cfg, key) for key, _ in leaves(tree)} == expected


def test_a_key_in_the_place_of_a_transforms_node_is_named(folder):
    CONFIG_REGISTRY.register()(lambda cfg: setattr(cfg.INPUT, "RSE", False))

    @TRANSFORM_REGISTRY.register(node="RSE")
    def erase_stripe(image):
        return image

    [line] = problems(load_config("Digits/sap_tcm.yml", ["MODEL.DEVICE", "cpu"]))
    assert line == f"INPUT.RSE is already a key: register RSE of {__name__} with another node"


def test_keys_of_a_users_part_may_have_other_types(folder):
    @BACKBONE_REGISTRY.register()
    def my_backbone(cfg):
        return nn.Conv2d(1, 64, 3)

    @CONFIG_REGISTRY.register()
    def add_my_config(cfg):
        cfg.MODEL.BACKBONE = CN({"NORM": ["BN"], "LAST_STRIDE": "no", "STRIDE_SIZE": 16, "DROPOUT": [0.1]})
        cfg.KD = CN({"MODEL_CONFIG": None, "MODEL_WEIGHTS": False})

    keys = ["MODEL.DEVICE", "cpu", "MODEL.HEADS.POOL_LAYER", "GlobalAvgPool", "MODEL.HEADS.EMBEDDING_DIM", 0]
    assert problems(load_config("Digits/sap_tcm.yml", [*keys, "MODEL.BACKBONE.NAME", "my_backbone"])) == []


def test_keys_of_a_users_part_have_the_users_values(folder):
    @META_ARCH_REGISTRY.register()
    class Taught(Baseline):
        pass

    @REID_HEADS_REGISTRY.register()
    class Pooled(nn.Module):
        def __init__(self, cfg):
            super().__init__()
            self.size = cfg.MODEL.HEADS.EMBEDDING_DIM

        def forward(self, features, targets=None):
            pooled = features.mean((2, 3))[:, : self.size]
            return {"features": pooled} if self.training else pooled

    keys = ["KD.MODEL_CONFIG", ["teacher.yml"], "MODEL.HEADS.POOL_LAYER", "my_pool", "MODEL.HEADS.EMBEDDING_DIM", 8]
    keys += ["MODEL.DEVICE", "cpu", "MODEL.META_ARCHITECTURE", "Taught", "MODEL.LOSSES.NAME", ("TCMLoss",)]
    assert problems(load_config("Digits/sap_tcm.yml", [*keys, "MODEL.HEADS.NAME", "Pooled"])) == []
    said = "\n".join(problems(load_config("Digits/sap_tcm.yml", keys)))
    assert "MODEL.HEADS.POOL_LAYER = 'my_pool'" in said and "KD." not in said


VALUES = [
    [[1, 1], [3, 3]],
    [(1, 2), (3,)],
    ((1, 2.5), (3,)),
    [[[1, (2, 3)], []], []],
    [["a", None], ["b"]],
    [True, False],
    [None, 1],
    [{"a": [1]}, {"b": None}],
    ["1", "007"],
    CN({"A": [[1]], "B": CN({"C": None})}),
    None,
    False,
    1e-5,
    *("007", "12", "1e3", "True", "None", "[1, 2]", "yes", "2020-01-01", "~"),
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_saved_config_has_the_projects_values(folder, value):
    CONFIG_REGISTRY.register("add_my_config")(lambda cfg: setattr(cfg, "MY", CN({"VALUE": value})))
    cfg = load_config("Digits/sap_tcm.yml")
    (folder / "config.yaml").write_text(cfg.dump())
    assert repr(load_config("config.yaml").MY) == repr(cfg.MY) == repr(CN({"VALUE": value}))


@pytest.mark.parametrize("default", [[], [None], None], ids=str)
@pytest.mark.parametrize("value", [[[1, 2], ["a"]], [True, None], [{"a": 1}]], ids=str)
def test_an_empty_default_accepts_lists_of_anything(folder, default, value):
    CONFIG_REGISTRY.register("add_my_config")(lambda cfg: setattr(cfg, "MY", CN({"VALUE": default})))
    cfg = load_config("Digits/sap_tcm.yml", ["MY.VALUE", str(value)])
    (folder / "config.yaml").write_text(cfg.dump())
    assert load_config("config.yaml").MY.VALUE == cfg.MY.VALUE == value


@pytest.mark.parametrize(
    ("default", "text", "message"),
    [
        ([[1]], "[2]", r"must be a list, such as \[\[1\]\]; got \[2\]"),
        ([True], "[2]", r"must be a list, such as \[True\]; got \[2\]"),
        (None, "2020-01-01", "must be a number, text, boolean or list"),
        (None, "{A: 1}", "declare a group of keys as a CfgNode"),
    ],
)
def test_values_of_another_kind_are_refused(folder, default, text, message):
    CONFIG_REGISTRY.register("add_my_config")(lambda cfg: setattr(cfg, "MY", CN({"VALUE": default})))
    (folder / "my.yml").write_text(f"MY: {{VALUE: {text}}}")
    with pytest.raises(UserError, match=f"MY.VALUE .*{message}"):
        load_config("my.yml")


def test_a_function_that_breaks_the_config_is_named(folder):
    @CONFIG_REGISTRY.register()
    def add_my_config(cfg):
        cfg.MODEL.MINE = object()

    with pytest.raises(AssertionError, match="MINE") as raised:
        load_config("Digits/sap_tcm.yml")
    assert "CONFIG_REGISTRY: this error was raised in add_my_config of tests.runner.test_users_keys." in "".join(
        traceback.format_exception(raised.value)
    )


class Taught(Baseline):
    """Loads a teacher whose classes only the training set has."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.teacher = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, cfg.MODEL.HEADS.NUM_CLASSES))
        self.load_teacher(torch.load(cfg.MODEL.TEACHER, map_location="cpu"))

    def load_teacher(self, weights):
        self.teacher.load_state_dict(weights)


class TaughtByCopies(Taught):
    def load_teacher(self, weights):
        for name, value in self.teacher.state_dict().items():
            value.copy_(weights[name])


@pytest.mark.parametrize("kind", [Taught, TaughtByCopies])
def test_a_constructor_may_load_weights_for_the_classes_of_the_training_set(folder, kind):
    META_ARCH_REGISTRY.register("Taught")(kind)
    CONFIG_REGISTRY.register()(lambda cfg: setattr(cfg.MODEL, "TEACHER", "teacher.pth"))
    torch.save(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 7)).state_dict(), "teacher.pth")
    words = ["MODEL.DEVICE", "cpu", "MODEL.META_ARCHITECTURE", "Taught"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert problems(load_config("Digits/sap_tcm.yml", words)) == []
        assert problems(load_config("Digits/sap_tcm.yml", [*words, "MODEL.HEADS.NUM_CLASSES", 7])) == []
    with pytest.raises(RuntimeError, match="size"):
        problems(load_config("Digits/sap_tcm.yml", [*words, "MODEL.HEADS.NUM_CLASSES", 8]))


def test_a_loss_may_load_the_classes_of_the_training_set(folder):
    @LOSS_REGISTRY.register()
    class Centers(nn.Module):
        def __init__(self, num_classes):
            super().__init__()
            self.centers = nn.Linear(4, num_classes, bias=False)
            self.centers.load_state_dict({"weight": torch.zeros(7, 4)})

        def forward(self, embeddings, labels):
            return embeddings.mean()

    words = ["MODEL.DEVICE", "cpu", "MODEL.LOSSES.NAME", ("Centers",)]
    assert problems(load_config("Digits/sap_tcm.yml", words)) == []


def test_a_head_may_squeeze_the_batch_of_the_dry_run(folder):
    @REID_HEADS_REGISTRY.register()
    class Squeezed(nn.Module):
        def __init__(self, cfg):
            super().__init__()

        def forward(self, features, targets=None):
            pooled = features.mean((2, 3)).squeeze()[:, :8]
            return {"features": pooled} if self.training else pooled

    words = ["MODEL.DEVICE", "cpu", "MODEL.LOSSES.NAME", ("TCMLoss",), "MODEL.HEADS.NAME", "Squeezed"]
    assert problems(load_config("Digits/sap_tcm.yml", words)) == []


def test_a_head_with_a_classifier_embeds_with_the_classes_of_the_config(folder):
    @REID_HEADS_REGISTRY.register()
    class Classifies(nn.Module):
        def __init__(self, cfg):
            super().__init__()
            self.classifier = nn.Linear(cfg.MODEL.BACKBONE.FEAT_DIM, cfg.MODEL.HEADS.NUM_CLASSES)

        def forward(self, features, targets=None):
            return features.mean((2, 3))

    words = ["MODEL.HEADS.NAME", "Classifies", "MODEL.DEVICE", "cpu", "MODEL.WEIGHTS", "w.pth"]
    cfg = load_config("Digits/sap_tcm.yml", [*words, "MODEL.HEADS.NUM_CLASSES", 4])
    torch.save(build_model(cfg).state_dict(), "w.pth")
    (folder / "config.yaml").write_text(cfg.dump())
    assert PixelsToEmbedding.load(load_for_embedding("config.yaml")).embedding_dim == 64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, about a layer without outputs
        with pytest.raises(UserError, match=r"model \(0, 64\).*\n  Set MODEL\.HEADS\.NUM_CLASSES to"):
            PixelsToEmbedding.load(load_for_embedding("Digits/sap_tcm.yml", words))


def test_a_head_may_group_the_images_of_an_identity(folder):
    @REID_HEADS_REGISTRY.register()
    class Grouped(EmbeddingHead):
        def __init__(self, cfg):
            super().__init__(cfg)
            self.images = cfg.DATALOADER.NUM_INSTANCE

        def forward(self, features, targets=None):
            outputs = super().forward(features, targets)
            if self.training:
                outputs["features"].view(-1, self.images, 64)
            return outputs

    words = ["MODEL.DEVICE", "cpu", "MODEL.HEADS.NAME", "Grouped", "DATALOADER.NUM_INSTANCE", 3]
    words += ["MODEL.LOSSES.NAME", ("ProxyAnchorLoss",), "SOLVER.IMS_PER_BATCH", 30]
    cfg = load_config("Digits/sap_tcm.yml", words)
    assert problems(cfg) == []
    TrainingModule(cfg, DataModule(cfg))


def test_an_error_of_a_part_does_not_hide_the_report_on_other_files(folder):
    @REID_HEADS_REGISTRY.register()
    class Broken(nn.Module):
        def __init__(self, cfg):
            raise OSError("no such part")

    (folder / "broken.yml").write_text("MODEL: {DEVICE: cpu, HEADS: {NAME: Broken}}")
    text, status = check_files({"broken.yml": [], "Digits/sap_tcm.yml": ["MODEL.DEVICE", "cpu"]})
    lines = text.splitlines()
    assert status == CANNOT_RUN and lines[0] == "broken.yml: cannot run:" and "Digits/sap_tcm.yml: runs" in lines
    assert "  OSError: no such part" in lines
    assert f"  MODEL.HEADS.NAME: this error was raised in Broken of {__name__}." in lines


def test_callbacks_and_evaluators_that_no_key_names_are_named(folder):
    class Unnamed:
        pass

    CALLBACK_REGISTRY.register("Stop")(Unnamed)
    EVALUATOR_REGISTRY.register("Submit")(Unnamed)
    lines = [
        f"Stop of {__name__} is not used: name it in CALLBACKS",
        f"Submit of {__name__} is not used: name it in TEST.EVALUATOR",
    ]
    assert unused_parts(load_config("Digits/sap_tcm.yml")) == lines
    assert unused_parts(load_config("Digits/sap_tcm.yml", ["CALLBACKS", ("Stop",), "TEST.EVALUATOR", "Submit"])) == []
    assert f"  ({lines[0]})" in check_files({"Digits/sap_tcm.yml": ["MODEL.DEVICE", "cpu"]})[0].splitlines()
