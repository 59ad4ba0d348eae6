"""Words and bounds of selectors. Nothing here imports the parser."""

from __future__ import annotations

#: reserved, in any case
KEYWORDS = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})
#: a header name that needs no quotes, as in JMS: letters, digits, ``_`` and ``$``, not a digit first
IDENTIFIER = r"[^\W\d][\w$]*|\$[\w$]*"
INTEGER = r"0|[1-9][0-9]*"
HEX = r"0[xX][0-9a-fA-F]+"
DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"

#: of a filter that a user gives
MAX_BYTES = 16_384
#: headers and constants in it; the list of an IN is one
MAX_TERMS = 500
#: the same for the whole filter of a queue, its bindings included, whose record counts bytes in 16 bits
MAX_STORED_BYTES = 65_535
MAX_STORED_TERMS = 40_000
#: parentheses, NOTs and signs inside each other; the parser recurses
MAX_DEPTH = 24
#: + - * / and signs
MAX_ARITHMETIC = 100
#: integers of this size and above are no numbers here
INTEGER_LIMIT = 1 << 64
#: a header's text that is longer is no number
MAX_NUMBER_LENGTH = 40
