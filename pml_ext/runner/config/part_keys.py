"""Keys of a registered part's node in the config: the arguments of its constructor, in capitals."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from pml_ext._errors import UserError
from pml_ext.runner.registry import OF_NODES, Entry

GIVEN = ("num_classes", "embedding_size")
"""Arguments that the trainer gives to a part that needs them."""
REQUIRED = inspect.Parameter.empty
# Objects that no YAML holds; `distance`, `reducer` and the regularizers are built from names.
_NO_KEYS = ("collect_stats", "weight_init_func", "allowed_pos_range", "allowed_neg_range")
# SCALE is the weight of the loss among the others.
_OTHER_KEYS = {"scale": "LOGIT_SCALE"}


def keys_of(entry: Entry) -> dict[str, tuple[str, Any]]:
    """Key -> (argument, default or REQUIRED) of a part."""
    renamed = {argument: key for key, argument in entry.keys.items()}
    return {
        renamed.get(name, _OTHER_KEYS.get(name, name.upper())): (name, default)
        for name, default in arguments_of(entry.part).items()
        if name not in (*GIVEN, *_NO_KEYS)
    }


def arguments_of(part: Callable[..., Any]) -> dict[str, Any]:
    """Argument -> default or REQUIRED; those of base classes too, where the constructor passes keywords on."""
    if not inspect.isclass(part):  # a loss as a function: its first two arguments are embeddings and labels
        return dict(list(_named(part))[2:])
    found: dict[str, Any] = {}
    for kind in part.__mro__:
        if "__init__" not in vars(kind):
            continue
        constructor = vars(kind)["__init__"]
        own = dict(list(_named(constructor))[1:])
        for name, default in own.items():
            # A base class's argument without a default is given by the class that derives from it.
            if default is not REQUIRED or kind is part or name in GIVEN:
                found.setdefault(name, default)
        kinds = [parameter.kind for parameter in inspect.signature(constructor).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
    return found


def _named(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield name, parameter.default


def keys_of_node(name: str) -> dict[str, Any]:
    """Key -> default of the part whose node has this name, such as MODEL.LOSSES.SUPCONLOSS; none if it is no part's."""
    parent, _, node = name.rpartition(".")
    if parent not in OF_NODES:
        return {}
    entry = OF_NODES[parent].of_node(node)
    if entry is None:
        return {}
    keys = {key: default for key, (_, default) in keys_of(entry).items()}
    return keys | {"SCALE": 1.0} if parent == "MODEL.LOSSES" else keys


def nodes_in(parent: str) -> list[str]:
    """The nodes of registered parts below a node of the config, such as MODEL.LOSSES."""
    registry = OF_NODES.get(parent)
    return [] if registry is None else [registry.entry(name).node for name in registry]


_KINDS: dict[type, tuple[type, ...]] = {
    bool: (bool,), int: (int, float), float: (int, float), str: (str,), tuple: (tuple,), list: (tuple,)
}  # fmt: skip
_ANY = (bool, int, float, str, tuple)


def checked(value: Any, default: Any, name: str, source: str) -> Any:
    """A value for an argument; a UserError if it is of another kind than the default."""
    if isinstance(value, list):
        value = tuple(value)
    kinds = _KINDS.get(type(default), _ANY)
    if type(value) not in kinds:
        like = f"be like its default {default!r}" if kinds is not _ANY else "be a number, a switch, a text or a tuple"
        raise UserError(f"{source}: {name} must {like}; got {value!r}")
    return value
