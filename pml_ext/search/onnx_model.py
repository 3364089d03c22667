"""Runs an exported ONNX file with onnxruntime."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pml_ext._errors import UserError, import_library
from pml_ext.runner.modeling.cuda import kind_and_index
from pml_ext.search.model_record import INPUT, KEY, OUTPUT, ModelRecord

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
            self._session = runtime.InferenceSession(str(file), options, providers=[*cuda, "CPUExecutionProvider"])
            metadata = self._session.get_modelmeta().custom_metadata_map
        except Exception as error:  # onnxruntime does not document its errors on damaged input
            raise UserError(f"{path} is not an ONNX file that onnxruntime can run: {error}") from error
        if KEY not in metadata:
            raise UserError(f"{path} has no record of its model: write it with pml-ext export")
        self.record = ModelRecord.from_json(metadata[KEY], path)
        if not _is_unchanged(file, metadata):
            raise UserError(f"{file} was changed after it was exported: its checksum is another. Export it again")

    def __call__(self, images: Tensor) -> Tensor:
        (embeddings,) = self._session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(embeddings)


def add_record(model: Any, record: ModelRecord) -> None:
    """Store the record, and a checksum of model and record, in the metadata of an onnx.ModelProto."""
    properties = {KEY: record.as_json()}
    import_onnx().helper.set_model_props(model, properties)
    properties[_SHA256] = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    import_onnx().helper.set_model_props(model, properties)


def import_onnx() -> Any:
    """Import onnx, an optional dependency."""
    return import_library("onnx", needed_for="ONNX", install="'pml_ext[export]'")


def _is_unchanged(path: Path, properties: dict[str, str]) -> bool:
    model = import_onnx().load(path)
    import_onnx().helper.set_model_props(model, {KEY: properties[KEY]})
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest() == properties.get(_SHA256)
