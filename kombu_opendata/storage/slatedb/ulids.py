"""ULIDs, the ids of SlateDB's tables and compactions: a time in ms, of 48 bits, and 80 random bits, as 26 digits."""

from __future__ import annotations

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LENGTH = 26
_RANDOM_BITS = 80


def ulid_number(id: str) -> int:
    """Return the number of a ULID's digits.

    Raises:
        ValueError: it is not a ULID.
    """
    if len(id) != _LENGTH:
        raise ValueError(f"{id!r} is not a ULID")
    number = 0
    for digit in id.upper():
        number = number * len(_DIGITS) + _DIGITS.index(digit)
    return number


def ulid_time_ms(id: str) -> int:
    """Return the time in a ULID; 0 if it is none."""
    try:
        return ulid_number(id) >> _RANDOM_BITS
    except ValueError:
        return 0


def earlier_ulid(id: str, by_ms: int) -> str:
    """Return the ULID with the same random bits and a time that is earlier by ``by_ms``."""
    number = ulid_number(id) - (by_ms << _RANDOM_BITS)
    digits = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
