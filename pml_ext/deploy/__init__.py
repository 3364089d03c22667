"""A trained model in use: `Embedder` turns images into embeddings; a `Gallery` keeps them, and `search` ranks them.

`embed_folder` embeds a folder of images into a gallery. ONNX files are written by `pml-ext export`.
"""

from typing import TYPE_CHECKING, Any

from pml_ext._shared.errors import import_library

if TYPE_CHECKING:
    from pml_ext.deploy.embedder import Embedder as Embedder
    from pml_ext.deploy.gallery import Gallery as Gallery
    from pml_ext.deploy.images import embed_folder as embed_folder
    from pml_ext.deploy.neighbours import search as search

# Imported on first access: they need the trainer's libraries.
_MODULES = {"Embedder": "embedder", "Gallery": "gallery", "embed_folder": "images", "search": "neighbours"}
__all__ = ["Embedder", "Gallery", "embed_folder", "search"]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # else any name would be one

    def __getattr__(name: str) -> Any:
        """Imports a name on first access."""
        if name in _MODULES:
            module = import_library(
                f"pml_ext.deploy.{_MODULES[name]}", needed_for=f"pml_ext.deploy.{name}", install="'pml_ext[runner]'"
            )
            return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
