"""`pml-ext check-config`: every problem of config files."""

from argparse import Namespace

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
