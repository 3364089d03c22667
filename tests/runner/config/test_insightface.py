"""insightface's configs become YAML, and nothing in them is run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pml_ext._errors import UserError
from pml_ext.cli import main
from pml_ext.runner.checks.check import problems
from pml_ext.runner.checks.supported import unsupported
from pml_ext.runner.config.insightface import convert
from pml_ext.runner.config.load import load_config

CONFIG = """from easydict import EasyDict as edict

# a comment

config = edict()
config.margin_list = (1.0, 0.0, 0.4)
config.network = "mbf"
config.resume = False
config.output = None
config.embedding_size = 512
config.sample_rate = 1.0
config.fp16 = True
config.momentum = 0.9
config.weight_decay = 1e-4
config.batch_size = 128
config.lr = 0.1
config.verbose = 2000
config.dali = True

config.rec = "/data/faces"
config.num_classes = 3 * 1000
config.num_image = 100000
config.num_epoch = 20
config.warmup_epoch = config.num_epoch // 10
config.val_targets = ['lfw', 'cfp_fp', "agedb_30"]
"""


def as_yaml(found: dict[str, Any], path: Path) -> Path:
    path.write_text(yaml.safe_dump({key: value for key, value in found.items() if key != "comments"}))
    return path


def converted(folder: Path, *lines: str, processes: int = 8, config: str = CONFIG) -> dict[str, Any]:
    """The keys of the YAML, `comments` among them."""
    (folder / "faces.py").write_text("\n".join([config, *lines]))
    text = convert(folder / "faces.py", processes)
    return yaml.safe_load(text) | {"comments": [line for line in text.splitlines() if line.startswith("#")]}


def test_the_keys_of_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = converted(tmp_path)
    model, solver = found["MODEL"], found["SOLVER"]
    assert model["BACKBONE"] == {"NAME": "build_mobilefacenet_backbone", "DEPTH": "mbf"}
    heads = model["HEADS"]
    assert (heads["CLS_LAYER"], heads["MARGIN"], heads["SCALE"], heads["NUM_CLASSES"]) == ("CosSoftmax", 0.4, 64, 3000)
    assert not heads["PFC"]["ENABLED"]
    assert (solver["SCHED"], solver["WARMUP_EPOCHS"], solver["MAX_EPOCH"]) == ("PolynomialLR", 2, 20)
    assert (solver["IMS_PER_BATCH"], solver["BASE_LR"], solver["OPT"]) == (1024, 0.1, "SGD")
    assert {solver[f"WEIGHT_DECAY{part}"] for part in ("", "_NORM", "_BIAS")} == {1e-4}
    assert found["TEST"] == {"EVAL_PERIOD": 0, "EVAL_STEPS": 2000}
    assert found["DATASETS"] == {"REC_PATH": "/data/faces/train.rec", "TESTS": ["LFW", "CFP_FP", "AgeDB_30"]}
    assert found["OUTPUT_DIR"] == "logs/insightface/faces"
    out = tmp_path / "faces.yml"
    assert main(["convert-config", str(tmp_path / "faces.py"), "--output", str(out)]) == 0
    assert not unsupported(load_config(out, []), processes=8)
    capsys.readouterr()
    assert main(["convert-config", str(tmp_path / "faces.py")]) == 0
    assert capsys.readouterr().out == out.read_text()


def test_what_others_have(tmp_path: Path) -> None:
    lines = ('config.network = "r50"', "config.margin_list = (1.0, 0.5, 0.0)", "config.sample_rate = 0.2",
             "config.interclass_filtering_threshold = 0.4", 'config.optimizer = "adamw"', "config.warmup_epoch = -1",
             "config.gradient_acc = 12", "config.val_targets = []", 'config.output = "here"')  # fmt: skip
    found = converted(tmp_path, *lines, processes=2)
    assert found["MODEL"]["BACKBONE"] == {"NAME": "build_iresnet_backbone", "DEPTH": "50x"}
    heads, solver = found["MODEL"]["HEADS"], found["SOLVER"]
    assert (heads["CLS_LAYER"], heads["MARGIN"]) == ("ArcSoftmax", 0.5)
    assert heads["PFC"] == {"ENABLED": True, "SAMPLE_RATE": 0.2}
    assert (solver["OPT"], solver["WARMUP_EPOCHS"], solver["CHUNK"], solver["IMS_PER_BATCH"]) == ("AdamW", 0, 128, 3072)
    assert found["TEST"] == {"EVAL_PERIOD": 0, "EVAL_STEPS": 0} and found["OUTPUT_DIR"] == "here"
    assert heads["FILTER_COSINE"] == 0.4
    assert not unsupported(load_config(as_yaml(found, tmp_path / "faces.yml"), []), processes=2)


def test_vision_transformers(tmp_path: Path) -> None:
    lines = ('config.network = "vit_t"', 'config.optimizer = "adamw"', "config.sample_rate = 0.3")
    found = converted(tmp_path, *lines)
    assert problems(load_config(as_yaml(found, tmp_path / "faces.yml"), []), processes=8) == []


def test_a_base_beside_it_is_below_it(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text("config = edict()\nconfig.seed = 7\nconfig.lr = 9\n")
    found = converted(tmp_path)
    assert (found["SEED"], found["SOLVER"]["BASE_LR"]) == (7, 0.1)
    (tmp_path / "base.py").unlink()
    assert converted(tmp_path)["SEED"] == 2048


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("open('/tmp/x', 'w')", r"line \d+: expected config\.KEY = a literal.*got open.*never run"),
        ("config.lr = 10 ** 10 ** 10", r"got 10 \*\* 10"),
        ("config.lr = " + "+".join("1" * 3000), "nested too deep|is not a Python file"),
        ("config.seed = 1j", "a value of another kind"),
        ("config.lr = 1 / 0", "division by zero"),
        ("config.lrate = 1", "unknown settings lrate; known are .*lr"),
        ("config.margin_list = (1.0, 0.3, 0.2)", r"neither ArcFace's \(1, m, 0\) nor CosFace's"),
        ("config.network = 'r2060'", "network must be one of r18, .*, vit_h; got 'r2060'"),
        ("config.lr = (", "is not a Python file"),
        ("config.lr = " + "-" * 100_000 + "1", "is not a Python file|got"),
    ],
)
def test_anything_else_is_refused(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        converted(tmp_path, line)


def test_a_text_stays_in_its_comment(tmp_path: Path) -> None:
    found = converted(tmp_path, "config.val_targets = ['x\\nSEED: 5']", "config.output = 'y\\nSEED: 6\\n'")
    assert found["SEED"] == 2048


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.rec, config\.num_classes, config\.num_epoch is missing"):
        converted(tmp_path, config="config = edict()")
    with pytest.raises(UserError, match="--num-gpus must be 1 or more; got 0"):
        converted(tmp_path, processes=0)
    assert main(["convert-config", str(tmp_path / "none.py")]) == 2
