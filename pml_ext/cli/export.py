"""`pml-ext export`: writes a model as one file for other programs."""

from argparse import Namespace

from pml_ext.cli.arguments import CONFIG, HALF, KEY, TRAINED, Argument, Command, trained_config


def _export(options: Namespace) -> None:
    from pml_ext.runner.checks.check import load_checked
    from pml_ext.search import exporting

    cfg = load_checked(*trained_config(options))
    exporting.export(cfg, options.output, half=options.half)
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
