"""`Embedder`: a trained model that maps image crops of any size to embeddings.

It resizes the crops and sends them through `PixelsToEmbedding`, an exported ONNX file or a module of the user.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._ops.numerics import unit_rows
from pml_ext._shared.checks import check_items, check_switch, check_whole
from pml_ext._shared.errors import UserError
from pml_ext._shared.names import class_name
from pml_ext.deploy.model_record import ModelRecord
from pml_ext.deploy.onnx_model import OnnxModel
from pml_ext.runner.checks.rules import require_network
from pml_ext.runner.config.files import config_of_run, weights_of_run
from pml_ext.runner.config.network_keys import config_of, is_grey, load_for_embedding, shaping
from pml_ext.runner.data.datasets.image_files import Source, read_image
from pml_ext.runner.data.transforms import build_transform
from pml_ext.runner.modeling.cuda import kind_and_index, missing_device
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding
from pml_ext.runner.registry import import_modules

log = logging.getLogger("pml_ext")


class Embedder:
    """A trained model that maps image crops to embeddings of unit length. It is thread-safe.

    `from_run`, `from_config` and `from_onnx` load models of this package and of FastReID; the constructor takes any
    other module. Crops are resized on the CPU by the runner's test transforms (INPUT.SIZE_TEST, INTERPOLATION, CROP);
    for a module the interpolation is bicubic.

    Args:
        module: maps standardised images (B, C, H, W) to embeddings (B, D) of any length. It is moved to the device and
            put into evaluation mode. Images have the floating type of its first parameter.
        size: height and width that crops are resized to.
        mean, std: per channel, in pixel units from 0 to 255; images become (pixels − mean) / std. Three values
            for RGB, one for grey images.
        device: see `from_config`.
        batch_size: maximum number of crops per forward pass.
    Raises:
        UserError: the module does not return (B, D) for B images; a missing device.
        ValueError: an invalid size, mean or std.

    A gallery identifies the model by a hash of its weights, with size, mean and std.

    Pickles hold the paths of a model of `from_run`, `from_config` or `from_onnx`; loading them reads its files.

    ```python
    embedder = pml_ext.Embedder.from_config("config.yaml", "last.ckpt", device="cuda", half=True)
    embeddings = embedder([frame[80:336, 40:168], frame[90:330, 300:410]], order="BGR")  # (2, D)
    same = float(embeddings[0] @ embeddings[1]) >= 0.6

    resnet = torchvision.models.resnet50(weights="DEFAULT")
    resnet.fc = torch.nn.Identity()
    mean, std = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
    embedder = pml_ext.Embedder(resnet, size=(224, 224), mean=mean, std=std)
    ```
    """

    network: Callable[[Tensor], Tensor]
    _load: "Callable[[], Embedder] | None" = None  # from the model's files; None for a module

    def __init__(
        self,
        module: nn.Module,
        size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        device: str | torch.device = "auto",
        batch_size: int = 32,
    ) -> None:
        height, width = size
        if min(size) < 1:
            raise ValueError(f"size must be a height and a width of at least 1; got {size}")
        if len(mean) not in (1, 3) or len(mean) != len(std):
            raise ValueError(f"mean and std must have 3 values each, or 1 for grey images; got {mean} and {std}")
        if min(std) < 1:
            raise ValueError(
                f"mean and std must be in units of pixels from 0 to 255; got std {std}. Multiply both by 255"
            )
        where = _device(device)
        network = _StandardisedModule(module, mean, std).eval().to(where)
        with torch.no_grad():
            embedding_dim = network(torch.zeros(2, len(mean), height, width, device=where)).shape[1]
        config = {
            "INPUT.SIZE_TEST": [height, width],
            "INPUT.CROP.ENABLED": False,
            "MODEL.PIXEL_MEAN": [*map(float, mean)],
            "MODEL.PIXEL_STD": [*map(float, std)],
            "TEST.FLIP.ENABLED": False,
        }
        record = ModelRecord(config, class_name(module), _hash_of(module), embedding_dim)
        self._set_up(network, record, where, batch_size)

    @classmethod
    def _of_network(cls, *settings: Any) -> "Embedder":
        embedder = cls.__new__(cls)
        embedder._set_up(*settings)
        return embedder

    def _set_up(
        self,
        network: Callable[[Tensor], Tensor],
        record: ModelRecord,
        device: torch.device,
        batch_size: int,
    ) -> None:
        """Initialise. network: maps (B, C, H, W) float32 pixels in 0–255 on the device to (B, D) unit vectors."""
        check_whole(batch_size, "batch_size", 1)
        self.network, self.record, self.device, self.batch_size = network, record, device, batch_size
        cfg = config_of(record.config)
        self.is_grey, self._size = is_grey(cfg), list(cfg.INPUT.SIZE_TEST)
        self.prepare = build_transform(cfg.INPUT, training=False)

    @classmethod
    def from_config(
        cls,
        config_file: str | Path,
        weights: str | Path | None = None,
        *,
        device: str | torch.device = "auto",
        half: bool = False,
        flip: bool | None = None,
        batch_size: int = 32,
        overrides: Sequence[str] = (),
        imports: Sequence[str] = (),
    ) -> "Embedder":
        """Loads a model from a YAML file and a checkpoint, of this package or of FastReID. Nothing is downloaded.

        Reads only keys that define the network and its input. An unknown key is an error under MODEL, and a warning
        elsewhere.

        Args:
            config_file: config file as for training, for example a run's config.yaml.
            weights: checkpoint; None: the config's MODEL.WEIGHTS.
            device: cpu, cuda, cuda:1 …, or a torch.device; auto: a CUDA device if available.
            half: use 16-bit precision except in the heads; faster on CUDA devices, slower on a CPU.
            flip: average the features of a crop and its mirror image; None: the config's TEST.FLIP.ENABLED.
            overrides: KEY VALUE words that override the config.
            imports: modules that register the model's parts, imported first, as `--import` does.
        Raises:
            UserError: unreadable config, unknown key under MODEL, unsupported option, missing device; unreadable
                weights, or weights of another model.
            ValueError: an argument of a wrong type.
        """
        check_items(overrides, "overrides", "KEY VALUE words")
        check_items(imports, "imports", "module names")
        if imports:
            import_modules(imports)
        words = [*overrides]
        if weights is not None:
            words += ["MODEL.WEIGHTS", str(weights)]
        if flip is not None:
            check_switch(flip, "flip")
            words += ["TEST.FLIP.ENABLED", str(flip)]
        cfg = load_for_embedding(config_file, words)
        embedder = cls.of(cfg, device=device, half=half, batch_size=batch_size)
        # The name of a bundled config stays: it is no path.
        config = _absolute(config_file) if Path(config_file).expanduser().is_file() else str(config_file)
        embedder._load = partial(
            cls.from_config, config, embedder.record.weights, device=device, half=half, flip=flip,
            batch_size=batch_size, overrides=overrides, imports=imports,
        )  # fmt: skip
        return embedder

    @classmethod
    def from_run(cls, run: str | Path, **options: Any) -> "Embedder":
        """Loads the model of a `pml-ext train` run from its OUTPUT_DIR: the config and the best checkpoint.

        Args:
            options: see `from_config`; `weights` selects another checkpoint, such as run/checkpoints/last.ckpt.
        Raises:
            UserError: not the folder of a run with a checkpoint; see also `from_config`.
        """
        return cls.from_config(config_of_run(run), **{"weights": weights_of_run(run), **options})

    @classmethod
    def of(cls, cfg: CN, *, device: str | torch.device, half: bool, batch_size: int) -> "Embedder":
        """Loads a model from a config that `load_for_embedding` has read."""
        check_switch(half, "half")
        if not cfg.MODEL.WEIGHTS:
            raise UserError("weights must name a checkpoint, or the config's MODEL.WEIGHTS; got none")
        require_network(cfg)
        where = _device(device)
        if half and where.type == "cpu":
            log.warning("half=True on a CPU is slower than 32 bits")
        network = PixelsToEmbedding.load(cfg).requires_grad_(False)
        record = ModelRecord.of(shaping(cfg), cfg.MODEL.WEIGHTS, embedding_dim=network.embedding_dim, half=half)
        record = replace(record, weights=_absolute(cfg.MODEL.WEIGHTS))
        network = (network.to_float16() if half else network).to(where)
        return cls._of_network(network, record, where, batch_size)

    @classmethod
    def from_onnx(cls, path: str | Path, *, device: str | torch.device = "auto", batch_size: int = 32) -> "Embedder":
        """Loads a file of `pml-ext export`, with the flip test and precision of the export.

        Args:
            device: cpu, cuda, cuda:1 …, or a torch.device; auto: a CUDA device if onnxruntime supports it.
        Raises:
            UserError: onnxruntime is not installed, or cannot read the file; the file is from another program, or was
                modified after its export; missing device.
        """
        model = OnnxModel(path, str(device))
        record = replace(model.record, onnx=_absolute(path))
        embedder = cls._of_network(model, record, torch.device("cpu"), batch_size)
        embedder._load = partial(cls.from_onnx, _absolute(path), device=device, batch_size=batch_size)
        return embedder

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol) if self._load is None else (self._load, ())

    @property
    def embedding_dim(self) -> int:
        """D, the embedding size."""
        return self.record.embedding_dim

    @property
    def size(self) -> tuple[int, int]:
        """Height and width that crops are resized to; UserError if INPUT.SIZE_TEST is not a height and width."""
        if len(self._size) != 2 or min(self._size) < 1:
            raise UserError(f"INPUT.SIZE_TEST must be height and width to give every crop one size; got {self._size}")
        return self._size[0], self._size[1]

    def __call__(self, crops: "Source | Sequence[Source]", *, order: str = "RGB") -> Tensor:
        """Embeds one or several images or crops of any size.

        All are read as in training: turned as their Exif data say, transparent pixels white, 16-bit grey divided by
        257. Crop and turn a Pillow image after `PIL.ImageOps.exif_transpose`, which removes the turn from its data.

        Args:
            crops: each a path, the bytes of an image file, a Pillow image, an array (h, w) or (h, w, C) or a tensor
                (C, h, w); in a list, or of one size in an array (N, h, w, C) or tensor (N, C, h, w). C is 1 to 4: grey,
                grey and alpha, colours, colours and alpha. Values are uint8, or uint16 from 0 to 65535.
            order: channel order of arrays and tensors, RGB or BGR (as in OpenCV).
        Returns:
            (N, D) float32 on the CPU, rows of unit length; N = 1 for one crop.
        Raises:
            TypeError: a value that is not an image.
            ValueError: an image that cannot be decoded, or pixels without a known range, such as floating-point; an
                embedding that is zero or not finite.
        """
        pixels = [self.prepare(crop) for crop in _read_crops(crops, order=order, grey=self.is_grey)]
        embeddings = self.embed_prepared(pixels)
        if bad := embedding_faults(embeddings):
            place, fault = next(iter(bad.items()))
            advice = "; 16 bits may be too few for this model" if self.record.precision == "float16" else ""
            raise ValueError(f"{len(bad)} images cannot be embedded: the embedding of image {place} is {fault}{advice}")
        return embeddings

    def embed_prepared(self, pixels: Sequence[Tensor]) -> Tensor:
        """Embed N images (C, H, W) from `prepare`, images of one size together. Returns (N, D) on the CPU."""
        embeddings = torch.empty(len(pixels), self.embedding_dim, device="cpu")
        rows_by_size: dict[torch.Size, list[int]] = {}
        for row, image in enumerate(pixels):
            rows_by_size.setdefault(image.shape, []).append(row)
        with torch.inference_mode():
            for rows in rows_by_size.values():
                for start in range(0, len(rows), self.batch_size):
                    batch = rows[start : start + self.batch_size]
                    images = torch.stack([pixels[row] for row in batch]).to(self.device).float()
                    embeddings[batch] = self.network(images).cpu()
        return embeddings


def embedding_faults(embeddings: Tensor) -> dict[int, str]:
    """Returns the rows that are no unit vectors, and what they are: zero or not finite."""
    faults = {}
    for row, length in enumerate(embeddings.norm(dim=1).tolist()):
        if not 0.5 < length < 2:  # 16 bits are precise to 0.001
            faults[row] = "zero" if length <= 0.5 else "not finite"
    return faults


def _absolute(path: str | Path) -> str:
    return str(Path(path).expanduser().resolve())


def _device(name: str | torch.device) -> torch.device:
    """Returns the device of a name such as cuda:1, or auto; UserError if it does not exist."""
    kind, index = kind_and_index(str(name))
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if missing := missing_device(f"cuda:{index}"):
        raise UserError(f"device = {missing}")
    return torch.device("cuda", index)


class _StandardisedModule(nn.Module):
    """Maps pixels in 0–255 to unit embeddings, by a module that takes standardised images."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.module = module
        floating = (value.dtype for value in module.parameters() if value.is_floating_point())
        self.dtype = next(floating, torch.float32)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32, device="cpu")[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32, device="cpu")[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        embeddings = self.module(((images - self.mean) / self.std).to(self.dtype))
        if not isinstance(embeddings, Tensor) or embeddings.ndim != 2 or len(embeddings) != len(images):
            shape = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(embeddings).__name__
            raise UserError(f"the module must return one embedding per image, shape ({len(images)}, D); got {shape}")
        return unit_rows(embeddings.float())


def _hash_of(module: nn.Module) -> str:
    """Returns the SHA-256 of the names, types, shapes and values of a module's weights and buffers."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read_crops(crops: "Source | Sequence[Source]", *, order: str, grey: bool) -> list[Tensor]:
    """Reads crops to (1 or 3, h, w) uint8; errors have the index of the crop."""
    if order not in ("RGB", "BGR"):
        raise ValueError(f"order must be RGB or BGR; got {order!r}")
    is_batch = isinstance(crops, (np.ndarray, Tensor)) and crops.ndim == 4
    several = is_batch or (isinstance(crops, Sequence) and not isinstance(crops, (str, bytes)))
    each: Any = crops if several else [crops]
    return [read_image(crop, grey, name=str(place), order=order) for place, crop in enumerate(each)]
