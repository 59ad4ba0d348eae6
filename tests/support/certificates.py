"""An authority of certificates, and files with what it signs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import trustme


class Issued(NamedTuple):
    """A certificate's files: the chain, its key, and both in one."""

    chain: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates for hosts and clients.

    Attributes:
        path: its own certificate.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.ca = trustme.CA(organization_name=name)
        self.path = folder / f"{name}.pem"
        self.ca.cert_pem.write_to_path(self.path)

    def issue(self, file: str, *names: str, **details: Any) -> Issued:
        """Write a certificate for these names; ``details`` are those of trustme, such as ``not_after``."""
        leaf = self.ca.issue_cert(*names, **details)
        issued = Issued(*(self.folder / f"{file}{part}.pem" for part in ("", ".key", ".both")))
        write_private(issued.chain, b"".join(part.bytes() for part in leaf.cert_chain_pems))
        write_private(issued.key, leaf.private_key_pem.bytes())
        write_private(issued.both, leaf.private_key_and_cert_chain_pem.bytes())
        return issued


def write_private(path: Path, data: bytes) -> Path:
    """Replace a file that only this user may read."""
    new = path.with_name(f"{path.name}.new")
    new.touch(0o600)
    new.write_bytes(data)
    return new.rename(path)
