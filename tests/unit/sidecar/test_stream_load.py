import pytest
from msgspec.structs import replace

from loadline.core.migration.requests import MigratableRequest
from loadline.engine_metrics.engine_reading import EngineReading, RankLoad
from loadline.sidecar.stream_load import has_room, with_unmovable

READING = EngineReading(
    model="m",
    ranks=(
        RankLoad(waiting_requests=1, running_requests=4, kv_usage_ratio=0.5),
        RankLoad(rank=1, waiting_requests=0, running_requests=2, kv_usage_ratio=1.0),
    ),
    kv_blocks_total=100,
    block_size_tokens=16,
)
STREAMS = [MigratableRequest(f"r{number}", 10, 5, movable=number < 3) for number in range(5)]


@pytest.mark.parametrize(("tokens", "fits"), [(800, True), (801, False)])
def test_room_is_what_all_ranks_have_free(tokens: int, fits: bool) -> None:  # noqa: FBT001
    assert has_room(READING, tokens) == fits


@pytest.mark.parametrize("reading", [None, replace(READING, kv_blocks_total=None), replace(READING, ranks=())])
def test_an_engine_that_does_not_tell_has_room(reading: EngineReading | None) -> None:
    assert has_room(reading, 10**9)


def test_requests_that_no_gateway_can_move_are_counted_at_the_first_rank() -> None:
    first, second = with_unmovable(READING.samples(), READING, STREAMS)
    assert (first.unmovable_requests, second.unmovable_requests) == (4, None)
    idle = replace(READING, ranks=(RankLoad(waiting_requests=0, running_requests=0),))
    assert [one.unmovable_requests for one in with_unmovable(idle.samples(), idle, STREAMS)] == [0]


def test_an_engine_that_does_not_count_its_requests_has_no_such_number() -> None:
    unknown = replace(READING, ranks=(RankLoad(),))
    assert [one.unmovable_requests for one in with_unmovable(unknown.samples(), unknown, STREAMS)] == [None]
