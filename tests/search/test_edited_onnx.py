"""Exported ONNX files with one change each: none gives other embeddings without an error."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pml_ext import Embedder
from pml_ext._errors import UserError
from pml_ext.runner.config.network_keys import load_for_embedding
from pml_ext.runner.engine.exporting import export
from tests.search.models import small_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript", reason="pip install 'pml_ext[export]'")
pytest.importorskip("onnxruntime")

IMAGES = torch.randint(0, 256, (4, 3, 12, 8), generator=torch.Generator().manual_seed(1)).float()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    config, weights = small_model(folder / "model")
    cfg = load_for_embedding(config, ["MODEL.WEIGHTS", str(weights)])
    export(cfg, folder / "model.onnx", "onnx")
    return folder / "model.onnx"


def flipped_bytes(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for place in range(3, len(whole), len(whole) // 60):
        yield f"byte {place}", whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
    yield "cut", whole[:-10]
    yield "longer", whole + b"\0"


def edited(whole: bytes, edit: Callable[[Any], None]) -> bytes:
    model = onnx.load_from_string(whole)
    edit(model)
    content: bytes = model.SerializeToString()
    return content


def edited_networks(whole: bytes) -> Iterator[tuple[str, bytes]]:
    graph = onnx.load_from_string(whole).graph
    for i, tensor in enumerate(graph.initializer):
        values = onnx.numpy_helper.to_array(tensor)
        changed = (values * 1.01 + 0.01).astype(values.dtype) if values.dtype.kind == "f" else values + 1
        if values.size:
            new = onnx.numpy_helper.from_array(np.asarray(changed), tensor.name)
            yield f"weights {tensor.name}", edited(whole, lambda m, i=i, new=new: m.graph.initializer[i].CopyFrom(new))
    for i, node in enumerate(graph.node):
        for j, attribute in enumerate(node.attribute):

            def change(model: Any, i: int = i, j: int = j) -> None:
                attribute = model.graph.node[i].attribute[j]
                if attribute.type == onnx.AttributeProto.FLOAT:
                    attribute.f = attribute.f * 3 + 0.5
                elif attribute.type == onnx.AttributeProto.INT:
                    attribute.i += 1
                elif attribute.type == onnx.AttributeProto.INTS:
                    attribute.ints[0] += 1
                else:
                    attribute.s = b"SAME_UPPER"

            yield f"attribute {node.op_type} {attribute.name}", edited(whole, change)
        yield f"removed {node.op_type}", edited(whole, lambda m, i=i: m.graph.node.pop(i))

    def negate(model: Any) -> None:
        model.graph.node[-1].output[0] = "before"
        model.graph.node.append(onnx.helper.make_node("Neg", ["before"], ["embeddings"]))

    yield "negated", edited(whole, negate)
    yield "another operator set", edited(whole, lambda m: setattr(m.opset_import[0], "version", 13))
    yield "another producer", edited(whole, lambda m: setattr(m, "producer_version", "0"))


def edited_records(whole: bytes) -> Iterator[tuple[str, bytes]]:
    (entry,) = onnx.load_from_string(whole).metadata_props
    record = json.loads(entry.value)

    def with_text(text: str) -> bytes:
        return edited(whole, lambda model: setattr(model.metadata_props[0], "value", text))

    changes = {
        "embedding_dim": (5, 0, -1, 6.5),
        "sha256": ("0" * 64, "", 3),
        "graph": ("0" * 64, None, ""),
        "precision": ("float16", "int8"),
        "weights": ("other.ckpt", None),
        "config": ({}, {**record["config"], "INPUT.SIZE_TEST": [16, 8]}, [], {**record["config"], "NO.KEY": 1}),
        "checksum": ("", None),
        "format": ("pml_ext model 3", None),
        "pixel_order": ("BGR",),
    }
    for name, values in changes.items():
        for value in values:
            yield f"record: {name} {value!r:.40}", with_text(json.dumps(record | {name: value}))
        yield f"record without {name}", with_text(json.dumps({k: v for k, v in record.items() if k != name}))
    for text in ("", "{", "[" * 100_000, "[]", '{"a": NaN}', json.dumps(record)):
        yield f"record {text[:9]}", with_text(text)
    yield "no record", edited(whole, lambda model: model.metadata_props.pop())


def outcome(path: Path, reference: Embedder) -> str:
    """refused, the same, or wrong."""
    try:
        found = Embedder.from_onnx(path, device="cpu")
        embeddings = found.embed_prepared(list(IMAGES))
    except UserError as error:
        assert "\n" not in str(error).split(": [ONNXRuntimeError]")[0]
        return "refused"
    same = torch.allclose(embeddings, reference.embed_prepared(list(IMAGES)), atol=1e-6)
    return "the same" if same and found.record == reference.record else "wrong"


def test_no_edited_file_embeds_otherwise(exported: Path, tmp_path: Path) -> None:
    whole, reference = exported.read_bytes(), Embedder.from_onnx(exported, device="cpu")
    outcomes = dict[str, str]()
    for make in (flipped_bytes, edited_networks, edited_records):
        for name, content in make(whole):
            (tmp_path / "edited.onnx").write_bytes(content)
            outcomes[name] = outcome(tmp_path / "edited.onnx", reference) if content != whole else "no edit"
    assert len(outcomes) > 150
    assert [name for name, found in outcomes.items() if found not in ("refused", "no edit")] == []


def test_missing_fields_are_one_error(exported: Path, tmp_path: Path) -> None:
    def strip(model: Any) -> None:
        record = json.loads(model.metadata_props[0].value)
        model.metadata_props[0].value = json.dumps({name: record[name] for name in ("format", "config", "onnx")})

    (tmp_path / "m.onnx").write_bytes(edited(exported.read_bytes(), strip))
    lacks = "lacks weights, sha256, embedding_dim, precision, graph, normalization, checksum$"
    with pytest.raises(UserError, match=lacks):
        Embedder.from_onnx(tmp_path / "m.onnx", device="cpu")
