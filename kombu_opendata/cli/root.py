"""Root command, and the commands that ``celery -A app opendata`` shares."""

from __future__ import annotations

from typing import Any

import click

from .administration.backups import backup, restore
from .administration.brokers import broker_tools, instance_group, maintain, ping, status
from .administration.serve import broker, config_group
from .administration.stores import store_group
from .administration.users import hash_secret, user_group
from .administration.web import web
from .administration.workers import worker_group
from .exit_codes import HELP, CommandGroup
from .messages.failed import failed_group
from .messages.history import attempts, done_group, messages
from .messages.jobs import job_group
from .messages.peek import message, peek
from .messages.send import publish, send
from .messages.tasks import result_group, task_group
from .queues.exchanges import binding_group, exchange_group, filter_group
from .queues.moves import replay
from .queues.queues import queue_group
from .target import accept_url

#: the commands of both ``opendata-queue`` and ``celery -A app opendata``
SHARED: tuple[click.Command, ...] = (
    status, ping, maintain, instance_group, queue_group, exchange_group, binding_group, worker_group, peek, send,
    publish, message, messages, attempts, done_group, failed_group, task_group, result_group, job_group, replay,
    filter_group, store_group, web,
)  # fmt: skip


class Root(CommandGroup):
    """Root group, in which ``broker`` is a command with options, and a group with verbs such as ``broker start``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is broker and rest and not rest[0].startswith("-"):
            return name, broker_tools, rest
        return name, command, rest


@click.group(cls=Root, context_settings=HELP)
@click.version_option(package_name="kombu-opendata")
def main() -> None:
    """Use a durable task queue in a folder or a bucket.

    Name the broker with --url (opendata://…, or a store's folder), or set OPENDATA_QUEUE_URL. Commands that only read
    start no broker unless they have --start.
    """


for _command in (broker, config_group, hash_secret, user_group, *SHARED):
    main.add_command(_command)
for _command in (backup, restore):
    store_group.add_command(_command)
for _group in (main, user_group, *SHARED):
    if isinstance(_group, click.Group):
        accept_url(_group)


def shared_commands() -> list[Any]:
    """Return the commands of ``celery -A app opendata``."""
    return [broker_tools, *SHARED]
