"""The types of pytorch-metric-learning's losses and miners, which has none, from its constructors.

    python -m tests.pml_stubs

writes `_of_pml.pyi` of pml_ext.losses and pml_ext.miners anew, when pytorch-metric-learning has other classes.
"""

import ast
import inspect
import textwrap
from inspect import Parameter
from pathlib import Path
from typing import Any

from torch import nn

from pml_ext import _pml, losses

PACKAGE = Path(losses.__file__).parents[1]
ROOMS = {PACKAGE / f"{room.__name__.split('.')[-1]}/_of_pml.pyi": room for room in (_pml.losses, _pml.miners)}
_TYPES = {
    "embeddings": "Tensor",
    "embedding_size": "int",
    "indices_tuple": "tuple[Tensor, ...] | None",
    "collect_stats": "bool | None",
    "num_classes": "int",
    **dict.fromkeys(("labels", "ref_emb", "ref_labels", "enqueue_mask"), "Tensor | None"),
}


def stub(room):
    """The text of the stub of PML's losses or miners."""
    name = room.__name__.split(".")[-1]
    result = "Tensor" if room is _pml.losses else "tuple[Tensor, ...]"
    lines = [
        f'"""The {name} of pytorch-metric-learning in pml_ext.{name}; made by `python -m tests.pml_stubs`."""\n',
        "from typing import Any\n",
        f"from pytorch_metric_learning import {name} as _pml\nfrom torch import Tensor",
    ]
    for name, kind in classes_of(room).items():
        lines.append(f"\nclass {name}(_pml.{name}):")
        lines.append(f"    def __init__(self{_written(arguments_of(kind))}) -> None: ...")
        forward: Any = getattr(kind, "forward", None)
        if forward is not None and forward is not nn.Module.forward:
            called = list(inspect.signature(forward).parameters.values())[1:]
            lines.append(f"    def __call__(self{_written(called)}) -> {result}: ...")
    return "\n".join(lines) + "\n"


def classes_of(room):
    """Those that pml_ext exports."""
    found = {name: kind for name, kind in sorted(vars(room).items()) if inspect.isclass(kind)}
    return {name: kind for name, kind in found.items() if name not in losses.CORRECTED}


def arguments_of(kind):
    """What a constructor takes, and what it hands on by *args and **kwargs to the constructors of its bases."""
    found: dict[str, Parameter] = {}
    passed: set[str] = set()  # a constructor's own arguments to its base, which a caller cannot give as well
    by_position = True
    for base in kind.__mro__:
        constructor = vars(base).get("__init__")
        if base in (nn.Module, object) or constructor is None:
            continue
        own = list(inspect.signature(constructor).parameters.values())[1:]
        for one in own:
            if one.name not in {*found, *passed} and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
                found[one.name] = one if by_position else one.replace(kind=one.KEYWORD_ONLY)
        if all(one.kind is not one.VAR_KEYWORD for one in own):
            break
        nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(constructor)))))
        call = next(n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "super().__init__")
        by_position = by_position and any(isinstance(argument, ast.Starred) for argument in call.args)
        taken_out = {ast.literal_eval(n.slice) for n in nodes if isinstance(n, ast.Subscript)}
        passed |= {keyword.arg for keyword in call.keywords if keyword.arg} - taken_out
    return sorted(found.values(), key=lambda one: one.kind)


def _written(parameters):
    written = [f"{one.name}: {_type_of(one)}{'' if one.default is one.empty else ' = ...'}" for one in parameters]
    keywords = sum(one.kind is one.KEYWORD_ONLY for one in parameters)
    if keywords:
        written.insert(-keywords, "*")
    return "".join(f", {text}" for text in written)


def _type_of(one):
    if isinstance(one.default, bool):
        return "bool"
    # Text may stand for a number or an object, as in triplets_per_anchor="all".
    known = _TYPES.get(one.name, "float" if isinstance(one.default, (int, float)) else "Any")
    return f"{known} | None" if one.default is None and known in ("int", "float") else known


if __name__ == "__main__":
    for path, room in ROOMS.items():
        path.write_text(stub(room), encoding="utf-8")
