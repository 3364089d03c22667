"""The CUDA devices that torch sees, and config values that only they can have."""

import torch
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError


def kind_and_index(device: str) -> tuple[str, int]:
    """("cuda", 1) of "cuda:1", ("cuda", 0) of "cuda", ("cpu", 0) and ("auto", 0); UserError on another name."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not index.isdecimal()):
        raise UserError(f"device must be cpu, cuda, cuda:1 and so on, or auto; got {device!r}")
    return kind, int(index or 0)


def missing_device(device: str) -> str | None:
    """A message about a CUDA device that torch does not see; None if it does."""
    kind, index = kind_and_index(device)
    if kind != "cuda" or index < (devices := torch.cuda.device_count()):
        return None
    sees = f"{devices} CUDA devices" if devices else "no CUDA device"
    return f"{device}: torch sees {sees} here; take cpu, or auto"


def norms_of_other_devices(options: CN) -> list[str]:
    """A line for each key that is syncBN without a GPU: torch refuses its training there at the first step."""
    norms = {"BACKBONE": options.BACKBONE.NORM, "HEADS": options.HEADS.NORM if options.HEADS.WITH_BNNECK else ""}
    nodes = [node for node, norm in norms.items() if norm == "syncBN"]
    if not nodes or (options.DEVICE != "cpu" and torch.cuda.device_count()):
        return []
    return [
        f"MODEL.{node}.NORM is syncBN, which torch has for CUDA devices only; here set MODEL.{node}.NORM BN (the same "
        "weights fit, and one process computes the same)"
        for node in nodes
    ]
