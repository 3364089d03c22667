"""The contract of every command, the words of a command line in any order, and how a command ends."""

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pml_ext.cli import COMMANDS, GROUPS, GUIDES, STDOUT_CLOSED, main, parse, parsers_of_commands
from pml_ext.cli.arguments import config_files, trained_config, training_config
from pml_ext.runner.checks import listing

ROOT = Path(__file__).parents[2]
_FENCED = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.M | re.S)
# A file that is missing, for each command that reads one.
MISSING = {
    "train": "none.yml", "eval": "none.yml", "compare": "none none2",
    "export": "none.yml --output m.onnx", "embed": "none.jpg --model none.yml --output g",
    "search": "none.jpg --gallery none.npz", "metrics": "none.npz", "copy": "none.yml",
    "threshold choose": "none.npz --far 0.1", "threshold check": "none.json none.npz",
}  # fmt: skip


def shown_by(words, capsys, status=2):
    """The error, or the output, of a command that ends with this exit status."""
    try:
        ended = main(words)
    except SystemExit as stop:
        ended = int(stop.code or 0)
    assert ended == status, words
    shown = capsys.readouterr()
    return shown.err if status else shown.out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437"])
def test_streams_that_lack_characters_get_similar_ones(encoding, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([*name.split(), "--help"])
    assert main(["configs"]) == 0 and main(["list", "losses"]) == 0
    print("−0.1", "文 \udce9")
    stream.flush()
    shown = stream.buffer.getvalue().decode(encoding)
    assert "-0.1 \\u6587 \\udce9" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_keeps_the_contract(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    command, parser = COMMANDS[name], parsers_of_commands()[1][name]
    examples = [shlex.split(line, comments=True)[1:] for line in command.example.splitlines()]
    for words in examples:
        example, options = parse(words)
        assert example is command and command.about.endswith((".", ")."))
        assert command.key is None or all(command.key.fullmatch(key) for key in options.overrides[::2])
    text = shown_by([*name.split(), "--help"], capsys, 0)
    assert text == shown_by(["help", *name.split()], capsys, 0)
    assert text.startswith(f"usage: pml-ext {name} [-h]") and max(map(len, text.splitlines())) <= 80
    assert not any(part in text for part in ("……", "… ...", ".0]")) and all(action.help for action in parser._actions)
    indented = command.example.replace("\n", "\n  ")
    assert text.endswith(f":\n  {indented}\n\nGuides: {GUIDES}\n")
    reads_a_config = {"words", "run", "overrides"} & {action.dest for action in parser._actions}
    assert not (reads_a_config or command.key) or hasattr(options, "imports")
    assert "unrecognized arguments: --nonsense" in shown_by([*examples[0], "--nonsense"], capsys)
    monkeypatch.chdir(tmp_path)
    if name in MISSING:
        said = shown_by([*name.split(), *MISSING[name].split()], capsys)
        assert re.fullmatch(r"error: .*none.*\n", said), said


def test_the_help_lists_every_command_by_group(capsys):
    text = shown_by([], capsys, 0)
    assert text == shown_by(["--help"], capsys, 0) == shown_by(["help"], capsys, 0)
    assert re.findall(r"^(\w.*):$", text, re.M) == [*GROUPS] == ["train", "use", "thresholds", "look up"]
    assert re.findall(r"^  (\S+(?: \S+)?)  ", text, re.M) == [*COMMANDS]
    assert (
        text.endswith(f"\nSee `pml-ext COMMAND --help`.\nGuides: {GUIDES}\n") and max(map(len, text.splitlines())) <= 80
    )


def test_the_help_of_a_group_ends_like_that_of_a_command(capsys):
    text = shown_by(["threshold", "--help"], capsys, 0)
    assert text.startswith("usage: pml-ext threshold [-h]") and text.endswith(f"\nGuides: {GUIDES}\n")


def test_options_stand_before_and_after_overrides():
    options = parse(["export", "--output", "model.onnx", "--config-file", "my.yml", "MODEL.WEIGHTS", "last.ckpt"])[1]
    assert options.output == "model.onnx"
    assert trained_config(options) == ("my.yml", ["MODEL.WEIGHTS", "last.ckpt"])


def test_check_config_counts_the_processes_of_torchrun(monkeypatch, capsys):
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("GROUP_RANK", "0")
    assert main(["check-config", "Digits/sap_tcm.yml", "SOLVER.IMS_PER_BATCH", "48"]) == 1
    assert "DATALOADER.NUM_INSTANCE × processes = 16 × 2" in capsys.readouterr().out


def test_words_that_look_like_options_keys_and_files(tmp_path, monkeypatch):
    words = ["train", "my.yml", "MODEL.HEADS.MARGIN", "-1e-3", "MODEL.LOSSES.CE.EPSILON", "-1", "MODEL.WEIGHTS", "A"]
    train = parse([*words, "--num-gpus", "2", "--resume"])[1]
    assert (train.num_gpus, train.resume) == (2, True) and training_config(train) == ("my.yml", words[2:])
    words = ["SEED", "1", "b.yml", "--num-gpus", "4"]
    checked = parse(["check-config", "a.yml", *words])[1]
    assert (config_files(checked), checked.num_gpus) == ({"a.yml": words[:2], "b.yml": words[:2]}, 4)
    exported = parse(["export", "my.yml", "--output", "B.C"])[1]
    assert (exported.output, exported.overrides) == ("B.C", [])
    misspelt = ["solver.base_lr", "1"]  # left to the config to name
    assert training_config(parse(["train", "my.yml", *misspelt])[1]) == ("my.yml", misspelt)
    config = tmp_path / "mine.yml"
    config.write_text("DATASETS: {ALIASES: ['a=file:a.csv', 'b=file:b.csv']}")
    for command, overrides_of in (("train", training_config), ("eval", trained_config)):
        words = [command, "--config-file", str(config), "--dataset", "b=folder:b", "--dataset", "c=folder:c"]
        both = ["DATASETS.ALIASES", "('a=file:a.csv', 'b=folder:b', 'c=folder:c')"]
        assert overrides_of(parse(words)[1])[1] == both
    checked = parse(["check-config", str(config), "no.yml", *words[3:]])[1]
    assert config_files(checked) == {str(config): both, "no.yml": [both[0], "('b=folder:b', 'c=folder:c')"]}
    (tmp_path / "CUB" / "robin").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # a folder with the letters of a key
    config, overrides = training_config(parse(["train", "CUB", "SEED", "1"])[1])
    assert config.endswith("base.yml") and "folder:CUB" in overrides[1] and overrides[-2:] == ["SEED", "1"]
    words = ["DSC_0001.JPG", "--output", "f.npz", "MODEL.WEIGHTS", "W", "--half", "IMAGES", "--model", "a.yml"]
    options = parse(["embed", *words])[1]
    assert (options.images, options.overrides, options.half) == (["DSC_0001.JPG", "IMAGES"], words[3:5], True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train", "error: a config FILE is required, or a folder of images"),
        ("eval logs/non", "error: no run and no config file at logs/non"),
        ("eval e.npz", "e.npz is not a config file; for precomputed embeddings: pml-ext metrics e.npz"),
        ("train my.yml --resum", "unrecognized arguments: --resum; did you mean --resume?"),
        ("export my.yml", "required: --output"),
        ("trian", "no command 'trian'; did you mean train?"),
        ("threshold chose e.npz", "pml-ext threshold: error: argument {choose,check}: invalid choice: 'chose'"),
        ("threshold choose e.npz", "one of the arguments --far --frr --fpir is required"),
        ("metrics far=0.1.npz", "error: no gallery or file of embeddings at far=0.1.npz"),
        ("check-config Digits/sap_tcm.yml --num-gpus 0", "error: --num-gpus must be at least 1; got 0"),
        ("metrics e.npz --distractors d --cohort c.npz", "not allowed with argument --distractors"),
        ("list loses", "error: list: unknown value 'loses'; did you mean 'losses'?"),
    ],
)
def test_mistakes_are_named(words, message, capsys):
    assert message in shown_by(words.split(), capsys)


def test_the_command_lines_of_all_pages_are_parsed():
    pages = [ROOT / "README.md", *(ROOT / "examples").rglob("*.md")]
    blocks = [block for page in pages for block in _FENCED.findall(page.read_text(encoding="utf-8"))]
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [line for line in lines if line.startswith("pml-ext ")]
    commands = {parse(shlex.split(line, comments=True)[1:])[0].name for line in found}
    assert commands >= {"train", "eval", "embed", "search", "metrics", "threshold choose", "threshold check"}


@pytest.mark.parametrize(("command", "unbuffered"), [("list", ""), ("configs", "1")])
def test_a_closed_pipe_ends_a_listing_quietly(command, unbuffered):
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run([sys.executable, "-m", "pml_ext", command], stdout=write, stderr=subprocess.PIPE, env=env)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (STDOUT_CLOSED, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is full")
def test_a_full_disk_behind_stdout_is_one_line():
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "pml_ext", "--help"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ended.returncode == 1 and ended.stderr.startswith(b"error: standard output cannot be written: [Errno 28]")
    assert ended.stderr.count(b"\n") == 1


def test_threads_wait_passively_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert main(["list"]) == 0 and os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert main(["list"]) == 0 and os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_help_and_errors_wait_for_no_library():
    """Of all commands, in one process."""
    code = (
        "import sys; from pml_ext.cli import COMMANDS, main\n"
        "def run(*words):\n    try: main(words)\n    except SystemExit: pass\n"
        "run('--help'); run('train', '--epochs'); run('list')\n"
        "for name in COMMANDS: run(*name.split(), '--help')\n"
        "print([name for name in ('torch', 'numpy', 'lightning', 'timm') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"
    version = subprocess.run([sys.executable, "-m", "pml_ext", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("0.")


def test_a_missing_package_is_named_and_a_module_of_python_is_none(monkeypatch, capsys):
    def lack(module):
        def list_names(kind, **_):
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)

        monkeypatch.setattr(listing, "list_names", list_names)

    lack("lightning.pytorch")
    hint = "No module named 'lightning.pytorch'. It comes with an extra: pip install 'pml_ext[train]'"
    assert hint in shown_by(["list"], capsys)
    lack("fcntl")
    with pytest.raises(ModuleNotFoundError):
        main(["list"])
