"""Runs an exported ONNX file with onnxruntime."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from pml_ext._errors import UserError, import_library
from pml_ext._files import sha256_of
from pml_ext.runner.modeling.cuda import kind_and_index
from pml_ext.search.model_record import INPUT, KEY, OUTPUT, ModelRecord

_SHA256 = f"{KEY}_sha256"  # checksum of everything before this entry, the last one in the file


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
        sha256 = metadata.get(_SHA256, "")
        content, end = file.read_bytes(), _entry(_SHA256, sha256)
        if not content.endswith(end) or hashlib.sha256(content[: -len(end)]).hexdigest() != sha256:
            raise UserError(f"{file} was changed after it was exported: its checksum is another. Export it again")

    def __call__(self, images: Tensor) -> Tensor:
        (embeddings,) = self._session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(embeddings)


def append_record(file: Path, record: ModelRecord) -> None:
    """Append the record to an ONNX file, then the checksum of the file."""
    with file.open("ab") as opened:
        opened.write(_entry(KEY, record.as_json()))
    with file.open("ab") as opened:
        opened.write(_entry(_SHA256, sha256_of(file)))


def _entry(name: str, text: str) -> bytes:
    """Returns a metadata entry, protobuf's field 14 of ModelProto with the text fields 1 and 2.

    Protobuf merges concatenated messages, so an entry can be appended to the file.
    """
    return _field(14, _field(1, name.encode()) + _field(2, text.encode()))


def _field(number: int, content: bytes) -> bytes:
    length, left = bytearray(), len(content)
    while left >= 128:
        length.append(left % 128 + 128)
        left //= 128
    return bytes([number * 8 + 2, *length, left]) + content
