"""Settings of buckets: credentials from files, and no settings in URLs.

SlateDB and obstore read credentials from environment variables, from the cloud's metadata service (instance and task
roles) or with a token file (``AWS_WEB_IDENTITY_TOKEN_FILE``). They do not read ``~/.aws/credentials``. A static secret
may be in a file: the variable with the suffix ``_FILE``, such as ``AWS_SECRET_ACCESS_KEY_FILE``, has its path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .errors import InvalidURL, StoreError
from .file_system import read_private
from .masking import masked

VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_CLIENT_SECRET",
)  # fmt: skip


#: setting of an S3 bucket → its variable
SETTINGS = {
    "endpoint": "AWS_ENDPOINT", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY", "session_token": "AWS_SESSION_TOKEN",
}  # fmt: skip


@contextmanager
def bucket_settings(settings: Mapping[str, str]) -> Iterator[None]:
    """Replace variables of the environment by these settings for stores that are opened in the block."""
    values = {SETTINGS[name]: value for name, value in settings.items()}
    if settings.get("endpoint", "").startswith("http://"):
        values["AWS_ALLOW_HTTP"] = "true"
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def read_credential_files() -> None:
    """Set each variable from the file that its ``_FILE`` variable names; a variable that is set keeps its value.

    Raise StoreError if a file can't be read, is not text, or is open to every user.
    """
    for name in VARIABLES:
        path = os.environ.get(f"{name}_FILE")
        if path and not os.environ.get(name):
            data = read_private(path, f"the file of ${name}_FILE,", StoreError)
            try:
                os.environ[name] = data.decode().strip()
            except (UnicodeDecodeError, ValueError) as exc:
                text = f"the file of ${name}_FILE, {path} is not text: write the value alone into it"
                raise StoreError(text, path=path) from exc


def refuse_query(url: str) -> None:
    """Raise InvalidURL for a bucket's URL with a query or a fragment: settings there would have no effect."""
    if "?" in url or "#" in url:
        shown = masked(url)
        raise InvalidURL(
            f"the bucket's URL {shown!r} has settings after '?' or '#': set the environment variables of its provider, "
            "such as AWS_REGION. In a name, write %3F or %23",
            url=shown,
        )
