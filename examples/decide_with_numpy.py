"""Decide with a threshold.json, without pml_ext and without torch: NumPy and the standard library."""

import json

import numpy as np


def decide(threshold_file: str, a: np.ndarray, b: np.ndarray, cohort: np.ndarray | None = None) -> np.ndarray:
    """Whether row i of a and row i of b, (P, D), are of one identity; cohort: (M, D), of normalised scores."""
    with open(threshold_file, encoding="utf-8") as file:
        report = json.load(file)

    def unit(rows: np.ndarray) -> np.ndarray:
        rows = rows.astype(np.float64)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    scores = (unit(a) * unit(b)).sum(axis=1)
    if "normalization" in report:
        k, strength = report["normalization"]["k"], report["normalization"]["strength"]
        for rows in (a, b):
            closest = np.sort(unit(rows) @ unit(cohort).T, axis=1)[:, -k:]
            scores -= strength / 2 * closest.mean(axis=1)
    return scores >= report["threshold"]["cosine"]
