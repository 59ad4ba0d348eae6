"""Reserved words, tokens and limits of the filter language. This module does not import the parser."""

from __future__ import annotations

#: reserved words, in any case
KEYWORDS = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})
#: a header name that needs no quotes, as in JMS: letters, digits, ``_`` and ``$``, not beginning with a digit
IDENTIFIER = r"[^\W\d][\w$]*|\$[\w$]*"
INTEGER = r"0|[1-9][0-9]*"
HEX = r"0[xX][0-9a-fA-F]+"
DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"

#: limit for the size of a user's filter
MAX_BYTES = 16_384
#: limit for the headers and constants of a filter; the list of an IN counts as one
MAX_TERMS = 500
#: limit for nested parentheses, NOTs and signs; functions over the tree are recursive
MAX_DEPTH = 24
#: limit for + - * / and signs
MAX_ARITHMETIC = 100
#: limit for LIKE with a ``_`` between two ``%``, which takes a step of Python for each character of the text
MAX_SCANS = 8
#: characters of a text that LIKE and topic() examine; for a longer one they are unknown. A routing key has 255 bytes
MAX_LIKE_TEXT = 1024
MAX_TOPIC_TEXT = 255
#: exclusive limit for integers
INTEGER_LIMIT = 1 << 64
#: limit for the characters of a header's text that can be a number
MAX_NUMBER_LENGTH = 40
