"""What the values under a config's INPUT, DATASETS and DATALOADER must be."""

from collections.abc import Iterator, Mapping

from yacs.config import CfgNode as CN

from pml_ext.runner.config.load import known_values
from pml_ext.runner.config.rules import Problem, Rule, must, named, not_negative, one_of
from pml_ext.runner.data.aliases import aliases_of
from pml_ext.runner.data.datasets import DATASETS
from pml_ext.runner.data.datasets.image_files import MAX_UNREADABLE
from pml_ext.runner.data.names import BY_IDENTITY, DATASETS_NOT_BUILT, INTERPOLATIONS, OWN_DATA, PADDINGS, SAMPLERS

_LARGEST = 2**16  # side of an image in pixels
_MIRRORS = ("reflect", "symmetric")
_AS_OWN_DATA = (
    "data of one's own go in as file:people.csv (a table with the columns path, identity, camera, split) or as "
    "folder:path (a folder per identity, in query and gallery to test on them), or keep their name by --dataset "
    "NAME=file:people.csv"
)
# switches with a PROB
_BY_CHANCE = ("AUTOAUG", "FLIP", "CJ", "AUGMIX", "REA", "RPT")


def _sizes(options: CN) -> Iterator[Problem]:
    for key in ("SIZE_TRAIN", "SIZE_TEST"):
        size = options[key]
        if len(size) not in (1, 2) or any(not isinstance(side, int) or not 0 <= side <= _LARGEST for side in size):
            reason = (
                "must be [height, width], [side] for the shorter side, or [0] to keep the image's size; up to 65536"
            )
            yield Problem(key, list(size), reason)


def _crop(options: CN) -> Iterator[Problem]:
    if not options.CROP.ENABLED:
        return
    size = list(options.CROP.SIZE)
    if len(size) not in (1, 2) or any(not isinstance(side, int) or not 0 < side <= _LARGEST for side in size):
        yield Problem("CROP.SIZE", size, "must be [height, width] or [side]")
    for key in ("SCALE", "RATIO"):
        given = list(options.CROP[key])
        if len(given) != 2 or not 0 < given[0] <= given[1]:
            yield Problem(f"CROP.{key}", given, "must be two ascending numbers above 0")


def _padding(options: CN) -> Iterator[Problem]:
    padding, size = options.PADDING, list(options.SIZE_TRAIN)
    if padding.SIZE < 0:
        yield Problem("PADDING.SIZE", padding.SIZE, "must be 0 or more")
    if not padding.ENABLED:
        return
    yield from named("PADDING.MODE", padding.MODE, PADDINGS, {})
    if not size or size[0] <= 0:
        reason = f"crops to INPUT.SIZE_TRAIN, which must then be [height, width]; it is {size}"
        yield Problem("PADDING.ENABLED", True, reason)
    elif padding.MODE in _MIRRORS and min(size) <= padding.SIZE:
        yield Problem(
            "PADDING.SIZE", padding.SIZE, f"must be below INPUT.SIZE_TRAIN {size}, which {padding.MODE} mirrors"
        )


def _chances(options: CN) -> Iterator[Problem]:
    for key in _BY_CHANCE:
        if options[key].ENABLED and not 0 <= options[key].PROB <= 1:
            yield Problem(f"{key}.PROB", options[key].PROB, "must be in [0, 1]")


def erasing(channels: int, options: CN) -> Iterator[Problem]:
    """The rule that REA has a value for every channel.

    Args:
        channels: of the images, as many as MODEL.PIXEL_MEAN has values.
        options: the config's INPUT.
    """
    if options.REA.ENABLED and len(options.REA.VALUE) != channels:
        reason = f"must have one value for each of the {channels} channels of MODEL.PIXEL_MEAN"
        yield Problem("REA.VALUE", list(options.REA.VALUE), reason)


