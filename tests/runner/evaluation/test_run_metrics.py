"""What a run measures, against the evaluators it is made of, and end to end for faces."""

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch.nn.functional import normalize

from pml_ext._shared.errors import UserError
from pml_ext.cli import main
from pml_ext.functional import opis
from pml_ext.metrics import CSLS, AccuracyCalculator, ReIDEvaluator, VerificationEvaluator
from pml_ext.metrics.headings import (
    ALL_PAIRS,
    LOWER_IS_BETTER,
    METRICS,
    label_of,
)
from pml_ext.runner.config.defaults import get_cfg
from pml_ext.runner.config.load import load_config
from pml_ext.runner.data.datasets import ImageSet, OpenSet, PairSet
from pml_ext.runner.engine.data_module import DataModule
from pml_ext.runner.evaluation.results import results_table
from pml_ext.runner.evaluation.run_metrics import Evaluation, device_with_room, query_and_gallery_embeddings
from tests.distributed.test_evaluation import EVALUATED, evaluate
from tests.runner.data import published_layouts as layouts
from tests.runner.modeling.networks import module_of

CPU = torch.device("cpu")


def part(identities, cameras):
    count = len(identities)
    return ImageSet(
        [torch.zeros(3, 4, 4, dtype=torch.uint8)] * count, np.asarray(identities), np.asarray(cameras), [""] * count
    )


def open_set():
    random = np.random.default_rng(0)
    query = part(np.repeat(np.arange(8), 3), random.integers(0, 3, 24))
    gallery = part(np.concatenate([np.repeat(np.arange(8), 6), [-1] * 5, [100] * 7]), random.integers(0, 3, 60))
    centres = torch.randn(120, 8)
    features = [normalize(centres[p.identities] + 1.2 * torch.randn(len(p), 8)) for p in (query, gallery)]
    return OpenSet(part([], []), query, gallery), features


def config(*options):
    cfg = get_cfg()
    cfg.merge_from_list([word for pair in options for word in pair])
    return cfg


def of(data):
    return [torch.from_numpy(ids) for p in data.parts for ids in (p.identities, p.cameras)]


def test_reranking_and_query_expansion_change_the_ranks_and_nothing_else():
    data, features = open_set()
    plain = Evaluation(config().TEST)(data, features)
    query_ids, query_cameras, gallery_ids, gallery_cameras = of(data)
    arguments = (features[0], query_ids, query_cameras, features[1], gallery_ids, gallery_cameras)
    for options, evaluator in (
        ([], ReIDEvaluator()),
        ([("TEST.AQE.ENABLED", True), ("TEST.AQE.QE_K", 4)], ReIDEvaluator(query_expansion={"k": 4})),
        (
            [("TEST.RERANK.ENABLED", True), ("TEST.RERANK.K1", 10)],
            ReIDEvaluator(rerank={"k1": 10, "definition": "fastreid"}),
        ),
    ):
        results = Evaluation(config(*options).TEST)(data, features)
        expected = evaluator(*arguments)
        assert results["precision_at_1"] == pytest.approx(expected["rank_1"])
        assert results["reid_mean_average_precision"] == pytest.approx(expected["mAP"])
        assert results["mean_inverse_negative_penalty"] == pytest.approx(expected["mINP"])
        assert {k: results[k] for k in ("opis", "NMI")} == {k: plain[k] for k in ("opis", "NMI")}
        if options:
            assert results["reid_mean_average_precision"] != plain["reid_mean_average_precision"]


def test_every_metric_that_a_config_can_name_is_measured():
    data, features = open_set()
    names = ("cmc", *METRICS, *ALL_PAIRS)
    results = Evaluation(config(("TEST.METRICS", names)).TEST)(data, features)
    ordered = Evaluation(config(("TEST.METRICS", ("NMI", "cmc")), ("TEST.RANKS", (4, 1))).TEST)(data, features)
    assert list(ordered) == ["NMI", "cmc_rank_4", "precision_at_1"]
    assert set(results) == {"cmc_rank_5", "cmc_rank_10", *METRICS, *ALL_PAIRS}
    too_few_pairs = {"tar_at_far_1e-4"}
    assert {name for name, value in results.items() if not math.isfinite(value)} <= too_few_pairs
    refined = Evaluation(config(("TEST.METRICS", names), ("TEST.AQE.ENABLED", True), ("TEST.AQE.QE_K", 4)).TEST)
    found = refined(data, features)
    of_ranks = {"r_precision", "mean_reciprocal_rank", "reid_mean_average_precision", "mean_average_precision_at_r"}
    assert of_ranks <= {name for name in results if found[name] != results[name]}
    assert {"f1", "spectral_variance", "verification_auc", "opis"} <= {n for n in results if found[n] == results[n]}


