"""Runs where FastReID imports; the error without it is tested everywhere."""

import importlib
from types import ModuleType

import pytest
import torch

from pml_ext._errors import UserError
from pml_ext.integrations import fastreid as integration


@pytest.fixture
def fastreid() -> ModuleType:
    try:
        importlib.import_module("fastreid.engine")
    except (ImportError, AttributeError) as error:
        pytest.skip(f"FastReID cannot be imported here: {error}")
    return importlib.import_module("fastreid")


@pytest.fixture
def registered(fastreid: ModuleType):
    integration.register()
    yield
    integration.unregister()


def config(*names: str, **losses: dict):
    from fastreid.config import get_cfg

    cfg = get_cfg()
    integration.add_config(cfg)
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.BACKBONE.DEPTH = "18x"
    cfg.MODEL.BACKBONE.FEAT_DIM = 512
    cfg.MODEL.HEADS.WITH_BNNECK = True
    cfg.MODEL.HEADS.NUM_CLASSES = 4
    cfg.MODEL.LOSSES.NAME = names
    for node, options in losses.items():
        for key, value in options.items():
            cfg.MODEL.LOSSES[node][key] = value
    return cfg


def batch() -> dict[str, torch.Tensor]:
    return {"images": torch.rand(8, 3, 64, 32) * 255, "targets": torch.arange(4).repeat_interleave(2)}


def test_without_fastreid_the_error_says_what_to_do() -> None:
    try:
        importlib.import_module("fastreid.engine")
    except (ImportError, AttributeError):
        with pytest.raises(ImportError, match=r"FastReID cannot be imported \(.*pml-ext train --config-file"):
            integration.register()
    else:
        pytest.skip("FastReID imports here")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["CITLoss", "TCMLoss", "LoOp", "DiscriminativeLoss", "MultiSimilarityLoss"])
def test_our_losses_train_in_fastreid(registered: None, name: str) -> None:
    from fastreid.engine.defaults import DefaultTrainer
    from fastreid.modeling import build_model
    from fastreid.utils.events import EventStorage

    cfg = config("CrossEntropyLoss", name)
    model = build_model(cfg)
    optimizer, _ = DefaultTrainer.build_optimizer(cfg, model)
    before = {key: value.clone() for key, value in model.named_parameters()}
    with EventStorage():
        for _ in range(2):
            values = model(batch())
            assert set(values) == {"loss_cls", f"loss_{name}"}
            optimizer.zero_grad()
            sum(values.values()).backward()
            optimizer.step()
    still = [key for key, value in model.named_parameters() if value.requires_grad and torch.equal(value, before[key])]
    assert not still, "every weight has moved, those of the loss too"


@pytest.mark.filterwarnings("default")
def test_the_value_is_that_of_the_loss_times_its_scale(registered: None) -> None:
    from fastreid.modeling import build_model
    from fastreid.utils.events import EventStorage

    from pml_ext.losses import CITLoss

    outputs = {
        "pred_class_logits": torch.randn(8, 4),
        "cls_outputs": torch.randn(8, 4),
        "features": torch.randn(8, 512),
    }
    model = build_model(config("CITLoss", CIT={"GAMMA": 0.5, "SCALE": 3.0}))
    with EventStorage():
        values = model.losses(outputs, batch()["targets"])
    expected = 3 * CITLoss(gamma=0.5)(outputs["features"], batch()["targets"])
    assert torch.equal(values["loss_CITLoss"], expected)


def test_unknown_names_are_errors_here(registered: None) -> None:
    from fastreid.modeling import build_model

    with pytest.raises(UserError, match=r"unknown 'CitLoss'; did you mean 'CITLoss'"):
        build_model(config("CrossEntropyLoss", "CitLoss"))


def test_registering_twice_and_undoing(fastreid: ModuleType) -> None:
    from fastreid.engine import defaults
    from fastreid.modeling.meta_arch.build import META_ARCH_REGISTRY

    own, build = META_ARCH_REGISTRY.get("Baseline"), defaults.build_optimizer
    for _ in range(2):
        integration.register()
    assert META_ARCH_REGISTRY.get("Baseline") is META_ARCH_REGISTRY.get(integration.NAME) is not own
    integration.unregister()
    assert META_ARCH_REGISTRY.get("Baseline") is own
    assert integration.NAME not in META_ARCH_REGISTRY._obj_map
    assert defaults.build_optimizer is build
