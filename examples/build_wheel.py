"""Building a wheel: it gets fastreid_configs/ and the examples too, in pml_ext/shipped."""

import os
from pathlib import Path

from setuptools.command.build_py import build_py

SHIPPED = ("fastreid_configs/**/*.yml", "examples/*.py", "examples/notebooks/*.ipynb")


class BuildPy(build_py):
    """setuptools' command, by the name in pyproject.toml."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for path in _shipped():
                copy = os.path.join(self.build_lib, "pml_ext", "shipped", path)
                self.mkpath(os.path.dirname(copy))
                self.copy_file(path, copy)

    def get_source_files(self) -> list[str]:
        """For an sdist, from which a wheel can be built as well."""
        return [*super().get_source_files(), *_shipped()]


def _shipped() -> list[str]:
    return sorted(str(path) for pattern in SHIPPED for path in Path().glob(pattern))
