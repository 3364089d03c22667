"""Decide with a threshold.json, without pml_ext and without torch: NumPy and the standard library."""

import hashlib
import json

import numpy as np


def decide(threshold_file: str, a: np.ndarray, b: np.ndarray, cohort_file: str | None = None) -> np.ndarray:
    """Returns whether row i of a and row i of b, (P, D), are of one identity.

    A report on normalised scores needs its cohort_file, the cohort.npz next to threshold_file.
    """
    with open(threshold_file, encoding="utf-8") as file:
        report = json.load(file)
    normalization = report.get("normalization")
    if (normalization is None) != (cohort_file is None):
        raise ValueError("cohort_file must be given for a report on normalised scores, and for no other")
    a, b = unit(a), unit(b)
    scores = (a * b).sum(axis=1)
    if normalization is not None:
        cohort = unit(read_cohort(cohort_file, normalization["sha256"]))
        for rows in (a, b):
            nearest = np.sort(rows @ cohort.T, axis=1)[:, -normalization["k"] :]
            scores -= normalization["strength"] / 2 * nearest.mean(axis=1)
    return scores >= report["threshold"]["cosine"]


def read_cohort(path: str, sha256: str) -> np.ndarray:
    """Returns the (M, D) cohort of a report; raises ValueError for another or a modified one."""
    with np.load(path, allow_pickle=False) as file:
        cohort, labels = file["cohort"], file.get("labels", [])
    content = f"{cohort.dtype.str} {cohort.shape}".encode() + cohort.tobytes() + "\0".join(labels).encode()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path} is not the report's cohort, or was modified: its SHA-256 must be {sha256}")
    return cohort


def unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