def test_opis_is_measured_as_the_config_says():
    data, features = open_set()
    plain = Evaluation(config().TEST)(data, features)
    embeddings, labels = query_and_gallery_embeddings(data, features)
    found = Evaluation(config(("TEST.OPIS.FAR_RANGE", (0.05, 0.2))).TEST)(data, features)
    assert found["opis"] == float(opis(embeddings, labels, far_range=(0.05, 0.2))) != plain["opis"]
    of_half = Evaluation(config(("TEST.OPIS.EPSILON", 0.5)).TEST)(data, features)
    assert of_half["epsilon_opis"] < plain["epsilon_opis"] and of_half["opis"] == plain["opis"]


def test_pairs_of_images_are_verified_in_folds():
    same = np.arange(40) % 2 == 0
    first = normalize(torch.randn(40, 8))
    second = normalize(torch.where(torch.from_numpy(same)[:, None], first, 0) + 0.2 * torch.randn(40, 8))
    pairs = torch.stack([first, second], 1).flatten(0, 1)
    data = PairSet(part(np.zeros(80, dtype=int), np.zeros(80, dtype=int)), same)
    found = Evaluation(config(("TEST.VERIFICATION.FARS", (0.1,)), ("TEST.VERIFICATION.FOLDS", 5)).TEST)(data, [pairs])
    assert found == VerificationEvaluator((0.1,), folds=5)(first, second, torch.from_numpy(same))
    assert found["accuracy"] > 0.7


@pytest.mark.parametrize(
    ("key", "fitting", "parts", "message"),
    [
        ("RERANK.K1", 83, 2, r"TEST\.RERANK\.K1 must be from 1 to 83, fewer than queries and gallery items; got 84"),
        ("AQE.QE_K", 84, 2, r"TEST\.AQE\.QE_K must be from 1 to the 84 queries and gallery items; got 85"),
        ("CSLS.K", 54, 2, r"TEST\.CSLS\.K must be from 1 to 54, the cohort size minus the sample itself; got 55"),
        ("CSLS.K", 23, 1, r"TEST\.CSLS\.K must be from 1 to 23, the cohort size minus the sample itself; got 24"),
        ("AQE.QE_K", 4, 1, r"TEST\.AQE and TEST\.RERANK need a separate gallery\. Set both to False"),
    ],
)
def test_what_a_test_set_is_too_small_for_is_one_message_before_training(key, fitting, parts, message, monkeypatch):
    data, features = open_set()
    data, features = OpenSet(data.train, *data.parts[:parts]), features[:parts]
    monkeypatch.setattr("pml_ext.runner.engine.data_module.load_test_sets", lambda *_, **__: {"Set": data})
    cfg = config((f"TEST.{key.partition('.')[0]}.ENABLED", True), (f"TEST.{key}", fitting + 1))
    with pytest.raises(UserError, match=f"^Set: {message}"):
        DataModule(cfg, training=False)
    if key != "AQE.QE_K" or parts == 2:
        cfg.merge_from_list([f"TEST.{key}", fitting])
        DataModule(cfg, training=False)
        assert Evaluation(cfg.TEST)(data, features)


def test_embeddings_that_are_not_finite_are_one_message():
    data, features = open_set()
    features[1][4] = math.nan
    with pytest.raises(ValueError, match="finite; got NaN or infinity in 1 of 60 rows"):
        Evaluation(get_cfg().TEST)(data, features)


def test_flipped_tests_average_an_image_and_its_mirror_image():
    module = module_of(load_config("Digits/sap_tcm.yml", ["TEST.FLIP.ENABLED", "True"])).eval()
    images = 255 * torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        module.validation_step({"images": images, "rows": torch.arange(3)}, 0)
        both = module.model({"images": images}) + module.model({"images": images.flip(-1)})
    ((_, found),) = module._collected[0]
    torch.testing.assert_close(found, normalize(both))


