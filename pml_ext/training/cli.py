"""The `pml-ext` command, with FastReID's options."""

import argparse
import logging
import sys
import warnings

from pml_ext._version import __version__
from pml_ext.training.embeddings.files import EmbeddingFileError
from pml_ext.training.embeddings.files import __doc__ as LAYOUT


def main(argv: list[str] | None = None) -> int:
    """Run a command; a mistake in its input is one line on stderr and exit status 2."""
    arguments = _parser().parse_args(argv)
    log = logging.getLogger("pml_ext")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [logging.StreamHandler()]
    if arguments.command == "threshold" or (arguments.command == "eval" and arguments.config_file is None):
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: log.warning("warning: %s", message)  # without our source line
            return _measure_files(arguments, log)
    if arguments.command == "eval" and (arguments.gallery or arguments.out):
        log.error("error: --gallery and --out are for --embeddings; a config has DATASETS.TESTS and OUTPUT_DIR")
        return 2
    try:
        from pml_ext.training.checks.check import check_files
        from pml_ext.training.checks.listing import list_names
        from pml_ext.training.config.load import ConfigError, load_config
        from pml_ext.training.data.datasets import DataError
        from pml_ext.training.engine.baseline import TrainingError
        from pml_ext.training.engine.checkpoints import CheckpointError
        from pml_ext.training.engine.exporting import ExportError, export
        from pml_ext.training.engine.run import evaluate_only, train
        from pml_ext.training.engine.trainer import Launch
        from pml_ext.training.modeling.weights import WeightsError
    except ModuleNotFoundError as error:
        print(f"error: {error}. The runner needs its extra: pip install 'pml_ext[train]'", file=sys.stderr)
        return 2
    try:
        if arguments.command == "list":
            print(list_names(arguments.kind))
            return 0
        if arguments.command == "check-config":
            text, all_run = check_files(arguments.words)
            print(text)
            return 0 if all_run else 1
        if arguments.command == "export":
            export(load_config(arguments.config_file, arguments.opts), arguments.output, arguments.format)
            return 0
        launch = Launch(arguments.num_gpus, arguments.num_machines, arguments.machine_rank, arguments.dist_url)
        cfg = load_config(arguments.config_file, arguments.opts)
        if arguments.command == "eval" or arguments.eval_only:
            evaluate_only(cfg, launch)
        else:
            train(cfg, launch, resume=arguments.resume, profile=arguments.profile)
    except (CheckpointError, ConfigError, DataError, ExportError, TrainingError, WeightsError) as error:
        log.error("error: %s", error)
        return 2
    except KeyboardInterrupt:
        log.error("stopped before the end; continue with --resume from the last checkpoint")
        return 130
    return 0


def _measure_files(arguments: argparse.Namespace, log: logging.Logger) -> int:
    """The commands on embeddings from files: without a config, and without what a runner needs."""
    try:
        if arguments.command == "threshold":
            from pml_ext.training.embeddings.threshold import report_threshold

            target = "utility" if arguments.max_utility else None
            rates = {"far": arguments.far, "frr": arguments.frr, "target": target}
            print(report_threshold(arguments.embeddings, checkpoint=arguments.checkpoint, out=arguments.out, **rates))
            return 0
        from pml_ext.training.embeddings.evaluate import evaluate_files

        launch = (arguments.num_gpus, arguments.num_machines, arguments.machine_rank, arguments.dist_url)
        if arguments.opts or launch != (1, 1, 0, "auto"):
            log.error("error: --embeddings takes --gallery and --out; KEY VALUE and processes are for --config-file")
            return 2
        print(evaluate_files(arguments.embeddings, arguments.gallery, arguments.out or "."))
    except (EmbeddingFileError, ModuleNotFoundError, OSError) as error:
        log.error("error: %s", error)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("pml-ext", description="Train and evaluate embedding models from YAML files.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in (("train", "train, then evaluate"), ("eval", "evaluate MODEL.WEIGHTS, or embeddings from files")):
        command = commands.add_parser(name, help=does, description=does)
        source = command.add_mutually_exclusive_group(required=True)
        source.add_argument("--config-file", metavar="FILE", help="YAML, see fastreid_configs/")
        if name == "eval":
            source.add_argument("--embeddings", metavar="FILE", help="measure embeddings made elsewhere, see below")
            command.add_argument("--gallery", metavar="FILE", help="what --embeddings search; without: each other")
            command.add_argument("--out", metavar="FOLDER", help="of --embeddings: for metrics.json; default: here")
            command.epilog, command.formatter_class = LAYOUT, argparse.RawDescriptionHelpFormatter
        command.add_argument("--num-gpus", type=int, default=1, help="processes a machine (on CPU too)")
        command.add_argument("--num-machines", type=int, default=1)
        command.add_argument("--machine-rank", type=int, default=0, help="of this machine, from 0")
        command.add_argument("--dist-url", default="auto", help="tcp://address:port of machine 0")
        command.add_argument("opts", nargs=argparse.REMAINDER, metavar="KEY VALUE", help="config overrides")
        if name == "train":
            command.add_argument("--resume", action="store_true", help="go on from OUTPUT_DIR's last checkpoint")
            command.add_argument("--profile", action="store_true", help="say where the time went")
        command.add_argument(
            "--eval-only", action="store_true", default=name == "eval", help="do not train; as `pml-ext eval`"
        )
    does = "choose a decision threshold on embeddings, and report what it does to each class"
    command = commands.add_parser(
        "threshold", help=does, description=does, epilog=LAYOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--embeddings", required=True, metavar="FILE", help="of validation, see below")
    target = command.add_mutually_exclusive_group(required=True)
    target.add_argument("--far", type=float, metavar="RATE", help="the largest false accept rate")
    target.add_argument("--frr", type=float, metavar="RATE", help="the largest false reject rate")
    target.add_argument("--max-utility", action="store_true", help="the best harmonic mean of 1 - FAR and 1 - FRR")
    command.add_argument("--checkpoint", metavar="FILE", help="the model; its hash is kept in the report")
    command.add_argument("--out", metavar="FOLDER", help="default: that of --checkpoint, else the current one")
    does = "say whether configs can run, without data and training, or all that keeps them from it"
    command = commands.add_parser("check-config", help=does, description=does)
    command.add_argument("words", nargs="+", metavar="FILE… [KEY VALUE]", help="YAML files, then config overrides")
    does = "list what a config can name"
    command = commands.add_parser("list", help=does, description=does)
    command.add_argument("kind", metavar="NAMES", help="losses, backbones, datasets, …; a wrong one lists all")
    does = "write MODEL.WEIGHTS as one file for other programs, checked against the model"
    command = commands.add_parser("export", help=does, description=does)
    command.add_argument("--config-file", required=True, metavar="FILE", help="the YAML that it was trained with")
    command.add_argument("--format", required=True, choices=["onnx", "torchscript"])
    command.add_argument("--output", required=True, metavar="FILE")
    command.add_argument("opts", nargs=argparse.REMAINDER, metavar="KEY VALUE", help="MODEL.WEIGHTS and more")
    return parser


if __name__ == "__main__":
    sys.exit(main())
