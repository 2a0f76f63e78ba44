"""Print the section of a version of CHANGELOG.md: python tools/release_notes.py 0.1.0."""

import re
import sys
from pathlib import Path


def notes(changelog: str, version: str) -> str:
    """Return the section of a version, without its heading.

    Raises:
        LookupError: No section has this version, or it is empty.
    """
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    if found is None or not found[1].strip():
        raise LookupError(f"CHANGELOG.md has no section of {version}")
    return found[1].strip() + "\n"


def main() -> int:
    """Print the section that the first argument names."""
    changelog = Path(__file__).parents[1] / "CHANGELOG.md"
    try:
        print(notes(changelog.read_text("utf-8"), sys.argv[1]), end="")
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
