"""`pml-ext check-config` and `pml-ext convert-config`."""

from argparse import Namespace
from pathlib import Path

from pml_ext.cli.arguments import CONFIG, KEY, NUM_GPUS, NUM_MACHINES, Argument, Command, config_files


def _check(options: Namespace) -> int:
    from pml_ext.runner.checks.check import check_files

    files, overrides = config_files(options)
    text, status = check_files(files, overrides, processes=options.num_gpus * options.num_machines)
    print(text)
    return status


CHECK_CONFIG = Command(
    "check-config",
    "Check config files without training, and list every problem.",
    _check,
    [
        Argument(
            "FILE… [KEY VALUE]…",
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


def _convert(options: Namespace) -> None:
    from pml_ext._files import write_atomically
    from pml_ext.runner.config.insightface import convert

    text = convert(Path(options.file), options.num_gpus)
    if options.output is None:
        print(text, end="")
    else:
        write_atomically(options.output, text)
        print(f"{options.output}; check it with pml-ext check-config {options.output}")


CONVERT_CONFIG = Command(
    "convert-config",
    "Convert a config of insightface's arcface_torch to YAML.",
    _convert,
    [
        Argument("FILE", "insightface config, a Python file; it is read and never run."),
        Argument("--num-gpus N", "Processes that share a batch; insightface trains with 8", type=int, default=8),
        Argument("--output FILE", "YAML to write [default: print it]"),
    ],
    "pml-ext convert-config ms1mv3_r50.py --num-gpus 8 --output ms1mv3_r50.yml",
)
