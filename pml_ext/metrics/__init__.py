"""Metrics: pytorch-metric-learning's calculator extended, and evaluators for whole test sets."""

from pml_ext.metrics.calculator import AccuracyCalculator
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
from pml_ext.metrics.streaming_verification import StreamingVerification
from pml_ext.metrics.threshold.report import ThresholdReport
from pml_ext.metrics.verification import VerificationEvaluator

__all__ = [
    "OPIS",
    "AccuracyCalculator",
    "ImagePairs",
    "ReIDEvaluator",
    "StreamingVerification",
    "TemplateMedia",
    "TemplatePairs",
    "ThresholdReport",
    "VerificationEvaluator",
    "read_lfw_pairs",
    "read_template_media",
    "read_template_pairs",
]
