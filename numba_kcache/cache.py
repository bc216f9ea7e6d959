"""`KernelCache`, and the functions that act on the process's own cache: info, clear, configure and others.

Promise     No method fails because of the contents of the disk. The package's functions act on the process's cache.
Not here    The work behind the methods (engine, store, bundles, warmup).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .engine import Session, configure_process, process_events, process_session, register, settings_of
from .errors import KCacheError, OptionError, shortening
from .frontends import Kernel
from .get_or import GetOr
from .model import Event
from .settings import Settings, default_directory
from .store.listing import ORDERS, EntryInfo, Order, Problem

if TYPE_CHECKING:  # a hit does not import these modules
    from typing import Unpack

    from .bundles import Moved
    from .doctor import Diagnosis
    from .explanation.text import Explanation
    from .frontends.options import Arch, CacheSettings, Folder, ProcessSettings, Size
    from .observe.detail import EntryDetail
    from .observe.info import CacheInfo, History
    from .tiers.bundle import BundleReport, BundleTier
    from .warmup.pool import WarmUpReport


class KernelCache(GetOr):
    """A cache of compiled kernels in its own directory.

    Args:
        directory: Directory of the entries; by default the process's setting.
        max_size_bytes: Size limit beyond which the least recently used entries are removed; an int or `"512MB"`.
        settings: Any other setting of `configure`.

    Raises:
        SettingsError: A setting is unknown, or a value cannot be used.
    """

    def __init__(
        self, directory: Folder | None = None, max_size_bytes: Size | None = None, **settings: Unpack[CacheSettings]
    ) -> None:
        chosen = settings_of({"directory": directory, "max_size_bytes": max_size_bytes, **settings})
        self._session: Session | None = Session(chosen, chosen.directory or default_directory())
        self._given: dict[str, Any] = {"max_size_bytes": max_size_bytes, **settings}
        super().__init__()

    def __reduce__(self) -> Any:
        """Pickle as directory and settings; the counts of this process are not sent."""
        return functools.partial(KernelCache, self.directory or None, **self._given), ()

    def __deepcopy__(self, memo: Any) -> KernelCache:
        """Return the cache itself, so that a copied kernel uses the same one."""
        return self

    def __dir__(self) -> list[str]:
        """The names for users: `session`, the engine, is for this package."""
        return [each for each in super().__dir__() if each != "session"]

    @property
    def session(self) -> Session:
        """The engine behind this cache."""
        return process_session() if self._session is None else self._session

    @property
    def directory(self) -> str:
        """The folder of its entries; "" if they are kept in memory."""
        return self.session.local.directory or ""

    @shortening
    def info(self, scope: str = "lifetime") -> CacheInfo:
        """Summarise the contents of the cache, its hits and misses, and the time that it saved.

        Args:
            scope: `"lifetime"`: counts of all processes since the cache began; `"process"`: of this process.

        Raises:
            SettingsError: The scope is neither.
        """
        from .engine.inspection import info_of

        return info_of(self.session, scope)

    @shortening
    def print_info(self, scope: str = "lifetime") -> None:
        """Print `info(scope)`."""
        print(self.info(scope))

    @shortening
    def clear(self) -> int:
        """Remove every entry and return their number. Kernels are looked up again; running launches go on."""
        removed = self.session.local.clear()
        self.session.forget()
        return removed.entries

    @shortening
    def remove(self, *keys: str) -> int:
        """Remove entries by their keys and return their number. Kernels are looked up again; running launches go on.

        Args:
            keys: Whole keys, as `entries()` has them; missing ones are ignored.

        Raises:
            ValueError: A key is not 64 hexadecimal digits.
        """
        removed = sum(bool(self.session.local.remove(key)) for key in keys)
        self.session.forget()
        return removed

    def forget_statistics(self) -> None:
        """Reset all counts, of every process: hits, misses, times, troubles, days. Entries stay.

        Raises:
            KCacheError: The counts cannot be written.
        """
        self.session.save_counts()
        if not self.session.local.counters.clear():
            what, why = f"cannot reset the statistics of {self.directory}", "they cannot be written to"
            raise KCacheError(what, why, "see `numba-kcache doctor`")

    @shortening
    def prune(self, max_size_bytes: Size | None = None, older_than: float | None = None) -> int:
        """Remove entries not used for a time, and the least recently used down to a size; returns their number.

        Args:
            max_size_bytes: Size to reach, an int or `"512MB"`; None for no such limit.
            older_than: Seconds since the last use from which an entry is removed; None for no such limit.
        """
        from .engine.inspection import check_limits

        limit = check_limits(max_size_bytes, older_than)
        return self.session.local.prune(limit, older_than).entries

    @shortening
    def entries(self) -> list[EntryInfo]:
        """List every entry that passes verification: key, kernels, target, size, compile time, last use, hits.

        The list shows itself as a table. The time of last use is not renewed.
        """
        from .observe.detail import EntryList

        return EntryList(self.session.local.entries())

    @shortening
    def listing(self, by: Order = "age", limit: int | None = None) -> list[EntryInfo]:
        """List the first entries in an order.

        Args:
            by: `"age"` (last used first), `"size"` (largest), `"cost"` (longest compilation) or `"hits"` (most).
            limit: Largest number of entries to list; None for all.

        Raises:
            OptionError: There is no such order.
        """
        if by not in ORDERS:
            raise OptionError(f"cannot list by {by!r}", f"it is not one of {', '.join(ORDERS)}", "write 'age'")
        return list(self.session.local.entries(by, limit, self.history().hits))

    @shortening
    def entry(self, key: str) -> EntryDetail:
        """The details of one entry: kernels, resources, components of its key, compile log.

        Args:
            key: Key of the entry, or a unique prefix of the key.

        Raises:
            EntryError: There is no such entry, or several, or the entry is damaged.
        """
        from .engine.inspection import detail_of, find_entry

        return detail_of(self.session, find_entry(self.session, key), self.history().hits)

    def report(self) -> str:
        """A report about this cache as one self-contained HTML page: time saved, contents, reasons of misses."""
        from .observe.page import page

        return page(self.info(), self.history(), self.listing("cost", 12), self.listing("size", 12), now_s=time.time())

    def doctor(self) -> Diagnosis:
        """Diagnose driver, compilers, versions, directory and tiers; each problem found has advice."""
        from .doctor import examine

        return examine(self.session, self.info())

    def history(self) -> History:
        """Counts of all processes by day, by entry and by reason of the miss."""
        from .observe.info import history_of

        return history_of(self.session.lifetime())

    @shortening
    def verify(self) -> list[Problem]:
        """Read all files, quarantine those damaged or contradicting their header, and list key and reason of each."""
        from .engine.inspection import verify

        return verify(self.session)

    @shortening
    def warm_up(
        self, kernels: Any, arch: Arch | None = None, *, workers: int | None = None, progress: bool = True
    ) -> WarmUpReport:
        """Compile kernels ahead, each for each target and signature, in parallel, and store them in their caches.

        With explicit targets no GPU, driver or context is needed. Kernels that are stored are not compiled again.

        Args:
            kernels: A kernel, a module of `cached_module`, a Python module, its dotted name, a file, or a list of
                these. They go to the caches that they were decorated with, which need not be this one.
            arch: Targets, as in `cached_kernel`; None for each kernel's own, or the device.
            workers: Number of compiling processes; None for one per available core.
            progress: Show progress on standard error: a live line on a terminal, lines elsewhere.

        Raises:
            CompileError: Some kernels could not be compiled; the others were. `.log` has the compilers' output, and
                `.report` the `WarmUpReport`.
            UncacheableError: As CompileError, if no kernel that failed can be keyed.
            EntryError, OptionError: There are no such kernels, or targets.
            SettingsError: The mode of a kernel's cache forbids storing, or `workers` is not a positive integer.
        """
        from .warmup.pool import warm_up

        return warm_up(kernels, arch, workers=workers, progress=progress)

    @shortening
    def explain(self, kernel: Any, arch: Arch | None = None, signature: Any = None) -> Explanation:
        """Explain a hit, or list every difference from the nearest entry. Compiles and changes nothing.

        Args:
            kernel: A kernel of `cached_kernel` or `cached_module`, or such a module. Or an entry (a `Built`, a key or a
                unique prefix of one, a kernel's name), which is described and compared with the others of its kernel.
            arch: As in `cached_kernel`; None for the kernel's own, or the device.
            signature: Signature of a Numba kernel; None for its own, or the first that was used.

        Raises:
            OptionError: `kernel` is neither a kernel nor text, or has no signature.
            EntryError: There is no entry of such a key, or several.
            NoDeviceError: No target is named and there is no device.
        """
        key = getattr(kernel, "key", kernel)  # a `Built`, from get_or_build, has its key
        if isinstance(key, str):
            from .engine.explain import explain_key
            from .engine.inspection import find_entry

            return explain_key(self.session, find_entry(self.session, key).key)
        from .module import CachedModule

        if isinstance(kernel, CachedModule):
            return kernel.explain(arch)
        if not isinstance(kernel, Kernel):
            raise OptionError(f"cannot explain {kernel!r}", "it is neither a kernel nor a key", "give one or the other")
        return kernel.explain(arch, signature)

    @shortening
    def export_bundle(
        self, path: Any, kernels: Any = None, arch: Arch | None = None, *, sign: bool | None = None
    ) -> BundleReport:
        """Write entries into one file, to be shipped in a wheel or an image. The same entries give the same bytes.

        Args:
            path: Path of the bundle, written atomically. `"oci:DIRECTORY[:TAG]"`: an image in an OCI layout.
            kernels: A kernel, a module, a dotted name, a file, or a list of these; None for all that the cache holds.
            arch: A target or a list of them; None for all.
            sign: True: the bundle must be signed; False: it is not; None: it is signed if there is a `signing_key`.

        Raises:
            BundleError: There is nothing to write, or the bundle cannot be written.
            EntryError, OptionError: There are no such kernels, or no key to sign with.
        """
        from .bundles import export_bundle

        identities = None
        if kernels is not None:
            from .warmup.discovery import kernels_of

            identities = [kernel._identity() for kernel in kernels_of(kernels)]
        return export_bundle(self.session, path, identities, arch, sign=sign)

    @shortening
    def import_bundle(self, path: Any) -> BundleReport:
        """Verify a bundle and add its entries, all or none.

        Args:
            path: Path of the bundle; `"package:resource"`; or an image in an OCI layout, `"oci:DIRECTORY[:TAG]"`.

        Raises:
            BundleError: The bundle is damaged, lacks a required signature, or the disk is full; nothing was added.
        """
        from .bundles import import_bundle

        return import_bundle(self.session, path)

    def ask_tiers(self) -> None:
        """Send a request to each tier; `info().tiers` then has its latency and reachability."""
        if self.session.chain is not None:
            self.session.chain.ask()

    @shortening
    def push(self, tier: str | None = None) -> Moved:
        """Copy this cache's entries to a tier that lacks them, signed if there is a `signing_key`.

        Args:
            tier: As in the setting `tiers`: a URL, a directory; None for the first one that is not read-only.

        Raises:
            KCacheError: The tier does not answer.
            SettingsError: `tier` is not a tier.
        """
        from .bundles import push

        return push(self.session, tier)

    @shortening
    def pull(self, tier: str | None = None) -> Moved:
        """Copy all entries of a tier into this cache, each verified.

        Args:
            tier: As in the setting `tiers`; None for the first configured one.

        Raises:
            KCacheError: The tier does not answer, or the mode forbids writing.
            SettingsError: `tier` is not a tier.
        """
        from .bundles import pull

        return pull(self.session, tier)

    @shortening
    def register_bundle(self, path_or_package_resource: Any) -> BundleReport:
        """Use a bundle in place as a read-only tier; its code is accepted whatever toolkit is installed here, if any.

        Args:
            path_or_package_resource: A path, `"package:x.kcache"`, `"oci:DIRECTORY[:TAG]"`, or a Traversable.

        Raises:
            BundleError: The bundle is damaged, or lacks a required signature.
        """
        from .tiers.bundle import BundleTier
        from .tiers.opening import open_any

        bundle = open_any(path_or_package_resource, self.session.settings)
        self.session.mount(BundleTier(bundle.name, lambda: bundle))
        return bundle.report

    @shortening
    def subscribe(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Call `callback` with every event from now on; its errors are logged. Returns the function that ends this."""
        return self.session.events.subscribe(callback)


class _ProcessCache(KernelCache):
    """The process's own cache: it uses the session of the current settings."""

    def __init__(self) -> None:
        self._session = None
        GetOr.__init__(self)

    def __reduce__(self) -> Any:
        return "process_cache"

    @shortening
    def subscribe(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Call `callback` with every event from now on, also after `configure()`; returns the function that ends it.

        Its errors are logged. docs/reference/cache.md has the kinds of events and their fields.
        """
        return process_events.subscribe(callback)

    @shortening
    def register_bundle(self, path_or_package_resource: Any) -> BundleReport:
        """Do the same as `KernelCache.register_bundle`; the bundle stays registered after `configure`."""
        report = super().register_bundle(path_or_package_resource)

        def make(settings: Settings) -> BundleTier:
            from .tiers.bundle import BundleTier
            from .tiers.opening import open_any

            return BundleTier(report.path, functools.partial(open_any, path_or_package_resource, settings))

        register(report.path, make)
        return report


process_cache = _ProcessCache()

get_or_compile = process_cache.get_or_compile
get_or_build = process_cache.get_or_build
info = process_cache.info
print_info = process_cache.print_info
clear = process_cache.clear
prune = process_cache.prune
entries = process_cache.entries
verify = process_cache.verify
explain = process_cache.explain
subscribe = process_cache.subscribe
warm_up = process_cache.warm_up
export_bundle = process_cache.export_bundle
import_bundle = process_cache.import_bundle
push = process_cache.push
pull = process_cache.pull
register_bundle = process_cache.register_bundle


@shortening
def configure(**settings: Unpack[ProcessSettings]) -> None:
    """Change settings of the process's cache; every kernel is looked up again at its next launch.

    Args:
        settings: Those of docs/reference/settings.md. None resets a setting to its environment variable or default.

    Raises:
        SettingsError: A setting is unknown, or a value cannot be used; nothing has changed.
    """
    configure_process(settings)
