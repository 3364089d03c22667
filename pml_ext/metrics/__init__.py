"""Metrics: pytorch-metric-learning's calculator extended, and evaluators for whole test sets."""

from pml_ext.metrics.calculator import AccuracyCalculator
from pml_ext.metrics.reid import ReIDEvaluator

__all__ = ["AccuracyCalculator", "ReIDEvaluator"]
