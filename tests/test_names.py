import pytest

from pml_ext import losses
from pml_ext._shared.names import closest, hint
from pml_ext.runner.config.defaults import get_cfg


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [
        ("Adan", ["Adam", "RMSprop"], ["Adam"]),
        ("Cross_Entropy_Loss", ["CrossEntropyLoss"], ["CrossEntropyLoss"]),
        ("triplet", losses.__all__, ["TripletMarginLoss", "HPHNTripletLoss", "CentroidTripletLoss"]),
        ("BCE", ["CE"], []),
        ("MAX_EPOCHS", list(get_cfg().SOLVER), ["MAX_EPOCH"]),
        ("x" * 10**6, ["x"], []),
    ],
)
def test_close_names_are_slips_of_the_finger_and_parts(value, known, expected):
    assert closest(value, known) == expected


def test_a_hint_lists_names_if_they_are_few_or_none_is_close_and_at_most_ten():
    few, many = ["csv", "wandb"], [f"name{i}" for i in range(70)]
    assert hint("wandbb", few) == "; did you mean 'wandb'? Known: 'csv', 'wandb'"
    assert hint(5, few) == ". Known: 'csv', 'wandb'"
    assert hint("name", many, str) == "; did you mean name9, name8 or name7?"
    assert hint("other", []) == ""
    assert hint("other", many).endswith(" and 62 more") and hint("other", many).count("'name") == 8  # 70 characters
    pools = ["max", "clip", "GeM+", "avg", "identity", "flatten", "fast", "sum", "mean"]
    assert hint("gem", pools, str).startswith(". Known: GeM+, ")
    long = [f"{'x' * 30}{i}" for i in range(6)]
    assert hint("x" * 30, long, str) == f"; did you mean {long[5]} or {long[4]}?"
    assert hint("nam", few, advice="Add it") == ". Known: 'csv', 'wandb'. Add it"
    assert hint("name", many, str, advice="Add it") == "; did you mean name9, name8 or name7? Add it"
