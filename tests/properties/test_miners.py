"""Every miner on any batch: it returns pairs or triplets of the batch, the same in 16 and 32 bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pml_ext import miners
from tests.miners.test_contract import make
from tests.oracles import triplets as oracle
from tests.oracles.concordance import triplets
from tests.properties.batches import Batch, batches

every_miner = pytest.mark.parametrize("name", miners.OURS)


def mined(miner, batch):
    return miner(batch.embeddings, batch.labels, batch.ref_emb, batch.ref_labels)


@every_miner
@given(data=st.data())
def test_pairs_are_positive_and_negative(name, data):
    batch = data.draw(batches())
    anchors, positives, *rest = mined(make(name), batch)
    others = batch.reference[1]
    assert (batch.labels[anchors] == others[positives]).all()
    assert not batch.with_itself or bool((anchors != positives).all())
    negative_anchors, negatives = (anchors, *rest) if len(rest) == 1 else rest
    assert (batch.labels[negative_anchors] != others[negatives]).all()


@every_miner
@given(data=st.data())
def test_16_bit_input_equals_its_32_bit_values(name, data):
    batch = data.draw(batches(dtypes=(torch.float16, torch.bfloat16)))
    x = batch.embeddings.float()
    ref = None if batch.ref_emb is None else x if batch.ref_emb is batch.embeddings else batch.ref_emb.float()
    wide = mined(make(name), Batch(x, batch.labels, ref, batch.ref_labels))
    found = mined(make(name), batch)
    assert len(found) == len(wide) and all(torch.equal(a, b) for a, b in zip(found, wide, strict=True))


@given(
    batch=batches(dtypes=(torch.float64,)),
    kind=st.sampled_from(["discordant", "hard", "semihard", "easy"]),
    margin=st.floats(0, 1),
)
def test_concordance_miner_returns_all_triplets_of_its_kind(batch, kind, margin):
    is_kind = {
        "discordant": lambda gap: gap < 0,
        "hard": lambda gap: gap <= 0,
        "semihard": lambda gap: 0 < gap <= margin,
        "easy": lambda gap: gap > margin,
    }[kind]
    miner = miners.ConcordanceMiner(type_of_triplets=kind, margin=margin)
    # Compares the miner's own products: rounding decides between equal ones.
    s = miner.distance(batch.embeddings, batch.reference[0]).tolist()
    labels, others = batch.labels.tolist(), batch.reference[1].tolist()
    every = triplets(labels, None if batch.with_itself else others)
    expected = [(a, p, n) for a, p, n in every if is_kind(s[a][p] - s[a][n])]
    assert list(zip(*(part.tolist() for part in mined(miner, batch)), strict=True)) == expected


@given(batch=batches(dtypes=(torch.float64,)))
def test_hphn_miner_returns_the_hardest(batch):
    miner = miners.HPHNMiner()
    d = miner.distance(batch.embeddings, batch.reference[0]).tolist()
    ref_labels = None if batch.with_itself else batch.reference[1].tolist()
    found = list(zip(*(part.tolist() for part in mined(miner, batch)), strict=True))
    expected = oracle.hphn_triplets(d, batch.labels.tolist(), ref_labels)
    assert len(found) == len(expected)
    # Ties may go either way; only the distance matters.
    for (a, p, n), (b, q, m) in zip(found, expected, strict=True):
        assert (a, p, n) == (b, q, m) or (d[a][p] == d[b][q] and d[a][n] == pytest.approx(d[b][m]))
