"""Keep the messages of a release: ``python tests/contract/make_version.py 0.2``, when its tag is made.

``test_versions.py`` then holds all later versions to them.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
VERSIONS: Final = Path(__file__).with_name("versions")
_TEXTS: Final = frozenset({"$id", "$schema", "description", "title"})


def schemas() -> dict[str, Any]:
    """Return the schema of each message, without what only people read."""
    paths = sorted((ROOT / "schemas").glob("*.v1.json"))
    return {
        path.name.removesuffix(".v1.json"): _bare(json.loads(path.read_text("utf-8")))
        for path in paths
        if not path.name.startswith("step_")  # of a command, not of the wire
    }


def _bare(schema: Any, *, named: bool = False) -> Any:
    """Return a schema without texts; ``named``: its keys are names of fields or definitions."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _bare(value, named=not named and key in {"properties", "$defs"})
        for key, value in schema.items()
        if named or key not in _TEXTS
    }


def write(version: str, found: dict[str, Any]) -> None:
    """Write the file of a version, a line for each message."""
    lines = (f"{json.dumps(name)}: {json.dumps(schema, separators=(',', ':'))}" for name, schema in found.items())
    (VERSIONS / f"{version}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    write(sys.argv[1], schemas())
