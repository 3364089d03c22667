"""Every miner on any batch: it returns pairs or triplets of the batch, the same in 16 and 32 bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pml_ext import miners
from tests.miners.test_contract import make
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
