"""Object storage as a tier: S3 and compatible services, Google Cloud Storage, Azure Blob.

Promise     A request ends within `timeout_s`, connecting and body included, and is not repeated. No object above the
            size limit is fetched: its size is checked before its body is read. No text of a service is passed on: of an
            error the class is shown, and the first of the phrases in `_SHOWN`, since a service that repeats a request
            would put tokens into it.
Method      A file is an object `<path>/<format>/<kind>/<key>`, through obstore. Credentials come from where the client
            of each cloud looks for them (environment, metadata server); the URL cannot hold any.
Not here    Leases: not every object store has the conditional put that they need. A Redis tier beside it has them.
Source      obstore takes 3 ms to import and is one file of 15 MB; s3fs, gcsfs and adlfs, one package with dependencies
            for each cloud, take 0.3 to 0.7 s of CPU to import, and ten times the CPU for each object
            (docs/performance-fleet.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..errors import ToolchainMissingError
from ..model.tier_address import shown_place
from ..store import MAX_FILE_BYTES
from .tier import Tier, file_name, listed

Result = TypeVar("Result")

TIMEOUT_S = 3.0

_pid = 0
"""The process in which obstore was first used. A forked child lacks obstore's threads, and even a new client in the
child would wait for them for ever (obstore 0.8 and 0.9): a child therefore does not use object stores."""

_SHOWN = re.compile("status code: [1-5][0-9][0-9]|[Cc]onnection refused|dns error|timed out|certificate|redirect")


class ObjectTier(Tier):
    """A bucket, or a path in one.

    Args:
        url: `s3://bucket/path`, `gs://bucket/path`, `az://container/path`.
        timeout_s: Longest wait for one request, in seconds.
        endpoint: URL of the service, if it is not the cloud's own.
        region: Region of the bucket; "" for that of the environment.
    """

    is_remote, readonly = True, False

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S, endpoint: str = "", region: str = "") -> None:
        self.name, self._url, self._timeout_s = shown_place(url), url, timeout_s
        self._config = {name: value for name, value in (("endpoint", endpoint), ("region", region)) if value}
        self._store: Any = None

    def get(self, kind: int, key: str) -> bytes | None:
        """Read a file."""
        path = file_name(kind, key)

        def work(obstore: Any, store: Any) -> bytes:
            found = obstore.get(store, path)
            size = found.meta["size"]
            if size > MAX_FILE_BYTES:
                raise ValueError(f"{path} has {size} bytes and is above the limit of {MAX_FILE_BYTES}")
            return bytes(found.bytes())

        return self._asked(work)

    def put(self, kind: int, key: str, data: bytes) -> None:
        """Write a file."""
        self._asked(lambda obstore, store: obstore.put(store, file_name(kind, key), data, use_multipart=False))

    def keys(self, kind: int) -> Iterator[str]:
        """The keys of all entries or manifests."""
        start = file_name(kind)

        def work(obstore: Any, store: Any) -> list[str]:
            return listed(str(each["path"]) for chunk in obstore.list(store, start) for each in chunk)

        return (path.rpartition("/")[2] for path in self._asked(work) or [])

    def _asked(self, work: Callable[[Any, Any], Result]) -> Result | None:
        """Run `work` with obstore and return its result, None for a missing object; raise its errors as OSError."""
        global _pid
        obstore = _obstore()
        errors = obstore.exceptions
        _pid = _pid or os.getpid()
        if _pid != os.getpid():
            raise ConnectionError(
                "this process was forked from one that had used its client, which does not work after a fork"
            )
        try:
            if self._store is None:
                self._store = self._opened()
            return work(obstore, self._store)
        except (FileNotFoundError, errors.NotFoundError):
            return None
        except errors.BaseError as error:
            found = _SHOWN.search(str(error))
            said = f"{type(error).__name__}: {found[0] if found else 'no answer'}"
            raise ConnectionError(said) from None
        except BaseException as error:  # a panic of the client, which is written in Rust, is not an Exception
            if type(error).__module__ != "pyo3_runtime":
                raise
            raise ConnectionError(f"its client failed: {(str(error) or 'panic').splitlines()[0][:200]}") from None

    def _opened(self) -> Any:
        from obstore.store import from_url

        opened: Any = from_url  # untyped: which of its overloads applies depends on the URL
        timeout = f"{round(self._timeout_s * 1000)}ms"
        allow_http = self._config.get("endpoint", "").startswith("http:")
        client = {"timeout": timeout, "connect_timeout": timeout, "allow_http": allow_http}
        return opened(self._url, config=self._config or None, client_options=client, retry_config={"max_retries": 0})


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
    except ImportError as error:
        raise ToolchainMissingError(
            "cannot use object storage", str(error), "install numba-kcache[object-store], which brings obstore"
        ) from None
    return obstore
