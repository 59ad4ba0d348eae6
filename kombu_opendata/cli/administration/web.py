"""Command ``web``: the web UI."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ...configuration.addresses import Listen
from ...configuration.kinds import HostPort
from ..exit_codes import Command, CommandError
from ..hints import START
from ..option_types import validated
from ..output import note, say
from ..target import BrokerTarget, Target, target_options

if TYPE_CHECKING:
    from ...web.settings import WebSettings

_FILE = click.Path(exists=True, dir_okay=False)


@click.command(cls=Command, epilog="Example: opendata-queue web --url /var/lib/app-queue --listen 127.0.0.1:8080")
@click.option("--listen", type=validated(HostPort()), default="127.0.0.1:8080", show_default=True, help="its address")
@click.option("--read-only", is_flag=True, help="show everything, change nothing")
@click.option("--start", START, is_flag=True, help="start the folder's broker if none runs")
@click.option("--https-cert", metavar="FILE", type=_FILE, help="certificate of the web UI (PEM), for HTTPS")
@click.option("--https-key", metavar="FILE", type=_FILE, help="its private key (PEM), if it is not in that file")
@click.option("--behind-https", is_flag=True, help="browsers reach it by the HTTPS of a proxy: cookies are for HTTPS")
@click.option("--allowed-host", "hosts", multiple=True, metavar="NAME", help="a name of its host; may be repeated")
@click.option("--trusted-proxy", "proxies", multiple=True, metavar="CIDR", help="network of a proxy that logs users in")
@click.option(
    "--user-header", default="X-Forwarded-User", show_default=True, metavar="NAME", help="with the user's name"
)
@click.option("--mask", multiple=True, metavar="NAME", help="hide values of this name, too; may be repeated")
@click.option("--trace-url", metavar="URL", default="", help="of a trace, with {trace_id}: links messages to traces")
@target_options
def web(listen: Listen, target: Target, **options: Any) -> None:
    """Serve the web UI, in which operators see and fix problems.

    The web UI is a separate process and a client of the broker. It needs the extra: pip install 'kombu-opendata[web]'.
    """
    try:
        from ...web.server import serve
    except ModuleNotFoundError as exc:
        raise CommandError(f"the web UI needs {exc.name}: pip install 'kombu-opendata[web]'") from exc
    place = target.place
    settings = _settings(place, listen.host, starts=target.starts, **options)
    if not settings.is_open:
        _check_shared(place, settings)
    certificate = (options["https_cert"] or "", options["https_key"] or "")

    def announce(url: str) -> None:
        say(f"{url} shows {place.address.as_uri()}; end it with Ctrl-C")
        sys.stdout.flush()

    try:
        serve(settings, listen.host, listen.port, announce, certificate)
    except OSError as exc:
        raise CommandError(f"can't listen on {listen.authority}: {exc.strerror or exc}") from exc


def _settings(place: BrokerTarget, host: str, *, starts: bool, **options: Any) -> WebSettings:
    from ...masking import NAMES
    from ...web.settings import WebSettings

    try:
        networks = tuple(map(ipaddress.ip_network, options["proxies"]))
    except ValueError as exc:
        raise click.UsageError(f"--trusted-proxy: {exc}") from exc
    trace_url = options["trace_url"]
    if trace_url and not (trace_url.startswith(("http://", "https://")) and "{trace_id}" in trace_url):
        raise click.UsageError("--trace-url: give an http or https URL with {trace_id}")
    return WebSettings(
        place.address.as_uri(include_secret=True),
        replace(place.options, may_start=starts),
        options["read_only"],
        (*NAMES, *options["mask"]),
        is_open=_is_loopback(host),
        is_secure=bool(options["https_cert"]) or options["behind_https"],
        hosts=options["hosts"],
        proxies=networks,
        user_header=options["user_header"],
        trace_url=trace_url,
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_shared(place: BrokerTarget, settings: WebSettings) -> None:
    """Raise CommandError if other hosts can reach the web UI and neither the broker nor a proxy authenticates users."""
    if not settings.is_secure:
        note("Without --https-cert, passwords and messages cross the network in clear text.")
    if settings.proxies or not _has_no_users(place):
        return
    raise CommandError(
        "this broker has no users, so the web UI could not authenticate its users: listen on 127.0.0.1, start the "
        "broker with --users (docs/permissions.md), or name a proxy that logs users in (--trusted-proxy)"
    )


def _has_no_users(place: BrokerTarget) -> bool:
    """Return True if the broker needs no secret; False if it does not answer now, so that users must log in."""
    from ...errors import OpenDataError
    from ...queue_client import QueueClient

    address = place.address
    if address.kind in ("embedded", "memory"):
        return True
    try:
        anonymous = replace(address, user="", secret="").as_uri()
        with QueueClient(anonymous, tls=place.options.tls, connect_timeout=3.0, reconnect_timeout=0.0) as client:
            return not client.whoami().user
    except OpenDataError:
        return False
