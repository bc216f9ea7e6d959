"""Remove from a text what the preprocessor ignores: comments, strings, and branches under `#if 0`.

Promise     The rest contains all directives and macros that the compiler may see. An ambiguous text gives None.
Source      NVRTC 13.5: an unterminated quote is an error, except in a branch that is skipped, where it ends with its
            line. C++03 has no raw strings: the quote of one that contains a line break is unterminated there.
"""

from __future__ import annotations

import re

_LEXED = (
    rb"""(?s)//[^\n]*|/\*.*?\*/|(?P<raw>(?:u8|[uUL])?R"(?P<end>[^()\\\s]{0,16})\((?P<text>.*?)\)(?P=end)")"""
    rb"""|"(?:\\.|[^"\\\n])*"|'(?:\\[^\n']{1,10}|[^'\\\n])'"""
    rb"""|(?P<word>[A-Za-z_]\w*|\.?[0-9](?:[eEpP][+-]|'?\w|\.)*)|(?P<odd>["'][^\n]*)"""
)  # compiled at its first use: most texts need no such search
_ODD = b"\0"
"""Replaces an unterminated quote and the rest of its line."""


def live(data: bytes) -> bytes | None:
    """Remove comments, strings and dead code; None if that cannot be done with certainty.

    Args:
        data: The text with continued lines joined, including those in raw strings.
    """
    if b"??" in data or re.search(rb"\r(?!\n)", data):
        return None
    is_certain = True

    def bare(match: re.Match[bytes]) -> bytes:
        nonlocal is_certain
        if match["word"]:
            return match["word"]
        if match["odd"]:
            is_certain = is_certain and not re.search(rb'/\*|R"', match["odd"])  # a comment or raw string
            return _ODD
        if match["raw"]:
            text = match["text"]
            ambiguous = rb"/\*|(?m:^\s*(?:#|%:)\s*(?:if|el|endif))" if b"\n" in text else rb'"'
            begin = data[data.rfind(b"\n", 0, match.start()) + 1 : match.start()]
            is_directive = b"\n" in text and (b"#" in begin or b"%:" in begin)
            is_certain = is_certain and not is_directive and not re.search(ambiguous, text)
        return b" "

    kept = without_dead(re.sub(_LEXED, bare, data))
    return kept if is_certain and _ODD not in kept and b'"' not in kept else None


def without_dead(bare: bytes) -> bytes:
    """Remove branches under `#if 0`, up to their `#else`, `#elif` or `#endif`; nothing if `#` is written as a
    trigraph."""
    if b"??" in bare or not re.search(rb"(?m)^\s*(?:#|%:)\s*if\s+0\s*$", bare):
        return bare
    kept, depth = [], 0
    for line in bare.split(b"\n"):
        found = re.match(rb"\s*(?:#|%:)\s*([A-Za-z_]\w*)", line)
        word = found[1] if found else b""
        if not depth:
            depth = int(word == b"if" and line[found.end() :].strip() == b"0") if found else 0
            kept.append(line)
        elif word == b"endif" or (depth == 1 and word in (b"else", b"elif", b"elifdef", b"elifndef")):
            depth -= 1
        elif word in (b"if", b"ifdef", b"ifndef"):
            depth += 1
    return b"\n".join(kept)
