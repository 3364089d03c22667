import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pml_ext.training.weights import WeightsError, load_weights


def model(hidden: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, 1))


@pytest.mark.parametrize("nest", [None, "state_dict", "model"])
def test_weights_come_back_from_every_nest(tmp_path: Path, nest: str | None) -> None:
    source, target = model(), model()
    state = source.state_dict()
    torch.save(state if nest is None else {nest: state, "epoch": 3}, tmp_path / "w.pth")
    load_weights(target, tmp_path / "w.pth")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


def test_safetensors_and_prefix(tmp_path: Path) -> None:
    source, target = model(), model()
    save_file({f"net.{k}": v for k, v in source.state_dict().items()}, tmp_path / "w.safetensors")
    load_weights(target, tmp_path / "w.safetensors", prefix="net.")
    assert torch.equal(source[0].weight, target[0].weight)


def test_another_architecture_is_one_table_and_changes_nothing(tmp_path: Path) -> None:
    torch.save({**model(5).state_dict(), "extra": torch.ones(1)}, tmp_path / "w.pth")
    target = nn.Sequential(*model(), nn.Linear(1, 1))
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(WeightsError) as caught:
        load_weights(target, tmp_path / "w.pth")
    text = str(caught.value)
    assert "missing (2): 2.weight, 2.bias" in text
    assert "unexpected (1): extra" in text
    assert "0.weight (file (5, 2), model (3, 2))" in text
    assert all(torch.equal(v, before[k]) for k, v in target.state_dict().items())


def test_optional_parts_may_differ(tmp_path: Path) -> None:
    torch.save({k: v for k, v in model().state_dict().items() if k.startswith("0.")}, tmp_path / "w.pth")
    load_weights(model(), tmp_path / "w.pth", optional=("1.",))
    with pytest.raises(WeightsError, match=r"missing \(2\)"):
        load_weights(model(), tmp_path / "w.pth")


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code from the file ran')",))


def test_files_stay_data(tmp_path: Path) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"w": _Runs()}, protocol=2))
    torch.save({"state_dict": {"w": _Runs()}}, tmp_path / "evil2.pth")
    whole = tmp_path / "whole.pth"
    torch.save(model().state_dict(), whole)
    (tmp_path / "cut.pth").write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00\x00")
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "text.ckpt").write_bytes(b".plain text")
    for name, message in [
        ("evil.pth", "not a readable weights file"),
        ("evil2.pth", "not a readable weights file"),
        ("cut.pth", "not a readable weights file"),
        ("cut.safetensors", "not a readable safetensors file"),
        ("text.ckpt", "not a readable weights file"),
        ("list.pth", "holds no state_dict"),
        ("none.pth", "no weights file at"),
    ]:
        with pytest.raises(WeightsError, match=message):
            load_weights(model(), tmp_path / name)
