"""Eigenvalues of class covariances (LoOp, supplement, section 2).

    python examples/papers/class_covariances.py features.npz

The file has the arrays `embeddings` (N, D) and `labels` (N,). Prints mean ± standard deviation over the classes, times
100. The paper states neither norm nor divisor; here embeddings have unit norm, and the divisor is samples - 1.
"""

import sys

import numpy as np


def class_eigenvalues(embeddings: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(C, at most 3) descending, after a PCA of all samples to three dimensions; classes of one sample have none."""
    x = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    x = x - x.mean(axis=0)
    directions = np.linalg.svd(x, full_matrices=False)[2][:3]
    places = x @ directions.T
    classes, sizes = np.unique(labels, return_counts=True)
    covariances = [np.atleast_2d(np.cov(places[labels == label].T)) for label in classes[sizes > 1]]
    return np.linalg.eigvalsh(covariances)[:, ::-1].clip(min=0)


if __name__ == "__main__":
    with np.load(sys.argv[1]) as file:
        values = 100 * class_eigenvalues(file["embeddings"].astype(float), file["labels"])
    for mean, std in zip(values.mean(axis=0), values.std(axis=0), strict=True):
        print(f"{mean:.2f} ± {std:.2f}")
