"""What can end a run from outside, each as one message: unreadable data in a worker, a killed worker, a lost folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pml_ext._errors import UserError


@contextmanager
def one_message(output: Path) -> Iterator[None]:
    """Errors of the block as a UserError whose text is enough.

    Args:
        output: OUTPUT_DIR, for what is said where it is gone.
    """
    try:
        yield
    except UserError as error:
        # A worker's comes with the worker's traceback before the message.
        raise UserError(str(error).rpartition("UserError: ")[2].strip()) from error
    except OSError as error:
        gone = "" if output.is_dir() else f" OUTPUT_DIR {output} was removed while the run went on."
        raise UserError(f"a file cannot be read or written: {error}.{gone}") from error
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise UserError(
            "a process that loads images was ended from outside, by a lack of memory for example: try fewer "
            f"DATALOADER.NUM_WORKERS; the last checkpoint can be resumed ({str(error).strip()})"
        ) from error
