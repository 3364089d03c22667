"""`pml-ext train` and `pml-ext eval`: run a config."""

from argparse import Namespace

from pml_ext.cli.arguments import (
    CONFIG,
    KEY,
    PROCESSES,
    TRAINED,
    Argument,
    Command,
    launch_of,
    trained_config,
    training_config,
)


def _train(options: Namespace) -> None:
    from pml_ext.runner.checks.check import load_checked
    from pml_ext.runner.engine import run

    cfg = load_checked(*training_config(options))
    run.train(cfg, launch_of(options), resume=options.resume, overwrite=options.overwrite, profile=options.profile)


TRAIN = Command(
    "train",
    "Train a model, then evaluate it.",
    _train,
    [
        Argument(
            "IMAGES | FILE [KEY VALUE]…",
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
    "pml-ext train --config-file Glyphs/triplet_tcm.yml OUTPUT_DIR logs/glyphs",
    key=KEY,
)


def _evaluate(options: Namespace) -> None:
    from pml_ext.runner.checks.check import load_checked
    from pml_ext.runner.config.run_folder import evaluation_folder
    from pml_ext.runner.engine import run

    cfg = load_checked(*trained_config(options))
    launch = launch_of(options)
    cfg.defrost()
    cfg.OUTPUT_DIR = evaluation_folder(cfg.OUTPUT_DIR)
    cfg.freeze()
    run.evaluate(cfg, launch)


EVAL = Command(
    "eval",
    "Evaluate a trained model on the test sets of its config.",
    _evaluate,
    [TRAINED, *CONFIG, *PROCESSES],
    "pml-ext eval logs/glyphs TEST.THRESHOLD.ENABLED True",
    notes="Set MODEL.WEIGHTS in the config or on the command line; a run has its own.\n"
    "For precomputed embeddings: `pml-ext evaluate`.\n",
    key=KEY,
)
