"""Checks of CUDA devices, and of config values that need one."""

import torch
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError


def kind_and_index(device: str) -> tuple[str, int]:
    """Parses a device: "cuda:1" to ("cuda", 1), "cuda", "cpu" and "auto" to index 0; raises UserError on others."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not index.isdecimal()):
        raise UserError(f"device must be cpu, cuda, cuda:1 and so on, or auto; got {device!r}")
    return kind, int(index or 0)


def missing_device(device: str) -> str | None:
    """Returns a message if a CUDA device is not available to torch, otherwise None."""
    kind, index = kind_and_index(device)
    if kind != "cuda" or index < (devices := torch.cuda.device_count()):
        return None
    sees = f"{devices} CUDA devices" if devices else "no CUDA device"
    return f"{device}: torch sees {sees} here; use cpu or auto"


def describe_cpu_processes(device: str, count: int) -> str:
    """Returns a line if --num-gpus processes run on the CPU, "" otherwise; UserError if there are too few GPUs."""
    devices = 0 if device == "cpu" else torch.cuda.device_count()
    if count == 1 or count <= devices:
        return ""
    if devices:
        raise UserError(f"--num-gpus {count}: torch sees {devices} CUDA devices here; use as many, or MODEL.DEVICE cpu")
    reason = "as set by MODEL.DEVICE" if device == "cpu" else "because torch sees no CUDA device here"
    return f"--num-gpus {count} runs {count} processes on the CPU, {reason}"


def norms_of_other_devices(options: CN) -> list[str]:
    """Returns a message for each key that is syncBN without a GPU: torch fails then at the first training step."""
    norms = {"BACKBONE": options.BACKBONE.NORM, "HEADS": options.HEADS.NORM if options.HEADS.WITH_BNNECK else ""}
    nodes = [node for node, norm in norms.items() if norm == "syncBN"]
    if not nodes or (options.DEVICE != "cpu" and torch.cuda.device_count()):
        return []
    return [
        f"MODEL.{node}.NORM is syncBN, which torch supports on CUDA devices only; set MODEL.{node}.NORM BN (the same "
        "weights fit, and the result is the same with one process)"
        for node in nodes
    ]
