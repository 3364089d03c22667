"""Writes a trained model as one ONNX file, and runs such a file with onnxruntime."""

import hashlib
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode as CN

from pml_ext._shared.errors import UserError, import_library
from pml_ext.deploy.model_record import INPUT, KEY, OUTPUT, ModelRecord
from pml_ext.runner.checks.rules import require_network
from pml_ext.runner.config.network_keys import shaping
from pml_ext.runner.modeling.backbones.registration import ImageSizes
from pml_ext.runner.modeling.cuda import kind_and_index
from pml_ext.runner.modeling.pixels_to_embedding import PixelsToEmbedding

_SHA256 = f"{KEY}_sha256"  # checksum of the model and its record


class OnnxModel:
    """A file of `pml-ext export`; maps (B, C, H, W) float32 in 0–255 to (B, D) of unit length.

    The device is cpu, cuda, cuda:1 …, or auto. On a CPU it uses as many threads as torch.
    """

    def __init__(self, path: str | Path, device: str) -> None:
        runtime = import_library("onnxruntime", needed_for="ONNX", install="'pml_ext[export]'")
        file = Path(path).expanduser()
        if not file.is_file():
            raise UserError(f"no ONNX file at {path}")
        kind, index = kind_and_index(device)
        has_cuda = "CUDAExecutionProvider" in runtime.get_available_providers()
        if kind == "cuda" and not has_cuda:
            advice = "install onnxruntime-gpu, or take cpu"
            raise UserError(f"device is {device}, but this onnxruntime has no CUDA: {advice}")
        cuda = [("CUDAExecutionProvider", {"device_id": index})] if has_cuda and kind != "cpu" else []
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self._session = runtime.InferenceSession(
                file.read_bytes(), options, providers=[*cuda, "CPUExecutionProvider"]
            )
            metadata = self._session.get_modelmeta().custom_metadata_map
        except Exception as error:  # onnxruntime does not document its errors on damaged input
            raise UserError(f"{path} is not an ONNX file that onnxruntime can run: {error}") from error
        if KEY not in metadata:
            raise UserError(f"{path} has no record of its model: write it with pml-ext export")
        self.record = ModelRecord.from_json(metadata[KEY], path)
        if _checksum(import_onnx().load(file), metadata[KEY]) != metadata.get(_SHA256):
            raise UserError(f"{file} was changed after it was exported: its checksum is another. Export it again")

    def __call__(self, images: Tensor) -> Tensor:
        (embeddings,) = self._session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(embeddings)


def add_record(model: Any, record: ModelRecord) -> None:
    """Store the record, and a checksum of model and record, in the metadata of an onnx.ModelProto."""
    text = record.as_json()
    import_onnx().helper.set_model_props(model, {KEY: text, _SHA256: _checksum(model, text)})


def import_onnx() -> Any:
    """Import onnx, an optional dependency."""
    return import_library("onnx", needed_for="ONNX", install="'pml_ext[export]'")


def _checksum(model: Any, record: str) -> str:
    """Returns the SHA-256 of a model whose metadata is its record."""
    import_onnx().helper.set_model_props(model, {KEY: record})
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


log = logging.getLogger("pml_ext")

TOLERANCE, HALF_TOLERANCE = 1e-4, 5e-3  # largest difference of a unit vector's coordinates, in 32 and in 16 bits


def export(cfg: CN, output: str | Path, *, half: bool = False) -> float:
    """Write MODEL.WEIGHTS as an ONNX file, after comparing the file's embeddings with the model's.

    The file accepts batches of any size, with images of INPUT.SIZE_TEST (or INPUT.CROP.SIZE), applies TEST.FLIP, and
    has a record for `Embedder.from_onnx`. half: 16-bit precision except in the heads. Returns the largest absolute
    difference of a coordinate. If it exceeds TOLERANCE (16 bits: HALF_TOLERANCE), raises a UserError and writes no
    file.
    """
    if not cfg.MODEL.WEIGHTS:
        raise UserError("export needs MODEL.WEIGHTS: the checkpoint to write")
    require_network(cfg)
    size = ImageSizes.of(cfg.INPUT).test
    # One number is both sides of a crop; without a crop, it is the shorter side of images of any shape.
    counts = (1, 2) if cfg.INPUT.CROP.ENABLED else (2,)
    if len(size) not in counts or min(size) < 1:
        raise UserError(
            f"export needs one image size: INPUT.SIZE_TEST must be height and width; got {size}. One number is enough "
            "with INPUT.CROP.ENABLED"
        )
    output = Path(output).expanduser()
    model = PixelsToEmbedding.load(cfg)
    generator = torch.Generator().manual_seed(cfg.SEED)
    images = torch.rand(3, len(cfg.MODEL.PIXEL_MEAN), size[0], size[-1], generator=generator) * 255
    # Renamed at the end, so that a file that fails the comparison never has the output's name.
    draft = output.with_name(f".{output.name}.draft")
    try:
        with torch.no_grad():
            record = ModelRecord.of(shaping(cfg), cfg.MODEL.WEIGHTS, embedding_dim=model.embedding_dim, half=half)
            expected = model(images)
            _write_onnx(model.to_float16() if half else model, images[:2], record, draft)
            difference = float((OnnxModel(draft, "cpu")(images) - expected).abs().max())
        tolerance = HALF_TOLERANCE if half else TOLERANCE
        if not difference <= tolerance:
            raise UserError(
                f"the ONNX file's embeddings differ from the model's by {difference:.1e}, more than "
                f"{tolerance:.0e}; not written{': 16 bits are too few for this model' if half else ''}"
            )
        draft.replace(output)
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    log.info(
        "%s: images (batch, %d, %d, %d) in 0–255 to unit embeddings (batch, %d); largest difference to the model %.1e",
        output, *images.shape[1:], model.embedding_dim, difference,
    )  # fmt: skip
    return difference


def _write_onnx(model: nn.Module, images: Tensor, record: ModelRecord, path: Path) -> None:
    import_library("onnxscript", needed_for="ONNX", install="'pml_ext[export]'")
    try:
        program = torch.onnx.export(
            model, (images,), input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    except torch.onnx.errors.OnnxExporterError as error:
        raise UserError(f"torch cannot write this model as ONNX: {error}") from error
    assert program is not None
    proto = program.model_proto
    add_record(proto, record)
    import_onnx().save(proto, path)
