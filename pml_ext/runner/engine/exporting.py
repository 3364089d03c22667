"""A trained model as one file for other programs: pixels in, unit-length embeddings out."""

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._errors import UserError
from pml_ext.runner.engine.export_formats import FORMATS
from pml_ext.runner.modeling.architectures import architecture_of
from pml_ext.runner.modeling.heads import EmbeddingHead
from pml_ext.runner.modeling.image_sizes import ImageSizes
from pml_ext.runner.modeling.weights.load import ONLY_FOR_TRAINING, load_weights
from pml_ext.search.model_record import ModelRecord, report_for

log = logging.getLogger("pml_ext")

TOLERANCE, HALF_TOLERANCE = 1e-4, 5e-3  # of a coordinate of a unit vector, in 32 and in 16 bits


class PixelsToEmbedding(nn.Module):
    """A config's model in evaluation, with its pixel normalisation before and the division by the length after it.

    With TEST.FLIP.ENABLED the features of an image and of its mirror image are averaged, as tests do. Names of weights
    are those of a checkpoint.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, cfg: CN) -> None:
        super().__init__()
        self.architecture = architecture_of(cfg.MODEL)
        for name, part in self.architecture.parts(cfg.MODEL, cfg.INPUT, num_classes=0).items():
            self.add_module(name, part)
        self.flip, self.dtype = bool(cfg.TEST.FLIP.ENABLED), torch.float32
        self.register_buffer("pixel_mean", torch.tensor(cfg.MODEL.PIXEL_MEAN).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(cfg.MODEL.PIXEL_STD).view(1, -1, 1, 1), persistent=False)
        self.eval()

    @classmethod
    def trained(cls, cfg: CN) -> "PixelsToEmbedding":
        """With MODEL.WEIGHTS.

        Raises:
            UserError: an architecture, or an option of it, that is not built; weights of another model.
        """
        net = cls(cfg)
        load_weights(net, cfg.MODEL.WEIGHTS, optional=ONLY_FOR_TRAINING)
        return net

    @property
    def embedding_dim(self) -> int:
        """D: an architecture with several heads joins their features."""
        return sum(module.embedding_size for module in self.modules() if isinstance(module, EmbeddingHead))

    def in_16_bits(self) -> "PixelsToEmbedding":
        """Itself, changed: all but heads and pixel normalisation in float16.

        Pooling takes powers (GeM) and the heads divide by small deviations; 16 bits hold neither, and neither takes
        time.
        """
        mean, std = self.pixel_mean, self.pixel_std
        self.half()
        self.pixel_mean, self.pixel_std, self.dtype = mean, std, torch.float16
        for module in self.modules():
            if isinstance(module, EmbeddingHead):
                module.float()
                module.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
        return self

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, H, W) float32 in 0–255, RGB or grey as trained; (B, D) of length 1."""
        features = self._features(images)
        if self.flip:
            features = (features + self._features(images.flip(-1))) / 2
        return nn.functional.normalize(features, dim=1)

    def _features(self, images: Tensor) -> Tensor:
        standardised = ((images - self.pixel_mean) / self.pixel_std).to(self.dtype)
        (features,) = self.architecture.output(self, standardised).features
        return features.float()


def export(
    cfg: CN, output: str | Path, file_format: str, *, half: bool = False, threshold: str | Path | None = None
) -> float:
    """Write MODEL.WEIGHTS as a file whose embeddings were compared with the model's.

    The file takes batches of any size, of images of INPUT.SIZE_TEST (INPUT.CROP.SIZE where that is enabled), and holds
    a record of what it takes and gives, which `Embedder.from_onnx` reads. TEST.FLIP is in it.

    Args:
        file_format: a key of FORMATS.
        half: all but the heads computed in 16 bits; the file is half as large, and takes and gives 32 bits.
        threshold: a threshold report of these weights, whose cosine goes into the record.
    Returns:
        the largest absolute difference of a coordinate between the file's embeddings and the model's in 32 bits.
    Raises:
        UserError: no MODEL.WEIGHTS, no fixed image size, an architecture that is not built, an output that cannot be
            written, a threshold report of another model; a difference above TOLERANCE (16 bits: HALF_TOLERANCE), or an
            operation that the format does not have; no file is left; MODEL.WEIGHTS are of another model.
    """
    if not cfg.MODEL.WEIGHTS:
        raise UserError("export needs MODEL.WEIGHTS: the checkpoint to write")
    size = ImageSizes.of(cfg.INPUT).test
    if not 1 <= len(size) <= 2 or min(size) < 1:
        raise UserError(f"export needs one image size: INPUT.SIZE_TEST must be height and width; got {size}")
    output = Path(output).expanduser()
    if not output.parent.is_dir():
        raise UserError(f"no folder {output.parent} to write {output.name} into")
    net = PixelsToEmbedding.trained(cfg)
    write, read = FORMATS[file_format]
    generator = torch.Generator().manual_seed(cfg.SEED)
    images = torch.rand(3, len(cfg.MODEL.PIXEL_MEAN), size[0], size[-1], generator=generator) * 255
    # Beside the output and renamed at the end: nobody finds a file that failed the comparison.
    draft = output.with_name(f".{output.name}.draft")
    try:
        with torch.no_grad():
            expected = net(images)
            record = _record(cfg, net.embedding_dim, half, threshold)
            write(net.in_16_bits() if half else net, images[:2], record.as_json(), draft)
            difference = float((read(draft, images) - expected).abs().max())
        tolerance = HALF_TOLERANCE if half else TOLERANCE
        if not difference <= tolerance:
            raise UserError(
                f"the {file_format} file's embeddings differ from the model's by {difference:.1e}, more than "
                f"{tolerance:.0e}; not written{': 16 bits are too few for this model' if half else ''}"
            )
        draft.replace(output)
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    log.info(
        "%s: images (batch, %d, %d, %d) in 0–255 to unit embeddings (batch, %d); largest difference to the model %.1e",
        output,
        *images.shape[1:],
        net.embedding_dim,
        difference,
    )
    return difference


def _record(cfg: CN, embedding_dim: int, half: bool, threshold: str | Path | None) -> ModelRecord:
    record = ModelRecord.of(cfg, embedding_dim=embedding_dim, half=half)
    if threshold is None:
        return record
    try:
        return replace(record, threshold=report_for(threshold, record).cosine)
    except (OSError, UserError) as error:
        raise UserError(f"--threshold: {error}") from error
