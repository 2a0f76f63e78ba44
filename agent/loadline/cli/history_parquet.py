"""Parquet file of ``loadline history``, written in row groups so that a history may have any length."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, get_type_hints

from msgspec.structs import asdict

from loadline.cli.output_files import partial_path
from loadline.errors import LoadlineError
from loadline.journal import COLUMNS, Row
from loadline.toml.regular_file import os_error_text

_GROUP_ROWS: Final = 10_000


def write_parquet(rows: Iterable[Row], path: Path) -> int:
    """Write rows, the whole file or none; return their number.

    Raises:
        LoadlineError: The file cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow.parquet import ParquetWriter  # noqa: PLC0415

    schema, count, left = _schema(pa), 0, iter(rows)
    partial = partial_path(path)
    try:
        with partial.open("wb") as file, ParquetWriter(file, schema) as writer:
            while group := [asdict(row) for row in itertools.islice(left, _GROUP_ROWS)]:
                for row in group:
                    row["numbers"] = list(row["numbers"].items())
                writer.write_table(pa.Table.from_pylist(group, schema))
                count += len(group)
        partial.replace(path.resolve())
    except OSError as error:
        problem = f"{path} cannot be written: {os_error_text(error)}"
        raise LoadlineError(f"{problem}. Free some space, or name another file.") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def _schema(arrow: Any) -> Any:
    """Return the types of the columns; times are timestamps in UTC."""
    types = {
        str: arrow.string(),
        int: arrow.int64(),
        int | None: arrow.int64(),
        list[str]: arrow.list_(arrow.string()),
        dict[str, float]: arrow.map_(arrow.string(), arrow.float64()),
    }
    hints = get_type_hints(Row)
    time = arrow.timestamp("ms", tz="UTC")
    return arrow.schema(
        [(name, time if name.endswith("at_ms") else types.get(hints[name], types[str])) for name in COLUMNS]
    )
