"""No config file, variable or option makes anything but the declared error, and what is shown can be read again."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kombu_opendata.cli.administration.serve import as_toml
from kombu_opendata.configuration.options import BrokerOptions, public_specs
from kombu_opendata.configuration.sources import configuration
from kombu_opendata.errors import InvalidConfiguration

NEEDED = {"store": "memory://x", "listen": ("tcp:127.0.0.1:0",)}
KEYS = [spec.key for spec in public_specs()]
#: what somebody may write, right and wrong
PLAUSIBLE = st.sampled_from(
    ["1", "0", "-1", "1e400", "nan", "inf", "20G", "7d", "1h30m", "settled", "forever", "true", "off", "JSON", "text",
     "debug", "tcp:[::1]:5", "unix:/a", "unix:\0", "9464", "host:99999", "s3://a:b@c/d", "file:///", "~", "\x7f",
     "\ud800"]
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(), PLAUSIBLE),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=2)),
    max_leaves=5,
)
NAMES = st.one_of(st.sampled_from(KEYS), st.text(max_size=20))


def read(data: bytes, given: Any = NEEDED, environment: dict[str, str] | None = None) -> BrokerOptions | None:
    """The options with this file; None if it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "broker.toml")
        file.write_bytes(data)
        found = configuration(given, environment or {}, file)
        assert all(fault for fault in found.errors)
        try:
            return found.options()
        except InvalidConfiguration:
            return None


def toml(table: dict[str, Any]) -> bytes:
    lines = (f"{as_toml(key)} = {as_toml(value)}" for key, value in table.items())
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def check_again(options: BrokerOptions) -> None:
    """What is shown of options gives them again; TOML has no text for the name of a file that is not Unicode."""
    shown = {spec.key: spec.shown(getattr(options, spec.field)) for spec in public_specs()}
    data = toml({key: value for key, value in shown.items() if value not in (None, [])})
    assert b"\xed\xa0" in data or read(data, {}) == options


@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf")
@example(b"[[listen]]")
@example(b"a." * 5000 + b"b = 1")
@example(b"a = " + b"[" * 5000)
@example(b"a = " + b"9" * 5000)
def test_any_file(data: bytes) -> None:
    read(data)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_any_values_of_a_file(table: dict[str, Any]) -> None:
    options = read(toml(table))
    if options is not None:
        check_again(options)


@given(st.dictionaries(st.sampled_from(KEYS), st.one_of(PLAUSIBLE, st.text()), max_size=4))
def test_any_text_of_an_option_or_a_variable(texts: dict[str, str]) -> None:
    specs = {spec.key: spec for spec in public_specs()}
    variables = {specs[key].variable: text for key, text in texts.items()}
    words = {specs[key].field: (text,) if specs[key].repeated else text for key, text in texts.items() if text}
    for options in (read(b"", NEEDED, variables), read(b"", {**NEEDED, **words})):
        if options is not None:
            check_again(options)
