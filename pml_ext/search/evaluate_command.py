"""`pml-ext eval --embeddings`: the metrics of embeddings made elsewhere."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pml_ext._errors import UserError
from pml_ext.metrics.threshold.normalized import describe_cohort
from pml_ext.runner.evaluation.collapse import describe_collapse
from pml_ext.runner.evaluation.results import results_table, write_metrics
from pml_ext.search.cohort_option import cohort_for_measuring
from pml_ext.search.query_and_gallery import OPIS_SETTINGS, measure_parts, read_parts


def evaluate_files(
    file: str,
    gallery_file: str | None,
    out: str,
    *,
    distractors: str | None = None,
    normalize: str | None = None,
    checkpoint: str | None = None,
) -> str:
    """Measure a file of queries against a gallery, or against each other; write out/metrics.json, return its table.

    distractors: a file of more of the gallery, see `distractor_blocks`; then TAR at FAR over all pairs of a query and a
    gallery row, and searches, are what is measured. normalize: see `cohort_for_measuring`; checkpoint: the model file,
    which its cohort must be of.
    """
    if checkpoint is not None and normalize is None:
        raise UserError("--checkpoint is for --normalize: the model file that its cohort must be of")
    cohort = None if normalize is None else cohort_for_measuring(normalize, checkpoint)
    parts = read_parts(file, gallery_file)
    if distractors is None:
        results = {Path(file).name: measure_parts(parts, cohort)}
    else:
        if gallery_file is None or normalize is not None:
            raise UserError("--distractors goes with --gallery, which has the queries' identities, without --normalize")
        from pml_ext.search.distractors import measure_among_distractors  # import torchmetrics and the runner's yacs

        results = {Path(file).name: measure_among_distractors(parts[0], parts[1], distractors)}
    embeddings, labels = (torch.cat(each) for each in zip(*((p.data.embeddings, p.labels) for p in parts), strict=True))
    collapse = describe_collapse(Path(file).name, embeddings, labels)
    notes = [collapse] if collapse else []
    path = Path(out) / "metrics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"embeddings": file, "gallery": gallery_file, "distractors": distractors}
    about |= {"opis": asdict(OPIS_SETTINGS), "notes": notes}
    if (described := describe_cohort(cohort, len(parts[-1].labels))) is not None:
        about["normalize"] = asdict(described)
    write_metrics(path, results, **about)
    return results_table(results, {"metrics": path}, notes=notes)
