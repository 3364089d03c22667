"""The public interface as a table of names and signatures.

    python -m tests.api_surface > tests/api_surface.json

writes the committed list anew, after a change of the interface that is meant and in the CHANGELOG.
"""

import inspect
import json
import re
import sys

import pml_ext
import pml_ext.deploy
import pml_ext.functional
import pml_ext.inspection
import pml_ext.large_batch
import pml_ext.losses
import pml_ext.metrics
import pml_ext.miners
import pml_ext.runner
import pml_ext.runner.registry
import pml_ext.thresholds
from pml_ext.cli import parsers_of_commands
from pml_ext.runner.config.defaults import get_cfg


def surface():
    """Dotted name -> signature of what users import, type on the command line, or write into a YAML."""
    return dict(sorted([*_python(), *_command_line(), *_config_keys()]))


def _python():
    ours = {
        pml_ext: pml_ext.__all__,
        pml_ext.losses: [*pml_ext.losses.OURS, *pml_ext.losses.CORRECTED, *pml_ext.losses.PARTS],
        pml_ext.miners: pml_ext.miners.OURS,
        pml_ext.metrics: pml_ext.metrics.__all__,
        pml_ext.functional: pml_ext.functional.__all__,
        pml_ext.inspection: [
            name
            for name, thing in vars(pml_ext.inspection).items()
            if getattr(thing, "__module__", None) == pml_ext.inspection.__name__ and not name.startswith("_")
        ],
        pml_ext.large_batch: ["step"],
        pml_ext.thresholds: pml_ext.thresholds.__all__,
        pml_ext.deploy: pml_ext.deploy.__all__,
        pml_ext.runner: pml_ext.runner.__all__,
        pml_ext.runner.registry: [name for name in vars(pml_ext.runner.registry) if name.endswith("_REGISTRY")],
    }
    for module, names in ours.items():
        for name in names:
            thing = getattr(module, name)
            if inspect.isclass(thing) and issubclass(thing, Exception):
                yield f"{module.__name__}.{name}", f"({thing.__base__.__name__})"
                continue
            yield f"{module.__name__}.{name}", _signature(thing)
            if inspect.isclass(thing):
                yield from _members(f"{module.__name__}.{name}", thing)


def _members(owner, kind):
    """The methods, properties and fields that a class adds to other libraries' bases, and its forward."""
    foreign = {name for base in kind.__mro__ if not base.__module__.startswith("pml_ext") for name in vars(base)}
    ours = {
        name: vars(base)
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("pml_ext")
        for name in vars(base)
    }
    for name, namespace in ours.items():
        if name.startswith("_") or (name in foreign and name != "forward"):
            continue
        member = namespace[name]
        if isinstance(member, property):
            yield f"{owner}.{name}", "property"
        elif isinstance(member, (staticmethod, classmethod)):
            yield f"{owner}.{name}", f"{type(member).__name__} {_signature(getattr(kind, name))}"
        elif inspect.isfunction(member):
            yield f"{owner}.{name}", _signature(member)


def _signature(thing):
    if not callable(thing):
        return type(thing).__name__
    # Modules may move; the names in them may not.
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", str(inspect.signature(thing)))
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    # As Python 3.14 writes it.
    text = re.sub(rf"Optional\[({_INSIDE})\]", r"\1 | None", text)
    return re.sub(rf"Union\[({_INSIDE})\]", lambda of: re.sub(r", (?![^\[]*\])", " | ", of[1]), text)


# Text whose brackets are closed.
_INSIDE = r"(?:[^\[\]]|\[[^\[\]]*\])*"


def _command_line():
    for command, its_parser in parsers_of_commands()[1].items():
        for action in its_parser._actions:
            name = " ".join(action.option_strings) or action.dest
            # Python 3.13 requires no argument that may be absent, earlier ones do.
            required = action.required and action.nargs != "*"
            yield f"pml-ext {command} {name}", f"default={action.default!r}, required={required}"


def _config_keys():
    def leaves(node, prefix):
        for key, value in node.items():
            if isinstance(value, type(node)):
                yield from leaves(value, f"{prefix}.{key}")
            else:
                yield f"{prefix}.{key}", repr(value)

    yield from leaves(get_cfg(), "config")


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=1, ensure_ascii=False)
    print()
