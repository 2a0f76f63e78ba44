"""Quantities of one program, by group of its series: a rank of an engine, a model of a router."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from operator import attrgetter
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.samples import Histogram
from loadline.core.vocabulary.scalars import LENGTH_MIN, TOKENS_MAX
from loadline.engine_metrics.exposition import Exposition, labels_of, read_exposition
from loadline.engine_metrics.increases import Counters, Increase
from loadline.engine_metrics.tables import MetricTable, Terms

# What a histogram of the protocol holds.
_BOUNDS_MAX: Final = 64
_COUNT_MAX: Final = 3_600_000_000
_PARSED_MAX: Final = 100_000
_INFINITE: Final = ("+Inf", "Inf", "inf", "+inf")


class Figures(Struct):
    """Quantities of one group. What is not in a dictionary is unknown.

    Attributes:
        model: Name of the model; empty if the series do not say.
        gauges: Values of this moment.
        counts: Increases since the last page.
        distributions: What histograms counted since the last page; latencies in ms.
    """

    model: str = ""
    gauges: dict[str, float] = {}
    counts: dict[str, float] = {}
    distributions: dict[str, Increase] = {}

    def add(self, other: "Figures") -> None:
        """Add the quantities of another group; of ratios the sum means nothing."""
        for quantity, value in other.gauges.items():
            self.gauges[quantity] = self.gauges.get(quantity, 0.0) + value
        for quantity, count in other.counts.items():
            self.counts[quantity] = self.counts.get(quantity, 0.0) + count
        for quantity, increase in other.distributions.items():
            self.distributions.setdefault(quantity, Increase()).add(increase)

    def mean(self, quantity: str) -> float | None:
        """Return the mean of what a histogram counted; None: nothing, or unknown."""
        found = self.distributions.get(quantity)
        return None if found is None else found.mean

    def histogram(self, quantity: str) -> Histogram | None:
        """Return the histogram of lengths in tokens as the protocol has it."""
        found = self.distributions.get(quantity)
        if found is None:
            return None
        bounds = sorted(bound for bound in found.bins if LENGTH_MIN <= bound <= TOKENS_MAX)
        below = [0.0, *(found.bins[bound] for bound in bounds), found.count]
        if not bounds or len(bounds) > _BOUNDS_MAX or not all(0 <= count <= _COUNT_MAX for count in below):
            return None
        return Histogram(tuple(bounds), tuple(max(0, round(upper - lower)) for lower, upper in pairwise(below)))


class _Series(Struct, frozen=True):
    """Labels of a series, sorted by their use.

    Attributes:
        group: Group that it belongs to.
        model: Name of the model.
        instance: Its other labels without those of copies: series of which it is equal are copies.
        gauge_instance: The same for a gauge.
        server: The server that Prometheus read it from; empty on a page that was read directly.
        bound: Upper bound of a bucket.
    """

    group: str
    model: str
    instance: str
    gauge_instance: str
    server: str
    bound: float | None

    @property
    def whole(self) -> str:
        """Instance if all series of the group are copies."""
        return ""


_Instance = Callable[[_Series], str]
_OF_COUNTER: Final[_Instance] = attrgetter("instance")
_OF_GAUGE: Final[_Instance] = attrgetter("gauge_instance")
_OF_RATIO: Final[_Instance] = attrgetter("whole")


class FigureReader:
    """Reader of the pages of one program.

    Args:
        table: Its metrics.
        groups_max: Groups beyond this number are ignored, with a warning.
    """

    def __init__(self, table: MetricTable, groups_max: int = 1_024) -> None:
        self.warnings: Counter[str] = Counter()
        """Number of oddities by kind, since the start."""
        self.restarted = False
        """True if the last page has a counter that fell. It then has no increases."""
        self.has_series = False
        """False if the last page only declares metrics."""
        self._table = table
        self._groups_max = groups_max
        self._names = table.names
        self._counters = Counters()
        self._increases: dict[str, dict[str, float]] = {}
        self._servers: set[str] = set()
        self._parsed: dict[str, _Series] = {}

    def forget(self) -> None:
        """Forget the counters, as the next page is of another process: it has no increases."""
        self._counters = Counters()

    def read(self, page: bytes) -> dict[str, Figures]:
        """Return the quantities of each group; series without a group label have the name ``""``.

        No group has increases if a server of the target was not on the page before, or has gone.

        Raises:
            NotAnExposition: The page has none of the metrics, or is cut.
        """
        found = read_exposition(page, self._names)
        if found.unreadable:
            self.warnings["unreadable_value"] += found.unreadable
        self.has_series = bool(found.series)
        self._counters.begin(found)
        self._increases.clear()
        groups: dict[str, Figures] = {}
        self._read_gauges(found, groups)
        self._read_counters(found, groups)
        for quantity, name in _present(self._table.histogram_counts, found):
            self._read_histogram(groups, quantity, name.removesuffix("_count"))
        self.restarted = self._counters.fell
        if self.restarted:
            self.warnings["counter_fell"] += 1
        # A server that is read for the first time, or again, would bring what it has counted meanwhile, as 80,000
        # requests in 7 s, and those that run there would be arrivals.
        before, self._servers = self._servers, self._servers_of(found)
        if self.restarted or self._servers != before:
            for figures in groups.values():
                figures.counts, figures.distributions = {}, {}
        return groups

    def _servers_of(self, found: Exposition) -> set[str]:
        return {self._series(labels).server for series in found.series.values() for labels in series} - {""}

    def _read_gauges(self, found: Exposition, groups: dict[str, Figures]) -> None:
        for quantity, name in _present(self._table.gauges, found):
            instance_of = _OF_RATIO if quantity.endswith("_ratio") else _OF_GAUGE
            for group, value in self._summed(found.series[name].items(), instance_of).items():
                figures = self._group(groups, group)
                if figures is not None:
                    figures.gauges[quantity] = figures.gauges.get(quantity, 0.0) + value
        for quantity, places in self._table.settings.items():
            for metric, label in places:
                for labels in found.series.get(metric, ()):
                    written = labels_of(labels).get(label, "")
                    figures = self._group(groups, self._series(labels).group)
                    if figures is not None and written.isascii() and written.isdigit():
                        figures.gauges.setdefault(quantity, float(written))
        self._read_models(found, groups)

    def _read_models(self, found: Exposition, groups: dict[str, Figures]) -> None:
        for terms in self._table.gauges.values():
            for name in terms[0]:
                for labels in found.series.get(name, ()):
                    series = self._series(labels)
                    if series.model and series.group in groups:
                        groups[series.group].model = series.model

    def _read_counters(self, found: Exposition, groups: dict[str, Figures]) -> None:
        for quantity, name in _present(self._table.counters, found):
            for group, value in self._increase(name).items():
                figures = self._group(groups, group)
                if figures is not None:
                    figures.counts[quantity] = figures.counts.get(quantity, 0.0) + value

    def _read_histogram(self, groups: dict[str, Figures], quantity: str, metric: str) -> None:
        totals = self._increase(f"{metric}_sum")
        scale = 1_000.0 if quantity.endswith("_ms") else 1.0
        for group, count in self._increase(f"{metric}_count").items():
            figures = self._group(groups, group)
            if figures is not None and group in totals:
                figures.distributions[quantity] = Increase(count, totals[group] * scale)
        if quantity in self._table.binned:
            self._read_bins(groups, quantity, metric)

    def _increase(self, name: str) -> dict[str, float]:
        """Return the increase of a metric by group. Several quantities may ask for the same one."""
        if name not in self._increases:
            self._increases[name] = self._summed(self._counters.increases(name), _OF_COUNTER)
        return self._increases[name]

    def _read_bins(self, groups: dict[str, Figures], quantity: str, metric: str) -> None:
        bins: dict[float, list[tuple[str, float]]] = defaultdict(list)
        for labels, value in self._counters.increases(f"{metric}_bucket"):
            bound = self._series(labels).bound
            if bound is not None:
                bins[bound].append((labels, value))
        for bound, series in bins.items():
            for group, value in self._summed(series, _OF_COUNTER).items():
                if group in groups and quantity in groups[group].distributions:
                    groups[group].distributions[quantity].bins[bound] = value

    def _summed(self, series: Iterable[tuple[str, float]], instance_of: _Instance) -> dict[str, float]:
        """Return the sum of the series by group; of those of one instance the largest counts."""
        instances: dict[tuple[str, str], float] = {}
        for labels, value in series:
            parsed = self._series(labels)
            key = parsed.group, instance_of(parsed)
            instances[key] = max(value, instances.get(key, value))
        groups: dict[str, float] = defaultdict(float)
        for (group, _), value in instances.items():
            groups[group] += value
        return groups

    def _group(self, groups: dict[str, Figures], name: str) -> Figures | None:
        if name not in groups:
            if len(groups) >= self._groups_max:
                self.warnings["too_many_groups"] += 1
                return None
            groups[name] = Figures()
        return groups[name]

    def _series(self, labels: str) -> _Series:
        series = self._parsed.get(labels)
        if series is None:
            if len(self._parsed) >= _PARSED_MAX:
                self._parsed.clear()
            series = self._parsed[labels] = self._parse(labels)
        return series

    def _parse(self, written: str) -> _Series:
        labels = labels_of(written)
        bound = labels.pop("le", None)
        group, model = _first(labels, self._table.group_labels), _first(labels, self._table.model_labels)
        distinct = [name for name in sorted(labels) if name not in self._table.copy_labels]
        instance, gauge_instance = (
            "\0".join([f"{name}={labels[name]}" for name in distinct if name not in copies])
            for copies in ((), self._table.gauge_copy_labels)
        )
        return _Series(group, model, instance, gauge_instance, labels.get("instance", ""), _bound(bound))


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the value of the first of these labels that a series has."""
    for name in names:
        if name in labels:
            return labels[name]
    return ""


def _present(quantities: Mapping[str, Terms], found: Exposition) -> Iterator[tuple[str, str]]:
    """Yield quantities with the metrics that the page has: of each term the first."""
    for quantity, terms in quantities.items():
        for term in terms:
            for name in term:
                if name in found.series:
                    yield quantity, name
                    break


def _bound(written: str | None) -> float | None:
    if written is None or written in _INFINITE:
        return None
    try:
        return float(written)
    except ValueError:
        return None
