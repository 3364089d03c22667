"""A `.parquet` of `pml-ext embed`: one row a picture, written and read in blocks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pml_ext._errors import UserError, import_library
from pml_ext._files import replacing
from pml_ext.search.embedding_blocks import Block

_TEXTS = {"paths": "path", "labels": "label", "fingerprints": "fingerprint"}  # fields of a block and their columns


def read_metadata(path: Path) -> dict[str, str]:
    """The texts that a file has about itself."""
    with _open(path) as file:
        metadata = file.metadata.metadata or {}
    return {name.decode("utf-8", "replace"): text.decode("utf-8", "replace") for name, text in metadata.items()}


def read_layout(path: Path, *, offsets: bool) -> tuple[int, int, frozenset[str]]:
    """Rows, dimensions and text columns (fields of `Block`); a UserError unless `write_parquet` writes such columns."""
    with _open(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    types = {name: schema.field(name).type for name in set(schema.names)}
    dim = getattr(types.get("embedding"), "list_size", 0)
    texts = frozenset(field for field, column in _TEXTS.items() if column in types)
    import pyarrow

    fits = dim and "paths" in texts and types["embedding"].value_type == pyarrow.float32()
    fits = fits and types.get("offset") == (pyarrow.float32() if offsets else None)
    if not fits or any(types[_TEXTS[field]] != pyarrow.string() for field in texts):
        found = ", ".join(f"{name} {kind}" for name, kind in types.items())
        raise UserError(
            f"{path}: the columns of pml-ext embed are path, label and fingerprint of text, embedding of float32 lists "
            f"of one length and, of normalised scores, offset of float32; got {found}: was the file changed?"
        )
    return rows, dim, texts


def read_blocks(path: Path, start: int, size: int) -> Iterator[Block]:
    """The rows from `start` on as in the file, at most `size` at a time; a UserError where values are missing."""
    seen = 0
    with _open(path) as file:
        for batch in file.iter_batches(batch_size=size):
            begin, seen = max(start - seen, 0), seen + len(batch)
            if begin < len(batch):
                part = batch.slice(begin)
                texts = {field: _values(part, column, path) for field, column in _TEXTS.items()}
                flat = part["embedding"].flatten()
                if part["embedding"].null_count or flat.null_count:
                    raise UserError(f"{path} has missing values in embedding")
                offsets = part["offset"].to_numpy(zero_copy_only=False) if "offset" in part.schema.names else None
                embeddings = flat.to_numpy().reshape(len(part), -1)
                yield Block(embeddings, texts.pop("paths") or [], **texts, offsets=offsets)


def read_texts(path: Path, field: str, rows: Sequence[int] | None = None) -> list[str]:
    """The texts of some rows, or of all."""
    with _open(path) as file:
        table = file.read(columns=[_TEXTS[field]])
    return _values(table if rows is None else table.take([*rows]), _TEXTS[field], path) or []


def write_parquet(path: Path, blocks: Iterable[Block], dim: int, metadata: Callable[[], dict[str, str]]) -> None:
    """Write blocks as they come, then the metadata; the old file stays where that fails."""
    require_pyarrow(path)
    import pyarrow
    from pyarrow import parquet

    kind, writer = pyarrow.list_(pyarrow.float32(), dim), None
    with replacing(path) as file:
        for block in blocks:
            lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(block.embeddings.reshape(-1)), type=kind)
            columns = {column: getattr(block, field) for field, column in (*_TEXTS.items(), ("offsets", "offset"))}
            table = pyarrow.table({"embedding": lists} | {c: v for c, v in columns.items() if v is not None})
            if writer is None:
                writer = parquet.ParquetWriter(
                    file, table.schema, compression="NONE", use_dictionary=False, write_page_checksum=True
                )
            writer.write_table(table)
        assert writer is not None, "no embeddings to write"
        writer.add_key_value_metadata(metadata())
        writer.close()


def require_pyarrow(path: Path) -> None:
    import_library("pyarrow", needed_for=f"{path}: a .parquet file", install="'pml_ext[parquet]', or name an .npz file")


def _values(table: Any, column: str, path: Path) -> list[str] | None:
    """The texts in a column; None where there is no such column."""
    if column not in table.schema.names:
        return None
    if table[column].null_count:
        raise UserError(f"{path} has missing values in {column}")
    values: list[str] = table[column].to_pylist()
    return values


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """An opened file; an error of pyarrow in the block is a UserError, too."""
    require_pyarrow(path)
    from pyarrow import default_memory_pool
    from pyarrow.parquet import ParquetFile

    try:
        # pre_buffer would hold the whole file, and no buffer_size a whole row group
        with ParquetFile(path, page_checksum_verification=True, pre_buffer=False, buffer_size=2**20) as file:
            yield file
    except UserError:
        raise
    except Exception as error:  # what pyarrow raises on damaged input is not documented
        raise UserError(f"{path} is not a readable .parquet file; is it whole? ({error})") from error
    finally:
        default_memory_pool().release_unused()  # 0.1 GB after 300,000 rows of 512 dimensions
