"""Every published config can run; one of each kind does, at its own image size, on small copies of its data sets."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pml_ext.cli import main
from pml_ext.metrics.headings import label_of
from pml_ext.runner.checks import check
from pml_ext.runner.config.load import load_config
from pml_ext.runner.config.yaml_file import value_of
from pml_ext.runner.evaluation.selected_metrics import columns_of_queries
from tests.runner.data.published_layouts import LAYOUTS, face_bin
from tests.tiers import by_night

CONFIGS = Path(__file__).parents[2] / "fastreid_configs"
EVERY = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yml"))
LEAVES = [name for name in EVERY if not Path(name).name.startswith("Base-")]
FIRST_OF_FOLDER = list({Path(name).parent: name for name in reversed(LEAVES)}.values())
OTHERS = [name for name in EVERY if name not in FIRST_OF_FOLDER]
OF_A_KIND = [
    "CUB/loop/loop_triplet.yml",
    *by_night("Market1501/cit_sbs_R50.yml", "Market1501/cit_vit.yml", "CASIAWebFace/r50_ir.yml"),
]
# Of the same kind, with smaller checkpoints to write; that the whole networks are built is tested above.
SHALLOW = {"Market1501/cit_vit.yml": "small", "CASIAWebFace/r50_ir.yml": "18x"}
FROM_SCRATCH = ["MODEL.BACKBONE.PRETRAIN", "False"]
NETWORK = ("MODEL.BACKBONE", "MODEL.HEADS", "MODEL.META_ARCHITECTURE", "MODEL.PIXEL_MEAN", "INPUT")


@pytest.fixture(scope="module")
def built_once():
    """Builds a network once for all configs that have the same; it is most of the time of a check."""
    known, build = {}, check._network

    def network(cfg, classes):
        key = str(classes) + "".join(str(value_of(cfg, part)) for part in NETWORK)
        if key not in known:
            known[key] = build(cfg, classes)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "_network", network)
        yield


@pytest.mark.usefixtures("built_once")
@pytest.mark.parametrize("name", [*FIRST_OF_FOLDER, *by_night(*OTHERS)])
def test_it_can_run(name):
    assert check.problems(load_config(CONFIGS / name, FROM_SCRATCH)) == []


@pytest.mark.nightly
def test_each_has_an_output_of_its_own():
    outputs = [load_config(CONFIGS / name).OUTPUT_DIR for name in LEAVES]
    assert len(set(outputs)) == len(outputs)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("CUB/tcm/smoothap_tcm.yml", "R@1 R@4 R@16 OPIS ε-OPIS"),
        ("INaturalist2018/tcm/recall_at_k_tcm_vit.yml", "R@1 R@4 R@16 OPIS ε-OPIS"),
        ("Cars196/cit/cit.yml", "R@1 R@5 R@10 mAP mINP SV NMI"),
        ("CUB/loop/loop_triplet.yml", "NMI F1 R@1 R@2 R@4 R@8"),
        ("CUB/discriminative/one_hot.yml", "NMI R@1 R@2 R@4 R@8"),
        ("InShop/ms.yml", "R@1 R@10 R@20 R@30 R@40 R@50"),
        ("Market1501/bagtricks_R50.yml", "R@1 R@5 R@10 mAP@R mAP mINP OPIS ε-OPIS NMI"),
    ],
)
def test_a_papers_configs_have_its_columns(name, columns):
    test = load_config(CONFIGS / name).TEST
    assert [label_of(metric) for metric in columns_of_queries(test)] == columns.split()


def faces(root):
    LAYOUTS["CASIAWebFace"](root)
    for name in ("lfw", "agedb_30", "cfp_fp"):
        face_bin(root / "faces_emore" / f"{name}.bin", [True, False] * 2)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The data sets of the configs that train."""
    folder = tmp_path_factory.mktemp("datasets")
    for layout in (LAYOUTS["Market1501"], LAYOUTS["CUB"], faces):
        layout(folder)
    for extra in folder.glob("Market-1501-v15.09.15/bounding_box_train/*_c[36]*"):
        extra.unlink()  # two images of each identity are a single batch
    random = np.random.default_rng(0)
    for image in folder.rglob("*.[jJ][pP][gG]"):  # the layouts' are grey all over, and batch norm divides by nothing
        Image.fromarray(random.integers(0, 256, (12, 6, 3), dtype=np.uint8)).save(image)
    return folder


@pytest.mark.filterwarnings("ignore:epsilon_opis, opis are nan")  # so few images
@pytest.mark.parametrize("name", OF_A_KIND)
def test_it_trains_and_evaluates(name, root, tmp_path):
    cfg = load_config(CONFIGS / name)
    opts = [*FROM_SCRATCH, "MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(tmp_path), "SOLVER.MAX_EPOCH", "1"]
    opts += ["DATALOADER.NUM_WORKERS", "0", "TEST.VERIFICATION.FOLDS", "2"]
    if name in SHALLOW:
        opts += ["MODEL.BACKBONE.DEPTH", SHALLOW[name]]
    opts += ["DATASETS.ROOT", str(root), "SOLVER.IMS_PER_BATCH", "4", "DATALOADER.NUM_INSTANCE", "2"]
    assert main(["train", "--config-file", str(CONFIGS / name), *opts]) == 0
    results = json.loads((tmp_path / "metrics.json").read_text())["results"]
    assert list(results) == list(cfg.DATASETS.TESTS)
    shutil.rmtree(tmp_path / "checkpoints")  # half a gigabyte and more
