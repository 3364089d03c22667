"""Converts FastReID's spellings from before version 1.1, keeping their meanings.

| version | until | recognised by |
|---|---|---|
| 0.1 | September 2020 | BNneckHead, HEADS.IN_FEAT |
| 0.2 | December 2020 | SOLVER.MAX_ITER and Warmup… schedules, both in epochs |
| 0.3, 1.0 | March 2021 | SOLVER.MAX_EPOCH, still DO_PAD, PK_SAMPLER, FP16_ENABLED and lower-case layer names |
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from pml_ext.runner.config.yaml_file import shown
from pml_ext.runner.registry import BACKBONE_REGISTRY, REID_HEADS_REGISTRY, SCHEDULER_REGISTRY, Registry


class File(NamedTuple):
    """The keys of a file, or those on the command line."""

    source: str
    keys: dict[str, Any]


class Setting(NamedTuple):
    """A value, and the file that sets it."""

    value: Any
    source: str


Settings = dict[str, Setting]
"""Dotted key -> setting, in the order in which they were last set."""

RENAMED = {
    "INPUT.DO_FLIP": "INPUT.FLIP.ENABLED",
    "INPUT.FLIP_PROB": "INPUT.FLIP.PROB",
    "INPUT.DO_PAD": "INPUT.PADDING.ENABLED",
    "INPUT.PADDING": "INPUT.PADDING.SIZE",  # formerly a number of pixels, now a node
    "INPUT.PADDING_MODE": "INPUT.PADDING.MODE",
    "INPUT.DO_AFFINE": "INPUT.AFFINE.ENABLED",
    "INPUT.DO_AUTOAUG": "INPUT.AUTOAUG.ENABLED",
    "INPUT.AUTOAUG_PROB": "INPUT.AUTOAUG.PROB",
    "INPUT.DO_AUGMIX": "INPUT.AUGMIX.ENABLED",
    "INPUT.AUGMIX_PROB": "INPUT.AUGMIX.PROB",
    "INPUT.REA.MEAN": "INPUT.REA.VALUE",
    "MODEL.HEADS.IN_FEAT": "MODEL.BACKBONE.FEAT_DIM",
    "MODEL.LOSSES.CIRCLE.ALPHA": "MODEL.LOSSES.CIRCLE.GAMMA",
    "SOLVER.FP16_ENABLED": "SOLVER.AMP.ENABLED",
    "SOLVER.AMP_ENABLED": "SOLVER.AMP.ENABLED",
    "TEST.ROC_ENABLED": "TEST.ROC.ENABLED",
    "TEST.FLIP_ENABLED": "TEST.FLIP.ENABLED",
    "TEST.RECALLS": "TEST.RANKS",  # FastRetri's; its Recall@K counts queries with a match at rank K or before
}
# In version 0.2 these counted epochs; before July 2020, iterations.
IN_EPOCHS = {
    "SOLVER.MAX_ITER": "SOLVER.MAX_EPOCH",
    "SOLVER.WARMUP_ITERS": "SOLVER.WARMUP_EPOCHS",
    "SOLVER.DELAY_ITERS": "SOLVER.DELAY_EPOCHS",
    "SOLVER.FREEZE_ITERS": "SOLVER.FREEZE_EPOCHS",
}
_MOST_EPOCHS = 1000
NAMES = {
    "MODEL.HEADS.NAME": {"BNneckHead": "EmbeddingHead"},
    "MODEL.HEADS.POOL_LAYER": {
        "avgpool": "GlobalAvgPool", "fastavgpool": "FastGlobalAvgPool", "maxpool": "GlobalMaxPool",
        "gempool": "GeneralizedMeanPooling", "gempoolP": "GeneralizedMeanPoolingP", "avgmaxpool": "AdaptiveAvgMaxPool",
        "clipavgpool": "ClipGlobalAvgPool", "identity": "Identity", "flatten": "Flatten",
    },
    "MODEL.HEADS.CLS_LAYER": {
        "linear": "Linear", "arcface": "ArcSoftmax", "arcFace": "ArcSoftmax", "arcSoftmax": "ArcSoftmax",
        "circle": "CircleSoftmax", "circleSoftmax": "CircleSoftmax", "amSoftmax": "CosSoftmax", "cosface": "CosSoftmax",
        "cosSoftmax": "CosSoftmax",
    },
    "SOLVER.SCHED": {"WarmupMultiStepLR": "MultiStepLR", "WarmupCosineAnnealingLR": "CosineAnnealingLR"},
}  # fmt: skip
"""Key -> old name -> current name."""
_TRAINED_POWER = {"MODEL.HEADS.POOL_LAYER": {"gempool": "GeneralizedMeanPoolingP"}}  # in 0.1
# Keys without a meaning here. The second kind is ignored only without a value; with one it is an unknown key.
_IGNORED = ("MODEL.BACKBONE.NORM_SPLIT", "MODEL.HEADS.NORM_SPLIT", "SOLVER.LOG_PERIOD")  # the first two: GhostBN's
_IGNORED_IF_FALSE = (
    "SOLVER.FREEZE_FC_ITERS", "MODEL.LOSSES.TRI.USE_COSINE_DIST", "SOLVER.SWA",
)  # fmt: skip
WITHOUT_MEANING = {
    "SOLVER.MAX_ITER": "counts iterations, as before FastReID 0.2; set SOLVER.MAX_EPOCH, STEPS and WARMUP_EPOCHS",
    "SOLVER.DELAY_ITERS": "counts iterations, as before FastReID 0.2; set SOLVER.DELAY_EPOCHS",
    "SOLVER.SWA": "stochastic weight averaging is not supported",
    "SOLVER.FREEZE_FC_ITERS": "is not supported; use MODEL.FREEZE_LAYERS ['heads.weight'] to freeze the classifier",
    "MODEL.OPEN_LAYERS": "must be backbone, heads or both; use MODEL.FREEZE_LAYERS, the parts that do not train",
}
"""Old keys that are rejected -> reason for the error."""

DEFAULTS: dict[str, Any] = {
    "INPUT.FLIP.ENABLED": True,
    "INPUT.PADDING.ENABLED": True,
    "MODEL.BACKBONE.PRETRAIN": True,
    "MODEL.HEADS.WITH_BNNECK": True,
    "DATALOADER.SAMPLER_TRAIN": "BalancedIdentitySampler",
    "SOLVER.WEIGHT_DECAY_BIAS": 0.0,
}
"""Defaults from before version 1.1 that have changed since."""
_UNTIL_0_2: dict[str, Any] = {
    "INPUT.REA.VALUE": [0.596 * 255, 0.558 * 255, 0.497 * 255],
    "INPUT.AUTOAUG.PROB": 0.5,  # rose from 0 to 1 over the training
    "INPUT.AUGMIX.PROB": 1.0,
    "INPUT.CJ.PROB": 0.8,
}
_OF_1_0: dict[str, Any] = {"DATALOADER.SAMPLER_TRAIN": "NaiveIdentitySampler", "SOLVER.NESTEROV": True}
_LAYER, _SCALE, _SAMPLER = "MODEL.HEADS.CLS_LAYER", "MODEL.HEADS.SCALE", "DATALOADER.SAMPLER_TRAIN"


def modernise(files: list[File], command_line: str, declared: Collection[str]) -> tuple[Settings, list[str]]:
    """Returns the keys of all files in the current spelling, and a note for each replacement. Later files override.

    An old key whose value has no meaning here is kept, and later rejected as unknown. Keys that a project declares
    and names that it registers are not old spellings.

    Args:
        files: base first.
        command_line: source whose old spellings do not make a config old.
        declared: keys of the project's functions and of registered parts.
    """
    old = _Old(files, command_line, declared)
    for file in files:
        for key, value in file.keys.items():
            old.read(key, value, file.source)
    old.drop_what_had_no_effect()
    old.read_sampler()
    if old.by_epochs:
        old.read_steps()
    if old.is_old:
        old.read_scale_of_linear()
        old.set_defaults()
    return old.settings, old.notes


def _is_users_part(name: object, registry: Registry) -> bool:
    return isinstance(name, str) and name in registry and not registry.entry(name).is_ours


def _is_users_head(name: object) -> bool:
    """Returns whether a head is a user's, and not a subclass of ours, which reads the current names of layers."""
    if not _is_users_part(name, REID_HEADS_REGISTRY):
        return False
    kinds = getattr(REID_HEADS_REGISTRY.get(str(name)), "__mro__", ())
    return not any(kind.__module__.startswith("pml_ext.") for kind in kinds)


