"""Reports of streams fit into what workers receive, however long the names are."""

from loadline.client.streams import StreamProgress, StreamReport
from loadline.client.streams.messages import STREAMS_MAX
from loadline.gateway.moves import gateway_id
from loadline.servers import NatsKnobs
from loadline.wire.codec import decode_as, encode

NAME_MAX = 100
BEGAN_MS = 1_900_000_000_000
TOKENS_MAX = 10_000_000


def test_the_largest_report_with_the_longest_names_is_received() -> None:
    gateway = gateway_id("g" * NAME_MAX, BEGAN_MS)
    streams = [
        StreamProgress(
            f"{gateway}.{10**9 + number}", 9, TOKENS_MAX, TOKENS_MAX, movable=False, hops=9, remaining_tokens=TOKENS_MAX
        )
        for number in range(STREAMS_MAX)
    ]
    report = StreamReport(gateway, "w" * NAME_MAX, BEGAN_MS, streams)
    payload = encode(report)
    assert len(payload) <= NatsKnobs().frame_bytes_max
    assert decode_as(StreamReport, payload, "") == report


def test_a_shortened_name_keeps_the_end_which_has_the_port() -> None:
    assert gateway_id("host-" * 20 + "8080", BEGAN_MS).endswith(f"-host-8080-{BEGAN_MS:x}")
    assert gateway_id("short-8080", BEGAN_MS) == f"short-8080-{BEGAN_MS:x}"
