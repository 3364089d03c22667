import pytest

from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.hints import meant
from pml_ext.runner.data.datasets import DATASETS


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [
        ("Adan", ["Adam", "AdamW"], "Adam"),
        ("Adma", ["Adam"], "Adam"),
        ("linear", ["CircleSoftmax", "Linear"], "Linear"),
        ("Cross_Entropy_Loss", ["CrossEntropyLoss"], "CrossEntropyLoss"),
        ("CrosEntropyLos", ["CrossEntropyLoss"], "CrossEntropyLoss"),
        ("Market", list(DATASETS), "Market1501"),
        ("MOT17", list(DATASETS), None),
        ("MAX_ITER", list(get_cfg().SOLVER), None),
        ("OPEN_LAYERS", list(get_cfg().MODEL), None),
        ("BCE", ["CE"], None),
        ("MAX_EPOCHS", list(get_cfg().SOLVER), "MAX_EPOCH"),
        ("x" * 10**6, ["x"], None),
        ("", ["abc"], None),
        ("a", [], None),
    ],
)
def test_a_hint_is_a_slip_of_the_finger_or_nothing(value: str, known: list[str], expected: str | None) -> None:
    assert meant(value, known) == expected
