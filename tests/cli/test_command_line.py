"""The words of a command line, in any order."""

import os
import subprocess
import sys

import pytest

from pml_ext import commands
from pml_ext.cli import STDOUT_CLOSED, main, parse

EXPORT = ["--format", "onnx", "--output", "model.onnx"]


@pytest.mark.parametrize(
    "words",
    [
        ["--config-file", "my.yml", "MODEL.WEIGHTS", "last.ckpt", *EXPORT],
        ["--config-file", "my.yml", *EXPORT, "MODEL.WEIGHTS", "last.ckpt"],
        ["my.yml", "MODEL.WEIGHTS", "last.ckpt", *EXPORT],
        ["MODEL.WEIGHTS", "last.ckpt", *EXPORT, "my.yml"],
        [*EXPORT[:2], "my.yml", *EXPORT[2:], "MODEL.WEIGHTS", "last.ckpt"],
    ],
)
def test_options_stand_before_and_after_overrides(words: list[str]) -> None:
    arguments = parse(["export", *words])
    assert (arguments.config_file, arguments.format, arguments.output) == ("my.yml", "onnx", "model.onnx")
    assert arguments.overrides == ["MODEL.WEIGHTS", "last.ckpt"]


def test_every_command_with_a_config_takes_them_so() -> None:
    train = parse(["train", "SEED", "3", "my.yml", "--num-gpus", "2", "SOLVER.BASE_LR", "1e-3", "--resume"])
    assert (train.config_file, train.num_gpus, train.resume) == ("my.yml", 2, True)
    assert train.overrides == ["SEED", "3", "SOLVER.BASE_LR", "1e-3"]
    measured = parse(["eval", "--config-file", "my.yml", "OUTPUT_DIR", "out", "--machine-rank", "1"])
    assert (measured.config_file, measured.overrides, measured.machine_rank) == ("my.yml", ["OUTPUT_DIR", "out"], 1)
    checked = parse(["check-config", "a.yml", "SEED", "1", "b.yml", "--num-gpus", "4"])
    assert (checked.files, checked.overrides, checked.num_gpus) == (["a.yml", "b.yml"], ["SEED", "1"], 4)
    assert parse(["check-config", "b.yml", "--config-file", "a.yml"]).files == ["a.yml", "b.yml"]


def test_a_value_may_look_like_an_option_or_a_key_and_an_options_value_like_a_key() -> None:
    words = ["train", "my.yml", "MODEL.HEADS.MARGIN", "-1e-3", "MODEL.LOSSES.CE.EPSILON", "-1", "MODEL.WEIGHTS", "A"]
    assert parse(words).overrides == words[2:]
    assert parse(["eval", "--embeddings", "A", "--out", "B.C"]).out == "B.C"
    assert parse(["eval", "--embeddings", "A"]).config_file is None


def test_names_of_pictures_are_no_keys() -> None:
    words = ["DSC_0001.JPG", "--output", "f.npz", "MODEL.WEIGHTS", "W", "--half", "IMAGES", "--config-file", "a.yml"]
    embedded = parse(["embed", *words])
    assert (embedded.images, embedded.overrides, embedded.half) == (["DSC_0001.JPG", "IMAGES"], words[3:5], True)


def test_a_misspelt_key_is_left_to_the_config_to_name() -> None:
    assert parse(["train", "my.yml", "solver.base_lr", "1"]).overrides == ["solver.base_lr", "1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "pml-ext train: error: a config FILE is required, or a folder of images"),
        (["eval"], "a config FILE is required, or a run (or --embeddings FILE)"),
        (["train", "my.yml", "--epochs", "3"], "unrecognized arguments: --epochs"),
        (["export", "my.yml"], "required: --format, --output"),
        (["trian"], "no command 'trian'; did you mean train?"),
        (["check_config"], "did you mean check-config?"),
        (["xyz"], "no command 'xyz'. Known: train, eval, threshold"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    assert not stop.value.code
    assert capsys.readouterr().out.startswith("usage: pml-ext")


def test_a_misspelt_kind_says_which_is_close(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "loses"]) == 2
    assert "did you mean 'losses'?" in capsys.readouterr().err


def test_list_says_what_it_can_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["losses", "miners", "backbones"]


@pytest.mark.parametrize(("command", "unbuffered"), [("list", ""), ("configs", "1")])
def test_a_closed_pipe_ends_a_listing_quietly(command: str, unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run([sys.executable, "-m", "pml_ext", command], stdout=write, stderr=subprocess.PIPE, env=env)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (STDOUT_CLOSED, b"")


def test_threads_wait_passively_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert main(["list"]) == 0 and os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert main(["list"]) == 0 and os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.parametrize("words", [["--help"], ["eval", "--help"], ["list", "backbones"]])
def test_help_and_lists_wait_for_no_library(words: list[str]) -> None:
    code = "import sys; from pml_ext.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'numpy', 'lightning', 'timm') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"
    assert len(shown.splitlines()) > 5


def test_the_list_of_data_sets_waits_for_no_torch() -> None:
    code = "import sys; from pml_ext.cli import main; main(['list', 'datasets']); print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "False"


def test_a_missing_package_is_named_and_a_module_of_python_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lack(module: str) -> None:
        def command(kind: str | None) -> None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)

        monkeypatch.setattr(commands, "list_names", command)

    lack("lightning.pytorch")
    assert main(["list"]) == 2
    hint = "No module named 'lightning.pytorch'. It comes with an extra: pip install 'pml_ext[train]'"
    assert hint in capsys.readouterr().err
    lack("fcntl")
    with pytest.raises(ModuleNotFoundError):
        main(["list"])


def test_the_package_is_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "pml_ext", "--help"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("usage: pml-ext")
