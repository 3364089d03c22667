"""Commands on runs: `pml-ext train`, `eval`, `compare`, `export` and `check-config`."""

from argparse import Namespace
from pathlib import Path

from pml_ext.cli.arguments import (
    CONFIG,
    HALF,
    KEY,
    NUM_GPUS,
    NUM_MACHINES,
    PROCESSES,
    TRAINED,
    Argument,
    Command,
    config_files,
    launch_of,
    trained_config,
    training_config,
)


def _train(options: Namespace) -> None:
    from pml_ext.runner.checks.check import load_or_list_problems
    from pml_ext.runner.engine import run

    cfg = load_or_list_problems(*training_config(options))
    run.train(cfg, launch_of(options), resume=options.resume, overwrite=options.overwrite, profile=options.profile)


TRAIN = Command(
    "train",
    "Train a model, then evaluate it.",
    _train,
    [
        Argument(
            "IMAGES | FILE [KEY VALUE]",
            "Folder of images, table or config file, and config overrides.",
            dest="words",
            nargs="*",
        ),
        *CONFIG,
        *PROCESSES,
        Argument("--resume", "Resume from the last checkpoint in OUTPUT_DIR."),
        Argument("--overwrite", "Overwrite an existing run in OUTPUT_DIR."),
        Argument("--profile", "Print a time profile."),
    ],
    "pml-ext train products                        # a folder of class folders\n"
    "pml-ext train Glyphs/triplet.yml SEED 1       # a config and an override\n"
    "pml-ext train logs/glyphs/triplet --resume    # continue a run\n"
    "pml-ext train Market1501/bagtricks_R50.yml --num-gpus 4",
    key=KEY,
)


def _evaluate(options: Namespace) -> None:
    from pml_ext.runner.checks.check import load_or_list_problems
    from pml_ext.runner.config.files import evaluation_folder
    from pml_ext.runner.engine import run

    cfg = load_or_list_problems(*trained_config(options))
    launch = launch_of(options)
    cfg.defrost()
    cfg.OUTPUT_DIR = evaluation_folder(cfg.OUTPUT_DIR)
    cfg.freeze()
    run.evaluate(cfg, launch)


EVAL = Command(
    "eval",
    "Evaluate a trained model on its test sets.",
    _evaluate,
    [TRAINED, *CONFIG, *PROCESSES],
    "pml-ext eval logs/glyphs TEST.THRESHOLD.ENABLED True",
    notes="Writes the metrics and the report of a run to RUN/eval.\n"
    "Set MODEL.WEIGHTS in the config or on the command line; a run has one.\n",
    key=KEY,
)


def _check(options: Namespace) -> int:
    from pml_ext.runner.checks.check import check_files
    from pml_ext.runner.launch import Launch

    configs = config_files(options)
    processes = Launch(options.num_gpus, options.num_machines).processes
    text, status = check_files(configs, processes=processes)
    print(text)
    return status


CHECK_CONFIG = Command(
    "check-config",
    "Check config files without training, and list every problem.",
    _check,
    [
        Argument(
            "FILE [KEY VALUE]",
            "Config files, runs, images or tables, and config overrides.",
            dest="words",
            nargs="*",
        ),
        *CONFIG,
        NUM_GPUS,
        NUM_MACHINES,
    ],
    "pml-ext check-config Market1501/bagtricks_R50.yml DATASETS.ROOT datasets",
    notes="Exit status: 0 runs, 1 cannot run, 3 can run, but something is missing here.\n",
    key=KEY,
)


def _compare(options: Namespace) -> None:
    from pml_ext.runner.report import comparison

    comparison.compare([Path(run) for run in options.runs], Path(options.output))


COMPARE = Command(
    "compare",
    "Compare finished runs on one HTML page.",
    _compare,
    [
        Argument("RUN", "OUTPUT_DIRs of the runs.", dest="runs", nargs="+"),
        Argument("--output FILE", "Page to write", default="compare.html"),
    ],
    "pml-ext compare logs/triplet logs/triplet_tcm --output compare.html",
)


def _export(options: Namespace) -> None:
    from pml_ext.deploy.onnx_model import export
    from pml_ext.runner.checks.check import load_or_list_problems

    cfg = load_or_list_problems(*trained_config(options))
    export(cfg, options.output, half=options.half)
    print(f"use it with pml-ext embed IMAGES --model {options.output} --output GALLERY")


EXPORT = Command(
    "export",
    "Write a trained model to an ONNX file.",
    _export,
    [
        TRAINED,
        *CONFIG,
        Argument("--output FILE", "File to write.", required=True),
        HALF,
    ],
    "pml-ext export logs/glyphs --output model.onnx",
    notes="Set MODEL.WEIGHTS in the config or on the command line; a run has one.\n",
    key=KEY,
)