class _Old:
    """Settings during conversion to the current spelling."""

    def __init__(self, files: list[File], command_line: str, declared: Collection[str]) -> None:
        self.settings: Settings = {}
        self.declared = declared
        self.notes: list[str] = []
        self.command_line = command_line
        self.is_old = False
        """Whether a file has an old spelling, so that the old defaults apply."""

        def values_of(*keys: str) -> list[Any]:
            old_keys = [key for key in keys if key not in declared]
            return [file.keys[key] for key in old_keys for file in files if file.keys.get(key) is not None]

        self.names = dict(NAMES)
        """Old names of our parts."""
        for key, registry in (("MODEL.HEADS.NAME", REID_HEADS_REGISTRY), ("SOLVER.SCHED", SCHEDULER_REGISTRY)):
            self.names[key] = {old: name for old, name in NAMES[key].items() if not _is_users_part(old, registry)}
        has_old_head = any(name in [*self.names["MODEL.HEADS.NAME"]] for name in values_of("MODEL.HEADS.NAME"))
        self.is_first = bool(values_of("MODEL.HEADS.IN_FEAT")) or has_old_head
        """Whether this is version 0.1."""
        iterations = values_of("SOLVER.MAX_ITER")[-1:]
        has_old_schedule = any(name in [*self.names["SOLVER.SCHED"]] for name in values_of("SOLVER.SCHED"))
        counts = has_old_schedule or bool(iterations + values_of("SOLVER.DELAY_ITERS"))
        self.by_epochs = counts and all(isinstance(n, int | float) and n <= _MOST_EPOCHS for n in iterations)
        """Whether the schedule is in epochs, as in 0.2; before July 2020 it was in iterations."""
        self.renamed = RENAMED | (IN_EPOCHS if self.by_epochs else {})
        heads = values_of("MODEL.HEADS.NAME")[-1:]
        self.has_users_head = any(map(_is_users_head, heads))
        """Whether the names of layers are those of a user's head."""
        backbones = values_of("MODEL.BACKBONE.NAME")[-1:]
        self.has_users_backbone = any(_is_users_part(name, BACKBONE_REGISTRY) for name in backbones)

    @property
    def is_1_0(self) -> bool:
        """Whether this is version 0.3 or later, whose schedule has MAX_EPOCH."""
        counts = "SOLVER.WARMUP_EPOCHS", "SOLVER.WARMUP_ITERS", "SOLVER.MAX_EPOCH"
        is_later = any(self.value(key) is not None for key in counts)
        return is_later and not (self.by_epochs or self.is_first)

    def value(self, key: str, default: Any = None) -> Any:
        setting = self.settings.get(key)
        return default if setting is None or setting.value is None else setting.value

    def put(self, key: str, value: Any, source: str, was: str = "") -> None:
        """Sets a key; was: the file's spelling, if it is an old one."""
        self.settings.pop(key, None)
        self.settings[key] = Setting(value, source)
        if was:
            self.notes.append(f"{source}: {was} is now {key} {shown(value)}")
            self.is_old |= source != self.command_line and was != "TEST.RECALLS"  # FastRetri's

    def fill(self, key: str, value: Any, source: str, was: str) -> None:
        """Sets a key unless a file has it in the current spelling."""
        if self.value(key) is None:
            self.put(key, value, source, was)

    def read(self, key: str, value: Any, source: str) -> None:
        """Reads one key of a file."""
        if key in self.declared:
            self.put(key, value, source)
            return
        if key in self.renamed and value is not None:
            self.put(self.renamed[key], value, source, key)
            return
        new, today = key, value
        if self.has_users_head and key in ("MODEL.HEADS.POOL_LAYER", "MODEL.HEADS.CLS_LAYER"):
            pass
        elif key in self.names and isinstance(value, str):
            names = self.names[key] | (_TRAINED_POWER.get(key, {}) if self.is_first else {})
            today = names.get(value, value)
        elif key == "MODEL.BACKBONE.DEPTH" and self.has_users_backbone:
            value = today = str(value)  # FastReID 0.1 has a number
        elif key == "MODEL.BACKBONE.DEPTH" and type(value) in (int, str) and str(value).isdecimal():
            today = f"{value}x"
        elif key == "MODEL.OPEN_LAYERS":  # in 0.1 the parts that train during FREEZE_ITERS, not those that do not
            opened = [value] if isinstance(value, str) else value
            if isinstance(opened, list | tuple) and all(part in ("", "backbone", "heads") for part in opened):
                new, today = "MODEL.FREEZE_LAYERS", []
                if any(opened):
                    today = [part for part in ("backbone", "heads") if part not in opened]
        self.put(new, today, source, "" if today is value else f"{key} {shown(value)}")

    def drop_what_had_no_effect(self) -> None:
        for key in (*_IGNORED, *_IGNORED_IF_FALSE):
            value = self.value(key)
            is_on = value.get("ENABLED", False) if isinstance(value, dict) else value
            if value is not None and key not in self.declared and (key in _IGNORED or not is_on):
                source = self.settings.pop(key).source
                self.notes.append(f"{source}: {key} has no effect and is ignored")

    def read_sampler(self) -> None:
        """Converts PK_SAMPLER and NAIVE_WAY, possibly from two files, to one sampler name."""
        keys = "DATALOADER.PK_SAMPLER", "DATALOADER.NAIVE_WAY"
        old_keys = [key for key in self.settings if key in keys and key not in self.declared]
        # NAIVE_WAY's default was False until December 2020.
        by_identity, naive = self.value(keys[0], True), self.value(keys[1], self.is_1_0)
        if old_keys and isinstance(by_identity, bool) and isinstance(naive, bool):
            source = [self.settings.pop(key).source for key in old_keys][-1]
            name = "NaiveIdentitySampler" if naive else "BalancedIdentitySampler"
            was = f"DATALOADER.PK_SAMPLER {by_identity} with NAIVE_WAY {naive}"
            self.fill(_SAMPLER, name if by_identity else "TrainingSampler", source, was)

    def read_steps(self) -> None:
        """Converts version 0.2's STEPS, counted from the start, to steps counted from the end of the warm-up."""
        if self.value("SOLVER.SCHED", "MultiStepLR") != "MultiStepLR":
            return
        steps, source = self.settings.get("SOLVER.STEPS", ([30, 55], "FastReID's old defaults"))
        warm_up = self.value("SOLVER.WARMUP_EPOCHS")
        if isinstance(steps, list | tuple) and all(isinstance(number, int) for number in (warm_up, *steps)):
            was = f"SOLVER.STEPS {list(steps)}, counted from the start and not from the end of the warm-up,"
            self.put("SOLVER.STEPS", [max(step - warm_up, 0) for step in steps], source, was)

    def read_scale_of_linear(self) -> None:
        """Resets SCALE of a linear layer, which had none although files set it."""
        scale = self.settings.get(_SCALE)
        if scale and scale.value != 1 and self.value(_LAYER, "Linear") == "Linear":
            self.put(_SCALE, 1.0, scale.source, f"{_SCALE} {shown(scale.value)} of a linear layer, without effect,")

    def set_defaults(self) -> None:
        """Sets the old defaults of keys that an old config does not set."""
        wanted = DEFAULTS | {"SOLVER.WEIGHT_DECAY_NORM": self.value("SOLVER.WEIGHT_DECAY", 0.0005)}
        if self.by_epochs or self.is_first:
            wanted |= _UNTIL_0_2
        elif self.is_1_0:
            wanted |= _OF_1_0
        for switch in ("AUTOAUG", "AUGMIX", "CJ"):
            if not self.value(f"INPUT.{switch}.ENABLED"):
                wanted.pop(f"INPUT.{switch}.PROB", None)
        if self.value("SOLVER.OPT", "Adam") != "SGD" or self.value("SOLVER.MOMENTUM") == 0:
            wanted.pop("SOLVER.NESTEROV", None)
        missing = {key: value for key, value in wanted.items() if self.value(key) is None}
        self.settings |= {key: Setting(value, "FastReID's old defaults") for key, value in missing.items()}
        named = ", ".join(f"{key} {value}" for key, value in missing.items())
        self.notes.append(f"missing keys have the defaults of FastReID before 1.1: {named}")
