"""The ways to the user's headers: links that lead to them, and folders that have several names.

Promise     Headers that include each other by `../inc/x.h` and `./x.h` are finitely many: a folder that is reached
            again keeps the name under which it was first reached. That the two are one folder is part of the record.
Ground      NVRTC joins what it is asked for to the includer's path, without an end but for the headers' own guards.
"""

from __future__ import annotations

import os
import stat as modes

from .check import folder_at
from .search import Place, Search, path_of

Link = tuple[int, int, str] | None


def links_to(path: str) -> Link:
    """Tell a link by inode, ctime and target: one that was switched and put back is another. None for what is none."""
    try:
        found = os.lstat(path)
        return (found.st_ino, found.st_ctime_ns, os.readlink(path)) if modes.S_ISLNK(found.st_mode) else None
    except OSError:
        return None


class Ways:
    """The ways that one survey has gone.

    Args:
        search: The folders that are searched for headers.

    Attributes:
        links: The links that lead to the user's headers, and what each was (links_to).
        names: For each folder whose name climbs, the one under which it was first reached.
    """

    def __init__(self, search: Search) -> None:
        self.links: dict[str, Link] = {}
        self.names: dict[Place, Place] = {}
        self._search = search
        self._passed: set[str] = set()
        self._first: dict[tuple[int, tuple[int, int]], Place] = {}

    def note_links(self, path: str) -> None:
        """Note the links on the way to a file, before it is read: all others lead to the same one as before."""
        while path not in self._passed and path not in ("", "/"):
            self._passed.add(path)
            link = links_to(path)
            if link is not None:
                self.links[path] = link
            path = os.path.dirname(path)

    def first_name(self, place: Place) -> Place:
        """Give the place by the name under which its folder was first reached."""
        folder, _, name = place.rest.rpartition("/")
        if ".." not in folder.split("/"):
            return place
        long = Place(place.base, folder)
        if long not in self.names:
            for each in (Place(place.base, ""), long):
                path = path_of(each, self._search)
                identity = folder_at(path)
                self.names[long] = self._first.setdefault((place.base, identity), each) if identity else each
            self.note_links(path)
        return Place(place.base, os.path.join(self.names[long].rest, name))

    def several(self) -> tuple[tuple[Place, Place], ...]:
        """List the folders that have a name beside the first, with both."""
        return tuple(sorted(pair for pair in self.names.items() if pair[0] != pair[1]))
