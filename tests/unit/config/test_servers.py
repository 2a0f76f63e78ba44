"""Servers of agents and clients: hosts of their own machine."""

import pytest

from loadline.adapters.etcd_gateway import check_endpoint
from loadline.errors import ConfigError
from loadline.servers import EtcdKnobs, NatsKnobs, check_logins


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "[::1]"])
def test_plain_http_within_the_machine_is_allowed(host: str) -> None:
    check_logins(NatsKnobs(), EtcdKnobs(endpoints=(f"http://{host}:2379",)))
    check_endpoint("--etcd", f"http://{host}:2379", insecure=False)


@pytest.mark.parametrize("host", ["127.0.0.1.example", "10.0.0.1", "[::2]", "localhost.example"])
def test_plain_http_to_another_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="not encrypted"):
        check_logins(NatsKnobs(), EtcdKnobs(endpoints=(f"http://{host}:2379",)))
    with pytest.raises(ConfigError, match="shows keys and passwords"):
        check_endpoint("--etcd", f"http://{host}:2379", insecure=False)
