"""Networks of a whole config, for tests of their parts."""

from types import SimpleNamespace
from typing import Any

from pml_ext.runner.data.transforms import build_transform
from pml_ext.runner.engine.training_module import TrainingModule
from pml_ext.runner.modeling.architectures import build_model
from pml_ext.runner.modeling.heads import EmbeddingHead


def head_of(cfg, num_classes=0):
    model: Any = build_model(cfg, num_classes=num_classes)
    head: EmbeddingHead = model.heads
    return head


def module_of(cfg, train_set=None):
    """A TrainingModule of a training set alone, or of no data at all."""
    transform = build_transform(cfg.INPUT, training=True)
    data: Any = SimpleNamespace(train_set=train_set, test_sets={}, transform=transform, notes=[])
    return TrainingModule(cfg, data)
