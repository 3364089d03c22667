"""Computes comparisons of WHICH_LOSS.md a second time with independent code.

    python examples/evidence/second_implementation.py

A plain loop in PyTorch with pytorch-metric-learning's losses, those that it lacks written here from the papers, batches
drawn by NumPy, and metrics of NumPy and scikit-learn. Nothing is imported from pml_ext or the evidence code; only the
frozen features (which run.py leaves in logs/evidence/features) and the settings that validation chose are read. The
draws differ, so the values agree within their intervals, not exactly. Writes results/second_implementation.csv.
"""

import csv
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning import distances, losses
from scipy import stats
from sklearn.metrics.pairwise import euclidean_distances
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, relu

HERE = Path(__file__).parent
FEATURES = HERE.parents[1] / "logs" / "evidence" / "features"
SETS = ("emoji", "grocery")
ADDED = "proxy_nca + tcm@added"
BASE = "proxy_nca"  # at the settings that ADDED was added to
COMPARISONS = (
    (BASE, ADDED),
    ("triplet", "triplet + tcm"),
    ("triplet@0.05", "cit@1.0"),
    ("triplet_disjoint", "loop_triplet"),
    ("triplet_random", "loop_triplet"),
    ("softmax", "discriminative@one_hot"),
    ("triplet", "gpw@weighting"),
    ("contrastive", "tcm"),  # one function, tuned twice
)
METHODS = tuple(dict.fromkeys(name for pair in COMPARISONS for name in pair))
SEEDS = range(5)
MEASURES = ("r1", "map_at_r", "opis")
COLUMNS = "study,set,method,measure,unit,value,low,high,base,base_value,expected,verdict,note"
SCALES = {"r1": 100, "map_at_r": 100, "opis": 1000}
STEPS, CLASSES, PER_CLASS, DIMENSION = 300, 20, 4, 128  # an image set has at least so many images of every class

Loss = Callable[[Tensor, Tensor], Tensor]
Part = tuple[Tensor, Tensor, Tensor | None]  # features (views, N, 1280), labels (N,), cameras (N,)
# Set, and method or comparison → for each measure the values by seed of run.py and of this program.
Values = dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]]


