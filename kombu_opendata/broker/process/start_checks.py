"""Checks of a broker's options without starting it: reports all errors, while a startup stops at the first."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from ...configuration.addresses import Listen
from ...configuration.options import BrokerOptions
from ...errors import OpenDataError, StoreUnwritable
from ...private_folder import PrivateFolder, denied
from ...storage.slatedb.object_store import locate
from ..access.users_file import UsersFile
from ..standby.file_systems import check_file_system
from .instance_names import check_name
from .start_settings import contradictions, retention_bytes, server_tls, socket_access


def start_faults(options: BrokerOptions, *, whole: bool = True) -> list[str]:
    """Return the errors that would prevent a startup with these options; a broker that already runs does not count.

    Nothing is created or changed, and no bucket is accessed.

    Args:
        whole: all options were valid, so contradictions between them are checked, too.
    """
    faults = list(contradictions(options)) if whole else []
    checks: list[Callable[[BrokerOptions], object]] = [
        server_tls,
        socket_access,
        _users,
        retention_bytes,
        _instances,
        _store,
    ]
    for check in checks:
        try:
            check(options)
        except OpenDataError as exc:
            faults.append(exc.text)
    for listen in (*options.listen, *((options.metrics,) if options.metrics else ())):
        faults += _unusable_socket(listen.path) if listen.path else _unusable_host(listen)
    return faults


def _users(options: BrokerOptions) -> None:
    if options.users is not None:
        UsersFile(options.users)


def _instances(options: BrokerOptions) -> None:
    for name in options.instance:
        check_name(name)


def _store(options: BrokerOptions) -> None:
    """Check that this user can use the store. Raises StoreError if not."""
    folder = options.folder
    if folder is None or folder == folder.parent:
        locate(options.store, "default", create=False)
        return
    check_file_system(folder)
    if folder.exists():
        with PrivateFolder(str(folder)) as store_folder:
            store_folder.check_entries()
    else:
        above = next(place for place in folder.parents if place.exists())
        if not above.is_dir():
            raise StoreUnwritable(f"{folder} can't be the store's folder: {above} is a file", folder=str(folder))
        if not os.access(above, os.W_OK | os.X_OK):
            raise StoreUnwritable(denied(str(folder)), folder=str(folder))


def _unusable_host(listen: Listen) -> Iterator[str]:
    try:
        infos = socket.getaddrinfo(listen.host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        yield f"{listen.authority}: the host is unknown: {exc.strerror or exc}"
        return
    if not any(_can_bind(family, address) for family, _kind, _protocol, _name, address in infos):
        yield f"{listen.authority}: {listen.host} is not an address of this machine"


def _can_bind(family: int, address: object) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind(address)  # type: ignore[arg-type]
    except OSError:
        return False
    return True


def _unusable_socket(path: str) -> Iterator[str]:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        yield f"unix:{path}: there is no folder {folder}: make it, or choose another path"
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield f"unix:{path}: this user may not make files in {folder}"
    elif os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        yield f"unix:{path}: the path exists and is not a socket"
