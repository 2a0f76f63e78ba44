"""Configuration file of the KEDA scaler: its models, its address, and files for TLS."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from loadline.adapters.grpc_server import TlsFiles
from loadline.core.vocabulary.scalars import Name
from loadline.scalers.config_file import ScalerKnobs, ScalerName, check_unique, read_as


class KedaScalerKnobs(ScalerKnobs, frozen=True):
    """Configuration file of `loadline scaler keda`."""

    models: Annotated[
        tuple[Name, ...], Meta(min_length=1, max_length=1024, description="Models whose replicas KEDA sets.")
    ]
    name: ScalerName = "keda"
    host: Annotated[Name, Meta(description="Address to listen on; 0.0.0.0 for all of IPv4.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port to listen on; 0: a free one.")] = 50_051
    hold_ms: Annotated[
        int,
        Meta(
            ge=1_000, le=3_600_000, description="Time that counts are kept while no leader reports; then UNAVAILABLE."
        ),
    ] = 30_000
    tls: Annotated[TlsFiles | None, Meta(description="Files for TLS; default: without encryption.")] = None


def read(path: Path) -> KedaScalerKnobs:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read or is invalid, or a file for TLS cannot be used.
    """
    return read_as(KedaScalerKnobs, path, _checked)


def _checked(knobs: KedaScalerKnobs) -> KedaScalerKnobs:
    """Return a configuration whose values do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    check_unique("models", "models", knobs.models)
    if knobs.tls is not None:
        knobs.tls.check()
    return knobs
