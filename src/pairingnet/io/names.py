"""Names: of files as they are found, of what is stored under them, and as they are shown to people.

A name that comes from outside (a file's, an id in `collection.json`) becomes a file name only through the rules here,
so that nothing is written or read outside the folder that it belongs to.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

from pairingnet.errors import is_control

# File systems take 255 bytes (some 143); what is made of a name adds page, number, ending and a process's number.
MOST_NAME_BYTES = 120
MOST_ID_BYTES = 200
_MARK_DIGITS = 8
_RESERVED = frozenset({"settings.json", "not_read.json"})  # beside the folders that are called after scans


def is_text(path: Path | str) -> bool:
    """Whether a path is UTF-8, so that it can be stored in any file of ours."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def stored_name(parts: tuple[str, ...]) -> str:
    """The name under which a file's results are stored: the parts of its path (the last without ending), `_` between.

    `#` is for the numbers that pieces and pages get; control characters become `_` too. What is longer than
    MOST_NAME_BYTES keeps its beginning, and gets `~` and a mark of the whole.
    """
    name = "".join("_" if char in "#\\" or is_control(char) else char for char in "_".join(parts))
    data = name.encode("utf-8", "replace")
    if len(data) > MOST_NAME_BYTES:
        mark = hashlib.sha256("/".join(parts).encode("utf-8", "replace")).hexdigest()[:_MARK_DIGITS]
        name = f"{data[: MOST_NAME_BYTES - _MARK_DIGITS - 1].decode('utf-8', 'ignore')}~{mark}"
    return f"{name}_" if name in _RESERVED else name


def fault_of_id(name: object) -> str:
    """Why something cannot be the id of a fragment, which is part of file names; "" where it can."""
    if not isinstance(name, str) or not name:
        return "it is empty" if name == "" else "it is no text"
    if not is_text(name) or any(is_control(char) for char in name):
        return "it has characters that cannot be shown"
    if "/" in name or "\\" in name or name in (".", ".."):
        return "it would leave its folder"
    if len(name.encode()) > MOST_ID_BYTES:
        return f"it is longer than {MOST_ID_BYTES} bytes"
    return ""


def fault_of_image(path: object) -> str:
    """Why something cannot be the path of an image within a collection's folder; "" where it can."""
    if not isinstance(path, str) or not path:
        return "it is empty" if path == "" else "it is no text"
    if not is_text(path) or any(is_control(char) for char in path):
        return "it has characters that cannot be shown"
    drive = len(path) > 1 and path[1] == ":"
    if drive or "\\" in path or path.startswith("/") or ".." in PurePosixPath(path).parts:
        return "it leaves the collection's folder"
    return ""
