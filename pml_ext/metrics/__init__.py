"""Metrics: pytorch-metric-learning's calculator extended, and evaluators for whole test sets."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pml_ext.metrics.calculator import AccuracyCalculator
    from pml_ext.metrics.cohort_normalization import CohortNormalization
    from pml_ext.metrics.gallery_cohort import GalleryCohort
    from pml_ext.metrics.identification import IdentificationEvaluator
    from pml_ext.metrics.identification_lists import SearchProtocol, TemplateSubjects, read_template_subjects
    from pml_ext.metrics.opis import OPIS
    from pml_ext.metrics.pair_lists import (
        ImagePairs,
        TemplateMedia,
        TemplatePairs,
        read_lfw_pairs,
        read_template_media,
        read_template_pairs,
    )
    from pml_ext.metrics.reid import ReIDEvaluator
    from pml_ext.metrics.score_calibration import ScoreCalibration
    from pml_ext.metrics.streaming_verification import StreamingVerification
    from pml_ext.metrics.threshold.report import ThresholdReport
    from pml_ext.metrics.verification import VerificationEvaluator

__all__ = [
    "OPIS",
    "AccuracyCalculator",
    "CohortNormalization",
    "GalleryCohort",
    "IdentificationEvaluator",
    "ImagePairs",
    "ReIDEvaluator",
    "ScoreCalibration",
    "SearchProtocol",
    "StreamingVerification",
    "TemplateMedia",
    "TemplatePairs",
    "TemplateSubjects",
    "ThresholdReport",
    "VerificationEvaluator",
    "read_lfw_pairs",
    "read_template_media",
    "read_template_pairs",
    "read_template_subjects",
]

_HOMES = {
    "AccuracyCalculator": "calculator",
    "CohortNormalization": "cohort_normalization",
    "GalleryCohort": "gallery_cohort",
    "IdentificationEvaluator": "identification",
    "ImagePairs": "pair_lists",
    "OPIS": "opis",
    "ReIDEvaluator": "reid",
    "ScoreCalibration": "score_calibration",
    "SearchProtocol": "identification_lists",
    "StreamingVerification": "streaming_verification",
    "TemplateMedia": "pair_lists",
    "TemplatePairs": "pair_lists",
    "TemplateSubjects": "identification_lists",
    "ThresholdReport": "threshold.report",
    "VerificationEvaluator": "verification",
    "read_lfw_pairs": "pair_lists",
    "read_template_media": "pair_lists",
    "read_template_pairs": "pair_lists",
    "read_template_subjects": "identification_lists",
}


if not TYPE_CHECKING:  # else any name would be one

    def __getattr__(name: str) -> Any:
        """Imports a metric when it is first asked for: config checks read the names alone, without loading torch."""
        if name in _HOMES:
            return getattr(import_module(f"pml_ext.metrics.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
