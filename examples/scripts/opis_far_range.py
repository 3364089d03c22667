"""How OPIS depends on the calibration range: raw pixels of handwritten digits, two passes over all pairs.

The paper calibrates between false accept rates of 1 % and 10 % and varies them in Fig. 8. Prints OPIS and ε-OPIS for
several ranges.
"""

import torch
from sklearn.datasets import load_digits

from pml_ext.functional import opis_sensitivity

FAR_RANGES = [(1e-2, 1e-1), (1e-3, 1e-2), (1e-4, 1e-3), (1e-3, 1e-1), (1e-4, 1e-1), (1e-2, 3e-1)]

digits = load_digits()
pixels = torch.tensor(digits.data, dtype=torch.float32)
embeddings = pixels - pixels.mean(dim=0)  # else all of them point the same way
labels = torch.tensor(digits.target)

print("FAR from   to    d from     to      OPIS    ε-OPIS")
for row in opis_sensitivity(embeddings, labels, far_ranges=FAR_RANGES):
    far, distances = "{:>8g} {:>4g}".format(*row.far_range), f"{row.d_min:>9.4f} {row.d_max:.4f}"
    print(f"{far} {distances} {row.opis:>9.5f} {row.epsilon_opis:>9.5f}")
