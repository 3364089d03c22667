"""Crops per second with `Embedder`: the network and its exported ONNX file, for batches of 1, 8 and 32.

    python examples/benchmarks/crops.py fastreid_configs/Market1501/bagtricks_R50.yml --device cpu

Weights and the sizes of crops are random. Resizing counts; a separate column has its share.
"""

import argparse
import logging
import tempfile
import time
from copy import copy
from pathlib import Path

import numpy as np
import torch

from pml_ext import Embedder
from pml_ext.runner.config.network_keys import load_for_embedding
from pml_ext.runner.engine.exporting import export
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding

BATCHES = (1, 8, 32)


def crops_a_second(embedder: Embedder, crops: list[np.ndarray], batch: int, seconds: float, on_cpu: bool) -> float:
    """For whole calls with `batch` crops each, after a warm-up call; CPU time on a CPU."""
    clock = time.process_time if on_cpu else time.perf_counter
    embedder.batch_size = batch
    embedder(crops[:batch], order="BGR")
    done, start = 0, clock()
    while clock() - start < seconds:
        embedder([crops[(done + i) % len(crops)] for i in range(batch)], order="BGR")
        done += batch
    return done / (clock() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=5, help="for each number")
    options = parser.parse_args()
    logging.getLogger("pml_ext").setLevel(logging.ERROR)
    generator = np.random.default_rng(0)
    sizes = generator.integers([60, 30], [400, 200], (64, 2))
    crops = [generator.integers(0, 256, (high, wide, 3), dtype=np.uint8) for high, wide in sizes.tolist()]
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pth"
        cfg = load_for_embedding(options.config)
        torch.save(PixelsToEmbedding(cfg).model.state_dict(), weights)
        cfg.MODEL.WEIGHTS = str(weights)
        made = {"network": Embedder.from_config(options.config, weights, device=options.device)}
        if made["network"].device.type == "cuda":
            made["network, 16 bits"] = Embedder.from_config(options.config, weights, device=options.device, half=True)
        for half in (False, True):
            file = Path(folder) / f"{half}.onnx"
            export(cfg, file, "onnx", half=half)
            made[f"ONNX{', 16 bits' if half else ''}"] = Embedder.from_onnx(file, device=options.device)
        prepare = copy(made["network"])
        prepare.device = torch.device("cpu")
        prepare.network = lambda images: images.new_ones(len(images), prepare.embedding_dim)
        print(f"{options.config.stem}, {made['network'].device}, {torch.get_num_threads()} threads; crops a second")
        print("| batch |", " | ".join([*made, "resizing alone"]), "|")
        print("|" + " ---: |" * (len(made) + 2))
        for batch in BATCHES:
            on_cpu = made["network"].device.type == "cpu"
            rates = [crops_a_second(one, crops, batch, options.seconds, on_cpu) for one in (*made.values(), prepare)]
            print(f"| {batch} |", " | ".join(f"{rate:,.1f}" for rate in rates), "|", flush=True)


if __name__ == "__main__":
    main()
