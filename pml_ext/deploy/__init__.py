"""A trained model in use: `Embedder` turns images into embeddings; galleries, search and ONNX files lie beside it."""

from typing import TYPE_CHECKING, Any

from pml_ext._shared.errors import import_library

if TYPE_CHECKING:
    from pml_ext.deploy.embedder import Embedder as Embedder

__all__ = ["Embedder"]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # else any name would be one

    def __getattr__(name: str) -> Any:
        """Imports the class on first access: it needs the trainer's libraries."""
        if name == "Embedder":
            embedder = import_library(
                "pml_ext.deploy.embedder", needed_for="pml_ext.Embedder", install="'pml_ext[runner]'"
            )
            return embedder.Embedder
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
