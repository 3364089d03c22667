"""Every loss on any batch: general properties, and its value against loops."""

import math
import warnings
from dataclasses import replace

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pytest import approx
from pytorch_metric_learning.distances import CosineSimilarity
from torch.testing import assert_close

from pml_ext import losses
from tests.losses.test_contract import NAMES, WITHOUT_REFERENCES, make
from tests.oracles import concordance as concordance_oracle
from tests.oracles import smooth_rank as rank_oracle
from tests.oracles import threshold_consistency as tcm_oracle
from tests.properties.batches import Batch, batches, indices_tuples


def losses_for(batch):
    """Each loss for the batch, with its name: DiscriminativeLoss has four classes and takes no reference."""
    for name in NAMES:
        if name not in WITHOUT_REFERENCES:
            yield name, make(name)
        elif batch.ref_emb is None and int(batch.labels.max()) < 4:
            torch.manual_seed(1)
            yield name, losses.DiscriminativeLoss(4, batch.embeddings.shape[1])


def value_of(loss, batch, indices=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of batches without a pair or triplet
        return loss(batch.embeddings, batch.labels, indices, batch.ref_emb, batch.ref_labels)


def with_embeddings(batch, x):
    """The batch with other embeddings, and, if it is its own reference, with them as the reference."""
    ref = x if batch.ref_emb is batch.embeddings else batch.ref_emb
    return Batch(x, batch.labels, ref, batch.ref_labels)


@given(data=st.data())
def test_value_and_gradient_are_finite(data):
    batch = data.draw(batches())
    indices = data.draw(indices_tuples(batch))
    x = batch.embeddings.detach().requires_grad_()
    for name, loss in losses_for(batch):
        value = value_of(loss, with_embeddings(batch, x), indices)
        assert value.ndim == 0 and value.isfinite(), (name, value)
        (gradient,) = torch.autograd.grad(value, x)
        assert gradient.shape == x.shape and gradient.dtype == x.dtype, name
        assert gradient.isfinite().all(), name


@given(data=st.data())
def test_16_bit_input_equals_its_32_bit_values(data):
    batch = data.draw(batches(dtypes=(torch.float16, torch.bfloat16)))
    indices = data.draw(indices_tuples(batch))
    wide = with_embeddings(batch, batch.embeddings.float())
    if wide.ref_emb is not None:
        wide = replace(wide, ref_emb=wide.ref_emb if batch.with_itself else wide.ref_emb.float())
    for name, loss in losses_for(batch):
        assert torch.equal(value_of(loss, batch, indices), value_of(loss, wide, indices)), name


@given(batch=batches(dtypes=(torch.float64,), reference=False))
def test_label_names_types_and_strides_do_not_matter(batch):
    plain = Batch(batch.embeddings.contiguous(), batch.labels)
    renamed = Batch(batch.embeddings, 5 - 3 * batch.labels)
    for name, loss in losses_for(batch):
        if is_decided_by_rounding(name, batch):
            continue
        value = value_of(loss, batch)
        assert_close(value_of(loss, plain), value, msg=lambda text, name=name: f"{name}: {text}")
        if name not in WITHOUT_REFERENCES:
            assert_close(value_of(loss, renamed), value, msg=lambda text, name=name: f"{name}: {text}")


def is_decided_by_rounding(name, batch):
    """Whether rounding chooses the farthest positive of a zero row, or the direction of a class mean that is 0."""
    rows = torch.tensor(unit(batch.embeddings), dtype=torch.float64)
    if name == "HPHNTripletLoss":
        return bool((rows == 0).all(dim=1).any())
    if name != "CentroidTripletLoss":
        return False
    is_alike = batch.labels[:, None] == batch.labels
    means = is_alike.double() @ rows
    others = (means - rows)[is_alike.sum(dim=1) > 1]
    return bool((torch.cat([means, others]).norm(dim=1) < 1e-6).any())


def unit(x):
    """Rows of length 1; zero rows stay zero."""
    rows = x.double()
    return (rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)).tolist()


