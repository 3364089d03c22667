from pathlib import Path

import torch
from torch import Tensor, nn

from pml_ext.cli import main
from pml_ext.losses import SoftTripleLoss
from pml_ext.runner.engine.large_batches import loss_in_chunks

CONFIG = Path(__file__).parents[3] / "fastreid_configs" / "Digits" / "sap_tcm.yml"


def trained(output: Path, *options: str) -> dict[str, Tensor]:
    """The weights after two steps with clipped gradients."""
    opts = f"""MODEL.DEVICE cpu MODEL.HEADS.CLS_LAYER CircleSoftmax MODEL.HEADS.SCALE 8.0 SOLVER.OPT SGD
        SOLVER.BASE_LR 0.05 SOLVER.MAX_EPOCH 1 SOLVER.WARMUP_ITERS 0 SOLVER.IMS_PER_BATCH 450
        DATALOADER.NUM_INSTANCE 90 SOLVER.CLIP_GRADIENTS.ENABLED True SOLVER.CLIP_GRADIENTS.CLIP_VALUE 0.1
        TEST.EVAL_PERIOD 1 OUTPUT_DIR {output}""".split()
    losses = ["MODEL.LOSSES.NAME", '("SmoothAPLoss","CrossEntropyLoss","SoftTripleLoss")']
    assert main(["train", "--config-file", str(CONFIG), *opts, *losses, *options]) == 0
    return torch.load(output / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def test_a_run_in_chunks_is_the_run_without(tmp_path: Path) -> None:
    norms = ("MODEL.BACKBONE.NORM", "GN")
    whole, in_chunks = trained(tmp_path / "1", *norms), trained(tmp_path / "2", *norms, "SOLVER.CHUNK", "128")
    assert whole.keys() == in_chunks.keys()
    for name, value in whole.items():
        torch.testing.assert_close(in_chunks[name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_a_scaled_loss_gives_scaled_gradients() -> None:
    torch.manual_seed(0)
    network, loss = nn.Linear(6, 4), SoftTripleLoss(3, 4)
    inputs, labels = torch.randn(9, 6), torch.arange(9) % 3
    expected = torch.autograd.grad(
        loss(network(inputs), labels), parameters := [*network.parameters(), *loss.parameters()]
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    value = loss_in_chunks(
        lambda batch: {"features": network(batch["images"])}, {"images": inputs, "targets": labels},
        lambda outputs: loss(outputs["features"], outputs["targets"]),
        chunk=4, modules=[network], loss_parameters=loss.parameters(), scaler=scaler,
    )  # fmt: skip
    scaler.scale(value).backward()
    torch.testing.assert_close([p.grad for p in parameters], [64 * gradient for gradient in expected])
