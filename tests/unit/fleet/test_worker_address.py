"""The address in a worker's record: read where it is usable, and never a reason to lose the worker."""

import pytest

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.codec import decode_worker_record, encode

NAMES = ("workers", "m", "p", "w")


@pytest.mark.parametrize(
    ("address", "base_url"),
    [
        ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("http://10.0.0.7:8000/", "http://10.0.0.7:8000"),
        ("https://decode-7.llm.svc", "https://decode-7.llm.svc"),
        ("http://[fd00::7]:8000", "http://[fd00::7]:8000"),
        ("http://localhost:65535", "http://localhost:65535"),
    ],
)
def test_address_of_an_engine_is_its_base_url(address: str, base_url: str) -> None:
    assert WorkerRecord("m", "p", "w", "decode", 1, address=address).base_url == base_url


@pytest.mark.parametrize(
    "address",
    [
        "",
        "10.0.0.7:8000",
        "ftp://10.0.0.7",
        "http://",
        "http://host:65536",
        "http://host:port",
        "http://user:secret@host:8000",
        "http://host:8000/v1",
        "http://host:8000?x=1",
        "http://host:8000#x",
        "http://host:8000\n",
        "http://ho st:8000",
        "http://host\r\nX-Header: 1",
    ],
)
def test_worker_with_an_unusable_address_stays_without_a_base_url(address: str) -> None:
    record = WorkerRecord("m", "p", "w", "decode", 1, address=address)
    decoded = decode_worker_record(NAMES, encode(record))
    assert decoded == record
    assert record.base_url == ""
