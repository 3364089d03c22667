"""Evaluation divided among two ranks, compared with one process that has all embeddings, at Market-1501's size.

    python examples/benchmarks/evaluation.py [--queries 3368] [--gallery 15913] [--ranks 2] [--rounds 2]

Every process has one thread. It begins with embeddings as a run has them, each rank those of its images, and ends with
the metrics. CPU time is that of the busiest process, the median over rounds in which both forms take turns; wall time
would need a core a rank. Memory is the rise of a process's peak, the largest of the ranks.
"""

import argparse

import numpy as np
import torch
from metrics import DIM, MARKET, a_protocol, features
from processes import compare, on_ranks
from torch import Tensor, distributed
from torch.nn.functional import normalize

from pml_ext._ops.distributed import gather_in_order
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.data.datasets import ImageSet, OpenSet
from pml_ext.runner.evaluation.evaluate import Evaluation

MEASURED = {
    "CMC, mAP, mINP": "TEST.METRICS ('cmc','reid_mean_average_precision','mean_inverse_negative_penalty')",
    "OPIS, ε-OPIS": "TEST.METRICS ('opis','epsilon_opis')",
    "the default: these, mAP@R and, by one process, NMI": "",
    "the default with TEST.ROC and TEST.NORMALIZE": "TEST.ROC.ENABLED True TEST.NORMALIZE.ENABLED True",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=MARKET[0], help="images (default: 3368)")
    parser.add_argument("--gallery", type=int, default=MARKET[1], help="images (default: 15913)")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--rounds", type=int, default=2, help="of each form (default: 2)")
    options = parser.parse_args()
    on_ranks(options.ranks, _compare, options)


def _compare(rank: int, options: argparse.Namespace) -> None:
    ranks, group = options.ranks, distributed.group.WORLD
    data, whole = a_test_set((options.queries, options.gallery))
    own = [(torch.arange(rank, len(rows), ranks), rows[rank::ranks].clone()) for rows in whole]
    if rank == 0:
        size = f"{options.queries} × {options.gallery} × {DIM}"
        print(f"{size}, {ranks} processes of one thread against one\n")
        print("| what | one: CPU, memory | divided: CPU, memory | CPU | memory |\n|---|---|---|---|---|")
    for name, words in MEASURED.items():
        cfg = get_cfg()
        cfg.merge_from_list(words.split())
        evaluation = Evaluation(cfg.TEST)

        def alone(evaluation: Evaluation = evaluation) -> dict[str, float]:
            return evaluation(data, whole)

        def together(evaluation: Evaluation = evaluation) -> dict[str, float]:
            gathered = [gather_in_order(rows, numbers, group, everywhere=True) for numbers, rows in own]
            return evaluation(data, gathered, group)

        of_all = compare(alone, together, options.rounds)[:, [0, 2]]
        divided = together()
        if rank == 0 and divided != (undivided := alone()):
            raise RuntimeError(f"{name}: one process measured {undivided}, {ranks} measured {divided}")
        if rank == 0:
            shown = (f"{cpu:.2f} s, {memory / 2**20:,.0f} MB" for memory, cpu in of_all.tolist())
            memory, cpu = (of_all[1] / of_all[0]).tolist()
            print(
                f"| {name} | {' | '.join(shown)} | {cpu:.2f} | {memory:.2f} |",
                flush=True,
            )


def a_test_set(size: tuple[int, int]) -> tuple[OpenSet, list[Tensor]]:
    """With its unit-norm embeddings, of queries and of the gallery."""
    protocol = a_protocol(size, torch.device("cpu"))
    query, gallery = (
        ImageSet(
            [""] * n,
            protocol[f"{side}_labels"].numpy(),
            protocol[f"{side}_cameras"].numpy(),
            [""] * n,
        )
        for side, n in zip(("query", "gallery"), size, strict=True)
    )
    nothing = ImageSet([], np.empty(0, int), np.empty(0, int), [])
    embeddings = features(size, protocol, torch.device("cpu"))
    return OpenSet(nothing, query, gallery), [normalize(rows) for rows in embeddings]


if __name__ == "__main__":
    main()
