"""Computes some results of EVIDENCE.md a second time with independent code.

    python examples/evidence/second_implementation.py

A plain loop in PyTorch with pytorch-metric-learning's own losses and miner, batches drawn by NumPy, and metrics of
NumPy and scikit-learn. Nothing is imported from pml_ext or the evidence code; only the frozen features (which
run.py leaves in logs/evidence/features) and the settings that validation chose are read. The draws differ, so the
values agree within their intervals, not exactly. Writes second_implementation.md in this folder.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning import distances, losses, miners
from scipy import stats
from sklearn.metrics.pairwise import euclidean_distances
from torch import Tensor, nn

HERE = Path(__file__).parent
FEATURES = HERE.parents[1] / "logs" / "evidence" / "features"
SET = "emoji"
ADDED = "proxy_nca + tcm@added"
BASE = "proxy_nca"  # at the settings that ADDED was added to
METHODS = ("triplet", "triplet + tcm", "ms", "contrastive", "triplet_random", BASE, ADDED)
DIFFERENCES = (
    ("triplet", "triplet + tcm"),
    ("triplet", "ms"),
    ("triplet", "contrastive"),
    ("triplet_random", "triplet"),
    (BASE, ADDED),
)
SEEDS = range(5)
MEASURES = {"r1": ("R@1", 100), "map_at_r": ("mAP@R", 100), "opis": ("OPIS × 1000", 1000)}
STEPS, CLASSES, PER_CLASS, DIMENSION = 300, 20, 4, 128

Loss = Callable[[Tensor, Tensor], Tensor]
Part = tuple[Tensor, Tensor, Tensor]  # features (views, N, 1280), labels (N,), cameras (N,)


def main() -> None:
    torch.set_num_threads(1)
    train_part, query, gallery = torch.load(FEATURES / f"{SET}.pt", weights_only=True)
    committed = {method: committed_runs(method) for method in METHODS}
    own: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    for method in METHODS:
        for seed in SEEDS:
            layer = trained(method, committed[method][0]["settings"], seed, train_part)
            own[method].append(measured(layer, query, gallery))
    lines = [
        "| what | measure | run.py | second implementation | difference [95 %] | |",
        "|---|---|---|---|---|---|",
    ]
    for measure, (heading, scale) in MEASURES.items():
        first = {m: scale * np.array([run["metrics"][measure] for run in committed[m]]) for m in METHODS}
        second = {m: scale * np.array([metrics[measure] for metrics in own[m]]) for m in METHODS}
        for method in METHODS:
            lines.append(row(method, heading, first[method], second[method]))
        for base, method in DIFFERENCES:
            pairs = (first[method] - first[base], second[method] - second[base])
            lines.append(row(f"{method} − {base}", heading, *pairs))
    agreed = sum(line.endswith("agrees |") for line in lines)
    text = (
        f"On {SET}, {len(SEEDS)} seeds each, with the settings that validation chose: a plain PyTorch loop with "
        "pytorch-metric-learning's losses, other random batches, and metrics from NumPy and scikit-learn. Means with "
        f"95 % intervals over seeds; {agreed} of {len(lines) - 2} differences have 0 in their interval (Welch). One in "
        "twenty is expected not to, even if both programs are correct.\n\n" + "\n".join(lines) + "\n"
    )
    print(text)
    (HERE / "second_implementation.md").write_text(text, encoding="utf-8")


def committed_runs(method: str) -> list[dict[str, Any]]:
    """The stored test runs of a method with the settings of the last one with all seeds, ordered by seed."""
    lines = (HERE / "results" / f"runs_{SET}.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [run for run in map(json.loads, lines) if run["stage"] == "test" and run["method"] == method]
    if method == BASE:
        shared = committed_runs(ADDED)[0]["settings"].items()
        runs = [run for run in runs if run["settings"].items() <= shared]
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(repr((run["settings"], run["fingerprint"])), []).append(run)
    last = [group for group in groups.values() if len(group) == len(SEEDS)][-1]
    return sorted(last, key=lambda run: run["seed"])


def loss_of(method: str, settings: dict[str, Any], classes: int) -> tuple[Loss, list[nn.Parameter]]:
    """The method's loss built from pytorch-metric-learning's losses, and its own parameters."""
    if method == "ms":
        ms = losses.MultiSimilarityLoss(alpha=2, beta=settings["ms.beta"], base=settings["ms.base"])
        miner = miners.MultiSimilarityMiner(epsilon=settings["ms.epsilon"])
        return (lambda embeddings, labels: ms(embeddings, labels, miner(embeddings, labels))), []
    if method == "contrastive":
        margins = {"pos_margin": settings["contrastive.pos_margin"], "neg_margin": settings["contrastive.neg_margin"]}
        return losses.ContrastiveLoss(**margins, distance=distances.CosineSimilarity()), []
    if method == "triplet_random":
        return losses.TripletMarginLoss(margin=settings["triplet_random.margin"], triplets_per_anchor=1), []
    if method.startswith("proxy_nca"):
        base = losses.ProxyNCALoss(classes, DIMENSION, softmax_scale=settings["proxy_nca.scale"])
    else:
        base = losses.TripletMarginLoss(margin=settings["triplet.margin"])
    own = list(base.parameters())
    if "tcm" not in method:
        return base, own
    tcm = losses.ThresholdConsistentMarginLoss(
        margin_plus=settings["tcm.margin_plus"], margin_minus=settings["tcm.margin_minus"]
    )
    return (lambda embeddings, labels: base(embeddings, labels) + tcm(embeddings, labels)), own


def trained(method: str, settings: dict[str, Any], seed: int, part: Part) -> nn.Linear:
    """A linear layer after 300 steps of Adam with a cosine to 0."""
    features, labels, _ = part
    random = np.random.default_rng([seed, 1])
    torch.manual_seed(1000 + seed)
    layer = nn.Linear(features.shape[-1], DIMENSION)
    loss, own = loss_of(method, settings, int(labels.max()) + 1)
    rates = [settings["rate"], settings["rate"] * settings.get("own_rate", 1.0)]
    optimizer = torch.optim.Adam([{"params": list(layer.parameters())}, *([{"params": own}] if own else [])])
    members = [np.flatnonzero(labels.numpy() == label) for label in np.unique(labels)]
    for step in range(STEPS):
        for group, rate in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = rate * (1 + np.cos(np.pi * step / STEPS)) / 2
        chosen = random.choice(len(members), CLASSES, replace=False)
        # A class with too few images repeats some.
        rows = np.concatenate(
            [random.choice(members[c], PER_CLASS, replace=len(members[c]) < PER_CLASS) for c in chosen]
        )
        views = random.integers(len(features), size=len(rows))
        value = loss(layer(features[views, rows].float()), labels[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return layer


def measured(layer: nn.Linear, query: Part, gallery: Part) -> dict[str, float]:
    """R@1 and mAP@R of the queries in the gallery, without items of their own camera and label; OPIS of both."""
    with torch.no_grad():
        q, g = (layer(part[0][0].float()).double().numpy() for part in (query, gallery))
    q, g = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, g))
    q_labels, g_labels = query[1].numpy(), gallery[1].numpy()
    first, average_precision = [], []
    for i, to_gallery in enumerate(euclidean_distances(q, g)):
        same = g_labels == q_labels[i]
        allowed = (g_labels >= 0) & ~(same & (gallery[2].numpy() == query[2].numpy()[i]))
        hits = same[allowed][np.argsort(to_gallery[allowed])]
        wanted = int(hits.sum())
        if wanted:
            first.append(hits[0])
            top = hits[:wanted]
            average_precision.append((np.cumsum(top) / np.arange(1, wanted + 1) * top).sum() / wanted)
    everyone, labels = np.concatenate([q, g]), np.concatenate([q_labels, g_labels])
    kept = np.isin(labels, q_labels)
    return {
        "r1": float(np.mean(first)),
        "map_at_r": float(np.mean(average_precision)),
        "opis": opis(everyone[kept], labels[kept]),
    }


def opis(unit: np.ndarray, labels: np.ndarray) -> float:
    """Variance of the utility over classes, averaged over thresholds at which 1 to 10 % of all negatives pass.

    The utility of a class at a threshold is 2 φ ψ / (φ + ψ) of its true positive rate ψ and true negative rate φ.
    """
    distances = euclidean_distances(unit)
    upper = np.triu(np.ones_like(distances, dtype=bool), 1)
    same = labels[:, None] == labels[None]
    negatives = np.sort(distances[upper & ~same])
    ends = [negatives[int(np.ceil(rate * len(negatives) - 1e-9)) - 1] for rate in (0.01, 0.1)]
    thresholds = np.linspace(*ends, 100)
    utilities = []
    for label in np.unique(labels):
        mine = labels == label
        if mine.sum() < 2:
            continue
        within = np.sort(distances[np.ix_(mine, mine)][np.triu_indices(mine.sum(), 1)])
        across = np.sort(distances[np.ix_(mine, ~mine)].ravel())
        tpr = np.searchsorted(within, thresholds, side="right") / len(within)
        tnr = 1 - np.searchsorted(across, thresholds, side="right") / len(across)
        total = tpr + tnr
        utilities.append(np.divide(2 * tpr * tnr, total, out=np.zeros_like(total), where=total > 0))
    return float(np.var(np.array(utilities), axis=0).mean())


def row(what: str, heading: str, first: np.ndarray, second: np.ndarray) -> str:
    welch = stats.ttest_ind(second, first, equal_var=False).confidence_interval()
    shown = [f"{x.mean():.2f} ± {half_width(x):.2f}" for x in (first, second)]
    difference = f"{second.mean() - first.mean():+.2f} [{welch.low:+.2f}, {welch.high:+.2f}]"
    verdict = "agrees" if welch.low <= 0 <= welch.high else "differs"
    return f"| {what} | {heading} | {shown[0]} | {shown[1]} | {difference} | {verdict} |"


def half_width(values: np.ndarray) -> float:
    """Half the width of the mean's 95 % interval."""
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


if __name__ == "__main__":
    main()
