"""Config keys of a registered part's node: its constructor arguments, in capitals."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pml_ext._shared.errors import ArgumentError, UserError
from pml_ext.runner.registry import LOSS_REGISTRY, NODE_DEFAULTS, WITH_NODES, Entry, Registry, note_part

SUPPLIED = LOSS_REGISTRY.supplied
REQUIRED = inspect.Parameter.empty
# YAML cannot represent these objects; `distance`, `reducer` and the regularizers are built from names.
_NO_KEYS = ("collect_stats", "weight_init_func", "allowed_pos_range", "allowed_neg_range")


def keys_of(entry: Entry) -> dict[str, tuple[str, Any]]:
    """Returns key -> (argument, default or REQUIRED) for a part's node."""
    renamed = {argument: key for key, argument in entry.keys.items()}
    elsewhere = (*entry.registry.supplied, *_NO_KEYS, *map(str.lower, entry.flat))
    try:
        arguments = arguments_of(entry.part, entry.registry)
    except (ValueError, TypeError) as error:
        raise UserError(f"the arguments of {entry.name} of {entry.module} cannot be read: {error}") from error
    keys = {}
    for name, default in arguments.items():
        key = renamed.get(name, name.upper())
        if key == "SCALE" and key in entry.registry.switches:  # SCALE is the loss's weight in the sum
            key = "LOGIT_SCALE"
        if name not in elsewhere:
            keys[key] = (name, default)
    return keys


def arguments_of(part: Callable[..., Any], registry: Registry = LOSS_REGISTRY) -> dict[str, Any]:
    """Returns argument -> default or REQUIRED; includes base classes if the constructor passes keywords on."""
    of_class, of_function = registry.positional
    if not inspect.isclass(part):
        return dict(_named(part)[of_function:])
    defaults: dict[str, Any] = {}
    for kind in part.__mro__:
        constructor = vars(kind).get("__init__")
        if constructor is None:
            continue
        for name, default in _named(constructor)[1 + of_class :]:
            # The subclass passes a base class's argument that has no default.
            if default is not REQUIRED or kind is part or name in registry.supplied:
                defaults.setdefault(name, default)
        kinds = [parameter.kind for parameter in inspect.signature(constructor).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
    return defaults


def _named(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    parameters = inspect.signature(function).parameters.items()
    return [
        (name, each.default) for name, each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def node_of(options: Mapping[str, Any], entry: Entry) -> Mapping[str, Any]:
    """Returns a part's node; UserError if a key has its place. options: the config node of the registry."""
    node = options.get(entry.node, {})
    if not isinstance(node, Mapping):
        key = f"{entry.registry.parent}.{entry.node}"
        raise UserError(f"{key} is already a key: register {entry.name} of {entry.module} with another node")
    return node


def arguments_from(
    options: Mapping[str, Any], entry: Entry, supplied: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the arguments of a part, from its node, its flat keys, and the part of `supplied` that it requires.

    Ignores keys of the node that are not in the signature: projects add them for their code.

    Args:
        options: the config node of the registry, `Registry.parent`.
    Raises:
        UserError: an argument without a default is not set.
    """
    node, where = node_of(options, entry), f"{entry.registry.parent}.{entry.node}"
    arguments = {key.lower(): options[key] for key in entry.flat}
    for key, (name, default) in keys_of(entry).items():
        if key in node:
            arguments[name] = node[key]
        elif default is REQUIRED:
            raise UserError(f"{where}.{key} must be set: {entry.name} of {entry.module} has no default for it")
    required = [name for name, default in arguments_of(entry.part, entry.registry).items() if default is REQUIRED]
    return arguments | {name: value for name, value in (supplied or {}).items() if name in required}


def construct(entry: Entry, where: str, *positional: Any, **arguments: Any) -> Any:
    """Calls a part; converts errors in its arguments to a UserError about their key, or else about the key `where`.

    An error of a user's part propagates, with a line that names the part.
    """
    try:
        return entry.part(*positional, **arguments)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, ArgumentError) and (key := _key_of(error.name, entry)):
            raise UserError(f"{key} {error.problem}") from error
        if not entry.is_ours:
            note_part(error, entry)
        elif isinstance(error, (ValueError, TypeError)):
            raise UserError(f"{where}: {' '.join(str(error).split())}") from error
        raise


def _key_of(argument: str, entry: Entry) -> str | None:
    """Returns the config key of a part's argument, if it has one."""
    parent, node = entry.registry.parent, f"{entry.registry.parent}.{entry.node}"
    if argument.upper() in entry.flat:
        return f"{parent}.{argument.upper()}"
    if argument.upper() in NODE_DEFAULTS.get(entry.name, {}):
        return f"{node}.{argument.upper()}"
    keys = keys_of(entry.registry.entry(entry.name))  # the part may stand for the registered one
    return next((f"{node}.{key}" for key, (name, _) in keys.items() if name == argument), None)


def keys_of_node(name: str) -> dict[str, Any]:
    """Returns key -> default of the part with this node, such as MODEL.LOSSES.SUPCONLOSS; empty if there is none."""
    parent, _, node = name.rpartition(".")
    for entry in _entries_in(parent):
        if entry.node == node:
            return {key: default for key, (_, default) in keys_of(entry).items()} | dict(entry.registry.switches)
    return {}


def nodes_in(parent: str) -> list[str]:
    """Returns the nodes of registered parts below a node of the config, such as MODEL.LOSSES."""
    return [entry.node for entry in _entries_in(parent)]


def _entries_in(parent: str) -> list[Entry]:
    return [registry.entry(name) for registry in WITH_NODES if registry.parent == parent for name in registry]
