"""Which files of a folder are read, and why the others are not.

A folder that was filled over years holds anything: pipes, links that lead nowhere, pictures of kinds that are not read.
None of them may stop the others, and none that may show a piece is passed over without a word: each is one line that
says what it is and what to do. Files that go along with pictures (tables, notes) are passed over.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pairingnet.errors import ImageError, printable
from pairingnet.io.names import is_text

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".tif", ".tiff", ".webp", ".bmp")
_ENDINGS = "end in .png, .jpg, .tif, .webp or .bmp"

_FEW = 3  # files of one kind that are named one by one
_BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"RIFF", b"BM")  # of the pictures that are read
_NO_PICTURES = (
    ".txt .md .rst .json .jsonl .csv .tsv .xml .xmp .yml .yaml .toml .ini .cfg .log .html .htm .css .js .py .sh .db "
    ".sqlite .aae .thm .lnk .url .npy .npz .ply .sha256 .md5 .bak .tmp"
)
_COMPANIONS = frozenset(_NO_PICTURES.split())
_WHAT_TO_DO = {
    "Export it as JPEG or PNG (a phone's camera can be set to JPEG).": ".heic .heif .hif .avif .jxl",
    "Save its pages as PNG or TIFF.": ".pdf .djvu .ps .eps .doc .docx .odt .rtf .ppt .pptx .odp .xls .xlsx .ods",
    "Convert it to TIFF or PNG.": ".jp2 .j2k .jpx .jpf .jpm .gif .tga .pcx .pnm .ppm .pgm .pbm .exr .hdr .ico .dcm",
    "Develop it as TIFF or JPEG first.": ".raw .dng .cr2 .cr3 .nef .arw .orf .rw2 .raf .pef .srw .3fr .iiq",
    "Export it as PNG.": ".svg .psd .psb .xcf .ora .kra .ai .cdr .afphoto",
    "Unpack it first.": ".zip .rar .7z .tar .gz .bz2 .xz .tgz",
}
_ADVICE = {suffix: advice for advice, suffixes in _WHAT_TO_DO.items() for suffix in suffixes.split()}
_SPECIAL = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class Walk:
    """The pictures below a folder, and a line for each file (or kind of files) that is not read."""

    pictures: tuple[Path, ...]
    refused: tuple[str, ...] = ()


def walk_pictures(top: Path, leave_out: Path | None = None) -> Walk:
    """What lies below a folder (hidden files left out), or the one file named; in the order of the paths.

    What lies below `leave_out` does not count: a result that is written into its own input's folder. Links to files
    are followed, links to folders are not.
    """
    if not is_text(top.absolute()):
        raise ImageError(f"The name of {top} is not UTF-8.", "Rename it.")
    if top.is_file():
        return Walk((top,))
    if not top.is_dir():
        what = _kind_of(top)
        problem = f"{top} is {what}, not a file or folder." if what else f"There is no file or folder {top}."
        raise ImageError(problem, "Check the path.")
    if leave_out is not None and top.resolve().is_relative_to(leave_out.resolve()):
        raise ImageError(f"The input {top} lies in the output {leave_out}.", "Choose another output folder.")
    out = None if leave_out is None else os.path.realpath(leave_out)
    pictures: list[Path] = []
    refused: list[tuple[Path, str]] = []
    others: dict[str, list[Path]] = {}
    for path, fault in _entries(top, out):
        if fault:
            refused.append((path, fault))
        elif path.suffix.lower() in SUFFIXES:
            pictures.append(path)
        elif path.suffix.lower() not in _COMPANIONS and (path.suffix or _begins_as_picture(path)):
            others.setdefault(path.suffix.lower(), []).append(path)
    lines = [f"{path} {fault}" for path, fault in sorted(refused)]
    lines += [line for suffix in sorted(others) for line in _lines_on(suffix, sorted(others[suffix]), top)]
    walk = Walk(tuple(sorted(pictures)), tuple(map(printable, lines)))
    if not walk.pictures:
        if walk.refused:
            raise ImageError(f"There is no picture in {top} that can be read: {walk.refused[0]}", "Mend the files.")
        raise ImageError(f"There is no picture in {top}.", f"Put files there that {_ENDINGS}.")
    return walk


def _entries(top: Path, leave_out: str | None) -> Iterator[tuple[Path, str]]:
    """Files below a folder, and what speaks against each ("": nothing, it is a regular file)."""
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                found = [Path(entry.path) for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            yield folder, f"cannot be opened ({error.strerror}). Check its permissions, or move it."
            continue
        for path in found:
            try:
                mode = path.stat().st_mode
            except OSError as error:
                yield path, _bad_link(error) if path.is_symlink() else f"cannot be opened ({error.strerror}). Move it."
                continue
            if stat.S_ISDIR(mode):
                if path.is_symlink():
                    if os.path.realpath(path) != leave_out:
                        yield path, "is a link to a folder, which is not followed. Give that folder itself, or copy it."
                elif os.path.realpath(path) != leave_out:
                    waiting.append(path)
            elif path.is_symlink() and leave_out is not None and Path(os.path.realpath(path)).is_relative_to(leave_out):
                continue
            else:
                yield path, _fault_of(path, mode)


def _bad_link(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "is a link to a file that is not there. Copy the file, or remove the link."
    if error.errno == errno.ELOOP:
        return "is a link that leads back to itself. Remove it."
    return f"is a link that cannot be followed ({error.strerror}). Copy the file, or remove the link."


def _fault_of(path: Path, mode: int) -> str:
    special = _SPECIAL.get(stat.S_IFMT(mode), "")
    if special:
        return f"{'leads to' if path.is_symlink() else 'is'} {special}, not a file. Remove it."
    if not is_text(path) and path.suffix.lower() in SUFFIXES:
        return "has a name that is not UTF-8. Rename it."
    return ""


def _kind_of(path: Path) -> str:
    try:
        return _SPECIAL.get(stat.S_IFMT(path.stat().st_mode), "")
    except OSError:
        return "a link that leads nowhere" if path.is_symlink() else ""


def _begins_as_picture(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_BEGINNINGS)
    except OSError:
        return False


def _lines_on(suffix: str, paths: list[Path], top: Path) -> list[str]:
    """What to say of files of one kind: a line each, or one for all of them."""
    if not suffix:
        return [f"{path} has no ending. Give it the one of its format, such as .png or .jpg." for path in paths]
    advice = _ADVICE.get(suffix, "If it shows pieces, save it as PNG or TIFF.")
    if len(paths) <= _FEW:
        return [f"{path} is not read: {suffix} files are not. {advice}" for path in paths]
    such_as = paths[0].relative_to(top)
    return [f"{top} has {len(paths)} {suffix} files, which are not read (such as {such_as}). {advice}"]
