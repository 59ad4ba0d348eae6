"""What the queue client takes for topic patterns and for the routing keys that they are for; the rules are pgmq's.

Words of ASCII letters, digits, ``-`` and ``_`` are separated by single dots. In a pattern a word may also be ``*`` (one
word) or ``#`` (any number of words). AMQP takes any text, so Kombu's channels do, too.
"""

from __future__ import annotations

import re

from ..errors import RequestError

MAX_CHARACTERS = 255
WILDCARDS = ("*", "#")
_WORD = re.compile(r"[A-Za-z0-9_-]+")


def check_routing_key(text: str) -> None:
    """Refuse what no topic pattern can be meant for.

    Raises:
        RequestError: the text says what is wrong with the routing key.
    """
    _check(text, "routing key", wildcards=())


def check_topic_pattern(text: str) -> None:
    """Refuse what can't be meant as a pattern.

    Raises:
        RequestError: the text says what is wrong with the pattern.
    """
    _check(text, "topic pattern", wildcards=WILDCARDS)


def _check(text: str, what: str, *, wildcards: tuple[str, ...]) -> None:
    if not isinstance(text, str):
        raise RequestError(f"a {what} is a text, not {type(text).__name__}", name=what)
    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"a {what} has at most {MAX_CHARACTERS} characters, not {len(text)}", limit=MAX_CHARACTERS)
    if not text:
        every = ": '#' is for every routing key" if wildcards else ""
        raise RequestError(f"a {what} can't be empty{every}", name=what)
    for word in text.split("."):
        if word in wildcards or _WORD.fullmatch(word):
            continue
        raise RequestError(f"{text!r} is no {what}: {_fault(word, wildcards)}", name=what, value=text)


def _fault(word: str, wildcards: tuple[str, ...]) -> str:
    """What is wrong with a word."""
    if not word:
        return "it begins or ends with a dot, or has two dots in a row"
    if not any(wildcard in word for wildcard in WILDCARDS):
        return f"{word!r} has other characters than ASCII letters, digits, - and _"
    if not wildcards:
        return f"{word!r} has a wildcard, which is for patterns"
    return f"in {word!r} a wildcard is not a word by itself; * is one word, # is any number of words"
