"""Class vectors in checkpoints: any number of ranks reads what another has written."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from pml_ext.distributed import PartialFC
from pml_ext.runner.engine.checkpoints import load_classes, save_classes

COUNT, VECTORS = 11, "losses.DiscriminativeLoss.weight"


def on_rank(rank, ranks):
    """Two steps of Adam, and what it then writes, in a folder of its own."""
    loss, other = PartialFC(3, COUNT), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([other, loss.weight])
    for _ in range(2):
        (loss.weight.sin().sum() + other.sum()).backward()
        optimizer.step()
    state = {
        "state_dict": {VECTORS: loss.weight.detach()}, "optimizer_states": [optimizer.state_dict()], "global_step": 5,
    }  # fmt: skip
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_classes(state, VECTORS, loss, optimizer, folder)
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("classes_*/*")}
    kept = {"weight": loss.weight.detach(), "exp_avg": optimizer.state[loss.weight]["exp_avg"]}
    return {"classes": {"files": files, "checkpoint": state, "rows": kept}}


@pytest.mark.parametrize("after", [1, 2, 4])
def test_other_ranks_read_them(tmp_path, found, after):
    written = [of_rank["classes"] for of_rank in found]
    for files in (each["files"] for each in written):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
    assert VECTORS not in written[0]["checkpoint"]["state_dict"]
    got = []
    for rank in range(after):
        checkpoint = {**written[0]["checkpoint"], "state_dict": {}}
        load_classes(checkpoint, VECTORS, PartialFC(3, COUNT, part=(rank, after)), tmp_path)
        state = checkpoint["optimizer_states"][0]["state"][1]
        assert state["step"] == 2 and state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        got.append({"weight": checkpoint["state_dict"][VECTORS], "exp_avg": state["exp_avg"]})
    for key in ("weight", "exp_avg"):
        assert torch.equal(torch.cat([each[key] for each in got]), torch.cat([each["rows"][key] for each in written]))
