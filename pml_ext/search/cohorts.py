"""The option --normalize: a saved cohort, embeddings that become one, or the gallery itself."""

from pathlib import Path
from zipfile import ZipFile, is_zipfile

from torch import Tensor

from pml_ext._errors import UserError
from pml_ext.metrics import CohortNormalization, GalleryCohort, ThresholdReport
from pml_ext.metrics.normalization import Normalization
from pml_ext.metrics.threshold.samples import Labels, number_classes
from pml_ext.search.readers import read_embeddings

GALLERY = "gallery"
USUAL_GALLERY = GalleryCohort(k=20, strength=1.0)  # TEST.NORMALIZE's defaults, without an import of the runner


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


def cohort_for_measuring(given: str, checkpoint: str | None) -> Normalization:
    """A saved cohort, that of a threshold report on a gallery, or the gallery itself with TEST.NORMALIZE's defaults.

    Nothing is chosen on the samples that are measured.
    """
    if given == GALLERY:
        return USUAL_GALLERY
    if (saved := load_cohort(given, checkpoint)) is not None:
        return saved
    advice = "pml-ext threshold choose --normalize chooses k and strength on validation classes"
    if Path(given).suffix != ".json":
        raise UserError(f"--normalize {given}: give a cohort.npz, a threshold.json or the word gallery; {advice}")
    try:
        found = ThresholdReport.load(given, checkpoint=checkpoint).normalization
    except (OSError, ValueError) as error:
        raise UserError(f"--normalize {given}: {error}") from error
    if found is None or found.cohort != GALLERY:
        which = "plain cosines" if found is None else "a cohort of its own: give the cohort.npz beside it"
        raise UserError(f"--normalize {given}: the report is of {which}; {advice}")
    return GalleryCohort(found.k, found.strength)


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
