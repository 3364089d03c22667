"""An exported ONNX file, run by onnxruntime."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pml_ext._errors import UserError, import_library
from pml_ext.runner.modeling.cuda import kind_and_index
from pml_ext.search.model_record import INPUT, KEY, OUTPUT, ModelRecord


class OnnxModel:
    """A file of `pml-ext export --format onnx`: (B, C, H, W) float32 in 0–255 to (B, D) of unit length.

    The device is cpu, cuda, cuda:1 …, or auto. On a CPU it takes as many threads as torch does.
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
            text = self._session.get_modelmeta().custom_metadata_map.get(KEY)
        except Exception as error:  # what onnxruntime raises on damaged input is not documented
            raise UserError(f"{path} is not an ONNX file that onnxruntime can run: {error}") from error
        if text is None:
            raise UserError(
                f"{path} has no record of its model, as files of pml-ext export --format onnx have: export it with that"
            )
        self.record = ModelRecord.from_json(text, path)
        if _checksum_without(_entry(text), file) != self.record.graph:
            raise UserError(f"{file} was changed after it was exported: its checksum is another. Export it again")

    def __call__(self, images: Tensor) -> Tensor:
        (embeddings,) = self._session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(embeddings)


def append_record(file: Path, record: ModelRecord) -> None:
    """Put the record into an ONNX file that has none, with a checksum of the file as it is."""
    entry = _entry(replace(record, graph=_checksum_without(b"", file)).as_json())
    with file.open("ab") as opened:
        opened.write(entry)


def _checksum_without(end: bytes, file: Path) -> str | None:
    """The SHA-256 of a file without its last bytes; None if these are others."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        left = opened.seek(0, os.SEEK_END) - len(end)
        opened.seek(0)
        while left > 0 and (piece := opened.read(min(left, 2**20))):
            digest.update(piece)
            left -= len(piece)
        return digest.hexdigest() if opened.read() == end else None


def _entry(text: str) -> bytes:
    """The record as an entry of a model's metadata: protobuf's field 14 of ModelProto, of two texts, 1 and 2.

    Protobuf reads messages that follow each other as one, so that an entry may be added at the end of the file.
    """
    return _field(14, _field(1, KEY.encode()) + _field(2, text.encode()))


def _field(number: int, content: bytes) -> bytes:
    length, left = bytearray(), len(content)
    while left >= 128:
        length.append(left % 128 + 128)
        left //= 128
    return bytes([number * 8 + 2, *length, left]) + content
