"""Writes checkpoints atomically, and checks that a run can resume one.

There is no random state to restore: `TrainingModule.on_train_batch_start` seeds each step from SEED, epoch, step and
rank.

Class vectors of Partial FC are in .safetensors files next to last.ckpt: each rank writes its rows, and any number
of ranks can read them. A checkpoint records their folder, which is complete before the checkpoint is written.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
import yaml
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from torch.optim import Optimizer
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError
from pml_ext._shared.files import replacing, require_recorded_sha256, sha256_of, sha256_record, write_atomically
from pml_ext.losses import PartialFC
from pml_ext.losses.row_sparse_steps import has_rows
from pml_ext.runner.config.files import BEST, CHECKPOINTS, LAST
from pml_ext.runner.config.part_keys import arguments_of, keys_of, node_of
from pml_ext.runner.config.yaml_file import value_of
from pml_ext.runner.evaluation.selected_metrics import KEEP_LAST, best_metric
from pml_ext.runner.registry import OPTIMIZER_REGISTRY, SCHEDULER_REGISTRY, Entry

# Keys that a resumed run must not change, in addition to the arguments of its optimizer and schedule: they name the
# network, the losses and the data, or the restored state would override them, or it counts in steps of a batch size.
_HELD = (
    "MODEL.META_ARCHITECTURE", "MODEL.BACKBONE.NAME", "MODEL.BACKBONE.DEPTH", "MODEL.HEADS.NAME", "MODEL.LOSSES.NAME",
    "MODEL.LOSSES.DISC.CENTROIDS", "MODEL.LOSSES.DISC.SEED", "DATASETS.NAMES", "DATASETS.TESTS", "DATASETS.SPLIT",
    "DATASETS.COMBINEALL", "DATASETS.RM_LT", "TEST.BEST",
    "SOLVER.IMS_PER_BATCH", "SOLVER.WARMUP_ITERS", "SOLVER.WARMUP_EPOCHS",
    "SOLVER.OPT", "SOLVER.SCHED", "SOLVER.BASE_LR", "SOLVER.HEADS_LR_FACTOR", "SOLVER.BIAS_LR_FACTOR",
    "SOLVER.WEIGHT_DECAY", "SOLVER.WEIGHT_DECAY_NORM", "SOLVER.WEIGHT_DECAY_BIAS",
)  # fmt: skip
CONFIG_KEY = "config"
"""Key of the config's YAML in a checkpoint."""
CLASSES = "classes"
"""Key of the description of class vector files in a checkpoint."""
CLASS_FOLDERS = "classes_*_of_*"
LOGGED = "logged"
"""Key of the loggers' runs in a checkpoint, by class."""


