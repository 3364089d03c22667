"""What DATALOADER.SAMPLER_TRAIN names: how the joint batches of an epoch are drawn."""

import numpy as np
from yacs.config import CfgNode as CN

from pml_ext.runner.data.samplers.identities import identities_across_cameras, identities_by_camera, identities_in_decks
from pml_ext.runner.data.samplers.images import balanced_by_frequency, shuffled
from pml_ext.runner.data.samplers.joint import Draw, JointBatchSampler, steps_per_epoch

__all__ = ["JointBatchSampler", "build_sampler", "steps_per_epoch"]


def build_sampler(
    options: CN,
    labels: np.ndarray,
    cameras: np.ndarray,
    *,
    batch_size: int,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
) -> JointBatchSampler:
    """The sampler that the options, DATALOADER of the config, name; batch_size is of the joint batch of all ranks."""
    name, instances = options.SAMPLER_TRAIN, options.NUM_INSTANCE
    draw: Draw
    if name == "TrainingSampler":
        draw = shuffled(labels, batch_size)
    elif name == "ImbalancedDatasetSampler":
        draw = balanced_by_frequency(labels, batch_size)
    elif name == "BalancedIdentitySampler":
        draw = identities_across_cameras(labels, cameras, batch_size, instances)
    elif name == "SetReWeightSampler":
        draw = identities_by_camera(labels, cameras, batch_size, instances, options.SET_WEIGHT)
    else:
        draw = identities_in_decks(labels, batch_size, instances, until_used_up=name == "NaiveIdentitySampler")
    steps = steps_per_epoch(len(labels), batch_size)
    return JointBatchSampler(draw, steps, batch_size, seed=seed, rank=rank, world_size=world_size)