def test_a_face_model_is_trained_from_records_and_verified(tmp_path, capfd):
    images = [layouts.encoded_image(20 * i, size=(8, 8)) for i in range(12)]
    layouts.records(tmp_path / "train.rec", images, [float(i // 2) for i in range(12)])
    layouts.face_bin(tmp_path / "agedb_30.bin", [True, False] * 4)
    layouts.ijb(tmp_path)
    config_file = tmp_path / "face.yml"
    config_file.write_text(
        f"""
MODEL:
  DEVICE: cpu
  BACKBONE: {{NAME: build_convnet_backbone, DEPTH: 2x, FEAT_DIM: 16}}
  HEADS: {{CLS_LAYER: CosSoftmax, SCALE: 16, MARGIN: 0.1, EMBEDDING_DIM: 8}}
INPUT: {{SIZE_TRAIN: [8, 8], SIZE_TEST: [8, 8]}}
DATASETS: {{ROOT: "{tmp_path}", REC_PATH: "{tmp_path}/train.rec", TESTS: ["AgeDB_30", "IJBC"]}}
DATALOADER: {{NUM_WORKERS: 0}}
SOLVER: {{MAX_EPOCH: 1, IMS_PER_BATCH: 6, WARMUP_ITERS: 0}}
TEST: {{EVAL_PERIOD: 1, VERIFICATION: {{FARS: [0.5], FOLDS: 2}}}}
OUTPUT_DIR: {tmp_path}/logs
"""
    )
    assert main(["train", "--config-file", str(config_file)]) == 0, capfd.readouterr().err
    shown = capfd.readouterr()
    assert "accuracy" in shown.out + shown.err
    results = json.loads((tmp_path / "logs" / "metrics.json").read_text())["results"]
    assert 0 <= results["AgeDB_30"]["accuracy"] <= 1
    assert results["IJBC"]["genuine"] == 1
    assert (tmp_path / "logs" / "checkpoints" / "best.ckpt").is_file()


def test_csls_is_measured_beside_cosines():
    data, features = open_set()
    plain = Evaluation(config().TEST)(data, features)
    both = Evaluation(config(("TEST.CSLS.ENABLED", True), ("TEST.CSLS.K", 5)).TEST)(data, features)
    assert {name: both[name] for name in plain} == pytest.approx(plain, nan_ok=True)
    query_ids, query_cameras, gallery_ids, gallery_cameras = of(data)
    names = ("precision_at_1", "reid_mean_average_precision")
    expected = AccuracyCalculator(include=names, normalize=CSLS(5)).get_accuracy(
        features[0], query_ids, features[1], gallery_ids, query_cameras=query_cameras, reference_cameras=gallery_cameras
    )
    assert {name: both[f"csls_{name}"] for name in names} == pytest.approx(expected)
    assert "csls_opis" not in both and "csls_NMI" not in both
    lines = results_table({"people": both}, {"metrics": Path("metrics.json")}).splitlines()
    assert lines[2].startswith("people ") and lines[3].startswith("people, CSLS ")
    assert label_of("csls_cmc_rank_5") == "R@5 csls" and label_of("normalized_opis") == "OPIS normalized"
    assert "normalized_opis" in LOWER_IS_BETTER


GPU = torch.device("cuda", 0)


def test_what_torch_keeps_and_does_not_use_is_free(monkeypatch, caplog):
    told = {"mem_get_info": (2**32, 2**34), "memory_reserved": 2**22, "memory_allocated": 2**20}
    functions = {name: lambda _, value=value: value for name, value in told.items()}
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(**functions))
    fitting, larger = (torch.empty(size, device="meta") for size in (2**17, 2**18))
    with caplog.at_level(logging.INFO, "pml_ext"):
        assert device_with_room([fitting], GPU, None) == GPU and not caplog.text
        assert device_with_room([larger], GPU, None) == torch.device("cpu")
    assert "computed on the CPU: they need 4102 MB, more than cuda:0 has free" in caplog.text


def on_gpus(rank, ranks, folder):
    """Each kind of test set, divided over ranks through NCCL, alone and on the CPU."""
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", f"file://{folder}/group", rank=rank, world_size=ranks, device_id=device)
    group = dist.group.WORLD
    sizes = {2**20: device, 2**40: torch.device("cpu")}
    for size, chosen in sizes.items():
        assert device_with_room([torch.empty(size, device="meta")], device, group) == chosen
    for kind in EVALUATED:
        divided, alone = (evaluate(kind, among, device) for among in (group, None))
        assert alone == pytest.approx(evaluate(kind, None), rel=1e-3, nan_ok=True)
        assert rank or repr(divided) == repr(alone), "exactly, nan where it is nan"
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpus_measure_what_the_cpu_does(tmp_path):
    ranks = min(2, torch.cuda.device_count())
    torch.multiprocessing.spawn(on_gpus, (ranks, str(tmp_path)), nprocs=ranks)
