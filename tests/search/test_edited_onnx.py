"""An exported ONNX file that was changed embeds nothing: its checksum is of the whole file, the record included."""

import json
from pathlib import Path
from typing import Any

import pytest

from pml_ext import Embedder
from pml_ext._errors import UserError
from pml_ext.runner.config.network_keys import load_for_embedding
from pml_ext.runner.engine.exporting import export
from tests.search.models import small_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript", reason="pip install 'pml_ext[export]'")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    config, weights = small_model(folder / "model")
    export(load_for_embedding(config, ["MODEL.WEIGHTS", str(weights)]), folder / "model.onnx", "onnx")
    return folder / "model.onnx"


def edited(whole: bytes, kind: str) -> bytes:
    model = onnx.load_from_string(whole)
    entry = model.metadata_props[0]
    record = json.loads(entry.value)
    changes: dict[str, dict[str, Any]] = {
        "precision": {"precision": "float16"},
        "graph": {"graph": "0" * 64},
        "no checksum of the graph": {"graph": None},
        "config": {"config": record["config"] | {"INPUT.SIZE_TEST": [16, 8]}},
        "format": {"format": "another"},
    }
    if kind == "weights":
        tensor = model.graph.initializer[0]
        values = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values * 2 + 1, tensor.name))
    elif kind == "no record":
        model.metadata_props.pop()
    elif kind == "no fields":
        entry.value = json.dumps({name: record[name] for name in ("format", "config")})
    else:
        entry.value = json.dumps(record | changes[kind])
    content: bytes = model.SerializeToString()
    return content


KINDS = ["weights", "no record", "no fields", "precision", "graph", "no checksum of the graph", "config", "format"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_file_is_refused(exported: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "m.onnx").write_bytes(edited(exported.read_bytes(), kind))
    with pytest.raises(UserError, match=r"m.onnx"):
        Embedder.from_onnx(tmp_path / "m.onnx", device="cpu")


@pytest.mark.parametrize("place", range(1, 12))
def test_a_flipped_byte_is_refused(exported: Path, tmp_path: Path, place: int) -> None:
    content = bytearray(exported.read_bytes())
    content[len(content) * place // 12] ^= 1 << place % 8
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(UserError, match=r"m.onnx"):
        Embedder.from_onnx(tmp_path / "m.onnx", device="cpu")
