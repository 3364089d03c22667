"""Choose one decision threshold for a matcher and see how its error rates differ between classes.

On scikit-learn's digits: fits a PCA on the digits 0–4, chooses the threshold on half of the images and tests it on the
other half. Writes threshold.json, .html and .png to the folder threshold_report.
"""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from pml_ext.metrics import ThresholdReport

FAR = 0.01

digits = load_digits()
pca = PCA(n_components=16).fit(digits.data[digits.target < 5])
embeddings, labels = torch.from_numpy(pca.transform(digits.data)), torch.from_numpy(digits.target)
validation, test = (embeddings[::2], labels[::2]), (embeddings[1::2], labels[1::2])

report = ThresholdReport.from_embeddings(*validation, far=FAR)
print(report.summary())

folder = Path("threshold_report")
folder.mkdir(exist_ok=True)
report.save(folder / "threshold.json")  # checkpoint="model.ckpt" stores the model's hash, which load() compares
report.save_page(folder / "threshold.html")
report.save_figure(folder / "threshold.png")
print(f"\nwritten to {folder}")

# In deployment: load the file, pass cosines or embeddings.
matcher = ThresholdReport.load(folder / "threshold.json")
unit = torch.nn.functional.normalize(test[0], dim=1)
accepted = matcher.accept(unit @ unit.T)
different = test[1][:, None] != test[1]
found = accepted[different].float().mean()
print(f"FAR: at most {FAR:.3f} requested, {report.far.rate:.3f} on validation, {found:.3f} on other images")
print(f"are images 1 and 11 one digit? {matcher.accept_pairs(test[0][:1], test[0][10:11]).item()}")
