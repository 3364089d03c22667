"""What works with what, found out by running it.

    python -m tests.losses.compatibility > examples/guides/COMPATIBILITY.md

A cell says "yes" where the value and its gradient are finite and the gradient is not zero; "used" or "ignored" where
the value also does or does not depend on what the column adds; and otherwise the number of the error that was raised.
"""

import copy
import functools
import inspect
import io
import pickle
import re
import textwrap
import warnings

import torch
from pytorch_metric_learning import distances, reducers
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.losses import CrossBatchMemory, MultipleLosses, SelfSupervisedLoss, TripletMarginLoss
from pytorch_metric_learning.regularizers import LpRegularizer
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper, get_indices_tuple

from pml_ext.inspection import pair_weights
from pml_ext.losses import LoOp, TCMRegularizer
from tests.losses.test_contract import FACTORIES, NAMES, WRAPPERS
from tests.losses.test_loop import SERVED, WITH_WEIGHTS

A, P, N = torch.tensor([0, 0, 5]), torch.tensor([1, 2, 4]), torch.tensor([4, 8, 11])
ABSTRACT = ("BaseLossWrapper", "BaseMetricLossFunction", "GenericPairLoss")
PML_WRAPPERS = ("CrossBatchMemory", "MultipleLosses", "SelfSupervisedLoss")
INTRODUCTION = """# What works with what

`python -m tests.losses.compatibility > examples/guides/COMPATIBILITY.md` runs every combination on a small batch and
writes this page.

- yes: value and gradient are finite.
- used: the value also depends on this argument, on the samples in the memory or on those of other ranks.
- ignored: accepted, without an effect on the value.
- A number: refused, with the error of that number.

- torch 2.14 and newer. With 2.8 to 2.13 all losses work; second derivatives over LpDistance need 2.14, `torch.func` of
  our losses needs 2.11.
- pytorch-metric-learning 2.9; the same holds for 2.8. [Version 3](WHICH_PML.md) is not supported.
"""


def batch(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(12, 8).to(dtype).requires_grad_(), torch.arange(3).repeat_interleave(4)


def run(loss, *others, dtype=torch.float32, labelled=True):
    """The value of the batch; others follow the labels."""
    x, labels = batch(dtype)
    return check(loss(x, labels if labelled else None, *others), x)


def check(value, x):
    (gradient,) = torch.autograd.grad(value, x)
    assert value.isfinite() and gradient.isfinite().all() and gradient.any(), (value, gradient)
    return value


def used_or_ignored(value, other):
    """Whether what makes the difference between two values of a loss has an effect."""
    return "ignored" if torch.allclose(value, other) else "used"


def with_reference(make):
    value = run(make(), None, torch.randn(7, 8), torch.arange(7) % 3)
    return used_or_ignored(value, run(make()))


def in_memory(make):
    x, labels = batch()
    memory = CrossBatchMemory(make(), embedding_size=8, memory_size=30)
    memory(torch.randn(12, 8), labels)
    return used_or_ignored(check(memory(x, labels), x), run(make()))


def self_supervised(make):
    x, _ = batch()
    views = x.detach() + 2 * torch.randn(2, 12, 8)
    return used_or_ignored(*(check(SelfSupervisedLoss(make())(x, view), x) for view in views))


def in_two_ranks(make):
    """What DistributedLossWrapper hands to the loss of a rank: its own samples, then those of the others."""
    loss, (x, labels) = DistributedLossWrapper(make()).loss, batch()
    own, own_labels = x[::2], labels[::2]
    both, both_labels = torch.cat([own, x[1::2].detach()]), torch.cat([own_labels, labels[1::2]])
    return used_or_ignored(check(loss(both, both_labels), x), loss(own, own_labels))


def efficient(make):
    """What efficient=True hands to the loss of a rank: its own anchors, and everybody's samples to compare with."""
    loss, (x, labels) = DistributedLossWrapper(make(), efficient=True).loss, batch()
    own, own_labels = x[::2], labels[::2]
    both, both_labels = torch.cat([own, x[1::2].detach()]), torch.cat([own_labels, labels[1::2]])
    value = loss(own, own_labels, get_indices_tuple(own_labels, both_labels), both, both_labels)
    return used_or_ignored(check(value, x), loss(own, own_labels))


def with_tuples(*indices, labelled=True):
    return lambda make: used_or_ignored(run(make(), indices, labelled=labelled), run(make()))


def autocast(make):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(make())


def copied(make):
    loss = make()
    twins = copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))
    assert all(torch.equal(run(twin), run(loss)) for twin in twins)


def saved(make):
    loss, other, file = make(), make(), io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(other), run(loss))


def weights(make):
    x, labels = batch()
    found = pair_weights(make(), x, labels)
    assert found.isfinite().all() and found.any()


def given(*args, **options):
    """Runs with these arguments after the labels; with labelled= and dtype= as in `run`."""
    return lambda make: run(make(), *args, **options)


def made(**options):
    """Runs a loss made with these options of PML's."""
    return lambda make: run(make(**options))


