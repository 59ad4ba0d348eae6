"""Who may see and do what: logins, proxies, forged requests, over real sockets and a broker with users over TLS."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from click.testing import CliRunner

from kombu_opendata import QueueClient
from kombu_opendata.cli.root import main
from kombu_opendata.client.connection_options import Options
from kombu_opendata.web import create_app
from kombu_opendata.web.settings import WebSettings
from tests.support.waiting import until

from ..support.certificates import Authority
from ..support.page import PageServer
from ..support.processes import children
from ..support.served import ServedBroker
from ..support.users import user_table, write_users

PATTERNS = {"configure": "", "write": "", "read": "^shown$"}


FOREVER = "public, max-age=31536000, immutable"


class World(NamedTuple):
    """A broker with users, and pages: one that asks for logins, one that changes nothing, one behind a proxy."""

    login: PageServer
    read_only: PageServer
    proxied: PageServer
    stranger: PageServer
    flooded: PageServer
    open: PageServer
    admin: QueueClient


@pytest.fixture(scope="module")
def world(module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = module_store_folder
    authority = Authority(folder)
    issued = authority.issue("broker", "127.0.0.1")
    users = write_users(
        folder / "users",
        user_table("root", "r", roles=("admin",)),
        user_table("olga", "o", {"*": {}}, roles=("operator",)),
        user_table("mona", "m", {"*": {}}, roles=("monitor",)),
        user_table("ann", "a", {"default": PATTERNS}),
    )
    with children() as started:
        broker = ServedBroker(
            folder, "--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users),
            "--tls-cert", str(issued.chain), "--tls-key", str(issued.key),
        )  # fmt: skip
        started.add(broker)
        place = f"127.0.0.1:{broker.port}"
        trust = ("--tls-ca", str(authority.path))

        servers: list[PageServer] = []

        def page(user: str, *options: str) -> PageServer:
            found = PageServer(tmp_path_factory.mktemp("page"), f"opendatas://{user}{place}", *trust, *options)
            started.add(found)
            servers.append(found)
            return found

        with QueueClient(f"opendatas://root:r@{place}", tls={"ca_certs": str(authority.path)}) as admin:
            admin.create("shown")
            admin.create("hidden")
            proxy = ("--user-header", "X-User", "--trusted-proxy")
            yield World(
                page(""), page("root:r@", "--read-only"), page("root:r@", *proxy, "127.0.0.1/32"),
                page("root:r@", *proxy, "192.0.2.0/24"), page(""), page("root:r@"), admin,
            )  # fmt: skip
            for server in servers:
                server.terminate()


def browser(page: PageServer) -> httpx.Client:
    return httpx.Client(base_url=page.url, timeout=60, headers={"Sec-Fetch-Site": "same-origin"})


def log_in(site: httpx.Client, user: str, password: str) -> httpx.Response:
    return site.post("login", data={"user": user, "password": password, "next": "queue?name=shown"})


def token(site: httpx.Client) -> str:
    return str(site.get("api/v1/session").json()["csrf_token"])


def purge(site: httpx.Client, queue: str = "shown", **headers: str) -> httpx.Response:
    given = {"X-CSRF-Token": token(site)} | headers
    return site.post("api/v1/actions/purge", json={"queue": queue}, headers=given)


# ---------------------------------------------------------------------- logins
def test_nothing_is_shown_without_a_login(world: World) -> None:
    with browser(world.login) as site:
        answer = site.get("queue?name=shown")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=queue%3Fname%3Dshown"
        assert site.get("api/v1/queues").status_code == 401
        assert site.get("?live=1").status_code == 401
        assert site.post("api/v1/actions/purge", json={"queue": "shown"}).status_code == 401
        assert site.get("static/app.css").status_code == 200


def test_a_login_leads_to_where_one_wanted_to_go(world: World) -> None:
    with browser(world.login) as site:
        answer = log_in(site, "olga", "o")
        assert (answer.status_code, answer.headers["location"]) == (303, "/queue?name=shown")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        shown = site.get("queue?name=shown")
        assert "olga" in shown.text
        assert "Log out" in shown.text


@pytest.mark.parametrize("onward", ["//example.org/", "/\\example.org", "https://example.org/"])
def test_a_login_leads_to_no_other_site(world: World, onward: str) -> None:
    with browser(world.login) as site:
        answer = site.post("login", data={"user": "mona", "password": "m", "next": onward})
        assert re.match(r"/[^/\\]", answer.headers["location"])


def test_wrong_logins_are_not_told_apart_and_are_limited(world: World) -> None:
    with browser(world.flooded) as site:
        first, other = log_in(site, "ann", "wrong"), log_in(site, "nobody", "wrong")
        assert first.status_code == other.status_code == 403
        assert first.text == other.text
        answers = (log_in(site, "ann", "wrong") for _ in range(100))
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["Retry-After"]) >= 1
        assert "too many wrong logins" in refused.text
    log = world.flooded.log.read_text()
    assert "user 'ann' (from 127.0.0.1) was refused" in log


@pytest.mark.parametrize("field", ["user", "password"])
def test_a_login_with_characters_that_utf_8_lacks_is_refused(world: World, field: str) -> None:
    values = {"user": "mona", "password": "m", field: r"\ud800"}
    head = '--x\r\nContent-Disposition: form-data; name="'
    body = "".join(f'{head}{name}"\r\n\r\n{text}\r\n' for name, text in values.items()) + "--x--\r\n"
    with browser(world.login) as site:
        headers = {"Content-Type": "multipart/form-data; boundary=x; charset=unicode_escape"}
        assert site.post("login", content=body, headers=headers).status_code == 403


def test_a_login_makes_a_new_token_and_a_logout_ends_it(world: World) -> None:
    with browser(world.login) as site:
        log_in(site, "mona", "m")
        ((name, planted),) = site.cookies.items()
        assert log_in(site, "mona", "m").status_code == 403, "without the token of the session"
        log_in_again = {"user": "mona", "password": "m", "csrf_token": token(site)}
        assert site.post("login", data=log_in_again).status_code == 303
        assert site.cookies[name] != planted
        assert site.get("api/v1/session", headers={"Cookie": f"{name}={planted}"}).status_code == 401
        kept = site.cookies[name]
        assert site.post("logout", data={"csrf_token": token(site)}).status_code == 303
        assert site.get("api/v1/session", headers={"Cookie": f"{name}={kept}"}).status_code == 401
    assert "user 'mona' (from 127.0.0.1) logged out" in world.login.log.read_text()


def test_a_chosen_token_is_no_session(world: World) -> None:
    with browser(world.login) as site:
        log_in(site, "mona", "m")
        ((name, _token),) = site.cookies.items()
    with httpx.Client(base_url=world.login.url, timeout=60) as other:
        planted = {"Cookie": f"{name}=chosen"}
        answer = other.post("login", data={"user": "mona", "password": "m"}, headers=planted)
        assert f"{name}=chosen" not in answer.headers["set-cookie"]
        other.cookies.clear()
        assert other.get("api/v1/session", headers=planted).status_code == 401


# ---------------------------------------------------------------------- rights
def test_roles_and_patterns_are_the_brokers(world: World) -> None:
    with browser(world.login) as site:
        log_in(site, "mona", "m")
        assert site.get("api/v1/session").json()["roles"] == ["monitor"]
        assert "actions/purge" not in site.get("queue?name=shown").text
        refused = purge(site)
        assert (refused.status_code, refused.json()["values"]["user"]) == (403, "mona")
        form = {"X-CSRF-Token": token(site)}
        assert site.post("api/v1/actions/verify-store", json={}, headers=form).status_code == 403
    with browser(world.login) as site:
        log_in(site, "olga", "o")
        world.admin.send("shown", 1)
        assert "actions/purge" in site.get("queue?name=shown").text
        assert purge(site).json()["counts"] == {"deleted": 1}
    log = world.login.log.read_text()
    assert re.search(r"user 'olga' \(from 127.0.0.1\) did: purge on queue 'shown': 1 deleted", log)


def test_basic_authentication_is_for_programs(world: World) -> None:
    with httpx.Client(base_url=world.login.url, timeout=60, auth=("ann", "a")) as program:
        listed = program.get("api/v1/queues").text
        assert '"shown",' in listed
        assert '"hidden",' not in listed
        world.admin.send("shown", 1)
        assert program.post("api/v1/actions/purge", json={"queue": "shown"}).json()["counts"] == {"deleted": 1}
        refused = program.post("api/v1/actions/purge", json={"queue": "hidden"})
        assert refused.status_code in (403, 404)
        evil = {"Origin": "https://example.org"}
        assert program.post("api/v1/actions/purge", json={"queue": "shown"}, headers=evil).status_code == 403
    anonymous = httpx.get(f"{world.login.url}api/v1/queues")
    assert anonymous.headers["WWW-Authenticate"].startswith("Basic")


def test_a_page_that_only_reads_changes_nothing(world: World) -> None:
    with browser(world.read_only) as site:
        world.admin.send("hidden", 1)
        assert "actions/purge" not in site.get("queue?name=hidden").text
        assert purge(site, "hidden").status_code == 403
        form = {"queue": "hidden", "typed_again": "hidden", "csrf_token": token(site)}
        assert "read-only" in site.post("actions/purge", data=form).text
    assert world.admin.metrics("hidden").ready == 1
    world.admin.purge("hidden")


# ---------------------------------------------------------------------- forged requests
FOREIGN = {
    "origin": {"Origin": "https://example.org"},
    "hidden origin": {"Origin": "null"},
    "cross-site": {"Sec-Fetch-Site": "cross-site"},
    "same-site": {"Sec-Fetch-Site": "same-site"},
    "no token": {"X-CSRF-Token": ""},
    "another token": {"X-CSRF-Token": "0" * 64},
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("page", ["login", "proxied", "open"])
def test_forged_requests_change_nothing(world: World, page: str, kind: str) -> None:
    with browser(getattr(world, page)) as site:
        if page == "login":
            log_in(site, "olga", "o")
        elif page == "proxied":
            site.headers["X-User"] = "olga"
        world.admin.send("shown", 1)
        assert purge(site, **FOREIGN[kind]).status_code == 403
        assert world.admin.purge("shown") == 1


def test_a_foreign_name_of_this_host_leads_nowhere(world: World) -> None:
    for host, status in (("example.org", 421), ("127.0.0.1.example.org", 421), ("localhost", 200), ("[::1]:80", 200)):
        answer = httpx.get(f"{world.open.url}api/v1/session", headers={"Host": host})
        assert answer.status_code == status, host


def test_every_answer_has_the_headers(world: World) -> None:
    for path in ("", "login", "api/v1/queues", "static/app.css?v=1", "nowhere"):
        headers = httpx.get(f"{world.open.url}{path}").headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == (FOREVER if "static" in path else "no-store")


# ---------------------------------------------------------------------- proxies
def test_a_proxy_says_who_somebody_is(world: World) -> None:
    with browser(world.proxied) as site:
        found = site.get("api/v1/session", headers={"X-User": "olga"}).json()
        assert (found["user"], found["roles"]) == ("olga", ["monitor", "operator"])
        assert site.get("api/v1/session", headers={"X-User": "nobody"}).status_code == 403
        assert site.get("api/v1/session").status_code == 401
        twice = [("X-User", "mona"), ("X-User", "olga")]
        assert site.get("api/v1/session", headers=twice).status_code == 401
        site.headers["X-User"] = "mona"
        assert purge(site, **{"X-User": "olga"}).status_code == 403, "the token is another user's"


def test_nobody_else_does(world: World) -> None:
    with browser(world.stranger) as site:
        for more in ({}, {"X-Forwarded-For": "192.0.2.7"}):
            assert site.get("api/v1/session", headers={"X-User": "olga", **more}).status_code == 401


def test_a_folder_without_a_broker_is_said_and_goes_on_when_there_is_one(store_folder: Path) -> None:
    url = f"opendata://{store_folder}"
    app = create_app(WebSettings(url, Options(may_start=False)))

    async def visit() -> None:
        through = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=through, base_url="http://localhost", timeout=60) as site:
            away = await site.get("/")
            assert away.status_code == 503
            assert "opendata-queue broker start" in away.text
            with QueueClient(url) as client:
                client.create("q")

                async def is_there() -> bool:
                    return (await site.get("/api/v1/queues")).status_code == 200

                await until(is_there)
        await app.state.site.brokers.close()

    asyncio.run(visit())


def test_a_page_that_can_ask_nobody_is_not_served_to_others(store_folder: Path) -> None:
    words = ["web", "--url", str(store_folder), "--listen", "0.0.0.0:0"]
    told = CliRunner().invoke(main, words)
    assert told.exit_code != 0
    assert "this broker has no users" in told.output
