"""Everything that can go wrong, as one tree.

    PairingNetError
    ├── ImageError        a file cannot be read as a picture
    ├── NoFragmentError   a picture was read, and no fragment was found in it
    ├── CollectionError   a collection or run folder is missing, broken or made with other settings
    │   └── DamagedFileError   a stored file is not what was written
    ├── TruthError        a file with true poses cannot be understood
    └── SettingsError     an unknown setting, or a value out of its range

Every message names the thing that is wrong and ends with the next step. Names of files in it may hold anything:
they are written so that a terminal can only show them.
"""

import unicodedata

# What turns the direction of the text around it: embeddings, overrides and isolates.
_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


class PairingNetError(Exception):
    """Base of all errors a user can cause and mend."""

    def __init__(self, problem: str, next_step: str) -> None:
        super().__init__(printable(f"{problem} {next_step}"))
        self.problem = problem
        self.next_step = next_step

    def __reduce__(self) -> tuple[type["PairingNetError"], tuple[str, str]]:
        # Errors cross process borders; the default would call __init__ with one argument.
        return type(self), (self.problem, self.next_step)


class ImageError(PairingNetError):
    """A file cannot be read as a picture."""


class NoFragmentError(PairingNetError):
    """A picture was read, and no fragment was found in it."""


class CollectionError(PairingNetError):
    """A collection or run folder is missing, broken or made with other settings."""


class DamagedFileError(CollectionError):
    """A stored file is not what was written."""


class TruthError(PairingNetError):
    """A file with true poses cannot be understood."""


class SettingsError(PairingNetError):
    """An unknown setting, or a value out of its range."""


def printable(text: object) -> str:
    """Text for a person to read: control characters and bytes that are no UTF-8 are written as `\\x1b`."""
    return "".join(_written(char) if is_control(char) else char for char in str(text))


def is_control(char: str) -> bool:
    """Whether a character does something instead of showing something (or is half of one)."""
    return char in _TURNS or unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")


def _written(char: str) -> str:
    number = ord(char)
    # Python reads a byte that is no UTF-8 as 0xDC00 and the byte.
    byte = number - 0xDC00 if 0xDC80 <= number <= 0xDCFF else number
    return f"\\x{byte:02x}" if byte < 256 else f"\\u{byte:04x}"