WITH_WRAPPERS = {
    "ref_emb": with_reference,
    "CrossBatchMemory": in_memory,
    "SelfSupervisedLoss": self_supervised,
    "MultipleLosses": lambda make: run(MultipleLosses([make(), TripletMarginLoss()])),
    "DistributedLossWrapper": in_two_ranks,
    "… efficient": efficient,
    "LoOp": lambda make: run(LoOp(make())),
    "LoOp, arcs": lambda make: run(LoOp(make(), positives="arc")),
    "LoOp, ref_emb": lambda make: with_reference(lambda: LoOp(make())),
    "TCMRegularizer": lambda make: run(TCMRegularizer(make())),
}
TABLES = {
    "Wrappers": WITH_WRAPPERS,
    "Distances": {
        "CosineSimilarity": made(distance=distances.CosineSimilarity()),
        "LpDistance": made(distance=distances.LpDistance()),
        "LpDistance, power 2": made(distance=distances.LpDistance(power=2)),
        "LpDistance, not normalised": made(distance=distances.LpDistance(normalize_embeddings=False)),
        "DotProductSimilarity, not normalised": made(
            distance=distances.DotProductSimilarity(normalize_embeddings=False)
        ),
        "SNRDistance": made(distance=distances.SNRDistance()),
    },
    "Reducers and regularizers": {
        "Mean": made(reducer=reducers.MeanReducer()),
        "AvgNonZero": made(reducer=reducers.AvgNonZeroReducer()),
        "Sum": made(reducer=reducers.SumReducer()),
        "PerAnchor": made(reducer=reducers.PerAnchorReducer()),
        "ClassWeighted": made(reducer=reducers.ClassWeightedReducer(torch.tensor([0.5, 1.0, 2.0]))),
        "Threshold": made(reducer=reducers.ThresholdReducer(low=0.01)),
        "Divisor": made(reducer=reducers.DivisorReducer()),
        "Multiple": made(reducer=reducers.MultipleReducers({})),
        "DoNothing": lambda make: make(reducer=reducers.DoNothingReducer())(*batch()),
        "embedding_regularizer": made(embedding_regularizer=LpRegularizer()),
    },
    "indices_tuple": {
        "pairs": with_tuples(A, P, A, N),
        "triplets": with_tuples(A, P, N),
        "pairs, no labels": with_tuples(A, P, A, N, labelled=False),
        "triplets, no labels": with_tuples(A, P, N, labelled=False),
    },
    "Numbers and copies": {
        "float16": given(dtype=torch.float16),
        "bfloat16": given(dtype=torch.bfloat16),
        "float64": given(dtype=torch.float64),
        "autocast": autocast,
        "deepcopy, pickle": copied,
        "state_dict, weights_only": saved,
    },
}
AROUND_PML = {
    "alone": lambda make: run(make()),
    "indices_tuple": with_tuples(A, P, N),
    "LoOp": WITH_WRAPPERS["LoOp"],
    "LoOp, arcs": WITH_WRAPPERS["LoOp, arcs"],
    "LoOp, ref_emb": WITH_WRAPPERS["LoOp, ref_emb"],
    "TCMRegularizer": WITH_WRAPPERS["TCMRegularizer"],
    "pair_weights": weights,
    "TCMRegularizer(LoOp)": lambda make: run(TCMRegularizer(LoOp(make()))),
}


def makes_of_pml():
    """PML's own losses, made with the sizes that some need."""
    found = {}
    for name, kind in sorted(vars(pml_losses).items()):
        if not inspect.isclass(kind) or not kind.__module__.startswith("pytorch_metric_learning"):
            continue
        if name.endswith("Mixin") or name in (*ABSTRACT, *PML_WRAPPERS):
            continue
        sizes = WITH_WEIGHTS.get(name)
        if isinstance(sizes, dict):
            found[name] = functools.partial(kind, **{**sizes, "embedding_size": 8})
        elif sizes is not None:
            # The sizes of a batch of 8 columns and 3 classes, in the order in which the loss wants them.
            found[name] = functools.partial(kind, *(8 if size == 4 else size for size in sizes))
        else:
            found[name] = SERVED.get(name, kind)
    return found


def table(title, makes, columns):
    """A Markdown table with the reasons of its refusals below."""
    reasons = []
    lines = [f"## {title}", "", f"||{'|'.join(columns)}|", f"|---|{'---|' * len(columns)}"]
    for name, make in makes.items():
        cells = [cell(name, make, column, reasons) for column in columns.values()]
        lines.append(f"|{name}|{'|'.join(cells)}|")
    if reasons:
        lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    return "\n".join([*lines, ""])


def cell(name, make, check, reasons):
    """ "yes", what the check returns, or the number of the reason, which is added where it is new."""

    def seeded(**options):
        torch.manual_seed(1)
        return make(**options)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = check(seeded)
    except AssertionError:
        raise
    except Exception as error:
        # PML's own refusals are plain exceptions; anything more special is a fault.
        if type(error) not in (TypeError, ValueError, NotImplementedError, Exception):
            raise
        reason = reason_of(name, error)
        if reason not in reasons:
            reasons.append(reason)
        return str(1 + reasons.index(reason))
    return result if isinstance(result, str) else "yes"


def reason_of(name, error):
    """The message in one line, without what was given and, but for wrappers, without the name of the loss."""
    message = re.sub(r"; got .*?(?=\. [A-Z]|$)", "", " ".join(str(error).split()))
    if name not in WRAPPERS:
        message = re.sub(rf"\b{name}\b", "this loss", message)
    return f"{type(error).__name__}: {textwrap.shorten(message, 200, placeholder=' …')}"


def document():
    """The whole of COMPATIBILITY.md."""
    ours = {name: FACTORIES[name] for name in NAMES}
    tables = [table(title, ours, columns) for title, columns in TABLES.items()]
    tables.append(table("PML's own losses", makes_of_pml(), AROUND_PML))
    return "\n".join([INTRODUCTION, *tables])


if __name__ == "__main__":
    print(document(), end="")
