"""The words of a command line in any order, the contract of every command, and how a command ends."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pml_ext.cli import COMMANDS, GROUPS, STDOUT_CLOSED, main, parse, parsers_of_commands
from pml_ext.cli.arguments import config_files, trained_config, training_config
from pml_ext.runner.checks import listing

ROOT = Path(__file__).parents[2]
_FENCED = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.M | re.S)
EXPORT = ["--format", "onnx", "--output", "model.onnx"]


def errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that ends with exit status 2 says."""
    try:
        status = main(words)
    except SystemExit as stop:
        status = stop.code
    assert status == 2, words
    return capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, parser = COMMANDS[name], parsers_of_commands()[1][name]
    example, options = parse(shlex.split(command.example)[1:])
    assert example is command and command.example.startswith(f"pml-ext {name}")
    if command.key is not None:
        assert all(command.key.fullmatch(key) for key in options.overrides[::2])
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and shown.endswith(f"example:\n  {command.example}\n")
    assert shown.startswith(f"usage: pml-ext {name} [-h]") and command.about.endswith(".")
    for action in parser._actions[1:]:
        assert len(action.option_strings) <= 1, "one spelling"
        assert re.search(r"^[A-Za-z].*[.\]]$|^\S*://", str(action.help)), action
    dests = [action.dest for action in parser._actions]
    reads_a_config_or_a_run = {"words", "run", "overrides"} & set(dests) or command.key is not None
    assert not reads_a_config_or_a_run or "imports" in dests


def test_the_help_lists_every_command_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        shown = capsys.readouterr().out
        assert not stop.value.code and shown.startswith("usage: pml-ext ")
        assert re.findall(r"^(\w.*):$", shown, re.M) == [*GROUPS] == ["train", "use", "thresholds", "look up"]
        assert re.findall(r"^  (\S+(?: \S+)?)  ", shown, re.M) == [*COMMANDS]
        assert shown.endswith("\nSee `pml-ext COMMAND --help`.\n")


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
    options = parse(["export", *words])[1]
    assert (options.format, options.output) == ("onnx", "model.onnx")
    assert trained_config(options) == ("my.yml", ["MODEL.WEIGHTS", "last.ckpt"])


def test_every_command_with_a_config_takes_them_so() -> None:
    train = parse(["train", "SEED", "3", "my.yml", "--num-gpus", "2", "SOLVER.BASE_LR", "1e-3", "--resume"])[1]
    assert (train.num_gpus, train.resume) == (2, True)
    assert training_config(train) == ("my.yml", ["SEED", "3", "SOLVER.BASE_LR", "1e-3"])
    measured = parse(["eval", "--config-file", "my.yml", "OUTPUT_DIR", "out", "--machine-rank", "1"])[1]
    assert (trained_config(measured), measured.machine_rank) == (("my.yml", ["OUTPUT_DIR", "out"]), 1)
    checked = parse(["check-config", "a.yml", "SEED", "1", "b.yml", "--num-gpus", "4"])[1]
    assert (config_files(checked), checked.num_gpus) == ((["a.yml", "b.yml"], ["SEED", "1"]), 4)
    assert config_files(parse(["check-config", "b.yml", "--config-file", "a.yml"])[1])[0] == ["a.yml", "b.yml"]


def test_a_value_may_look_like_an_option_or_a_key_and_an_options_value_like_a_key() -> None:
    words = ["train", "my.yml", "MODEL.HEADS.MARGIN", "-1e-3", "MODEL.LOSSES.CE.EPSILON", "-1", "MODEL.WEIGHTS", "A"]
    assert training_config(parse(words)[1]) == ("my.yml", words[2:])
    exported = parse(["export", "my.yml", "--format", "onnx", "--output", "B.C"])[1]
    assert (exported.output, exported.overrides) == ("B.C", [])
    misspelt = ["solver.base_lr", "1"]  # left to the config to name
    assert training_config(parse(["train", "my.yml", *misspelt])[1]) == ("my.yml", misspelt)