def _colours(options: CN) -> Iterator[Problem]:
    if options.CJ.ENABLED:
        for key in ("BRIGHTNESS", "CONTRAST", "SATURATION"):
            if options.CJ[key] < 0:
                yield Problem(f"CJ.{key}", options.CJ[key], "must be 0 or more")
        if not 0 <= options.CJ.HUE <= 0.5:
            yield Problem("CJ.HUE", options.CJ.HUE, "must be in [0, 0.5]")


INPUT_RULES: list[Rule] = [
    _sizes,
    one_of("INTERPOLATION", INTERPOLATIONS),
    _crop,
    _padding,
    _chances,
    _colours,
]


def data_set(key: str, name: str, aliases: Mapping[str, str]) -> Iterator[Problem]:
    """The problem with a key that names a data set, by itself or by an alias."""
    if name in aliases:
        return  # which has a rule of its own
    if name.startswith(tuple(OWN_DATA)):
        if name in OWN_DATA:
            yield Problem(key, name, f"needs a path behind the colon: {OWN_DATA[name]}")
        return
    if name in DATASETS_NOT_BUILT:
        yield Problem(key, name, f"FastReID's reader of it is not built; {_AS_OWN_DATA}", not_built=True)
    elif name not in DATASETS:
        yield Problem(key, name, f"unknown{known_values(name, DATASETS)}. {_AS_OWN_DATA.capitalize()}")


def _names(options: CN) -> Iterator[Problem]:
    for key in ("NAMES", "TESTS"):
        names = options[key]
        if not names or len(set(names)) < len(names):
            yield Problem(key, names, "must name one or more different data sets")
        for name in dict.fromkeys(names):
            yield from data_set(key, name, aliases_of(options.ALIASES))


def _aliases(options: CN) -> Iterator[Problem]:
    entries = options.ALIASES
    for entry in entries:
        name, _, target = str(entry).partition("=")
        if not name or not target.startswith(tuple(OWN_DATA)) or target in OWN_DATA:
            yield Problem("ALIASES", entry, "must be NAME=file:people.csv or NAME=folder:path")
        elif name in DATASETS or name.startswith(tuple(OWN_DATA)):
            yield Problem("ALIASES", entry, f"{name} is read by that name already; choose another")
    names = list(aliases_of(entries))
    if len(names) < len(entries):
        yield Problem("ALIASES", list(entries), "must name each data set once")


DATASETS_RULES: list[Rule] = [
    _aliases,
    _names,
    MAX_UNREADABLE,
]


def _instances(options: CN) -> Iterator[Problem]:
    if options.SAMPLER_TRAIN in BY_IDENTITY and options.NUM_INSTANCE < 1:
        yield Problem("NUM_INSTANCE", options.NUM_INSTANCE, "must be 1 or more")


DATALOADER_RULES: list[Rule] = [
    one_of("SAMPLER_TRAIN", SAMPLERS),
    _instances,
    must(
        "SET_WEIGHT",
        "must be whole numbers of identities",
        lambda value: all(isinstance(count, int) and count >= 0 for count in value),
    ),
    *not_negative("NUM_WORKERS"),
]


def batches(options: CN, batch_size: int, processes: int) -> Iterator[Problem]:
    """The rule that a batch holds something, and that every process gets whole groups of NUM_INSTANCE images.

    Args:
        options: the config's DATALOADER.
        batch_size: SOLVER.IMS_PER_BATCH.
        processes: among which a batch is divided.
    """
    instances = options.NUM_INSTANCE if options.SAMPLER_TRAIN in BY_IDENTITY else 1
    if batch_size < 1:
        yield Problem("SOLVER.IMS_PER_BATCH", batch_size, "must be 1 or more")
    elif instances >= 1 and batch_size % (instances * processes):
        reason = f"must be a multiple of DATALOADER.NUM_INSTANCE × processes = {instances} × {processes}"
        yield Problem("SOLVER.IMS_PER_BATCH", batch_size, reason)
