"""Self-signed certificates for ``localhost``."""

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Struct


class CertificateFiles(Struct, frozen=True):
    """A certificate and its key."""

    certificate: Path
    key: Path


def self_signed(folder: Path) -> CertificateFiles:
    """Write a certificate that is valid for ``localhost``, but not for 127.0.0.1, and its key; replace older ones."""
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    issued = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = CertificateFiles(folder / "certificate.pem", folder / "key.pem")
    files.certificate.write_bytes(issued.public_bytes(serialization.Encoding.PEM))
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files.key.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    return files


def encrypt_key(file: Path) -> None:
    """Give the key of a file a passphrase."""
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(encoding, form, serialization.BestAvailableEncryption(b"secret")))


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file as Kubernetes and certbot do, by another one of the same name."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)