def save_whole(write: Callable[[IO[bytes]], Any], path: Path) -> None:
    """Replace a file atomically, creating its folder if needed; UserError on failure.

    Its SHA-256 is in a file next to it, which may be missing for a moment but never belongs to another file.
    """
    record = sha256_record(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            write(file)
            record.unlink(missing_ok=True)
        write_atomically(record, f"{sha256_of(path)}  {path.name}\n")
    except (OSError, RuntimeError) as error:
        # torch's writer raises a RuntimeError over the system's
        reason = error.__context__ if isinstance(error.__context__, OSError) else error
        raise UserError(f"checkpoint {path} cannot be written, an earlier one is kept as it was: {reason}") from error


class WholeCheckpoints(TorchCheckpointIO):
    """Replaces a checkpoint atomically, and removes the class vectors of the previous one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        path = Path(path)
        save_whole(lambda file: torch.save(checkpoint, file), path)
        if CLASSES in checkpoint:
            for folder in path.parent.glob(CLASS_FOLDERS):
                if folder.name != checkpoint[CLASSES]["folder"]:
                    shutil.rmtree(folder, ignore_errors=True)


class BestCheckpoint(ModelCheckpoint):
    """best.ckpt. Its score is the one to beat in a resumed run, also if the run was moved to another folder.

    Lightning forgets the score there, so that the next validation would overwrite a better network.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(
            folder, Path(BEST).stem, auto_insert_metric_name=False, enable_version_counter=False, **options
        )
        self._file = os.path.join(str(self.dirpath), BEST)  # as Lightning names it

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        score = state_dict["best_model_score"]
        if score is not None and Path(self._file).is_file():
            self.record(score)

    def record(self, score: Tensor) -> None:
        """Take this for the score of the file."""
        self.best_model_path = self.kth_best_model_path = self._file
        self.best_model_score = self.kth_value = score
        self.best_k_models = {self._file: score}


def save_classes(checkpoint: dict[str, Any], name: str, loss: PartialFC, optimizer: Optimizer, folder: Path) -> None:
    """Move this rank's class vectors and their optimizer state from a checkpoint to a file.

    Weights without an optimizer drop them: they cannot be resumed, and embedding needs no classes.
    name: parameter name of the vectors in the model.
    """
    rows = {"weight": checkpoint["state_dict"].pop(name)}
    if "optimizer_states" not in checkpoint:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    place = next(n for n, parameter in enumerate(parameters) if parameter is loss.weight)
    states = checkpoint["optimizer_states"][0]["state"]
    state = states.pop(place, {})
    rows |= {key: value for key, value in state.items() if has_rows(value, loss.weight)}
    states[place] = {key: value for key, value in state.items() if key not in rows}
    of_step = f"classes_{checkpoint['global_step']}_of_{loss.ranks}"
    checkpoint[CLASSES] = {"folder": of_step, "place": place, "shape": tuple(_shape(loss))}
    file = f"{loss.classes.start}_to_{loss.classes.stop}.safetensors"
    save_whole(lambda opened: opened.write(save(rows)), folder / of_step / file)


def load_classes(checkpoint: dict[str, Any], name: str, loss: PartialFC, folder: Path) -> None:
    """Add this rank's class vectors and optimizer state, which other ranks may have written, to a checkpoint."""
    stored, classes = checkpoint[CLASSES], loss.classes
    if tuple(stored["shape"]) != _shape(loss):
        raise UserError(f"{LAST} has classes × embedding size {tuple(stored['shape'])}; the config {_shape(loss)}")
    columns: dict[str, list[Tensor]] = {}
    files = {int(file.name.partition("_")[0]): file for file in (folder / stored["folder"]).glob("*.safetensors")}
    for begin, file in sorted(files.items()):
        first, after = max(begin, classes.start), min(int(file.stem.rpartition("_")[2]), classes.stop)
        if first < after:
            require_recorded_sha256(file)
            with safe_open(file, "pt") as rows:
                for key in rows.keys():  # noqa: SIM118
                    columns.setdefault(key, []).append(rows.get_slice(key)[first - begin : after - begin])
    tensors = {key: torch.cat(parts) for key, parts in columns.items()}
    if len(tensors.get("weight", ())) != len(classes):
        raise UserError(f"{folder / stored['folder']} lacks class vectors: copy it with the checkpoint that names it")
    checkpoint["state_dict"][name] = tensors.pop("weight")
    checkpoint["optimizer_states"][0]["state"][stored["place"]] |= tensors


def _shape(loss: PartialFC) -> tuple[int, int]:
    return loss.num_classes, loss.weight.shape[1]


def last_checkpoint(output: Path) -> Path | None:
    """Returns the checkpoint in OUTPUT_DIR from which a run resumes; None if there is none."""
    last = output.expanduser() / CHECKPOINTS / LAST
    return last if last.exists() else None


def steps_of(checkpoint: Path) -> int:
    """Returns the number of training steps of a checkpoint."""
    return int(_read(checkpoint)["global_step"])


def logged_runs(checkpoint: Path) -> dict[str, str]:
    """Returns the run of each logger, such as MLflow's id, by the logger's class."""
    runs: dict[str, str] = _read(checkpoint).get(LOGGED, {})
    return runs


def check_resumable(cfg: CN, checkpoint: Path) -> tuple[int, int]:
    """Returns a checkpoint's complete epochs and steps of the next epoch; raises unless the config fits."""
    content = _read(checkpoint)
    if not {"loops", "optimizer_states", CONFIG_KEY} <= content.keys():
        raise UserError(f"{checkpoint} holds weights alone: start anew from them with MODEL.WEIGHTS")
    progress = content["loops"]["fit_loop"]
    epoch = progress["epoch_progress"]["current"]
    epochs, is_within_epoch = int(epoch["processed"]), epoch["started"] > epoch["processed"]
    steps = int(progress["epoch_loop.batch_progress"]["current"]["processed"]) if is_within_epoch else 0
    if epochs > cfg.SOLVER.MAX_EPOCH:
        raise UserError(f"SOLVER.MAX_EPOCH is {cfg.SOLVER.MAX_EPOCH}; {checkpoint} has {epochs} epochs behind it")
    parts = [OPTIMIZER_REGISTRY.entry(cfg.SOLVER.OPT)]
    held = list(_HELD)
    # The state of a LambdaLR has no functions: they are those of the config.
    if any("lr_lambdas" not in state for state in content["lr_schedulers"]):
        schedule = SCHEDULER_REGISTRY.entry(cfg.SOLVER.SCHED)
        parts.append(schedule)
        if "max_epochs" in arguments_of(schedule.part, schedule.registry):
            held.append("SOLVER.MAX_EPOCH")
    held += [f"SOLVER.{key}" for entry in parts for key in entry.flat]
    before = _held_values(yaml.safe_load(content[CONFIG_KEY]), held, parts)
    config = _held_values(yaml.safe_load(cfg.dump()), held, parts)
    changed = [f"  {key} = {now!r}: was {before[key]!r}" for key, now in config.items() if now != before[key]]
    if changed:
        raise UserError(
            f"{checkpoint} cannot be resumed with other settings:\n" + "\n".join(changed) + "\n"
            "Resume with the values as they were, or start anew from its weights with MODEL.WEIGHTS"
        )
    return epochs, steps


def _held_values(config: Mapping[str, Any], keys: Sequence[str], parts: Iterable[Entry]) -> dict[str, Any]:
    """Returns the values of keys and of the nodes of parts of SOLVER, by key.

    TEST.BEST is the metric of best.ckpt, which depends on TEST.METRICS if the config leaves it out.
    """
    values = {key: value_of(config, key) for key in keys}
    if values["TEST.BEST"] != KEEP_LAST:
        values["TEST.BEST"] = best_metric(CN(config["DATASETS"]), CN(config["TEST"]))
    for entry in parts:
        node = node_of(config["SOLVER"], entry)
        for key, (_, default) in keys_of(entry).items():
            default = list(default) if isinstance(default, tuple) else default  # as YAML has it
            values[f"SOLVER.{entry.node}.{key}"] = node.get(key, default)
    return values


def with_recorded_norm(cfg: CN, checkpoint: Path) -> CN:
    """Returns the config of a resumed run: norms that it freezes stay trained if the run began from random weights."""
    recorded = yaml.safe_load(_read(checkpoint).get(CONFIG_KEY, cfg.dump()))
    norm = value_of(recorded, "MODEL.BACKBONE.NORM")
    if cfg.MODEL.BACKBONE.NORM != "FrozenBN" or norm != "BN":
        return cfg
    cfg = cfg.clone()
    cfg.merge_from_list(["MODEL.BACKBONE.NORM", norm])
    return cfg


def _read(checkpoint: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    return content
