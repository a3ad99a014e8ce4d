"""Everything that can go wrong, as one tree.

    PairingNetError
    ├── ImageError        a file cannot be read as a picture
    ├── NoFragmentError   a picture was read, and no fragment was found in it
    ├── CollectionError   a collection or run folder is missing, broken or made with other settings
    │   └── DamagedFileError   a stored file is not what was written
    ├── TruthError        a file with true poses cannot be understood
    └── SettingsError     an unknown setting, or a value out of its range

Every message names the thing that is wrong and ends with the next step.
"""


class PairingNetError(Exception):
    """Base of all errors a user can cause and mend."""

    def __init__(self, problem: str, next_step: str) -> None:
        super().__init__(f"{problem} {next_step}")
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