def main() -> None:
    torch.set_num_threads(1)
    alone: Values = {}
    for set_name in SETS:
        parts = torch.load(FEATURES / f"{set_name}.pt", weights_only=True)
        for method in METHODS:
            alone[set_name, method] = both_values(set_name, method, *parts)
            print(set_name, method, flush=True)
    compared: Values = {}
    for set_name in SETS:
        for base, method in COMPARISONS:
            pairs = zip(alone[set_name, base], alone[set_name, method], strict=True)
            changes = [(of_method[0] - of_base[0], of_method[1] - of_base[1]) for of_base, of_method in pairs]
            compared[set_name, f"{base} → {method}"] = changes
    rows = [*rows_of(compared), *rows_of(alone)]
    with (HERE / "results" / "second_implementation.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS.split(","), *rows])
    print(f"{agreement(compared)} differences of methods and {agreement(alone)} of their values agree")


def both_values(
    set_name: str, method: str, train: Part, query: Part, gallery: Part | None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each measure the values by seed of run.py and of this program."""
    committed = committed_runs(set_name, method)
    own = []
    for seed in SEEDS:
        layer = trained(method, committed[0]["settings"], seed, train)
        own.append(measured(layer, query, gallery))
    values = []
    for measure in MEASURES:
        first = np.array([run["metrics"][measure] for run in committed])
        values.append((first, np.array([metrics[measure] for metrics in own])))
    return values


def committed_runs(set_name: str, method: str) -> list[dict[str, Any]]:
    """The stored test runs of a method with the settings of the last one with all seeds, ordered by seed."""
    lines = (HERE / "results" / f"runs_{set_name}.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [run for run in map(json.loads, lines) if run["stage"] == "test" and run["method"] == method]
    if method == BASE:
        shared = committed_runs(set_name, ADDED)[0]["settings"].items()
        runs = [run for run in runs if run["settings"].items() <= shared]
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(repr((run["settings"], run["fingerprint"])), []).append(run)
    last = [group for group in groups.values() if len(group) == len(SEEDS)][-1]
    return sorted(last, key=lambda run: run["seed"])


def loss_of(method: str, settings: dict[str, Any], classes: int) -> tuple[Loss, list[nn.Parameter]]:
    """The sum of the method's terms, and their own parameters."""
    terms = []
    for name in method.split("@")[0].split(" + "):
        own = {key.split(".")[1]: value for key, value in settings.items() if key.split(".")[0] == name and "." in key}
        terms.append(TERMS[name](classes, **own))
    parameters = [p for term in terms if isinstance(term, nn.Module) for p in term.parameters()]
    return (lambda embeddings, labels: sum(term(embeddings, labels) for term in terms)), parameters


def cit(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Mean of relu(1 − exp(S_ap − S_an)) over all triplets, S = (1 + cosine) / 2: CIT at γ = 1."""
    unit = normalize(embeddings)
    similarity, (positive, negative) = (1 + unit @ unit.T) / 2, pairs_of(labels)
    a, p, n = (positive[:, :, None] & negative[:, None, :]).nonzero(as_tuple=True)
    return relu(1 - torch.exp(similarity[a, p] - similarity[a, n])).mean()


def weighted_pairs(embeddings: Tensor, labels: Tensor, alpha: float, beta: float, base: float) -> Tensor:
    """Weighted similarities, the weights held constant: the multi-similarity loss's gradient, but not its value.

    w_in = e^(β(S_in − λ)) / (1 + Σ_N e^(β(S_ik − λ))), w_ip = e^(−α(S_ip − λ)) / (1 + Σ_P e^(−α(S_ik − λ))).
    """
    unit = normalize(embeddings)
    similarity, (positive, negative) = unit @ unit.T, pairs_of(labels)
    total = torch.zeros(())
    for sign, rate, pairs in ((-1, alpha, positive), (1, beta, negative)):
        exponentials = torch.exp(sign * rate * (similarity.detach() - base)) * pairs
        weights = exponentials / (1 + exponentials.sum(1, keepdim=True))
        total = total + sign * (weights * similarity).sum(1).mean()
    return total


def pairs_of(labels: Tensor) -> tuple[Tensor, Tensor]:
    """(B, B) masks of the positive and of the negative pairs."""
    same = labels[:, None] == labels
    return same & ~torch.eye(len(labels), dtype=torch.bool), ~same


def disjoint_triplets(labels: Tensor) -> tuple[Tensor, ...]:
    """Random triplets without shared samples: of random pairs two thirds, negatives from the other third.

    Every class must have an even number of samples.
    """
    order = torch.randperm(len(labels))
    pairs = order[labels[order].argsort(stable=True)].view(-1, 2)
    pairs = pairs[torch.randperm(len(pairs))]
    count = 2 * len(pairs) // 3
    free, triplets = pairs[count:].flatten().tolist(), []
    for anchor, positive in pairs[:count].tolist():
        negative = next((sample for sample in free if labels[sample] != labels[anchor]), None)
        if negative is not None:
            free.remove(negative)
            triplets.append((anchor, positive, negative))
    return torch.tensor(triplets).unbind(1)


def loop_triplet(embeddings: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Mean of the non-zero relu(‖x_1 − x_2‖ − d + margin) over arcs x_1 → x_2 and arcs of other classes, d away.

    Samples 1 and 2, 3 and 4, … must be of one class and are the ends of an arc. The four triplets of two arcs that
    have the first's ends as anchors are equal.
    """
    first, second = normalize(embeddings)[::2], normalize(embeddings)[1::2]
    alpha, beta = closest_angles(first, second)
    p, q = point(first[:, None], second[:, None], alpha), point(first[None], second[None], beta)
    apart = torch.linalg.vector_norm(p - q, dim=-1)
    terms = relu(torch.linalg.vector_norm(first - second, dim=-1)[:, None] - apart + margin)
    terms = terms[pairs_of(labels[::2])[1]]
    return terms.sum() / (terms > 0).sum().clamp(min=1)


def point(first: Tensor, second: Tensor, angle: Tensor) -> Tensor:
    """The point of an arc at an angle from its first end, as the normalised w_1 x_1 + w_2 x_2 with w held constant.

    So a point's gradient is that of its samples alone: to shift it along its arc changes the smallest distance not at
    all, or is not possible.
    """
    cosine, sine = cosine_and_sine(first.detach(), second.detach())
    ahead = angle.sin() / sine
    return normalize((angle.cos() - cosine * ahead)[..., None] * first + ahead[..., None] * second, dim=-1)


def cosine_and_sine(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    cosine = (first * second).sum(-1)
    return cosine, (1 - cosine.square()).clamp(min=1e-12).sqrt()


@torch.no_grad()
def closest_angles(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """(A, A) angles α on arc i and β on arc j of their closest points p and q.

    p = x_1 cos α + n sin α with n ⊥ x_1, so p·q is a sum of multiples of cos(α − β − φ) and cos(α + β − ψ). It is
    largest where both are 1, or at an end of an arc.
    """
    cosine, sine = cosine_and_sine(first, second)
    length = torch.atan2(sine, cosine)
    basis = torch.stack([first, (second - cosine[:, None] * first) / sine[:, None]])
    (m11, m12), (m21, m22) = torch.einsum("iad,jbd->ijab", basis, basis)
    a, b = length[:, None].expand_as(m11), length.expand_as(m11)
    zero = torch.zeros_like(m11)
    phi, psi = torch.atan2(m21 - m12, m11 + m22), torch.atan2(m21 + m12, m11 - m22)
    candidates = [(zero, zero), (zero, b), (a, zero), (a, b)]
    candidates += [((psi + phi) / 2 + turn, (psi - phi) / 2 + turn) for turn in (0, torch.pi)]
    for end in (zero, a):
        candidates.append((end, torch.atan2(m12 * end.cos() + m22 * end.sin(), m11 * end.cos() + m21 * end.sin())))
    for end in (zero, b):
        candidates.append((torch.atan2(m21 * end.cos() + m22 * end.sin(), m11 * end.cos() + m12 * end.sin()), end))
    alpha, beta = (torch.stack(angles).remainder(2 * torch.pi) for angles in zip(*candidates, strict=True))
    alpha, beta = alpha.minimum(a), beta.minimum(b)  # so that each candidate is on both arcs
    of_first, of_second = m11 * beta.cos() + m12 * beta.sin(), m21 * beta.cos() + m22 * beta.sin()
    best = (alpha.cos() * of_first + alpha.sin() * of_second).argmax(0, keepdim=True)
    return alpha.gather(0, best)[0], beta.gather(0, best)[0]


class Softmax(nn.Linear):
    """Cross-entropy of a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__(DIMENSION, classes)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(super().forward(embeddings), labels)


class Discriminative(nn.Linear):
    """Mean of ‖x − e_y‖ − Σ_{m≠y} ‖x − e_m‖ / (3 (C − 1)), x a linear layer's normalised output in C dimensions."""

    def __init__(self, classes: int) -> None:
        super().__init__(DIMENSION, classes, bias=False)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        to_centroids = (2 - 2 * normalize(super().forward(embeddings))).clamp(min=1e-12).sqrt()
        own = to_centroids.gather(1, labels[:, None])[:, 0]
        return (own - (to_centroids.sum(1) - own) / (3 * (self.out_features - 1))).mean()


class DisjointTriplets(losses.TripletMarginLoss):
    """The triplet loss of random triplets without shared samples."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = super().forward(embeddings, labels, disjoint_triplets(labels))
        return value


# By name: the number of classes and the settings → the term.
TERMS: dict[str, Callable[..., Loss]] = {
    "triplet": lambda _, margin: losses.TripletMarginLoss(margin=margin),
    "triplet_random": lambda _, margin: losses.TripletMarginLoss(margin=margin, triplets_per_anchor=1),
    "triplet_disjoint": lambda _, margin: DisjointTriplets(margin=margin),
    "loop_triplet": lambda _, margin: partial(loop_triplet, margin=margin),
    "cit": lambda _, gamma: cit,  # gamma is 1
    "softmax": Softmax,
    "discriminative": lambda classes, centroids: Discriminative(classes),  # centroids are one-hot
    "gpw": lambda _, weighting, **options: partial(weighted_pairs, **options),  # the weighting is multi_similarity
    "proxy_nca": lambda classes, scale: losses.ProxyNCALoss(classes, DIMENSION, softmax_scale=scale),
    "contrastive": lambda _, **margins: losses.ContrastiveLoss(**margins, distance=distances.CosineSimilarity()),
    "tcm": lambda _, **margins: losses.ThresholdConsistentMarginLoss(**margins),
}


def trained(method: str, settings: dict[str, Any], seed: int, part: Part) -> nn.Linear:
    """A linear layer after 300 steps of Adam with a cosine to 0."""
    torch.manual_seed(1000 + seed)
    layer = nn.Linear(part[0].shape[-1], DIMENSION)
    loss, own = loss_of(method, settings, int(part[1].max()) + 1)
    rates = [settings["rate"], settings["rate"] * settings.get("own_rate", 1.0)]
    optimizer = torch.optim.Adam([{"params": list(layer.parameters())}, *([{"params": own}] if own else [])])
    for step, (features, labels) in enumerate(batches(part, seed)):
        for group, rate in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = rate * (1 + np.cos(np.pi * step / STEPS)) / 2
        value = loss(layer(features), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return layer


def batches(part: Part, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each of 20 random classes four random images, one class after the other, in random views."""
    features, labels, _ = part
    random = np.random.default_rng([seed, 1])
    members = [np.flatnonzero(labels.numpy() == label) for label in np.unique(labels)]
    for _ in range(STEPS):
        chosen = random.choice(len(members), CLASSES, replace=False)
        rows = np.concatenate([random.choice(members[c], PER_CLASS, replace=False) for c in chosen])
        views = random.integers(len(features), size=len(rows))
        yield features[views, rows].float(), labels[rows]


def measured(layer: nn.Linear, query: Part, gallery: Part | None) -> dict[str, float]:
    """R@1 and mAP@R of the queries in the gallery, without items of their own camera and label; OPIS of both.

    Without a gallery queries search each other.
    """
    searched = gallery or query
    with torch.no_grad():
        q, g = (layer(part[0][0].float()).double().numpy() for part in (query, searched))
    q, g = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, g))
    q_labels, g_labels = query[1].numpy(), searched[1].numpy()
    first, average_precision = [], []
    for i, to_gallery in enumerate(euclidean_distances(q, g)):
        same = g_labels == q_labels[i]
        if gallery is None:
            allowed = np.arange(len(g)) != i
        else:
            allowed = (g_labels >= 0) & ~(same & (gallery[2].numpy() == query[2].numpy()[i]))
        hits = same[allowed][np.argsort(to_gallery[allowed])]
        wanted = int(hits.sum())
        if wanted:
            first.append(hits[0])
            top = hits[:wanted]
            average_precision.append((np.cumsum(top) / np.arange(1, wanted + 1) * top).sum() / wanted)
    everyone, labels = (q, q_labels) if gallery is None else (np.concatenate([q, g]), np.append(q_labels, g_labels))
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


def rows_of(values: Values) -> Iterator[tuple[str | float, ...]]:
    """Second minus first, 95 % over seeds; they agree if the interval contains 0."""
    for (set_name, name), by_measure in values.items():
        for measure, (first, second) in zip(MEASURES, by_measure, strict=True):
            low, high = interval(first, second)
            shown = [SCALES[measure] * value for value in (second.mean() - first.mean(), low, high)]
            judged = "agrees" if low <= 0 <= high else "differs"
            unit = "x1000" if measure == "opis" else "points"
            differences = [f"{value:.5g}" for value in shown]
            base = ("run.py", f"{SCALES[measure] * first.mean():.5g}", "")
            yield ("second implementation", set_name, name, measure, unit, *differences, *base, judged, "")


def interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Of the mean of the second minus that of the first, 95 %, without equal variances (Welch)."""
    found = stats.ttest_ind(second, first, equal_var=False).confidence_interval()
    return float(found.low), float(found.high)


def agreement(values: Values) -> str:
    bounds = [interval(*pair) for by_measure in values.values() for pair in by_measure]
    return f"{sum(low <= 0 <= high for low, high in bounds)} of {len(bounds)}"


if __name__ == "__main__":
    main()
