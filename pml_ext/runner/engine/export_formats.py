"""The kinds of file that a model can be exported as: how each is written and run."""

import importlib
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from pml_ext._errors import UserError
from pml_ext.search.model_record import INPUT, KEY, OUTPUT


def _write_torchscript(net: nn.Module, images: Tensor, record: str, path: Path) -> None:
    with _quiet_torchscript():
        # torch ends the process where it cannot write a file whole; a buffer it can.
        content = io.BytesIO()
        torch.jit.save(torch.jit.trace(net, images), content, _extra_files={f"{KEY}.json": record})
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


def _write_onnx(net: nn.Module, images: Tensor, record: str, path: Path) -> None:
    required("onnxscript")
    try:
        program = torch.onnx.export(
            net,
            (images,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        raise UserError(f"torch cannot write this model as ONNX: {error}") from error
    assert program is not None
    program.model.metadata_props[KEY] = record
    program.save(str(path), external_data=False)


def _read_onnx(path: Path, images: Tensor) -> Tensor:
    session = required("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def required(name: str) -> Any:
    """A module that ONNX needs, or an error that names the extra."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"{error}. ONNX needs its extra: pip install 'pml_ext[export]'") from error


# name -> (write a model traced on images, with its record, to a path; run the file on images)
FORMATS: dict[str, tuple[Callable[[nn.Module, Tensor, str, Path], None], Callable[[Path, Tensor], Tensor]]] = {
    "onnx": (_write_onnx, _read_onnx),
    "torchscript": (_write_torchscript, _read_torchscript),
}
