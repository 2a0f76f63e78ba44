"""All targets, by name."""

from typing import Final

from tests.fuzz.target import Target
from tests.fuzz.targets.engines import ENGINE_TARGETS
from tests.fuzz.targets.files import FILE_TARGETS
from tests.fuzz.targets.services import SERVICE_TARGETS
from tests.fuzz.targets.sources import SOURCE_TARGETS
from tests.fuzz.targets.store import STORE_TARGETS
from tests.fuzz.targets.wire import WIRE_TARGETS

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (*WIRE_TARGETS, *FILE_TARGETS, *ENGINE_TARGETS, *SOURCE_TARGETS, *STORE_TARGETS, *SERVICE_TARGETS)
}
