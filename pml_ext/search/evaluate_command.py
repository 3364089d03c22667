"""`pml-ext eval --embeddings`: the metrics of embeddings made elsewhere."""

from dataclasses import asdict
from pathlib import Path

from pml_ext.runner.evaluation.results import results_table, write_metrics
from pml_ext.search.query_and_gallery import OPIS_SETTINGS, measure_parts, read_parts


def evaluate_files(file: str, gallery_file: str | None, out: str) -> str:
    """Measure a file of queries against a gallery, or against each other; write out/metrics.json, return its table."""
    results = {Path(file).name: measure_parts(read_parts(file, gallery_file))}
    path = Path(out) / "metrics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_metrics(path, results, embeddings=file, gallery=gallery_file, opis=asdict(OPIS_SETTINGS))
    return results_table(results, {"metrics": path})
