"""Reader of a router's pages: the traffic of each model between two pages."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from loadline.core.vocabulary.samples import TrafficSample
from loadline.engine_metrics.bounds import ARRIVAL_COUNT, MILLISECONDS, QUEUE_COUNT, RATIO, TOKENS, Bounds
from loadline.engine_metrics.figures import FigureReader, Figures
from loadline.engine_metrics.process_start import is_another_start, read_start_ms
from loadline.engine_metrics.router_tables import RouterTable
from loadline.errors import NotAnExposition

MODELS_MAX: Final = 4_096
_WORKERS_MAX: Final = 20_000
_INTERVAL_MS_MAX: Final = 3_600_000


class RouterReader:
    """Reader of the pages of one router.

    Args:
        table: Its metrics.
        models: Names of models in its metrics, and the agent's. Others are ignored: clients can invent names.
        default: The agent's model of series without the name of one; empty: they are ignored.
        model_of: Returns the agent's model of a worker in its metrics; None: it is not registered, as the series of
            workers that have gone stay in some routers.
    """

    def __init__(
        self, table: RouterTable, models: Mapping[str, str], default: str, model_of: Callable[[str], str | None]
    ) -> None:
        self.unknown_model = ""
        """Name of the last model that was ignored."""
        self._models = {**models, "": default} if default else dict(models)
        self._model_of = model_of
        self._traffic = FigureReader(table.traffic, groups_max=MODELS_MAX)
        self._workers = FigureReader(table.workers, groups_max=_WORKERS_MAX) if table.workers else None
        self._read_ms = 0
        self._started_ms: int | None = None
        self._present: dict[str, int] = {}

    @property
    def warnings(self) -> dict[str, int]:
        """Number of oddities by kind since the start."""
        return {kind: count for kind, count in self._traffic.warnings.items() if count}

    def read(self, page: bytes, now_ms: int) -> dict[str, TrafficSample]:
        """Return the traffic of each model since the page before; none after the first page and after a restart.

        Args:
            page: The body of the answer.
            now_ms: Time of the answer, on a clock that never steps back.

        Raises:
            NotAnExposition: It has no metrics of this router, or is cut.
        """
        changed = self._is_of_another_process(page)
        groups = self._by_model(self._traffic.read(page))
        for model, requests in self._in_flight(page).items():
            groups.setdefault(model, Figures()).gauges.setdefault("in_flight_requests", float(requests))
        interval_ms = now_ms - self._read_ms
        restarted = changed or self._traffic.restarted
        first = not self._read_ms or restarted or not 0 < interval_ms <= _INTERVAL_MS_MAX
        self._read_ms = now_ms
        found = {}
        for model, figures in sorted(groups.items()):
            queued = self._count(figures.gauges, "queued_requests", QUEUE_COUNT)
            in_flight = self._count(figures.gauges, "in_flight_requests", QUEUE_COUNT)
            present = (queued or 0) + (in_flight or 0)
            change = present - self._present.get(model, present) if in_flight is not None else 0
            self._present[model] = present
            counts = None if first else self._requests(figures, change)
            if counts is not None:
                found[model] = self._sample(figures, counts, queued or 0, in_flight or 0, interval_ms)
        return found

    def _is_of_another_process(self, page: bytes) -> bool:
        """Return True, and forget the counters, if another process wrote the page before.

        It was started again, or the address is of a load balancer, which asks a replica after the other. The difference
        of their counters is what they counted in their lives.
        """
        started_ms = read_start_ms(page)
        changed = is_another_start(started_ms, self._started_ms)
        if changed:
            self._traffic.warnings["process_changed"] += 1
            self._traffic.forget()
        if changed or self._started_ms is None:
            self._started_ms = started_ms
        return changed

    def _by_model(self, groups: dict[str, Figures]) -> dict[str, Figures]:
        """Return the groups of the agent's models; several names may be one model."""
        found: dict[str, Figures] = {}
        for name, figures in groups.items():
            model = self._models.get(name)
            if model is None:
                self._traffic.warnings["model_ignored"] += 1
                self.unknown_model = name
            elif model in found:
                found[model].add(figures)
            else:
                found[model] = figures
        return found

    def _in_flight(self, page: bytes) -> dict[str, int]:
        """Return the requests at registered workers, by model."""
        found: dict[str, int] = {}
        if self._workers is None:
            return found
        try:
            groups = self._workers.read(page)
        except NotAnExposition:  # it has had no worker yet
            return found
        for worker, figures in groups.items():
            model, requests = self._model_of(worker), self._count(figures.gauges, "in_flight_requests", QUEUE_COUNT)
            if model is None:
                self._traffic.warnings["worker_ignored"] += 1
            elif requests is not None:
                found[model] = found.get(model, 0) + requests
        return found

    def _requests(self, figures: Figures, change: int) -> tuple[int, int] | None:
        """Return the arrivals and the finished requests; None: the router counts neither.

        Requests are conserved: what arrived and did not finish is there now. So one count gives the other.
        """
        arrived = self._count(figures.counts, "arrived_requests", ARRIVAL_COUNT)
        finished = self._count(figures.counts, "finished_requests", ARRIVAL_COUNT)
        if arrived is None and finished is None:
            return None
        if arrived is None:
            arrived = max((finished or 0) + change, 0)
        if finished is None:
            finished = max(arrived - change, 0)
        return arrived, finished

    def _sample(
        self, figures: Figures, requests: tuple[int, int], queued: int, in_flight: int, interval_ms: int
    ) -> TrafficSample:
        arrived, finished = requests
        isl, osl = figures.mean("isl_tokens"), figures.mean("osl_tokens")
        counts = figures.counts
        if isl is None and counts.get("prompt_tokens") and finished:
            isl = counts["prompt_tokens"] / finished
        if osl is None and counts.get("generated_tokens") and finished:
            osl = counts["generated_tokens"] / finished
        looked_up, cached = counts.get("looked_up_tokens", 0.0), counts.get("cached_tokens")
        hits = min(cached / looked_up, 1.0) if looked_up > 0 and cached is not None else None
        return TrafficSample(
            0,
            interval_ms,
            arrived,
            finished,
            queued,
            in_flight,
            isl_tokens=self._known("isl_tokens", isl, TOKENS),
            kv_hit_rate=self._known("kv_hit_rate", hits, RATIO),
            osl_tokens=self._known("osl_tokens", osl, TOKENS),
            ttft_ms=self._known("ttft_ms", figures.mean("ttft_ms"), MILLISECONDS),
            itl_ms=self._known("itl_ms", figures.mean("itl_ms"), MILLISECONDS),
            isl_histogram=figures.histogram("isl_tokens"),
            osl_histogram=figures.histogram("osl_tokens"),
        )

    def _count(self, values: dict[str, float], quantity: str, bounds: Bounds) -> int | None:
        known: int | None = self._known(quantity, values.get(quantity), bounds)
        return known

    def _known(self, quantity: str, value: float | None, bounds: Bounds) -> Any:
        if value is None:
            return None
        known = bounds.accept(value)
        if known is None:
            self._traffic.warnings[f"impossible_{quantity}"] += 1
        return known
