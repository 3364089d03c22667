"""Types that a user's own type checker sees: ours, and the names of pytorch-metric-learning, which has no types."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pml_ext import functional, losses, metrics, miners, thresholds

ROOT = Path(__file__).parents[1]
SCRIPT = """
import torch
from torch import Tensor

import pml_ext
from pml_ext.losses import CITLoss, CrossBatchMemory, DiscriminativeLoss, LoOp, ProxyNCALoss, SmoothAPLoss
from pml_ext.losses import SubCenterArcFaceLoss, TCMRegularizer, TripletMarginLoss
from pml_ext.miners import HPHNMiner, LoOpMiner, MultiSimilarityMiner

x, y = torch.randn(8, 4), torch.arange(4).repeat(2)
proxies = ProxyNCALoss(num_classes=4, embedding_size=4, softmax_scale=2, weight_regularizer=None)
centres = SubCenterArcFaceLoss(num_classes=4, embedding_size=4)
loss = TCMRegularizer(TripletMarginLoss(margin=0.1, distance=pml_ext.losses.CITLoss().distance), margin_plus=0.8)
values: list[Tensor] = [
    proxies(x, y), centres(x, y), loss(x, y, MultiSimilarityMiner(epsilon=0.2)(x, y)), SmoothAPLoss(0.1)(x, y),
    LoOp("TripletMarginLoss", pairing="all")(x, y, HPHNMiner()(x, y)), CITLoss(gamma=1)(x, y),
    CrossBatchMemory(CITLoss(collect_stats=True), embedding_size=4)(x, y), DiscriminativeLoss(4, 4, reducer=None)(x, y),
]
indices: tuple[Tensor, ...] = LoOpMiner(MultiSimilarityMiner())(x, y)
"""
WRONG = {
    "CITLoss(gama=1)": '"gama" for "CITLoss"',
    "LoOp(CITLoss(), paring='all')": '"paring" for "LoOp"',
    "LoOp(CITLoss(), pairing='al')": 'Argument "pairing"',
    "LoOpMiner(HPHNMiner(), geometry='line')": 'Argument "geometry"',
    "pml_ext.losses.PairWeightingLoss('ms')": 'to "PairWeightingLoss"',
    "TCMRegularizer(CITLoss(), margin_plsu=0.9)": '"margin_plsu" for "TCMRegularizer"',
    "HPHNMiner(colect_stats=True)": '"colect_stats" for "HPHNMiner"',
    "pml_ext.losses.TripletLoss()": 'has no attribute "TripletLoss"',
    "loss(x, y).loss": '"Tensor" has no attribute "loss"',
}


@pytest.mark.nightly
def test_a_script_on_the_installed_wheel_passes_mypy_but_for_what_is_wrong(installed, tmp_path):
    first = SCRIPT.count("\n") + 1
    (tmp_path / "script.py").write_text("\n".join([SCRIPT + next(iter(WRONG)), *list(WRONG)[1:], ""]), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache/script", "script.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors = [line for line in result.stdout.splitlines() if " error: " in line]
    assert len(errors) == len(WRONG), result.stdout + result.stderr
    for number, (error, expected) in enumerate(zip(errors, WRONG.values(), strict=True), first):
        assert error.startswith(f"script.py:{number}:") and expected in error, error


@pytest.mark.nightly
def test_an_editable_install_is_a_path_that_type_checkers_follow(installed):
    (wheel,) = installed.parent.glob("*editable*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith(".pth"))
    assert Path(path.strip()).name == "copy"  # and no line of Python, which they do not run


@pytest.mark.parametrize("room", [losses, miners], ids=lambda room: room.__name__)
def test_type_checkers_see_every_class_of_pml(room):
    """The names under TYPE_CHECKING are those that a program gets."""
    tree = ast.parse(Path(room.__file__).read_text(encoding="utf-8"))  # type: ignore[arg-type]
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {
        alias.asname for statement in checked.body if isinstance(statement, ast.ImportFrom) for alias in statement.names
    }
    assert names == {*room.__all__} - {*room.OURS, *getattr(room, "CORRECTED", ())}  # type: ignore[attr-defined]


@pytest.mark.parametrize("room", [functional, losses, metrics, miners, thresholds], ids=lambda room: room.__name__)
def test_dir_lists_the_public_names_only(room):
    assert dir(room) == sorted(room.__all__)  # type: ignore[attr-defined]
    assert all(getattr(room, name) is not None for name in dir(room))
