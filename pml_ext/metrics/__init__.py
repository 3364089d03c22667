"""Metrics: an extension of pytorch-metric-learning's calculator, and evaluators for complete test sets."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# `as` marks a name as exported: type checkers cannot read the computed __all__ below.
if TYPE_CHECKING:
    from pml_ext.metrics.calculator import AccuracyCalculator as AccuracyCalculator
    from pml_ext.metrics.identification import IdentificationEvaluator as IdentificationEvaluator
    from pml_ext.metrics.labelled_embeddings import LabelledEmbeddings as LabelledEmbeddings
    from pml_ext.metrics.labelled_embeddings import metrics_among_distractors as metrics_among_distractors
    from pml_ext.metrics.labelled_embeddings import standard_metrics as standard_metrics
    from pml_ext.metrics.normalization import CSLS as CSLS
    from pml_ext.metrics.normalization import CohortNormalization as CohortNormalization
    from pml_ext.metrics.normalization import cohort_mask as cohort_mask
    from pml_ext.metrics.opis import OPIS as OPIS
    from pml_ext.metrics.opis_settings import OPISSettings as OPISSettings
    from pml_ext.metrics.protocol_files import ImagePairs as ImagePairs
    from pml_ext.metrics.protocol_files import SearchProtocol as SearchProtocol
    from pml_ext.metrics.protocol_files import TemplateMedia as TemplateMedia
    from pml_ext.metrics.protocol_files import TemplatePairs as TemplatePairs
    from pml_ext.metrics.protocol_files import TemplateSubjects as TemplateSubjects
    from pml_ext.metrics.protocol_files import read_lfw_pairs as read_lfw_pairs
    from pml_ext.metrics.protocol_files import read_template_media as read_template_media
    from pml_ext.metrics.protocol_files import read_template_pairs as read_template_pairs
    from pml_ext.metrics.protocol_files import read_template_subjects as read_template_subjects
    from pml_ext.metrics.reid import ReIDEvaluator as ReIDEvaluator
    from pml_ext.metrics.verification import StreamingVerification as StreamingVerification
    from pml_ext.metrics.verification import VerificationEvaluator as VerificationEvaluator

_HOMES = {
    "AccuracyCalculator": "calculator",
    "CSLS": "normalization",
    "CohortNormalization": "normalization",
    "IdentificationEvaluator": "identification",
    "ImagePairs": "protocol_files",
    "LabelledEmbeddings": "labelled_embeddings",
    "OPIS": "opis",
    "OPISSettings": "opis_settings",
    "ReIDEvaluator": "reid",
    "SearchProtocol": "protocol_files",
    "StreamingVerification": "verification",
    "TemplateMedia": "protocol_files",
    "TemplatePairs": "protocol_files",
    "TemplateSubjects": "protocol_files",
    "VerificationEvaluator": "verification",
    "cohort_mask": "normalization",
    "metrics_among_distractors": "labelled_embeddings",
    "read_lfw_pairs": "protocol_files",
    "read_template_media": "protocol_files",
    "read_template_pairs": "protocol_files",
    "read_template_subjects": "protocol_files",
    "standard_metrics": "labelled_embeddings",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:  # else any name would be one

    def __getattr__(name: str) -> Any:
        """Imports a metric on first access, so that config checks can read the names without loading torch."""
        if name in _HOMES:
            return getattr(import_module(f"pml_ext.metrics.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
