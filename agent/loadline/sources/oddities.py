"""Log of what is odd about the pages of an engine or a router, such as a model that the configuration lacks."""

from collections.abc import Mapping
from typing import Final

from loadline.adapters.logs import bounded
from loadline.wire.codec import printable

_NAME_CHARS_MAX: Final = 100
_log = bounded("source")


class OddityLog:
    """Log of one page: each kind of oddity once, since most repeat with every reading.

    Args:
        page: Name of the page.
    """

    def __init__(self, page: str) -> None:
        self._page = page
        self._known: set[str] = set()

    def update(self, warnings: Mapping[str, int], unknown_model: str = "") -> None:
        """Log the kinds that are new.

        Args:
            warnings: Number of oddities by kind.
            unknown_model: Name of the last model that was ignored.
        """
        for kind in warnings.keys() - self._known:
            self._known.add(kind)
            if kind == "model_ignored":
                model = printable(unknown_model, _NAME_CHARS_MAX)
                remedy = "name it in models if it is one of yours: its traffic is not counted"
                _log.warning("metrics_odd", page=self._page, kind=kind, model=model, remedy=remedy)
            else:
                _log.warning("metrics_odd", page=self._page, kind=kind, count=warnings[kind])
