"""Every place of the tiers at which a process may wait for another one, and the test with its holder gone or slow."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.house import HOUSE, ROOT, house

WAITING = {
    "wait", "wait_for", "join", "sleep", "_pause", "pause", "acquire", "recv", "sendall", "getaddrinfo",
    "create_connection", "wrap_socket", "select", "poll", "settle",
}  # fmt: skip
"""Methods and functions that wait, whatever they belong to."""

REACHING = {
    "obstore.get", "obstore.put", "obstore.list", "os.open", "os.pread", "tree.read", "tree.write", "self._tree.walk",
    "self._tree.base", "file.read", "archive.read", "found.read_bytes",
}  # fmt: skip
"""Calls that reach a service or a filesystem, which may be slow."""

LEASES, ALLOWANCE = "tests/unit/test_lease.py", "tests/unit/test_tier_breaker.py"
FAULTS, FLEET = "tests/integration/test_redis_faults.py", "tests/integration/test_redis_fleet.py"
QUEUE, OBJECTS = "tests/unit/test_upload_queue.py", "tests/unit/test_object_tier.py"
SERVICE, IMAGES = "tests/integration/test_object_store.py", "tests/unit/test_image.py"
SIGNED = "tests/unit/test_bundle.py"
STOPPED = f"{FAULTS}::test_stopped_server_costs_one_timeout"
SLOW_DIRECTORY = f"{ALLOWANCE}::test_directory_on_a_slow_filesystem_costs_twenty_kernels_six_seconds"
SLOW_BUNDLE = f"{IMAGES}::test_bundle_that_takes_long_to_read_is_refused_at_a_look_up"
SLOW_SERVICE = f"{SERVICE}::test_black_hole_costs_its_timeout"

COVERED = {
    "tiers/lease.py self._pause": f"{LEASES}::test_lying_server_costs_a_process_five_seconds_in_its_life",
    "tiers/lease.py ended.wait": f"{FLEET}::test_builder_that_ends_is_succeeded_by_exactly_one",
    "tiers/redis.py asking.join": f"{FAULTS}::test_name_servers_that_do_not_answer_cost_one_timeout",
    "tiers/redis.py socket.getaddrinfo": f"{FAULTS}::test_name_servers_that_do_not_answer_cost_one_timeout",
    "tiers/redis.py socket.create_connection": f"{FAULTS}::test_host_of_many_addresses_has_the_time_of_one",
    "tiers/redis.py context.wrap_socket": STOPPED,
    "tiers/redis.py self._socket.sendall": STOPPED,
    "tiers/redis.py self._socket.recv": STOPPED,
    "tiers/object_store.py obstore.get": SLOW_SERVICE,
    "tiers/object_store.py obstore.put": SLOW_SERVICE,
    "tiers/object_store.py obstore.list": f"{OBJECTS}::test_service_that_lists_without_end_is_given_up",
    "tiers/directory.py self._tree.base": SLOW_DIRECTORY,
    "tiers/directory.py self._tree.walk": SLOW_DIRECTORY,
    "tiers/directory.py tree.read": SLOW_DIRECTORY,
    "tiers/directory.py tree.write": SLOW_DIRECTORY,
    "tiers/bundle.py os.open": SLOW_BUNDLE,
    "tiers/bundle.py os.pread": SLOW_BUNDLE,
    "tiers/bundle.py found.read_bytes": SLOW_BUNDLE,
    "tiers/image.py os.open": SLOW_BUNDLE,
    "tiers/image.py file.read": SLOW_BUNDLE,
    "tiers/image.py archive.read": SLOW_BUNDLE,
    "tiers/upload_queue.py self._changed.wait_for": f"{QUEUE}::test_flush_is_bounded",
    "tiers/trust.py file.read": f"{SIGNED}::test_bad_signing_key_is_a_settings_error",
    "bundles.py thread.join": f"{OBJECTS}::test_service_that_lists_without_end_is_given_up",
    "bundles.py chain.settle": f"{QUEUE}::test_flush_is_bounded",
}
"""File and call, and the test in which the one that is waited for is stopped, killed or slow."""


def calls() -> Iterator[str]:
    """File and name of each call of the tiers that may wait."""
    for path in HOUSE.paths:
        name = HOUSE.name_of(path)
        for node in ast.walk(HOUSE.trees[path]) if name.startswith(("tiers/", "bundles.py")) else ():
            called = house.dotted(node.func) if isinstance(node, ast.Call) else ""
            owner, _, last = called.rpartition(".")
            if called in REACHING or (last in WAITING and owner not in ("", "os.path")):
                yield f"{name} {called}"


def test_each_wait_for_a_tier_is_covered() -> None:
    """The calls that may wait are those of the list."""
    assert set(calls()) == set(COVERED)


@pytest.mark.parametrize("test", sorted({each for each in COVERED.values() if "::" in each}))
def test_test_of_a_wait_is_there(test: str) -> None:
    """Each of the tests exists."""
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
