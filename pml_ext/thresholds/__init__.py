"""A decision threshold from choice to check: reports with rates and intervals, by pairs, searches and groups."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pml_ext.thresholds.report import ThresholdReport as ThresholdReport
    from pml_ext.thresholds.samples import SampleSource as SampleSource
    from pml_ext.thresholds.searches import SearchPlan as SearchPlan

_HOMES = {
    "SampleSource": "samples",
    "SearchPlan": "searches",
    "ThresholdReport": "report",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:  # else any name would be one

    def __getattr__(name: str) -> Any:
        """Imports a class on first access, so that the commands' help stays fast."""
        if name in _HOMES:
            return getattr(import_module(f"pml_ext.thresholds.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