def test_names_of_images_are_no_keys() -> None:
    words = ["DSC_0001.JPG", "--output", "f.npz", "MODEL.WEIGHTS", "W", "--half", "IMAGES", "--model", "a.yml"]
    options = parse(["embed", *words])[1]
    assert (options.images, options.overrides, options.half) == (["DSC_0001.JPG", "IMAGES"], words[3:5], True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train", "error: a config FILE is required, or a folder of images"),
        ("eval", "error: a config FILE is required, or a run"),
        ("eval logs/non", "error: no run and no config file at logs/non"),
        ("eval e.npz", "e.npz is no config file; for precomputed embeddings: pml-ext evaluate e.npz"),
        ("train my.yml --epochs 3", "pml-ext train: error: unrecognized arguments: --epochs"),
        ("train my.yml --resum", "unrecognized arguments: --resum; did you mean --resume?"),
        ("threshold choose e.npz --far 0.1 --group x", "--group x; did you mean --groups?"),
        ("export my.yml", "required: --format, --output"),
        ("embed a.jpg --output g", "required: --model"),
        ("trian", "no command 'trian'; did you mean train?"),
        ("check_config", "did you mean check-config?"),
        ("xyz", "no command 'xyz'. Known: train, eval, report"),
        ("threshold chose e.npz", "pml-ext threshold: error: argument {choose,check,compare}: invalid choice: 'chose'"),
        ("threshold --far 0.1", "pml-ext threshold: error: "),
        ("threshold choose e.npz", "one of the arguments --far --frr --fpir is required"),
        ("threshold choose e.npz --far 0.1 --frr 0.1", "not allowed with argument --far"),
        ("threshold compare a.npz b.npz", "one of the arguments --far --fpir is required"),
        ("evaluate e.npz --distractors d --normalize gallery", "not allowed with argument --distractors"),
        ("list loses", "error: list: unknown value 'loses'; did you mean 'losses'?"),
    ],
)
def test_mistakes_are_named(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in errors(words.split(), capsys)


def test_list_says_what_it_can_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["losses", "miners", "backbones"]


def test_the_command_lines_of_all_pages_are_parsed() -> None:
    pages = [ROOT / "README.md", *(ROOT / "examples").rglob("*.md")]
    blocks = [block for page in pages for block in _FENCED.findall(page.read_text(encoding="utf-8"))]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith("pml-ext ")]
    commands = {parse(shlex.split(line, comments=True)[1:])[0].name for line in found}
    assert commands >= {"train", "eval", "embed", "search", "evaluate", "threshold choose", "threshold check"}


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


def test_help_errors_and_lists_wait_for_no_library() -> None:
    """Of all commands, in one process; the list of data sets reads NumPy's files."""
    code = (
        "import sys; from pml_ext.cli import COMMANDS, main\n"
        "def run(*words):\n    try: main(words)\n    except SystemExit: pass\n"
        "run('--help'); run('train', '--epochs'); run('list')\n"
        "for name in COMMANDS: run(*name.split(), '--help')\n"
        "print([name for name in ('torch', 'numpy', 'lightning', 'timm') if name in sys.modules])\n"
        "run('list', 'datasets'); print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "[]" in shown.splitlines() and shown.splitlines()[-1] == "False"


def test_a_missing_package_is_named_and_a_module_of_python_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lack(module: str) -> None:
        def list_names(kind: str | None) -> None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)

        monkeypatch.setattr(listing, "list_names", list_names)

    lack("lightning.pytorch")
    hint = "No module named 'lightning.pytorch'. It comes with an extra: pip install 'pml_ext[train]'"
    assert hint in errors(["list"], capsys)
    lack("fcntl")
    with pytest.raises(ModuleNotFoundError):
        main(["list"])


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_the_package_is_the_command(words: list[str]) -> None:
    shown = subprocess.run([sys.executable, "-m", "pml_ext", *words], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("usage: pml-ext" if words == ["--help"] else "0.")
