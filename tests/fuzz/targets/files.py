"""Files of operators: configuration, traces, profiles and journals."""

import contextlib
import io
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from loadline.adapters.file_journal import read_segments
from loadline.adapters.journal_checksums import ChecksumChain
from loadline.config import parse, validate
from loadline.config.tpot_profiles import read_tpot
from loadline.errors import ConfigError, DataError, JournalError
from loadline.journal import JournalCutOff, read_rows
from loadline.profile_files import read_sweeps
from loadline.runtime.journal_records import started_at_ms
from loadline.traces import RateKnobs, read_trace
from loadline.traces.models import models_of
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.target import READER_MS, Target
from tests.support.config_texts import BASE

_ROOT: Final = Path(__file__).parents[3]
_KNOBS: Final = {"gaps": "skip", "duration_s": 600.0, "isl_tokens": 9, "osl_tokens": 9}
_SERIES_SCALE: Final = 1e-3
"""Keeps a series short, which may have a billion requests in each bin."""


def _written(name: str, data: bytes) -> Path:
    path = scratch_folder() / name
    path.write_bytes(data)
    return path


def read_config(data: bytes) -> None:
    """Parse and validate the text; what follows a NUL is the value of an environment variable."""
    text, _, variable = data.partition(b"\0")
    name, _, value = variable.decode("utf-8", "replace").partition("=")
    environ = {f"LOADLINE__{name.upper()}": value} if name else {}
    validate(parse(text.decode("utf-8", "replace"), "x.toml", environ))


def read_any_trace(data: bytes) -> None:
    """Read a trace and the models in it."""
    path = _written("trace", data)
    _refusing(lambda: list(models_of(path)))
    scale = _SERIES_SCALE if b"num_req" in data else 1.0
    read_trace(path, arrivals=msgspec.convert({**_KNOBS, "scale": scale}, RateKnobs))


def read_profile(data: bytes) -> None:
    """Read a profile in each format."""
    paths = [_written(name, data) for name in ("raw_data.npz", "raw_data.json")]
    for path in paths:
        _refusing(partial(read_sweeps, path))
    read_tpot(paths[1])


def read_journal(data: bytes) -> None:
    """Read a segment with the checksums as they are, then as somebody may write them who can write the file."""
    _refusing(lambda: _read_segment(data))
    checksums, sealed = ChecksumChain(), []
    for line in data.split(b"\n"):
        record = line.partition(b',"crc32":')[0] + b"}" if b',"crc32":' in line else line
        if record:
            sealed += [bytes(part) for part in checksums.seal(record)]
    _read_segment(b"".join(sealed))


def _read_segment(data: bytes) -> None:
    path = _written("20240101T000000.000Z-000000.jsonl", data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalCutOff)
        for _, records in read_segments(path):
            started_at_ms(next(records, b""))
        for _ in read_rows(path):
            pass


def _refusing(read: Callable[[], object]) -> None:
    """Read one of several formats, of which all but one refuse the input."""
    with contextlib.suppress(DataError, JournalError):
        read()


def _npz(**arrays: list[float]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{key: np.array(value) for key, value in arrays.items()})  # type: ignore[arg-type]  # its names
    return file.getvalue()


def _journal() -> list[bytes]:
    """Return the first records of each segment of the recorded journal."""
    segments = sorted((_ROOT / "tests/golden/journal").glob("*.jsonl"))
    return [b"".join(segment.read_bytes().splitlines(keepends=True)[:4]) for segment in segments]


_CONFIGS: Final = [
    BASE.encode(),
    (_ROOT / "deploy/systemd/loadline.toml").read_bytes(),
    BASE.encode() + b"\0agent__name=x",
    (
        b"""[agent]\nname = "a"\n[nats]\nservers = ["tls://h:4222"]\nuser = "u"\npassword_file = "p"\n"""
        b"""[[models]]\nname = "m"\nplanner = "sla"\n"""
        b"""[[models.pools]]\nname = "p"\nrole = "decode"\nreplicas_max = 4\n"""
        b"""linear = { alpha = 10, beta = 0.1, gamma = 5, delta = 0.02, max_kv_tokens = 1e6 }\n"""
        b"""[[models.pools.schedules]]\nstart = "0 8 * * 1-5"\nend = "0 20 * * *"\nreplicas_min = 2\n"""
    ),
]
_DATA: Final = _ROOT / "tests/data"
_TRACES: Final = [
    b"arrival_s,isl,osl\n0,1,1\n0.5,9,2\n",
    b"arrival_s,isl,osl,hit_blocks,arrival_dith_s,model\n0,900,1,1,0.2,m\n1,9,2,0,0.9,n\n",
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n2023-11-16 18:15:47.5,2,1\n",
    b'{"timestamp": 0, "input_length": 900, "output_length": 1, "hash_ids": [1, 2]}\n',
    b"t,num_req,mean_isl,mean_osl\n0,5,10,2\n60,,1,1\n120,9,10,\n",
    *((_DATA / name).read_bytes()[:900] for name in ("azure2023_conv_head.csv", "servegen_m-mid_cut_bin600.csv")),
]
_PREFILL: Final = {"prefill_isl": [128.0, 256.0], "prefill_ttft": [10.0, 20.0], "prefill_thpt_per_gpu": [9.0, 9.5]}
_PROFILES: Final = [
    _npz(**_PREFILL),
    b'{"prefill_isl": [128, 256], "prefill_ttft": [10, 20], "prefill_thpt_per_gpu": [9, 9.5]}',
    (
        b'{"x_kv_usage": [0.1, 0.9], "y_context_length": [512, 512], "z_itl": [9, 20], "z_thpt_per_gpu": [90, 200],'
        b' "max_kv_tokens": [90000]}'
    ),
    (
        b'{"results": [{"batch_size": 1, "tokens_per_request": 10, "p50": 9.5}, {"batch_size": 2, "tokens_num": 9,'
        b' "p50": 1}]}'
    ),
]
FILE_TARGETS: Final = (
    Target("config", read_config, _CONFIGS, (ConfigError,), READER_MS),
    Target("traces", read_any_trace, _TRACES, (DataError,), READER_MS),
    Target("profiles", read_profile, _PROFILES, (DataError,), READER_MS),
    Target("journals", read_journal, _journal(), (JournalError,), READER_MS),
)
