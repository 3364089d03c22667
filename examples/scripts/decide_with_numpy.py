"""Decide with a threshold.json, without pml_ext and without torch: NumPy and the standard library."""

import hashlib
import json
import sys

import numpy as np

FORMAT = "pml_ext threshold report 4"
ENTRIES = 2**20  # numbers in a block of rows, or of cosines with the cohort


def decide(threshold_file: str, a: np.ndarray, b: np.ndarray, cohort_file: str | None = None) -> np.ndarray:
    """Returns whether row i of a and row i of b, (P, D), are of one identity.

    A report on normalised scores needs its cohort_file, the cohort.npz next to threshold_file.
    """
    report = read_report(threshold_file)
    normalization, dim = report.get("normalization"), report["embedding_dim"]
    if (normalization is None) != (cohort_file is None):
        raise ValueError("cohort_file must be given for a report on normalised scores, and for no other")
    for name, rows in (("a", a), ("b", b)):
        if rows.ndim != 2 or rows.shape[1] != dim or len(rows) != len(a):
            raise ValueError(
                f"a and b must both have shape (P, {dim}), as the report's embeddings; got {name} {rows.shape}"
            )
    cohort = None if cohort_file is None else unit(read_cohort(cohort_file, normalization["sha256"]), "the cohort")
    size = max(1, ENTRIES // max(dim, 0 if cohort is None else len(cohort)))
    accepted = np.empty(len(a), dtype=bool)
    for start in range(0, len(a), size):
        block = slice(start, start + size)
        x, y = unit(a[block], "a"), unit(b[block], "b")
        scores = (x * y).sum(axis=1)
        for rows in () if cohort is None else (x, y):
            nearest = np.partition(rows @ cohort.T, -normalization["k"], axis=1)[:, -normalization["k"] :]
            scores -= normalization["strength"] / 2 * nearest.mean(axis=1)
        accepted[block] = scores >= report["threshold"]["cosine"]
    return accepted


def read_report(path: str) -> dict:
    """Returns the content of a threshold.json; raises ValueError for another format or a modified file."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    if report.get("format") != FORMAT:
        raise ValueError(f"{path} must have the format {FORMAT!r}; got {report.get('format')!r}. Create it again")
    rest = {name: value for name, value in report.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    if hashlib.sha256(text.encode()).hexdigest() != report.get("checksum"):
        raise ValueError(f"{path} was modified after it was saved (the checksum differs). Create it again")
    return report


def read_cohort(path: str, sha256: str) -> np.ndarray:
    """Returns the (M, D) cohort of a report; raises ValueError for another or a modified one."""
    with np.load(path, allow_pickle=False) as file:
        cohort, labels = file["cohort"], file.get("labels", [])
    content = f"{cohort.dtype.str} {cohort.shape}".encode() + cohort.tobytes() + "\0".join(labels).encode()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path} is not the report's cohort, or was modified: its SHA-256 must be {sha256}")
    return cohort


def unit(rows: np.ndarray, name: str) -> np.ndarray:
    rows = rows.astype(np.float64)
    if not np.isfinite(rows).all() or not rows.any(axis=1).all():
        raise ValueError(f"{name} must be finite, without rows of zeros")
    rows /= np.abs(rows).max(axis=1, keepdims=True)  # keeps the squares of tiny and huge rows in range
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit("usage: python decide_with_numpy.py threshold.json a.npy b.npy [cohort.npz]")
    threshold, a, b, *cohort = sys.argv[1:]
    print(*decide(threshold, np.load(a), np.load(b), *cohort), sep="\n")
