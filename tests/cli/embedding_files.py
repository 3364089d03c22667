"""Files of embeddings, and what a command says about them."""

import re

import numpy as np
from sklearn.datasets import load_digits

from pml_ext.cli import main

DIGITS = load_digits()
X, Y = DIGITS.data[:300].astype(np.float32), DIGITS.target[:300]
X = X - X.mean(axis=0)
CAMERAS = np.arange(300) % 3


def file(folder, name="e.npz", **arrays):
    """300 scanned digits; `arrays` replace theirs, or are more."""
    np.savez(folder / name, **({"embeddings": X, "labels": Y} | arrays))
    return str(folder / name)


def failure(capfd, *words):
    """The one error of a command that ends with exit status 2, after lines about weights."""
    assert main(list(words)) == 2, words
    shown = capfd.readouterr().err.strip()
    lines = [line for line in shown.splitlines() if not line.startswith("weights from")]
    assert len(lines) == 1 and lines[0].startswith("error: "), shown
    return lines[0]


def hits(shown):
    """(score, decision, path) of each line of a search."""
    found = re.findall(r"^ +\d+ +(-?\d\.\d+)(?:  (accept|reject))?  (.+)$", shown, re.M)
    return [(float(score), decision, path) for score, decision, path in found]
