"""The paths to the user's headers: links on them, and folders that are reached under several names.

Promise     Headers that include each other by `../inc/x.h` and `./x.h` give finitely many places: a folder that is
            reached again keeps its first name. That both names are one folder is part of the record.
Source      NVRTC joins the name to the includer's path without normalising it, so paths would grow with each include.
"""

from __future__ import annotations

import os
import stat as modes

from .check import folder_at
from .search import Place, Search, path_of

Link = tuple[int, int, str] | None


def links_to(path: str) -> Link:
    """Identify a link by inode, ctime and target, so that one switched and restored differs. None for no link."""
    try:
        found = os.lstat(path)
        return (found.st_ino, found.st_ctime_ns, os.readlink(path)) if modes.S_ISLNK(found.st_mode) else None
    except OSError:
        return None


class Paths:
    """The paths that one survey has followed.

    Args:
        search: The folders that are searched for headers.

    Attributes:
        links: The links on paths to the user's headers, with their identities (`links_to`).
        names: For each folder whose name contains `..`, the name under which it was first reached.
    """

    def __init__(self, search: Search) -> None:
        self.links: dict[str, Link] = {}
        self.names: dict[Place, Place] = {}
        self._search = search
        self._passed: set[str] = set()
        self._first: dict[tuple[int, tuple[int, int]], Place] = {}

    def note_links(self, path: str) -> None:
        """Record the links on the path to a file before it is read."""
        while path not in self._passed and path not in ("", "/"):
            self._passed.add(path)
            link = links_to(path)
            if link is not None:
                self.links[path] = link
            path = os.path.dirname(path)

    def first_name(self, place: Place) -> Place:
        """The same place, by the name under which its folder was first reached."""
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
        """List the folders with more than one name: each pair of other name and first name."""
        return tuple(sorted(pair for pair in self.names.items() if pair[0] != pair[1]))
