"""Building a wheel: configs, scripts and notebooks go into pml_ext/shipped, README's links become absolute."""

import os
import re
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

SHIPPED = ("fastreid_configs/**/*.yml", "examples/scripts/*.py", "examples/notebooks/*.ipynb")
_RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


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


class EggInfo(egg_info):
    """The command that writes the metadata: a package index cannot resolve relative links in the description."""

    def run(self) -> None:
        metadata = self.distribution.metadata
        metadata.long_description = absolute_links(metadata.long_description, metadata.project_urls["Repository"])
        super().run()


def absolute_links(text: str, repository: str) -> str:
    """Markdown whose relative links and images lead to the repository's main branch."""

    def replace(link: re.Match[str]) -> str:
        is_image, words, target = link.groups()
        return f"{is_image}{words}({repository}/{'raw' if is_image else 'blob'}/main/{target})"

    return _RELATIVE_LINK.sub(replace, text)


def _shipped() -> list[str]:
    return sorted(str(path) for pattern in SHIPPED for path in Path().glob(pattern))
