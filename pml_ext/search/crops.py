"""Crops as arrays, tensors or Pillow images, converted to the uint8 (C, h, w) tensors that transforms take."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pml_ext.runner.data.datasets.decoding import pixels_of

Crop: TypeAlias = np.ndarray | Tensor | Image.Image


def crop_tensors(crops: Crop | Sequence[Crop], *, order: str, grey: bool) -> list[Tensor]:
    """Convert the crops that `Embedder` takes to tensors of 1 channel (grey) or 3 (RGB); errors say which is wrong."""
    if order not in ("RGB", "BGR"):
        raise ValueError(f"order must be RGB or BGR; got {order!r}")
    several = isinstance(crops, Sequence) or (isinstance(crops, (np.ndarray, Tensor)) and crops.ndim == 4)
    each: Any = crops if several else [crops]
    names = (f"crop {place}" if several else "the crop" for place in range(len(each)))
    return [_to_tensor(crop, name, order, grey) for crop, name in zip(each, names, strict=True)]


def _to_tensor(crop: Crop, name: str, order: str, grey: bool) -> Tensor:
    if isinstance(crop, Image.Image):
        if 0 in crop.size:
            raise ValueError(f"{name} is empty, {crop.height}×{crop.width}: is the box outside of the frame?")
        return pixels_of(crop, grey)
    if not isinstance(crop, (np.ndarray, Tensor)):
        raise TypeError(f"{name} must be an array, a tensor or a Pillow image; got {type(crop).__name__}")
    if crop.dtype not in (torch.uint8, np.uint8):
        raise ValueError(f"{name} must hold pixels from 0 to 255 as uint8; got {crop.dtype}")
    form = tuple(crop.shape)
    if isinstance(crop, Tensor):
        if len(form) != 3 or form[0] not in (1, 3):
            raise ValueError(f"{name} must be a tensor of shape (1 or 3, h, w); got {form}")
        array = crop.detach().cpu().numpy()
    else:
        if len(form) not in (2, 3) or (len(form) == 3 and form[2] not in (1, 3)):
            raise ValueError(f"{name} must be an array of shape (h, w), (h, w, 1) or (h, w, 3); got {form}")
        array = np.atleast_3d(crop).transpose(2, 0, 1)
    if 0 in array.shape:
        raise ValueError(f"{name} is empty, {array.shape[1]}×{array.shape[2]}: is the box outside of the frame?")
    if len(array) == 3 and order == "BGR":
        array = array[::-1]
    if grey and len(array) == 3:
        return pixels_of(Image.fromarray(array.transpose(1, 2, 0).copy()), grey)
    wanted = (1 if grey else 3, *array.shape[1:])
    return torch.from_numpy(np.array(np.broadcast_to(array, wanted), order="C"))
