"""Answers of Prometheus' HTTP API as pages of its targets: the newest values of the series of each. Pure.

The query is a range of raw samples, since those have the times at which they were read; an instant value has not.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import is_name
from loadline.engine_metrics.process_start import START_METRIC

_NAME: Final = "__name__"
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_LABEL: Final = re.compile(r"[A-Za-z_]\w*")
_MS_MAX: Final = 10**15
# Labels of who read a series. One target that two jobs read, or two servers of a pair, has each of its series twice.
_READERS: Final = frozenset(("job", "service", "endpoint", "prometheus", "prometheus_replica", "receive_replica"))

# A scrape that failed once leaves two intervals, and a remote writer may be 10 s behind.
_INTERVALS_MAX: Final = 2.5
_LATE_MIN_S: Final = 20.0

_Sample = tuple[Annotated[float, Meta(ge=0, le=1e12)], str]


class AnswerRefused(Exception):
    """An answer that cannot be used, with a reason from a short list."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class _Samples(Struct, frozen=True):
    metric: dict[str, str]
    values: Annotated[tuple[_Sample, ...], Meta(min_length=1)]

    @property
    def name(self) -> str:
        return self.metric.get(_NAME, "")

    @property
    def instance(self) -> str:
        return self.metric.get("instance", "")

    @property
    def began_s(self) -> float:
        return self.values[0][0]

    @property
    def last_s(self) -> float:
        return self.values[-1][0]

    @property
    def interval_s(self) -> float:
        """Longest time between two samples; 0: there is one. Two servers may have read each scrape, 0.5 s apart."""
        return max((later_s - at_s for (at_s, _), (later_s, _) in pairwise(self.values)), default=0.0)


class _Data(Struct, frozen=True):
    resultType: Literal["matrix"]  # noqa: N815 - Prometheus' name
    result: list[_Samples]


class _Answer(Struct, frozen=True):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: list[str] = []


class TargetPage(Struct, frozen=True):
    """Newest values of one target, as a page of metrics."""

    text: bytes
    read_ms: int
    """Time at which Prometheus read the newest value, by its clock."""
    oldest_ms: int
    """Time at which it read that of its servers which it has not read for longest: they are read one by one."""


_decoder: Final = msgspec.json.Decoder(_Answer)


def query(names: Iterable[str], selector: str, window_s: int) -> str:
    """Return the query for all series of some metrics that were read in the last seconds.

    Args:
        names: Names of the metrics.
        selector: Matchers of labels, such as ``job="vllm"``; empty: all.
        window_s: Age of the oldest value.
    """
    matchers = [f'{_NAME}=~"{"|".join(sorted(names))}"', *filter(None, [selector.strip().strip("{}")])]
    return f"{{{','.join(matchers)}}}[{window_s}s]"


def read_answer(data: bytes, label: str, own: frozenset[str] = frozenset()) -> dict[str, TargetPage]:
    """Return a page for each value of a label, without the series that have ended.

    Of series that differ only in who read them, the newest counts.

    Args:
        data: The body of the answer.
        label: Label that names a target, such as ``pod``. Series without it, or with a value that cannot be a name,
            are left out.
        own: Labels of readers that the programs write too. They tell series apart, unless Prometheus renamed the
            program's to ``exported_...``.

    Raises:
        AnswerRefused: It is not one of the API, an error, or only a part of the data.
    """
    try:
        answer = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerRefused("not_prometheus", str(error)[:200]) from error
    if answer.status != "success" or answer.data is None:
        raise AnswerRefused("query_failed", answer.error[:200])
    if answer.warnings:  # of stores behind it, one did not answer: missing workers would count as lost
        raise AnswerRefused("partial", answer.warnings[0][:200])
    targets: dict[str, list[_Samples]] = defaultdict(list)
    for series in answer.data.result:
        targets[series.metric.get(label, "")].append(series)
    return {target: _page(_living(series), own) for target, series in sorted(targets.items()) if is_name(target)}


def _living(series: list[_Samples]) -> Iterator[_Samples]:
    """Yield the series of a target that have not ended; the answer has those that ended within the window, too.

    All series of one scrape have one time. That a series has no sample of the newest scrape does not end it: a remote
    writer delivers a scrape in parts, and a querier that merges two servers takes each series from either.
    """
    scrapes: dict[tuple[str, float], list[_Samples]] = defaultdict(list)
    began_s: dict[tuple[str, str], float] = {}
    for one in series:
        scrapes[one.instance, one.last_s].append(one)
        metric = one.instance, one.name
        began_s[metric] = max(one.began_s, began_s.get(metric, 0.0))
    newest_s = max(one.last_s for one in series)
    interval_s = max(one.interval_s for one in series) or inf
    late_s = newest_s - max(_LATE_MIN_S, _INTERVALS_MAX * interval_s)
    for (instance, last_s), last in scrapes.items():
        # Only within an endpoint: of two servers of a pod, each is read between two scrapes of the other.
        is_renamed = all(began_s[instance, one.name] > last_s for one in last)
        if last_s == newest_s or (last_s >= late_s and not is_renamed):
            yield from last


def _page(series: Iterable[_Samples], own: frozenset[str]) -> TargetPage:
    newest: dict[str, _Sample] = {}
    read_s: dict[str, float] = {}
    """Time of the newest sample by server: some series of a scrape may follow later, or be read less often."""
    for one in series:
        name, sample = _written(one.metric, own), one.values[-1]
        if name not in newest or sample[0] > newest[name][0]:
            newest[name] = sample
        # Every program tells when it started: another container's would make old figures of an engine new.
        if not one.name.startswith(START_METRIC):
            read_s[one.instance] = max(one.last_s, read_s.get(one.instance, 0.0))
    lines = [f"{name} {value}" for name, (_, value) in newest.items()]
    times_s = list(read_s.values()) or [0.0]
    read_ms, oldest_ms = (min(round(at_s * 1_000), _MS_MAX) for at_s in (max(times_s), min(times_s)))
    return TargetPage("\n".join([*lines, ""]).encode(), read_ms, oldest_ms)


def _written(metric: dict[str, str], own: frozenset[str]) -> str:
    """Return the series as a page has it, without the labels of its readers, and sorted: copies are equal."""
    pairs = [
        f'{label}="{value.translate(_ESCAPED)}"'
        for label, value in sorted(metric.items())
        if label != _NAME
        and (label not in _READERS or (label in own and f"exported_{label}" not in metric))
        and _LABEL.fullmatch(label)
    ]
    return f"{metric.get(_NAME, '')}{{{','.join(pairs)}}}" if pairs else metric.get(_NAME, "")
