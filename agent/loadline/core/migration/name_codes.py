"""Integer codes of names, so that columns of names can be compared with vector operations."""


class NameCodes:
    """Codes of the names of nodes or units, in the order of their first use."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._codes)

    def code(self, name: str) -> int:
        """Return the code of a name; -1 if it is empty."""
        return self._codes.setdefault(name, len(self._codes)) if name else -1
