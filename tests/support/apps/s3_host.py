"""An S3 server for the hosts of a network, each request of which takes a while: s3_host.py PORT MILLISECONDS."""

import signal
import subprocess
import sys
import urllib.request

from tests.support.processes import wait_until
from tests.support.s3 import BUCKET
from tests.support.s3_proxy import S3Proxy

_SERVER_PORT = 9001


def main(port: int, milliseconds: float) -> None:
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(0))
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(_SERVER_PORT)])
    try:
        wait_until(_create_bucket, 60, "the server")
        proxy = S3Proxy(_SERVER_PORT, "0.0.0.0", port)
        proxy.delay_seconds = milliseconds / 1000
        signal.pause()
    finally:
        server.kill()
        server.wait()


def _create_bucket() -> bool:
    bucket = urllib.request.Request(f"http://127.0.0.1:{_SERVER_PORT}/{BUCKET}", method="PUT")
    try:
        urllib.request.urlopen(bucket).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
