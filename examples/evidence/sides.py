"""Both sides of a comparison in full, read from the losses that the runs build and from the settings that they tune."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from methods import BATCH, METHODS, PER_CLASS, Method
from terms import ConsecutivePairs, ConsecutivePairsWithNegatives, Mined, Sizes, of_method
from torch import nn

from pml_ext import losses, miners
from pml_ext.losses import LoOp
from pml_ext.miners import LoOpMiner

TUNED = "tuned"
CONSECUTIVE, EVERY, OF_CLASSES = "positives: consecutive images", "all pairs", "images and classes"
SAMPLES, ARCS = "samples", "closest points of arcs"
TOLD = ("margin", "gamma", "temperature", "scale")  # also where they are the default
UNTOLD = ("distance", "reducer", "num_classes", "embedding_size", "seed", "rate of its parameters")
Parts = Mapping[str, str]


def parts_of(name: str) -> dict[str, str]:
    """What a method consists of: "term 1 loss", "term 1 loss.margin", "term 1 miner", …; TUNED if its trials differ."""
    method = METHODS[name]
    found: dict[str, set[str]] = {}
    for settings in _settings(method):
        for part, value in _parts(name, settings):
            found.setdefault(part, set()).add(value)
    return {part: TUNED if len(values) > 1 else min(values) for part, values in found.items()}


def _settings(method: Method) -> Iterator[dict[str, Any]]:
    """The first trials; of an added term with those of its base."""
    own = method.trials()
    for number, base in enumerate(METHODS[method.on].trials() if method.on else [{}] * len(own)):
        yield {**base, **own[number % len(own)]}


def _parts(name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "images of a class", str(settings.get("per_class", PER_CLASS))
    yield "batch", str(BATCH)
    yield "rate", str(settings["rate"])
    loss = of_method(name, settings, Sizes(8, 12, 0))
    terms = zip(name.split("@")[0].split(" + "), loss.terms, loss.weights, strict=True)
    for number, (term, built, weight) in enumerate(terms, 1):
        at = f"term {number}"
        ratio = settings.get(f"{term}.ratio")
        yield f"{at} weight", str(weight) if ratio is None else f"for {ratio} of the first term's gradient"
        for part, value in _of_term(built):
            yield f"{at} {part}", value
        for key, value in settings.items():
            if key.startswith(f"{term}.") and not key.endswith((".weight", ".ratio", ".positives")):
                of = "miner" if key.endswith(".epsilon") else "loss"
                yield f"{at} {of}.{key.removeprefix(f'{term}.')}", str(value)
        if number == 1 and "own_rate" in settings:
            yield f"{at} loss.rate of its parameters", str(settings["own_rate"])


def _of_term(term: nn.Module) -> Iterator[tuple[str, str]]:
    loss, miner, pairs, negatives = term, None, EVERY, SAMPLES
    if isinstance(loss, Mined):
        loss, miner = loss.loss, loss.miner
    if isinstance(miner, LoOpMiner):
        miner, negatives = miner.miner, ARCS
    if isinstance(miner, ConsecutivePairs | ConsecutivePairsWithNegatives):
        miner, pairs = None, CONSECUTIVE
    if isinstance(loss, LoOp):
        pairs, negatives = CONSECUTIVE if loss.positives == "arc" else EVERY, ARCS
        loss = loss.loss
    if getattr(loss, "positives", None) == "consecutive":
        pairs = CONSECUTIVE
    if any(len(parameter) for parameter in loss.parameters()):
        pairs = OF_CLASSES
    yield "pairs", pairs
    yield "negatives", negatives
    for part, module in (("loss", loss), ("miner", miner)):
        yield part, "none" if module is None else type(module).__name__
        if module is not None:
            yield from ((f"{part}.{name}", value) for name, value in _attributes(module))


def _attributes(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Arguments of the constructor that the object keeps, and its distance and reducer."""
    for name in inspect.signature(type(module)).parameters:
        value = getattr(module, name, None)
        if isinstance(value, int | float | str):
            yield name, str(value)
    for name in ("distance", "reducer"):
        if isinstance(part := getattr(module, name, None), nn.Module):
            plain = {key: value for key, value in vars(part).items() if isinstance(value, int | float)}
            yield name, f"{type(part).__name__} {sorted(plain.items())}"


def differing(one: Parts, other: Parts) -> list[str]:
    return sorted(part for part in one.keys() | other.keys() if one.get(part) != other.get(part))


def in_full(name: str) -> str:
    """A side in words: each term's loss, miner and tuples, what was tuned, and what is no default."""
    parts, terms = parts_of(name), []
    for number, _ in enumerate(name.split("@")[0].split(" + "), 1):
        at = f"term {number}"
        loss, miner = (_in_full(parts, f"{at} {role}") for role in ("loss", "miner"))
        words = [loss, *([miner] if miner else []), parts[f"{at} pairs"]]
        if parts[f"{at} negatives"] != SAMPLES:
            words.append(f"negatives: {parts[f'{at} negatives']}")
        weight = parts[f"{at} weight"]
        if (images := parts["images of a class"]) != str(PER_CLASS):
            words.append(f"{images} images of a class")
        scale = "" if weight == "1.0" else f"{'weight ' if weight == TUNED else ''}{weight} × "
        terms.append(scale + "; ".join(words))
    return " + ".join(terms)


def _in_full(parts: Parts, at: str) -> str:
    if parts[at] == "none":
        return ""
    default = {name: str(value.default) for name, value in _signature(parts[at]).items()}
    shown = []
    for part, value in parts.items():
        name = part.removeprefix(f"{at}.")
        if name == part or name in UNTOLD or (value == default.get(name) and not any(word in name for word in TOLD)):
            continue
        shown.append(f"{name} {value}" + (" (default)" if value == default.get(name) else ""))
    return f"{parts[at]}({', '.join(shown)})"


def _signature(name: str) -> Mapping[str, inspect.Parameter]:
    found = next((part for part in (losses, miners) if hasattr(part, name)), None)
    return inspect.signature(getattr(found, name)).parameters if found else {}
