"""`loadline profile` as a process: interrupted, continued, and read by the planners."""

import signal
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from loadline.demo import defaults
from loadline.profile_files import read_decode, read_prefill
from loadline.sim.profiles import MeasuredProfile
from tests.process.test_openai_fleet import process
from tests.waiting import until_true

pytestmark = pytest.mark.process

SPEED = 20
SERVER = ("-m", "loadline.demo.openai.server", "--port", "0", "--speed", str(SPEED))
LIMITS = ("--max-model-len", "512", "--max-batch-requests", "2")
COMMAND = (sys.executable, "-m", "loadline", "profile", "--quick")


def test_an_interrupted_profile_continues_and_is_the_engine_s(tmp_path: Path) -> None:
    with process(*SERVER, *LIMITS) as (_, url):
        command = [*COMMAND, "--url", f"tp2={url}", "--gpus", "2", "--directory", str(tmp_path)]
        measured = tmp_path / "tp2" / "measurements.jsonl"
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
            until_true(lambda: measured.exists() and '"ttft_ms"' in measured.read_text())
            first.send_signal(signal.SIGINT)
            assert "continues with the next point" in first.communicate(timeout=60)[1]
            assert first.returncode == 130
        kept = measured.read_text()
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert f"of an earlier run count; remove {measured} if they are of another engine" in done.stderr
    assert "profiles: " in done.stdout
    assert measured.read_text().startswith(kept)
    assert len(read_prefill(tmp_path).isl_tokens) == 6
    # A busy machine disturbs single points; tests in virtual time compare each.
    decode, profile = read_decode(tmp_path), MeasuredProfile(defaults.PREFILL_PROFILE, defaults.DECODE_PROFILE)
    factors = []
    for usage, context, itl_ms in zip(decode.kv_usage, decode.context_tokens, decode.itl_ms, strict=True):
        kv_tokens = usage * decode.max_kv_tokens
        factors.append(itl_ms * SPEED / profile.itl_ms(round(kv_tokens / context), kv_tokens))
    assert 0.5 < median(factors) < 2.0


def test_one_engine_s_problem_costs_no_results_of_another(tmp_path: Path) -> None:
    with process(*SERVER, *LIMITS) as (_, url):
        command = [*COMMAND, "--url", f"tp1={url}", "--url", "tp2=http://gpu..host:8000", "--directory", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 1
        assert "tp2: http://gpu..host:8000 is not a URL" in done.stderr
        read_decode(tmp_path / "tp1")
        (tmp_path / "tp3").mkdir()
        (tmp_path / "tp3" / "measurements.jsonl").write_text("{}\n")
        command = [*COMMAND, "--url", f"tp4={url}", "--url", f"tp3={url}", "--directory", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 2
    assert "tp3/measurements.jsonl: no measurements" in done.stderr
    assert len((tmp_path / "tp4" / "measurements.jsonl").read_text().splitlines()) == 1  # nothing was measured
