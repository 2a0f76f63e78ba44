import pytest

from loadline.gateway.sse import EventReader, EventTooLarge, write_event

STREAM = b'data: {"a":1}\n\n: comment\n\ndata:x\r\ndata: y\r\n\r\nevent: e\ndata: z\n\n'
DATA = [b'{"a":1}', b"x\ny", b"z"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_found_however_they_are_cut(size: int) -> None:
    reader = EventReader()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [data for piece in pieces for data in reader.feed(piece)] == DATA


def test_an_event_of_many_lines_is_joined_once() -> None:
    """To join it with each of its lines would copy a terabyte."""
    reader, line = EventReader(), b"data: x\n"
    for _ in range(2**18):
        assert reader.feed(line) == []
    [data] = reader.feed(b"\r\n")
    assert data == b"\n".join([b"x"] * 2**18)


@pytest.mark.parametrize("data", [b"[DONE]", b'{"error":\n{}}'])
def test_an_event_that_is_written_is_read(data: bytes) -> None:
    assert EventReader().feed(write_event(data)) == [data]


def test_an_event_without_end_is_refused() -> None:
    reader = EventReader()
    assert reader.feed(b"x" * 16 * 1024 * 1024) == []
    with pytest.raises(EventTooLarge):
        reader.feed(b"x")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 5, 100])
def test_the_last_event_needs_no_blank_line(end: bytes, size: int) -> None:
    stream = b"data: {}\n\ndata: [DONE]" + end
    reader = EventReader()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [data for piece in pieces for data in reader.feed(piece)] == [b"{}", b"[DONE]"]


def test_other_events_need_one_since_they_may_be_cut_off() -> None:
    assert EventReader().feed(b"data: {}\n") == []
