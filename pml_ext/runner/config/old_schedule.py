"""FastReID's schedules before version 1.1."""

from pml_ext.runner.config.layers import Layers
from pml_ext.runner.config.yaml_file import shown

_MOST_EPOCHS = 1000
_SCHEDULES = {"WarmupMultiStepLR": "MultiStepLR", "WarmupCosineAnnealingLR": "CosineAnnealingLR"}
# In version 0.2 these counted epochs; before July 2020, iterations.
_IN_EPOCHS = {
    "SOLVER.MAX_ITER": "SOLVER.MAX_EPOCH",
    "SOLVER.WARMUP_ITERS": "SOLVER.WARMUP_EPOCHS",
    "SOLVER.DELAY_ITERS": "SOLVER.DELAY_EPOCHS",
    "SOLVER.FREEZE_ITERS": "SOLVER.FREEZE_EPOCHS",
}
_TELLING = ("SOLVER.MAX_ITER", "SOLVER.DELAY_ITERS")


def counts_epochs(layers: Layers) -> bool:
    """Whether this is version 0.2, whose schedules are in epochs; before July 2020 they were in iterations."""
    most = layers.value("SOLVER.MAX_ITER", 0)
    told = any(layer.get(key) is not None for layer in layers for key in _TELLING)
    told |= any(layer.get("SOLVER.SCHED") in [*_SCHEDULES] for layer in layers)
    return told and isinstance(most, int | float) and most <= _MOST_EPOCHS


def read_schedule(layers: Layers, *, by_epochs: bool) -> list[str]:
    """Replace version 0.2's keys of SOLVER by today's; a line for each.

    Its STEPS were counted from the beginning, today's are from the end of the warm-up. How many epochs a number of
    iterations is depends on the data: such a MAX_ITER stays, to be refused.
    """
    notes = list[str]()
    for layer in layers:
        notes += layer.rename("SOLVER.SCHED", _SCHEDULES)
        for key, new in _IN_EPOCHS.items() if by_epochs else ():
            value = layer.pop(key)
            if value is not None:
                layer.put(new, value)
                notes.append(f"{layer.source}: {key} counted epochs: it is {new} {shown(value)} today")
    if by_epochs:
        return notes + _steps(layers)
    last = layers.last("SOLVER.MAX_ITER")
    for layer in layers:
        if layer is not last:
            layer.pop("SOLVER.MAX_ITER")  # another has the last word, and it is one refusal
    return notes


def _steps(layers: Layers) -> list[str]:
    if layers.value("SOLVER.SCHED", "MultiStepLR") != "MultiStepLR":
        return []
    notes = []
    delay = layers.last("SOLVER.DELAY_EPOCHS")
    if delay is not None and layers.value("SOLVER.DELAY_EPOCHS"):
        delay.put("SOLVER.DELAY_EPOCHS", 0)
        notes.append(f"{delay.source}: SOLVER.DELAY_ITERS had no effect on WarmupMultiStepLR: DELAY_EPOCHS is 0 here")
    last, warm_up = layers.last("SOLVER.STEPS"), layers.value("SOLVER.WARMUP_EPOCHS", 10)
    steps = [30, 55] if last is None else last.get("SOLVER.STEPS")
    if not isinstance(steps, list | tuple) or not all(isinstance(number, int) for number in (warm_up, *steps)):
        return notes
    place = last or layers[0]
    counted = [max(step - warm_up, 0) for step in steps]
    place.put("SOLVER.STEPS", counted)
    notes.append(
        f"{place.source}: SOLVER.STEPS {list(steps)} counted from the beginning: from the end of the warm-up of "
        f"{warm_up} epochs they are {counted}"
    )
    return notes
