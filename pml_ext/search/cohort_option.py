"""The option --normalize: a saved cohort, a file of embeddings that becomes one, or the gallery itself."""

from pathlib import Path
from zipfile import ZipFile, is_zipfile

from torch import Tensor

from pml_ext._errors import UserError
from pml_ext.metrics import CohortNormalization, GalleryCohort
from pml_ext.metrics.gallery_cohort import Normalization
from pml_ext.metrics.threshold.class_ids import Labels, number_classes
from pml_ext.search.embedding_set import read_embeddings

GALLERY = "gallery"


def choose_normalization(
    given: str, embeddings: Tensor, labels: Labels, *, far: float | None, checkpoint: str | None
) -> tuple[Normalization, str]:
    """The cohort, with k and strength chosen on the embeddings unless it is a saved one; and what was chosen.

    A UserError where every choice does harm there.
    """
    if (saved := load_cohort(given, checkpoint)) is not None:
        return saved, f"normalised by {given}"
    cohort = None if given == GALLERY else read_embeddings(given, need_labels=False).embeddings
    ids = number_classes(labels, len(embeddings))[0]
    try:
        trials = CohortNormalization.tune(cohort, embeddings, ids, far=1e-3 if far is None else far)
    except ValueError as error:
        raise UserError(f"--normalize {given}: {error}") from error
    if (best := trials.best) is None:
        raise UserError(f"--normalize {given}: {trials.summary()}: leave --normalize out, or give another cohort")
    if cohort is None:
        return GalleryCohort(best.k, best.strength), trials.summary()
    return CohortNormalization.fit(cohort, best.k, best.strength), trials.summary()


def load_cohort(given: str, checkpoint: str | None) -> CohortNormalization | None:
    """A saved cohort, whose weights must be the checkpoint's; None for the gallery or a file of embeddings."""
    if not is_saved_cohort(given):
        return None
    try:
        return CohortNormalization.load(given, checkpoint=checkpoint)
    except ValueError as error:
        raise UserError(str(error)) from error


def is_saved_cohort(given: str) -> bool:
    """Whether it is a file that `CohortNormalization.save` wrote, rather than one of embeddings."""
    if not Path(given).is_file() or not is_zipfile(given):
        return False
    with ZipFile(given) as file:
        return {"cohort.npy", "record.npy"} <= set(file.namelist())
