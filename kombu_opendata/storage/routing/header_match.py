"""The match of a message's headers with the arguments of a binding to a headers exchange, as in RabbitMQ.

=================  ====================================================================
``x-match``        the binding matches a message if …
=================  ====================================================================
all (default)      every argument is a header with the same value
any                at least one argument is
all-with-x         as all, but arguments whose names begin with ``x-`` count, too
any-with-x         as any, but arguments whose names begin with ``x-`` count, too
=================  ====================================================================

An argument of None (AMQP's void) matches a header of any value. Numbers are compared as numbers; a boolean equals only
a boolean. A header of an extension type (a Decimal, a date …) equals its text. Without arguments ``all`` matches every
message and ``any`` none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.msgpack import Ext

from ...errors import RequestError
from ...selectors import tree

X_MATCH = "x-match"
#: limit for the arguments of a binding, which each publish is compared with; it is also the limit for headers
MAX_ARGUMENTS = 255
KINDS = ("all", "any", "all-with-x", "any-with-x")


def check(arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a binding to a headers exchange.

    Raises:
        RequestError: an unknown ``x-match``, too many arguments, or a value of a type that is not compared.
    """
    kind = arguments.get(X_MATCH, "all")
    if kind not in KINDS:
        raise RequestError(f"x-match {kind!r} is unknown: use {', '.join(KINDS)}", argument=X_MATCH)
    if len(arguments) > MAX_ARGUMENTS:
        raise RequestError(f"a headers binding has at most {MAX_ARGUMENTS} arguments", limit=MAX_ARGUMENTS)
    for name, value in arguments.items():
        if value is not None and not isinstance(value, (str, int, float)):
            raise RequestError(
                f"argument {name!r} of a headers binding is a {type(value).__name__}: headers are compared with "
                "texts, numbers, booleans and None (a header of any value)",
                argument=name,
            )


def identity(arguments: Mapping[str, Any]) -> str:
    """Return a text that distinguishes the bindings of a queue with the same routing key."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"))


def matches(arguments: Mapping[str, Any], headers: Mapping[Any, Any]) -> bool:
    every, pairs = _wanted(arguments)
    results = (name in headers and _equal(value, headers[name]) for name, value in pairs)
    return all(results) if every else any(results)


def _wanted(arguments: Mapping[str, Any]) -> tuple[bool, list[tuple[str, Any]]]:
    """Return True if all arguments must match, and the arguments to compare."""
    kind = arguments.get(X_MATCH, "all")
    with_x = kind.endswith("-with-x")
    pairs = [
        (name, value) for name, value in arguments.items() if name != X_MATCH and (with_x or not name.startswith("x-"))
    ]
    return kind.startswith("all"), pairs


def _equal(argument: Any, value: Any) -> bool:
    if argument is None:
        return True
    if type(value) is Ext:
        return isinstance(argument, str) and bool(value.data == argument.encode())
    return isinstance(argument, bool) == isinstance(value, bool) and bool(argument == value)


def term(arguments: Mapping[str, Any]) -> str:
    """Return the same match as a condition in the text of a queue's filter."""
    every, pairs = _wanted(arguments)
    if not pairs:
        return "TRUE" if every else "FALSE"
    conditions = [tree.quoted(name, '"') + _condition(value) for name, value in pairs]
    text = (" AND " if every else " OR ").join(conditions)
    return text if every or len(conditions) == 1 else f"({text})"


def condition(arguments: Mapping[str, Any]) -> tree.Condition:
    """Return the tree of the term, without parsing."""
    every, pairs = _wanted(arguments)
    return (tree.all_of if every else tree.any_of)([_tree(tree.Header(name), value) for name, value in pairs])


def _tree(header: tree.Header, value: Any) -> tree.Condition:
    return tree.Not(tree.IsNull(header)) if value is None else tree.Compare("=", header, tree.constant_node(value))


def _condition(value: Any) -> str:
    return " IS NOT NULL" if value is None else f" = {tree.constant(value)}"
