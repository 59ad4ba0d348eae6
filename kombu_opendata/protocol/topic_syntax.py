"""Topic patterns and routing keys that the queue client accepts; the rules are pgmq's.

Words of ASCII letters, digits, ``-`` and ``_`` are separated by single dots. In a pattern, ``*`` stands for one word
and ``#`` for any number of words. Kombu's channels accept any text, as AMQP does.
"""

from __future__ import annotations

import re

from ..errors import RequestError

MAX_CHARACTERS = 255
WILDCARDS = ("*", "#")
_WORD = re.compile(r"[A-Za-z0-9_-]+")


def check_routing_key(text: str) -> None:
    """Validate a routing key; raise RequestError with the reason if it is not valid."""
    _check(text, "routing key", wildcards=())


def check_topic_pattern(text: str) -> None:
    """Validate a topic pattern; raise RequestError with the reason if it is not valid."""
    _check(text, "topic pattern", wildcards=WILDCARDS)


def _check(text: str, kind: str, *, wildcards: tuple[str, ...]) -> None:
    if not isinstance(text, str):
        raise RequestError(f"a {kind} must be a str, not {type(text).__name__}", name=kind)
    if len(text) > MAX_CHARACTERS:
        raise RequestError(
            f"a {kind} may have at most {MAX_CHARACTERS} characters, not {len(text)}", limit=MAX_CHARACTERS
        )
    if not text:
        every = ": '#' matches every routing key" if wildcards else ""
        raise RequestError(f"a {kind} can't be empty{every}", name=kind)
    for word in text.split("."):
        if word in wildcards or _WORD.fullmatch(word):
            continue
        raise RequestError(f"{text!r} is not a valid {kind}: {_fault(word, wildcards)}", name=kind, value=text)


def _fault(word: str, wildcards: tuple[str, ...]) -> str:
    if not word:
        return "it begins or ends with a dot, or has two dots in a row"
    if not any(wildcard in word for wildcard in WILDCARDS):
        return f"{word!r} has characters other than ASCII letters, digits, - and _"
    if not wildcards:
        return f"{word!r} has a wildcard, and only patterns may have one"
    return f"the wildcard in {word!r} must be a whole word: * is one word, # is any number of words"
