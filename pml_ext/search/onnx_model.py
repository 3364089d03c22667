"""An exported ONNX file, run by onnxruntime."""

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
        except Exception as error:  # what onnxruntime raises on damaged input is not documented
            raise UserError(f"{path} is not an ONNX file that onnxruntime can run: {error}") from error
        text = self._session.get_modelmeta().custom_metadata_map.get(KEY)
        if text is None:
            raise UserError(
                f"{path} has no record of its model, as files of pml-ext export --format onnx have: export it with that"
            )
        self.record = ModelRecord.from_json(text, path)

    def __call__(self, images: Tensor) -> Tensor:
        (embeddings,) = self._session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(embeddings)
