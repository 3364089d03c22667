"""A trained model as one file for other programs: pixels in, unit-length embeddings out."""

import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from yacs.config import CfgNode as CN

from pml_ext.training.config.load import ConfigError
from pml_ext.training.modeling.architectures import architecture_of
from pml_ext.training.modeling.weights import ONLY_FOR_TRAINING, load_weights

log = logging.getLogger("pml_ext")

TOLERANCE = 1e-4  # of a coordinate of a unit vector


class ExportError(RuntimeError):
    """The model could not be written, or the file computes something else than the model."""


class PixelsToEmbedding(nn.Module):
    """A config's model in evaluation, with its pixel normalisation before and the division by the length after it.

    Names of weights are those of a checkpoint.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, cfg: CN) -> None:
        super().__init__()
        self.architecture = architecture_of(cfg.MODEL)
        for name, part in self.architecture.parts(cfg.MODEL, cfg.INPUT, num_classes=0).items():
            self.add_module(name, part)
        self.register_buffer("pixel_mean", torch.tensor(cfg.MODEL.PIXEL_MEAN).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(cfg.MODEL.PIXEL_STD).view(1, -1, 1, 1), persistent=False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, H, W) float32 in 0–255, RGB or grey as trained; (B, D) of length 1."""
        (embeddings,) = self.architecture.output(self, (images - self.pixel_mean) / self.pixel_std).features
        return nn.functional.normalize(embeddings.float(), dim=1)


def export(cfg: CN, output: str | Path, file_format: str) -> float:
    """Write MODEL.WEIGHTS as a file whose embeddings were compared with the model's.

    The file takes batches of any size, of images of INPUT.SIZE_TEST.

    Args:
        file_format: a key of FORMATS.
    Returns:
        the largest absolute difference of a coordinate between the file's embeddings and the model's.
    Raises:
        ConfigError: no MODEL.WEIGHTS, no fixed image size, an output that cannot be written.
        ExportError: a difference above TOLERANCE, or an operation that the format does not have; no file is left.
        WeightsError: MODEL.WEIGHTS are of another model.
    """
    if not cfg.MODEL.WEIGHTS:
        raise ConfigError("export needs MODEL.WEIGHTS: the checkpoint to write")
    size = list(cfg.INPUT.SIZE_TEST)
    if not 1 <= len(size) <= 2 or min(size) < 1:
        raise ConfigError(f"export needs one image size: INPUT.SIZE_TEST must be height and width; got {size}")
    output = Path(output).expanduser()
    if not output.parent.is_dir():
        raise ConfigError(f"no folder {output.parent} to write {output.name} into")
    net = PixelsToEmbedding(cfg)
    load_weights(net, cfg.MODEL.WEIGHTS, optional=ONLY_FOR_TRAINING)
    write, read = FORMATS[file_format]
    generator = torch.Generator().manual_seed(cfg.SEED)
    images = torch.rand(3, len(cfg.MODEL.PIXEL_MEAN), size[0], size[-1], generator=generator) * 255
    # Beside the output and renamed at the end: nobody finds a file that failed the comparison.
    draft = output.with_name(f".{output.name}.draft")
    try:
        with torch.no_grad():
            write(net, images[:2], draft)
            embeddings = net(images)
            difference = float((read(draft, images) - embeddings).abs().max())
        if not difference <= TOLERANCE:
            raise ExportError(
                f"the {file_format} file's embeddings differ from the model's by {difference:.1e}, more than "
                f"{TOLERANCE:.0e}; not written"
            )
        draft.replace(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    log.info(
        "%s: images (batch, %d, %d, %d) in 0–255 to unit embeddings (batch, %d); largest difference to the model %.1e",
        output,
        *images.shape[1:],
        embeddings.shape[1],
        difference,
    )
    return difference


def _write_torchscript(net: nn.Module, images: Tensor, path: Path) -> None:
    with _quiet_torchscript():
        # torch ends the process where it cannot write a file whole; a buffer it can.
        content = io.BytesIO()
        torch.jit.save(torch.jit.trace(net, images), content)
    path.write_bytes(content.getbuffer())


def _read_torchscript(path: Path, images: Tensor) -> Tensor:
    with _quiet_torchscript():
        embeddings: Tensor = torch.jit.load(str(path), map_location="cpu")(images)
    return embeddings


@contextmanager
def _quiet_torchscript() -> Iterator[None]:
    with warnings.catch_warnings():
        # Newer torch deprecates TorchScript; who asks for it knows why. What the trace fixes, image sizes, is fixed.
        for kind in (DeprecationWarning, FutureWarning, TracerWarning):
            warnings.simplefilter("ignore", kind)
        yield


def _write_onnx(net: nn.Module, images: Tensor, path: Path) -> None:
    _required("onnxscript")
    try:
        torch.onnx.export(
            net,
            (images,),
            str(path),
            input_names=["images"],
            output_names=["embeddings"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ExportError(f"torch cannot write this model as ONNX: {error}") from error


def _read_onnx(path: Path, images: Tensor) -> Tensor:
    session = _required("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _required(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ExportError(f"{error}. ONNX needs its extra: pip install 'pml_ext[export]'") from error


# name -> (write a model traced on images to a path, run the file on images)
FORMATS: dict[str, tuple[Callable[[nn.Module, Tensor, Path], None], Callable[[Path, Tensor], Tensor]]] = {
    "onnx": (_write_onnx, _read_onnx),
    "torchscript": (_write_torchscript, _read_torchscript),
}
