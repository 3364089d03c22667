"""Labels of every type of integers mean the same in every entry; floating labels that may be rounded are errors."""

import pytest
import torch
from pytorch_metric_learning.reducers import ClassWeightedReducer
from torch.testing import assert_close

from pml_ext import functional, metrics, miners
from pml_ext.inspection import gradient_shares, pair_weights
from pml_ext.losses import ArcFaceLoss, PartialFC, SmoothAPLoss, TCMLoss, TCMRegularizer
from pml_ext.thresholds import ThresholdReport
from tests.losses.compatibility import makes_of_pml
from tests.losses.test_contract import FACTORIES, batch

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64)
WITHOUT_LABELS = ("ManifoldLoss", "VICRegLoss")
OF_PML = {name: make for name, make in makes_of_pml().items() if name not in WITHOUT_LABELS}


FARS = (0.1, 0.5)


def accuracies(x, labels, **cameras):
    calculator = metrics.AccuracyCalculator(("cmc_rank_1", "opis"), far_range=FARS, device=torch.device("cpu"))
    return [*calculator.get_accuracy(x, labels, **cameras).values()]


def opis_of_batches(x, labels):
    metric = metrics.OPIS(far_range=FARS)
    metric.update(x, labels)
    return metric.compute()["opis"]


def of_columns(function, **options):
    return lambda x, labels: function(x[:, :3], labels, **options)


ENTRIES = {name: lambda x, y, make=make: make()(x, y) for name, make in FACTORIES.items()}
for of_pml, made in OF_PML.items():
    ENTRIES[f"TCMRegularizer({of_pml})"] = lambda x, y, make=made: TCMRegularizer(make())(x, y)
ENTRIES |= {
    "ClassWeightedReducer": lambda x, y: SmoothAPLoss(reducer=ClassWeightedReducer(torch.arange(3.0)))(x, y),
    "gradient_shares": lambda x, y: gradient_shares({"id": ArcFaceLoss(3, 8), "tcm": TCMLoss()}, x, y)["id"],
    "pair_weights": lambda x, y: pair_weights(TCMLoss(), x, y),
    "PartialFC": lambda x, y: PartialFC(8, 3)(x, y),
    "LoOpMiner": lambda x, y: miners.LoOpMiner(miners.TripletMarginMiner())(x, y),
    "ConcordanceMiner": lambda x, y: miners.ConcordanceMiner()(x, y),
    "HPHNMiner": lambda x, y: miners.HPHNMiner()(x, y),
    "DisjointTripletMiner": lambda x, y: miners.DisjointTripletMiner(seed=0)(x, y),
    "AccuracyCalculator": accuracies,
    "cameras": lambda x, y: (
        functional.rank_matches(x, y.long(), x, y.long(), query_cameras=y, gallery_cameras=y).matches
    ),
    "OPIS": opis_of_batches,
    "ReIDEvaluator": lambda x, y: metrics.ReIDEvaluator()(x, y, None, x, y, None)["mAP"],
    "ThresholdReport": lambda x, y: ThresholdReport.from_embeddings(x, y, far=0.1).far.rate,
    "template_embeddings": lambda x, y: functional.template_embeddings(x, y, y).embeddings,
    "rank_matches": lambda x, y: functional.rank_matches(x, y, x, y).first_match_rank,
    "concordance_index": lambda x, y: functional.concordance_index(x @ x.T, y),
    "loop_pairs": lambda x, y: functional.loop_pairs(x @ x.T, y),
    "clustering_f1": lambda x, y: functional.clustering_f1(y, y),
    "discriminative_loss": of_columns(functional.discriminative_loss, centroids=torch.eye(3)),
    "discriminative_tightness": of_columns(functional.discriminative_tightness),
    "epsilon_opis": of_columns(functional.epsilon_opis, far_range=FARS),
    "labelled_pairs_roc": of_columns(lambda x, y: functional.roc_auc(functional.labelled_pairs_roc(x, y))),
    "one_hot_discriminative_loss": of_columns(functional.one_hot_discriminative_loss),
    "opis": of_columns(functional.opis, far_range=FARS),
}


# PML's HistogramLoss and LargeMarginSoftmaxLoss
of_pmls_losses = pytest.mark.filterwarnings("ignore:Using a non-tuple", "ignore:__array_wrap__")


def run(name, labels):
    torch.manual_seed(1)
    return ENTRIES[name](batch()[0].detach(), labels)


@of_pmls_losses
@pytest.mark.parametrize("name", ENTRIES)
def test_every_integer_type(name):
    _, labels = batch()
    expected = run(name, labels)
    for dtype in INTEGERS:
        assert_close(run(name, labels.to(dtype)), expected)


@of_pmls_losses
@pytest.mark.parametrize("name", ENTRIES)
def test_rounded_labels(name):
    _, labels = batch()
    for dtype, exact in ((torch.bfloat16, 2**8), (torch.float16, 2**11), (torch.float32, 2**24)):
        with pytest.raises(ValueError, match=r"must be (of integer type|integers).*rounded"):
            run(name, (labels + exact + 1).to(dtype))
