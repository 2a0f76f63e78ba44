"""nats-server and etcd with the permissions of deploy/, and the credentials of each role."""

import os
import re
import subprocess
import sys
from pathlib import Path

from loadline.config import EtcdKnobs, NatsKnobs
from loadline.rig.server_processes import EtcdServer, NatsServer

ROOT = Path(__file__).parents[2]
NATS_FILE = ROOT / "deploy" / "nats" / "loadline.conf"
PASSWORD = "s3cret"  # noqa: S105 - of servers that live as long as a test


def password_file(directory: Path) -> str:
    """Write a file with the password of all users."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "password"
    path.write_text(f"{PASSWORD}\n", "utf-8")
    return str(path)


def secured_nats(directory: Path, config: str | None = None) -> NatsServer:
    """Return a server, not started, with the file of deploy/nats or a variant; every password is ``PASSWORD``."""
    directory.mkdir()
    names = re.findall(r"^(\w+):", NATS_FILE.with_name("passwords.conf.example").read_text("utf-8"), re.MULTILINE)
    (directory / "passwords.conf").write_text("".join(f'{name}: "{PASSWORD}"\n' for name in names), "utf-8")
    return NatsServer(directory, NATS_FILE.read_text("utf-8") if config is None else config)


def nats_login(server: NatsServer, user: str, directory: Path) -> NatsKnobs:
    """Return the credentials of a user of deploy/nats."""
    return NatsKnobs(
        servers=(server.url,), user=user, password_file=password_file(directory), inbox_prefix=f"_INBOX_{user}"
    )


def etcdctl_environment(server: EtcdServer, *, ca: Path | None = None, login: bool = False) -> dict[str, str]:
    """Return the environment of etcdctl: with the CA of a server, or with the root login."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ETCDCTL_ENDPOINTS": server.url if ca is None else f"https://localhost:{server.port}",
    }
    if ca is not None:
        environment["ETCDCTL_CACERT"] = str(ca)
    if login:
        environment |= {"ETCDCTL_USER": "root", "ETCDCTL_PASSWORD": PASSWORD}
    return environment


def etcdctl(server: EtcdServer, ca: Path, *arguments: str, text: str = "", login: bool = True) -> None:
    """Run etcdctl over TLS, with the root login."""
    environment = etcdctl_environment(server, ca=ca, login=login)
    done = subprocess.run(
        [str(Path(sys.executable).with_name("etcdctl")), *arguments],
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def secure_etcd(
    server: EtcdServer, directory: Path, *arguments: str, again: bool = False, ca: Path | None = None
) -> None:
    """Run deploy/etcd/roles.sh against a server; ``again``: once authentication is on."""
    directory.mkdir(parents=True, exist_ok=True)
    for user in ("root", "loadline-agent", "loadline-reader", *(f"loadline-worker-{m}" for m in arguments[1:])):
        (directory / user).write_text(f"{PASSWORD}\n", "utf-8")
    environment = {**etcdctl_environment(server, ca=ca, login=again), "PASSWORDS": str(directory)}
    script = ROOT / "deploy" / "etcd" / "roles.sh"
    done = subprocess.run([str(script), *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def etcd_login(server: EtcdServer, user: str, directory: Path) -> EtcdKnobs:
    """Return the credentials of a user of deploy/etcd."""
    return EtcdKnobs(endpoints=(server.url,), user=user, password_file=password_file(directory))
