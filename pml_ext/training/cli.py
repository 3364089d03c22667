"""The `pml-ext` command, with FastReID's options."""

import argparse
import logging
import sys

from pml_ext._version import __version__


def main(argv: list[str] | None = None) -> int:
    """Run a command; a mistake in its input is one line on stderr and exit status 2."""
    arguments = _parser().parse_args(argv)
    log = logging.getLogger("pml_ext")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [logging.StreamHandler()]
    try:
        from pml_ext.training.config import ConfigError, load_config
        from pml_ext.training.datasets import DataError
        from pml_ext.training.module import TrainingError
        from pml_ext.training.run import evaluate_only, train
        from pml_ext.training.trainer import Launch
        from pml_ext.training.weights import WeightsError
    except ModuleNotFoundError as error:
        print(f"error: {error}. The runner needs its extra: pip install 'pml_ext[train]'", file=sys.stderr)
        return 2
    launch = Launch(arguments.num_gpus, arguments.num_machines, arguments.machine_rank, arguments.dist_url)
    try:
        cfg = load_config(arguments.config_file, arguments.opts)
        if arguments.command == "eval" or arguments.eval_only:
            evaluate_only(cfg, launch)
        else:
            train(cfg, launch, resume=arguments.resume)
    except (ConfigError, DataError, TrainingError, WeightsError) as error:
        log.error("error: %s", error)
        return 2
    except KeyboardInterrupt:
        log.error("stopped before the end; continue with --resume from the last checkpoint")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("pml-ext", description="Train and evaluate embedding models from YAML files.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in (("train", "train, then evaluate"), ("eval", "evaluate MODEL.WEIGHTS")):
        command = commands.add_parser(name, help=does, description=does)
        command.add_argument("--config-file", required=True, metavar="FILE", help="YAML, see fastreid_configs/")
        command.add_argument("--num-gpus", type=int, default=1, help="processes a machine (on CPU too)")
        command.add_argument("--num-machines", type=int, default=1)
        command.add_argument("--machine-rank", type=int, default=0, help="of this machine, from 0")
        command.add_argument("--dist-url", default="auto", help="tcp://address:port of machine 0")
        command.add_argument("opts", nargs=argparse.REMAINDER, metavar="KEY VALUE", help="config overrides")
        if name == "train":
            command.add_argument("--resume", action="store_true", help="go on from OUTPUT_DIR's last checkpoint")
        command.add_argument(
            "--eval-only", action="store_true", default=name == "eval", help="do not train; as `pml-ext eval`"
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
