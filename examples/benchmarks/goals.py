"""The goals of the losses, judged by the rows of one run."""

from collections.abc import Callable, Iterable
from typing import Any

from cases import CASES, CLASSES, FLOOR, MANY_CLASSES

Row = dict[str, Any]
ONE_HOT = f"Discriminative one-hot, {CLASSES} classes"
KMEANS = f"Discriminative k-means, {MANY_CLASSES} classes"
CIT = ("CITLoss(gamma=1)", "CITLoss(gamma=0.5)")
PML_TRIPLETS = "PML TripletMarginLoss(all)"
PML_TCM = "PML ThresholdConsistentMarginLoss"


def judge(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One entry per goal: text, measured value, limit, and whether it is met; None if rows are missing."""
    by_key = {(row["case"], row["size"], row["method"]): row for row in rows}
    results: list[dict[str, Any]] = []

    def goal(text: str, limit: float, is_upper: bool, value: Callable[[], float]) -> None:
        try:
            measured = value()
        except (KeyError, TypeError):  # not among the cases or sizes of this run, or run without memory
            results.append({"goal": text, "measured": None, "limit": limit, "met": None})
            return
        met = measured <= limit if is_upper else measured >= limit
        results.append({"goal": text, "measured": measured, "limit": limit, "met": met})

    def ratio(case: str, size: int, method: str, other: str, key: str = "seconds") -> float:
        return by_key[case, size, method][key] / by_key[case, size, other][key]

    def megabytes(case: str, size: int, method: str) -> float:
        return by_key[case, size, method]["bytes"] / 1e6

    for method in CIT:
        for size in (256, 1024, 4096):
            goal(f"{method} at {size}, × floor", 2, True, lambda m=method, s=size: ratio("CIT", s, m, FLOOR))
        goal(
            f"PML's all triplets / {method} at 1024, time",
            30,
            False,
            lambda m=method: ratio("CIT", 1024, PML_TRIPLETS, m),
        )
        goal(
            f"PML's all triplets / {method} at 1024, memory",
            40,
            False,
            lambda m=method: ratio("CIT", 1024, PML_TRIPLETS, m, "bytes"),
        )
        goal(f"{method} / PML's all triplets at 64, time", 1, True, lambda m=method: ratio("CIT", 64, m, PML_TRIPLETS))
    goal("TCMLoss / PML's at 64, time", 1, True, lambda: ratio("TCM", 64, "TCMLoss", PML_TCM))
    goal("PML's / TCMLoss at 256, time", 500, False, lambda: ratio("TCM", 256, PML_TCM, "TCMLoss"))
    goal("TCMLoss at 4096, MB", 100, True, lambda: megabytes("TCM", 4096, "TCMLoss"))
    goal("LoOp, consecutive arcs at 1024, × floor", 2, True, lambda: ratio("LoOp arcs", 1024, "consecutive", FLOOR))
    for case in (name for name in CASES if name.startswith("LoOp around")):
        inside, around = CASES[case].methods
        goal(f"{around} at 128, × the loss alone", 1.7, True, lambda c=case, i=inside, a=around: ratio(c, 128, a, i))
    goal(
        f"one-hot, {CLASSES} classes, × F.cross_entropy",
        1,
        True,
        lambda: ratio(ONE_HOT, 256, "DiscriminativeLoss of C-dim embeddings", "F.cross_entropy of logits"),
    )
    goal(
        f"one-hot with projection, {CLASSES} classes, × linear layer + F.cross_entropy",
        1,
        True,
        lambda: ratio(ONE_HOT, 256, "DiscriminativeLoss with its projection", "linear layer + F.cross_entropy"),
    )
    goal(
        f"k-means, {MANY_CLASSES} classes, × floor", 1.2, True, lambda: ratio(KMEANS, 256, "discriminative_loss", FLOOR)
    )
    goal(
        f"k-means, {MANY_CLASSES} classes, MB (one (B, C) matrix is {256 * MANY_CLASSES * 4 / 1e6:.0f})",
        10,
        True,
        lambda: megabytes(KMEANS, 256, "discriminative_loss"),
    )
    return results


def print_goals(results: list[dict[str, Any]]) -> None:
    print("\n## Goals\n\n| goal | limit | measured | |\n|---|---|---|---|")
    for result in results:
        measured = "–" if result["measured"] is None else f"{result['measured']:.2f}"
        word = {True: "met", False: "missed", None: "not measured in this run"}[result["met"]]
        print(f"| {result['goal']} | {result['limit']:g} | {measured} | {word} |")


def print_scale(rows: list[Row], ranks: int, batch: int = 65_536, classes: int = 1_000_000) -> None:
    """Measured steps, extrapolated: B² from the largest size measured, C for class centroids, on one thread a rank.

    PML's distributed wrapper gathers all embeddings and computes the joint loss on every rank: it takes as long on
    many ranks as on one. `a rank's share` is the time if the pairs were divided among ranks.
    """
    print(f"\n## Scale: {ranks} ranks, {batch} samples, {classes} classes (extrapolated)\n")
    print("| method | from | every rank computes all | a rank's share |\n|---|---|---|---|")
    for case, method in (("CIT", CIT[0]), ("CIT", CIT[1]), ("TCM", "TCMLoss"), ("LoOp arcs", "consecutive")):
        own = [row for row in rows if (row["case"], row["method"]) == (case, method)]
        if own:
            last = max(own, key=lambda row: row["size"])
            seconds = last["seconds"] * (batch / last["size"]) ** 2
            print(f"| {case}: {method} | {last['size']} samples | {seconds:.1f} s | {seconds / ranks:.1f} s |")
    for case, method, measured in (
        (ONE_HOT, "DiscriminativeLoss of C-dim embeddings", CLASSES),
        (KMEANS, "discriminative_loss", MANY_CLASSES),
    ):
        for row in (row for row in rows if (row["case"], row["method"]) == (case, method)):
            seconds = row["seconds"] * classes / measured
            name = f"{method}, {row['size']} samples a rank"
            print(f"| {name} | {measured} classes | {seconds * ranks:.1f} s | {seconds:.1f} s |")
