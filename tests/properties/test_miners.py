"""Every miner on any batch: it returns pairs or triplets of the batch, the same in 16 and 32 bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pml_ext import miners
from tests.miners.test_contract import check, make, same
from tests.properties.batches import Batch, batches


def mined(name, batch):
    return make(name)(batch.embeddings, batch.labels, batch.ref_emb, batch.ref_labels)


@pytest.mark.parametrize("name", miners.OURS)
@given(data=st.data())
def test_tuples_are_valid_and_those_of_32_bits(name, data):
    batch = data.draw(batches(dtypes=(torch.float16, torch.bfloat16)))
    found, x, ref = mined(name, batch), batch.embeddings.float(), batch.ref_emb
    check(found, batch.labels, None if batch.with_itself else batch.ref_labels)
    if ref is not None:
        ref = x if ref is batch.embeddings else ref.float()
    assert same(found, mined(name, Batch(x, batch.labels, ref, batch.ref_labels)))
