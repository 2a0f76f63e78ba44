"""Operator, account and users of NATS with keys of their own, as ``nsc`` makes them."""

import base64
import os
from pathlib import Path
from typing import Any

import msgspec
import nkeys

UNLIMITED = {"subs": -1, "data": -1, "payload": -1}


def _key_pair(kind: int) -> tuple[Any, str]:
    """Return the keys of an operator, account or user, and the seed."""
    seed = nkeys.encode_seed(os.urandom(32), kind)
    return nkeys.from_seed(bytearray(seed)), seed.decode()


def _public(keys: Any) -> str:
    return bytes(keys.public_key).decode()


def _signed(issuer: Any, name: str, subject: str, claims: dict[str, Any]) -> str:
    body = {
        "jti": name,
        "iat": 1,
        "iss": _public(issuer),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": 2},
    }
    parts = [_encoded(msgspec.json.encode(one)) for one in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
    return ".".join([*parts, _encoded(issuer.sign(".".join(parts).encode()))])


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class NatsAccount:
    """An operator with one account."""

    def __init__(self) -> None:
        self._operator, _ = _key_pair(nkeys.PREFIX_BYTE_OPERATOR)
        self._account, _ = _key_pair(nkeys.PREFIX_BYTE_ACCOUNT)

    @property
    def server_config(self) -> str:
        """Configuration of a server that admits its users only."""
        limits = {**UNLIMITED, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "wildcards": True}
        name = _public(self._account)
        operator = _signed(self._operator, "operator", _public(self._operator), {"type": "operator"})
        account = _signed(self._operator, "loadline", name, {"type": "account", "limits": limits})
        return f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{ {name}: {account} }}\n"

    def write_user(self, file: Path, publish: list[str], subscribe: list[str]) -> None:
        """Write the credentials of a new user with these permissions, in the place of others."""
        keys, seed = _key_pair(nkeys.PREFIX_BYTE_USER)
        claims = {"type": "user", "pub": {"allow": publish}, "sub": {"allow": subscribe}, **UNLIMITED}
        jwt = _signed(self._account, "user", _public(keys), claims)
        text = f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        text += f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        (file.parent / "new.creds").write_text(text, "ascii")
        (file.parent / "new.creds").rename(file)
