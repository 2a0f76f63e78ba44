"""Workers in routers' metrics: the registered ones that their labels mean."""

import pytest

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.sources.traffic import RegisteredAddresses


@pytest.mark.parametrize(
    ("label", "model"),
    [
        ("http://10.0.0.7:8000", "llama"),
        ("http://10.0.0.7:8000/", "llama"),
        ("10.0.0.7:8000", "llama"),
        ("decode-7", "llama"),
        ("qwen-1", "qwen"),
        ("10.0.0.7:9000", None),
        ("10.0.0.7", None),
        ("", None),
        ("http://[bad", "qwen"),
        ("http://[worse", None),
    ],
)
def test_a_label_is_an_address_or_a_name_of_a_registered_worker(label: str, model: str | None) -> None:
    addresses = RegisteredAddresses()
    worker = WorkerRecord("llama", "p", "decode-7", "decode", 1, address="http://10.0.0.7:8000")
    addresses.update("llama", [worker, WorkerRecord("llama", "p", "no-address", "decode", 1)])
    addresses.update("qwen", [WorkerRecord("qwen", "p", "qwen-1", "decode", 1, address="http://[bad")])
    assert addresses.model_of(label) == model
    addresses.update("llama", [])
    assert addresses.model_of("decode-7") is None, "a worker that has gone"
