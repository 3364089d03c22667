"""Pictures of a threshold report's worst pairs, out of the test set that it was made from."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from pml_ext.metrics.threshold.fields import Sample, WorstPair
from pml_ext.metrics.threshold.report import ThresholdReport
from pml_ext.runner.data.datasets import ImageSet


@contextmanager
def with_pictures(report: ThresholdReport, images: ImageSet) -> Iterator[ThresholdReport]:
    """The report with paths to pictures of its worst pairs, which are there as long as the context is.

    The pictures are those that the model saw, decoded; sets that are no files (Digits, Glyphs) have them too.

    Args:
        images: in which the report's rows are.
    """
    worst = report.worst_pairs
    if worst is None:
        yield report
        return
    with TemporaryDirectory() as folder:

        def pictured(sample: Sample) -> Sample:
            name = re.sub(r"[^\w.-]+", "_", Path(images.names[sample.row]).name)[-80:]
            path = Path(folder) / f"{sample.row}" / name
            path.parent.mkdir(exist_ok=True)
            pixels = images.images[sample.row].numpy().transpose(1, 2, 0)
            Image.fromarray(pixels.squeeze()).save(path, "PNG")
            return replace(sample, path=str(path))

        def of(pairs: tuple[WorstPair, ...]) -> tuple[WorstPair, ...]:
            return tuple(replace(pair, one=pictured(pair.one), other=pictured(pair.other)) for pair in pairs)

        yield replace(report, worst_pairs=replace(worst, impostors=of(worst.impostors), genuine=of(worst.genuine)))
