"""Reader of an engine's pages: loads of its ranks, and the traffic that it served between two pages."""

import re
from typing import Any, Final

from msgspec.structs import replace

from loadline.engine_metrics.bounds import (
    ARRIVAL_COUNT,
    BATCH_COUNT,
    BLOCK_COUNT,
    MILLISECONDS,
    QUEUE_COUNT,
    RATIO,
    TOKEN_COUNT,
    TOKENS,
    Bounds,
)
from loadline.engine_metrics.engine_reading import EngineReading, EngineTraffic, RankLoad
from loadline.engine_metrics.figures import FigureReader, Figures
from loadline.engine_metrics.process_start import is_another_start, read_start_ms
from loadline.engine_metrics.tables import ENGINES
from loadline.errors import NotAnExposition

RANKS_MAX: Final = 1_024
_RANK: Final = re.compile("[0-9]{1,4}")

# Some versions tell these without a rank.
_SETTINGS: Final = ("kv_blocks_total", "kv_tokens_total", "block_size_tokens", "max_batch_requests")
_LATENCIES: Final = ("ttft_ms", "itl_ms", "queue_ms")
_MEANS: Final = {**dict.fromkeys(_LATENCIES, MILLISECONDS), "isl_tokens": TOKENS}


class EngineReader:
    """Reader of the pages of one engine.

    Args:
        engine: Its name in ``ENGINES``.
    """

    def __init__(self, engine: str) -> None:
        self._figures = FigureReader(ENGINES[engine], groups_max=RANKS_MAX + 1)
        self._read_ms = 0
        self._started_ms: int | None = None
        self._requests: int | None = None
        self._numbers: dict[int, int] = {}
        self._last_means: dict[int, dict[str, float]] = {}

    @property
    def warnings(self) -> dict[str, int]:
        """Number of oddities by kind since the start, such as a usage above the capacity."""
        return {kind: count for kind, count in self._figures.warnings.items() if count}

    def read(self, page: bytes, now_ms: int) -> EngineReading:
        """Read a page.

        Args:
            page: The body of the answer.
            now_ms: Time of the answer, on a clock that never steps back.

        Raises:
            NotAnExposition: It has no metrics of this engine, or is cut.
        """
        started_ms = read_start_ms(page)
        changed = is_another_start(started_ms, self._started_ms)
        if changed:
            self._figures.forget()
        groups = self._figures.read(page)
        if not self._figures.has_series:
            raise NotAnExposition("its metrics have no series yet")
        restarted = self._figures.restarted or changed
        if self._started_ms is not None and not restarted:
            started_ms = self._started_ms
        if restarted:
            self._numbers.clear()
            self._last_means.clear()
        shared = groups.pop("", Figures())
        ranks = self._ranks(groups) if groups else {0: shared}
        if not ranks:
            raise NotAnExposition("no series has a rank below 1,024")
        loads = tuple(self._load(rank, figures, shared, fresh=not restarted) for rank, figures in sorted(ranks.items()))
        everything = [*ranks.values(), shared] if groups else [shared]
        reading = EngineReading(
            model=next((figures.model for figures in everything if figures.model), ""),
            ranks=loads,
            restarted=restarted,
            started_ms=started_ms,
            kv_blocks_total=max([load.kv_blocks_total or 0 for load in loads]) or None,
            block_size_tokens=self._setting(everything, "block_size_tokens"),
            max_batch_requests=self._setting(everything, "max_batch_requests"),
        )
        requests = reading.requests
        if self._read_ms and not restarted:
            traffic = self._traffic(everything, requests, now_ms - self._read_ms)
            reading = replace(reading, traffic=traffic) if traffic is not None else reading
        self._read_ms, self._started_ms, self._requests = now_ms, started_ms, requests
        return reading

    def _ranks(self, groups: dict[str, Figures]) -> dict[int, Figures]:
        """Return the groups whose label is a rank, numbered from 0 in their order.

        The second of two servers of 8 ranks each begins at rank 8: its record must not promise 8 that never report.
        A number stays until a restart, so a rank that shows its first series late gets the next one.
        """
        ranks = {}
        for label, figures in groups.items():
            if _RANK.fullmatch(label) and int(label) < RANKS_MAX:
                ranks[int(label)] = figures
            else:
                self._figures.warnings["rank_ignored"] += 1
        for rank in sorted(ranks.keys() - self._numbers.keys()):
            self._numbers[rank] = len(self._numbers)
        return {self._numbers[rank]: figures for rank, figures in ranks.items()}

    def _load(self, rank: int, figures: Figures, shared: Figures, *, fresh: bool) -> RankLoad:
        gauges = figures.gauges
        if figures is not shared:
            gauges = {name: shared.gauges[name] for name in _SETTINGS if name in shared.gauges} | gauges
        total = self._whole(gauges, "kv_blocks_total", BLOCK_COUNT)
        if total is None and "kv_tokens_total" in gauges:
            size = self._whole(gauges, "block_size_tokens", BATCH_COUNT) or 1
            total = self._whole({"kv_blocks_total": gauges["kv_tokens_total"] // size}, "kv_blocks_total", BLOCK_COUNT)
        ratio = self._ratio(gauges, "kv_usage_ratio")
        used = self._whole(gauges, "kv_blocks_used", BLOCK_COUNT)
        if used is None and ratio is not None and total is not None:
            used = round(ratio * total)
        if used is not None and total is not None and used > total:
            self._figures.warnings["above_capacity"] += 1
            used = total
        return RankLoad(
            rank=rank,
            waiting_requests=self._whole(gauges, "waiting_requests", QUEUE_COUNT),
            running_requests=self._whole(gauges, "running_requests", BATCH_COUNT),
            decode_batch_requests=self._whole(gauges, "decode_batch_requests", BATCH_COUNT),
            decode_tokens=self._whole(gauges, "decode_tokens", TOKEN_COUNT),
            kv_usage_ratio=ratio,
            kv_blocks_used=used,
            kv_blocks_total=total,
            **self._means(rank, figures, shared, fresh=fresh),
        )

    def _means(self, rank: int, figures: Figures, shared: Figures, *, fresh: bool) -> dict[str, float]:
        """Return the means of the interval, or of the last one that had any."""
        found: dict[str, float] = {}
        for candidate in (figures, shared) if fresh else ():
            if candidate.distributions or candidate.counts:  # none has before its second page
                for quantity, bounds in _MEANS.items():
                    mean = _isl(candidate) if quantity == "isl_tokens" else candidate.mean(quantity)
                    known = None if quantity in found else self._number(quantity, mean, bounds)
                    if known is not None:
                        found[quantity] = known
        last = self._last_means.setdefault(rank, {})
        last.update(found)
        return last

    def _traffic(self, groups: list[Figures], requests: int | None, interval_ms: int) -> EngineTraffic | None:
        """Return the traffic of all ranks; None: requests that wait, run or finished are not counted."""
        if requests is None or self._requests is None:
            return None
        whole = _merged(groups)
        finished = self._whole(whole.counts, "finished_requests", ARRIVAL_COUNT)
        if finished is None:
            return None
        # Requests are conserved: what finished or is there now and was not there before has arrived.
        arrivals = max(0, finished + requests - self._requests)
        looked_up, cached = whole.counts.get("looked_up_tokens", 0.0), whole.counts.get("cached_tokens")
        hit_ratio = self._ratio({"": cached / looked_up}, "") if looked_up > 0 and cached is not None else None
        return EngineTraffic(
            interval_ms=interval_ms,
            arrivals=arrivals,
            completed=finished,
            isl_tokens=self._number("isl_tokens", _isl(whole), TOKENS),
            osl_tokens=self._number("osl_tokens", _osl(whole), TOKENS),
            **{name: self._number(name, whole.mean(name), MILLISECONDS) for name in _LATENCIES},
            prefix_hit_ratio=hit_ratio,
            isl_histogram=whole.histogram("isl_tokens"),
            osl_histogram=whole.histogram("osl_tokens"),
        )

    def _setting(self, groups: list[Figures], quantity: str) -> int | None:
        for figures in groups:
            if quantity in figures.gauges:
                return self._whole(figures.gauges, quantity, BATCH_COUNT) or None
        return None

    def _ratio(self, gauges: dict[str, float], quantity: str) -> float | None:
        value = gauges.get(quantity)
        if value is None:
            return None
        if value > 1.0:
            self._figures.warnings["above_capacity"] += 1
        ratio: float | None = self._number(quantity, min(value, 1.0), RATIO)
        return ratio

    def _whole(self, values: dict[str, float], quantity: str, bounds: Bounds) -> int | None:
        value = values.get(quantity)
        known: int | None = None if value is None else self._number(quantity, value, bounds)
        return known

    def _number(self, quantity: str, value: float | None, bounds: Bounds) -> Any:
        """Return the value if it is within the bounds of its kind, else None."""
        if value is None:
            return None
        known = bounds.accept(value)
        if known is None:
            self._figures.warnings[f"impossible_{quantity}"] += 1
        return known


def _isl(figures: Figures) -> float | None:
    """Return the mean length of the prompts that were computed, or of the requests that finished."""
    prompts, tokens = figures.counts.get("prompts", 0.0), figures.counts.get("prompt_tokens", 0.0)
    return tokens / prompts if prompts > 0 and tokens > 0 else figures.mean("isl_tokens")


def _osl(figures: Figures) -> float | None:
    """Return the mean output of the requests that finished; without a histogram, of the tokens of this interval."""
    if "osl_tokens" in figures.distributions:
        return figures.mean("osl_tokens")
    finished, tokens = figures.counts.get("finished_requests", 0.0), figures.counts.get("generated_tokens", 0.0)
    return tokens / finished if finished > 0 and tokens > 0 else None


def _merged(groups: list[Figures]) -> Figures:
    """Return the sums over ranks."""
    whole = Figures()
    for figures in groups:
        whole.add(figures)
    return whole
