"""Start real object storage on loopback: OpenStack Swift, which speaks S3, and Azurite, Microsoft's Azure emulator."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from .programs import program
from .redis_server import free_port

SWIFT_PYTHON = "/usr/bin/python3"
CONTAINER = "kernels"
START_S = 60.0

_NO_OBSTORE = "" if find_spec("obstore") else "no obstore: pip install numba-kcache[object-store]"


def _swift_missing() -> str:
    if not Path("/usr/lib/python3/dist-packages/swift").is_dir():  # Debian's, for Debian's Python
        return "no Swift: apt-get install --no-install-recommends python3-swift"
    return _NO_OBSTORE


def _azurite_missing() -> str:
    return _NO_OBSTORE if shutil.which("azurite-blob") else "no azurite-blob on PATH: npm install azurite"


MISSING: Mapping[str, Callable[[], str]] = {"swift": _swift_missing, "azurite": _azurite_missing}
"""For each service a function that names what is missing to run it; "" if it can be run."""


class ObjectService(NamedTuple):
    """A running service with an empty container.

    Args:
        scheme: The scheme of its URLs.
        endpoint: Its HTTP address.
        environment: Environment variables with the client's credentials.
        port: The port on which it listens.
    """

    scheme: str
    endpoint: str
    environment: Mapping[str, str]
    port: int


@contextlib.contextmanager
def object_service(name: str, directory: Path) -> Iterator[ObjectService]:
    """Run a service inside the context."""
    directory.mkdir(parents=True, exist_ok=True)
    with (_swift if name == "swift" else _azurite)(directory) as service:
        yield service


# -- Swift: proxy, account, container and object server, one replica ---------------------------------------------------

_USER, _PASSWORD = "team:builder", "codswallop"

_SERVE = """
import ctypes, os, sys
import eventlet.patcher
eventlet.patcher.monkey_patch(all=False, socket=True, select=True, thread=True)  # Swift does it later, which takes 3 s
from swift.common import utils
folder, *ports = sys.argv[1:]
utils.set_swift_dir(folder)
from swift.common.ring import RingBuilder
from swift.common.wsgi import run_wsgi
import swift.account.server, swift.container.server, swift.obj.server, swift.proxy.server  # once for all four
for name, port in zip(("account", "container", "object"), ports):
    builder = RingBuilder(4, 1, 0)
    builder.add_dev({"region": 1, "zone": 1, "weight": 1, "ip": "127.0.0.1", "port": int(port), "device": "disk"})
    builder.rebalance()
    builder.get_ring().save(f"{folder}/{name}.ring.gz")
for name in ("account", "container", "object", "proxy"):
    if name == "proxy" or os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: Swift starts a session for each
        sys.exit(run_wsgi(f"{folder}/{name}.conf", name + "-server"))
"""

_COMMON = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/disks
mount_check = false
fallocate_reserve = 0
"""

_STORAGE = """[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
"""

_PROXY = f"""[pipeline:main]
pipeline = catch_errors cache s3api tempauth proxy-server
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:9
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_{_USER.replace(":", "_")} = {_PASSWORD} .admin
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""
"""No memcached runs at that address: Swift would keep tokens in it, which signed requests do not use."""


@contextlib.contextmanager
def _swift(directory: Path) -> Iterator[ObjectService]:
    import pwd

    ports = {name: free_port() for name in ("account", "container", "object", "proxy")}
    (directory / "disks" / "disk").mkdir(parents=True)
    (directory / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = tests\n")
    user = pwd.getpwuid(os.getuid()).pw_name
    for name, port in ports.items():
        own = _PROXY if name == "proxy" else _STORAGE.format(name=name)
        (directory / f"{name}.conf").write_text(_COMMON.format(port=port, user=user, folder=directory) + own)
    words = [SWIFT_PYTHON, "-c", _SERVE, str(directory), *(str(ports[each]) for each in list(ports)[:3])]
    endpoint = f"http://127.0.0.1:{ports['proxy']}"
    environment = {"AWS_ACCESS_KEY_ID": _USER, "AWS_SECRET_ACCESS_KEY": _PASSWORD}
    with _running(words, directory):
        for name in ("account", "container", "object"):
            _until_taken(f"http://127.0.0.1:{ports[name]}/healthcheck", dict)
        _until_taken(f"{endpoint}/{CONTAINER}", _swift_headers, method="PUT")
        yield ObjectService("s3", endpoint, environment, ports["proxy"])


def _swift_headers() -> dict[str, str]:
    date = formatdate(usegmt=True)
    signed = f"PUT\n\n\n{date}\n/{CONTAINER}".encode()
    signature = base64.b64encode(hmac.new(_PASSWORD.encode(), signed, hashlib.sha1).digest()).decode()
    return {"Date": date, "Authorization": f"AWS {_USER}:{signature}"}


# -- Azurite -----------------------------------------------------------------------------------------------------------

_ACCOUNT = "team"
_KEY = base64.b64encode(b"codswallop").decode()


@contextlib.contextmanager
def _azurite(directory: Path) -> Iterator[ObjectService]:
    port = free_port()
    words = [program("azurite-blob"), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory)]
    words += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    environment = {"AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": _KEY}
    with _running(words, directory, AZURITE_ACCOUNTS=f"{_ACCOUNT}:{_KEY}"):
        _until_taken(f"{endpoint}/{CONTAINER}?restype=container", _azurite_headers, method="PUT")
        yield ObjectService("az", endpoint, environment, port)


def _azurite_headers() -> dict[str, str]:
    date, version = formatdate(usegmt=True), "2021-08-06"
    signed = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{version}\n/{_ACCOUNT}/{_ACCOUNT}/{CONTAINER}"
    signed += "\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()).decode()
    return {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {_ACCOUNT}:{signature}"}


# -- both --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _running(words: list[str], directory: Path, **environment: str) -> Iterator[None]:
    with open(directory / "log", "w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **environment})
    try:
        yield
    except Exception as error:
        error.add_note((directory / "log").read_text()[-2000:])
        raise
    finally:
        process.kill()
        process.wait()


def _until_taken(url: str, headers: Callable[[], dict[str, str]], method: str = "GET") -> None:
    """Send a request again and again until the service accepts it."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers())).close()
            return
        except urllib.error.HTTPError as error:
            if method == "GET":
                return  # the service runs; its answer does not matter
            raise RuntimeError(f"{url}: {error} {error.read()[:500]!r}") from None
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
