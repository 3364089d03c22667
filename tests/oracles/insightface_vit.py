"""insightface's vision transformer up to its first batch norm, which is in evaluation, from a state with its names."""

import math

import torch
from torch import nn


def vision_transformer(state, images, seen=None):
    """Embeddings (B, features) of images (B, C, H, W); `seen` lists each image's patches that were not hidden."""
    return torch.stack([_one(state, image, seen[i] if seen else None) for i, image in enumerate(images)])


def parameters(width, blocks, embedding, patches=144, pixels=9 * 9 * 3):
    """How many numbers are trained: those of the layers as insightface lists them."""
    block = 2 * 2 * width  # two layer norms
    block += width * 3 * width  # queries, keys and values, without biases
    block += width * width + width
    block += width * 4 * width + 4 * width + 4 * width * width + width  # the two layers of the perceptron
    ends = pixels * width + width + patches * width + width + 2 * width  # patches, places, mask token, last layer norm
    feature = patches * width * width + 2 * width + width * embedding + 2 * embedding
    return blocks * block + ends + feature


def _one(state, image, seen):
    side = state["patch_embed.proj.weight"].shape[2]
    grid = [(row, column) for row in range(image.shape[1] // side) for column in range(image.shape[2] // side)]
    tokens = []
    for place, (row, column) in enumerate(grid):
        patch = image[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
        kernel = state["patch_embed.proj.weight"]
        token = torch.stack([(patch * weights).sum() for weights in kernel]) + state["patch_embed.proj.bias"]
        tokens.append(token + state["pos_embed"][0, place])
    places = list(range(len(grid))) if seen is None else seen
    x = torch.stack([tokens[place] for place in places])
    for i in range(len({name.split(".")[1] for name in state if name.startswith("blocks.")})):
        x = x + _attention(state, f"blocks.{i}.attn", _layer_norm(state, f"blocks.{i}.norm1", x))
        y = _layer_norm(state, f"blocks.{i}.norm2", x)
        y = (y @ state[f"blocks.{i}.mlp.fc1.weight"].T + state[f"blocks.{i}.mlp.fc1.bias"]).clamp(0, 6)
        x = x + y @ state[f"blocks.{i}.mlp.fc2.weight"].T + state[f"blocks.{i}.mlp.fc2.bias"]
    x = _layer_norm(state, "norm", x)
    every = [x[places.index(p)] if p in places else state["mask_token"][0, 0] for p in range(len(grid))]
    features = state["feature.0.weight"] @ torch.cat(every)
    scale = (state["feature.1.running_var"] + 2e-5).sqrt()
    features = (features - state["feature.1.running_mean"]) / scale
    return features * state["feature.1.weight"] + state["feature.1.bias"]


def _layer_norm(state, name, x):
    x = x - x.mean(dim=1, keepdim=True)
    x = x / ((x * x).mean(dim=1, keepdim=True) + 1e-5).sqrt()
    return x * state[f"{name}.weight"] + state[f"{name}.bias"]


def _attention(state, name, x, heads=8):
    width = x.shape[1]
    queries, keys, values = (x @ part.T for part in state[f"{name}.qkv.weight"].split(width))
    found = []
    for head in range(heads):
        part = slice(head * width // heads, (head + 1) * width // heads)
        scores = queries[:, part] @ keys[:, part].T / math.sqrt(width // heads)
        found.append(nn.functional.softmax(scores, dim=1) @ values[:, part])
    return torch.cat(found, dim=1) @ state[f"{name}.proj.weight"].T + state[f"{name}.proj.bias"]
