"""`pml-ext export`: a model as one file for other programs."""

from argparse import ArgumentParser, Namespace

from pml_ext.cli.arguments import KEY, Command, add_config, trained_config


def _add_arguments(parser: ArgumentParser) -> None:
    add_config(parser, "RUN | FILE [KEY VALUE]…", "OUTPUT_DIR of a run or config file, and config overrides")
    parser.add_argument("--format", required=True, choices=["onnx", "torchscript"], help="File format")
    parser.add_argument("--output", required=True, metavar="FILE", help="File to write")
    parser.add_argument("--half", action="store_true", help="Use 16-bit precision except in the heads.")


def _export(options: Namespace) -> None:
    from pml_ext.runner.checks.check import load_checked
    from pml_ext.runner.engine import exporting

    cfg = load_checked(*trained_config(options))
    exporting.export(cfg, options.output, options.format, half=options.half)


EXPORT = Command(
    "export",
    "Write a trained model to an ONNX or TorchScript file, checked against the model.",
    _add_arguments,
    _export,
    "pml-ext export logs/glyphs --format onnx --output model.onnx",
    notes="Set MODEL.WEIGHTS in the config file or on the command line; a run has its own.\n",
    key=KEY,
)