def products(x, y):
    return [[math.fsum(a * b for a, b in zip(v, w, strict=True)) for w in y] for v in x]


def compared(batch):
    """Cosines with the reference, labels, the reference's labels (None: the batch itself)."""
    others, other_labels = batch.reference
    cosines = products(unit(batch.embeddings), unit(others))
    return cosines, batch.labels.tolist(), None if batch.with_itself else other_labels.tolist()


exact = batches(dtypes=(torch.float64,))


def halfway(rows):
    """Cosines from 0 to 1."""
    return [[(1 + c) / 2 for c in row] for row in rows]


@given(
    batch=exact,
    options=st.fixed_dictionaries(
        {
            "gamma": st.sampled_from([0.0, 0.3, 1.0]),
            "similarity": st.sampled_from(["unit", "cosine"]),
            "hinge_partial_likelihood": st.booleans(),
            "collect_stats": st.booleans(),  # another way to the value
        }
    ),
    data=st.data(),
)
def test_cit(batch, options, data):
    s, labels, ref_labels = compared(batch)
    inside = unit(batch.reference[0])
    s_ref = products(inside, inside)
    if options["similarity"] == "unit":
        s, s_ref = halfway(s), halfway(s_ref)
    indices = data.draw(indices_tuples(batch))
    if indices is None:
        chosen = concordance_oracle.triplets(labels, ref_labels)
    elif len(indices) == 3:
        chosen = list(zip(*(part.tolist() for part in indices), strict=True))
    else:
        return  # pytorch-metric-learning turns pairs into triplets
    value = value_of(losses.CITLoss(**options), batch, indices)
    gamma, hinge = options["gamma"], options["hinge_partial_likelihood"]
    expected = concordance_oracle.cit(s, s_ref, chosen, gamma, hinge) if chosen else 0.0
    assert float(value) == approx(expected, abs=1e-9)


@given(
    batch=exact,
    form=st.fixed_dictionaries({"indicator": st.booleans(), "divide_by": st.sampled_from(["hard", "all"])}),
    plus=st.floats(0.3, 1),
    minus=st.floats(-1, 0.3),
    weights=st.sampled_from([(0.7, 1.3), (0.0, 1.0), (1.0, 0.0)]),
    collect_stats=st.booleans(),  # another way to the value
)
def test_tcm(batch, form, plus, minus, weights, collect_stats):
    cosines, labels, ref_labels = compared(batch)
    positives, negatives = tcm_oracle.split(cosines, labels, ref_labels)
    # Rounding decides whether a cosine on a margin counts.
    assume(all(abs(s - plus) > 1e-9 for s in positives) and all(abs(s - minus) > 1e-9 for s in negatives))
    shortfall, excess = tcm_oracle.terms(positives, negatives, plus, minus, **form)
    distance = CosineSimilarity(collect_stats=collect_stats)
    loss = losses.TCMLoss(*weights, plus, minus, **form, distance=distance)
    assert float(value_of(loss, batch)) == approx(weights[0] * shortfall + weights[1] * excess, abs=1e-9)


@given(batch=exact, ks=st.sampled_from([(1,), (1, 2, 4), (3, 50)]))
def test_recall_at_k(batch, ks):
    cosines, labels, ref_labels = compared(batch)
    others = labels if ref_labels is None else ref_labels
    queries = [q for q, y in enumerate(labels) if any(o == y and (ref_labels or i != q) for i, o in enumerate(others))]
    value = value_of(losses.RecallAtKSurrogateLoss(ks=ks, temperature=0.1, rank_temperature=0.5), batch)
    if not queries or len({*labels, *others}) == 1:
        assert value == 0
    else:
        expected = rank_oracle.smooth_recall_loss(cosines, labels, ref_labels, ks, 0.1, 0.5)
        assert float(value) == approx(expected, abs=1e-9)
