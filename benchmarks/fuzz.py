"""Damaged and forged files: docs/reliability.md, section "Files".

python -m benchmarks.fuzz pictures [--cases 10000] [--seed 0]
python -m benchmarks.fuzz formats [--cases 10000] [--seed 0]
python -m benchmarks.fuzz atheris [--seconds 60] [--only collection]

pictures   picture files of every format with bytes changed, cut out, doubled, put in from others; each is read and its
           pieces are found, in a process with limits on memory and time; every other one by the readers of very large
           pictures
formats    our own files (collection, joins, decisions, truth, settings, weights ...): other bytes, other values
atheris    the same readers, led by what they cover; needs the package atheris

An answer is a result or a PairingNetError. Anything else is counted, and its file is kept for a look.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image as Pillow

from pairingnet.errors import PairingNetError
from pairingnet.io import images

SECONDS = 20.0  # of one core, a file
PATIENCE = 6.0  # times as long on the clock: other programs want the core too
GIGABYTES = 3.0  # a process
_ODD_NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, -1e308, 10**400, float("nan"), float("inf"), "", "x", "../x", "/etc/passwd", "a\0b"),
    *("\ud800", [], {}, [[]], [None], {"": 0}, [1, 2], [[1, 0, 0], [0, 1, 0]], [[[]]], "9" * 5000),
)


# Pictures ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def seed_pictures() -> dict[str, bytes]:
    """A scan of a piece (96 x 72) in every format and layout, by a name with its ending."""
    y, x = np.mgrid[:72, :96]
    inside = ((x - 48) / 30) ** 2 + ((y - 36) / 22) ** 2 < 1 + 0.2 * np.sin(np.arctan2(y - 36, x - 48) * 5)
    grain = np.random.default_rng(0).integers(-5, 6, (72, 96, 1))
    pixels = (np.where(inside[..., None], (150, 70, 60), (240, 240, 235)) + grain).clip(0, 255).astype(np.uint8)
    scan, alpha = Pillow.fromarray(pixels), Pillow.fromarray(np.where(inside, 255, 0).astype(np.uint8))
    found: dict[str, bytes] = {}

    def keep(name: str, kind: str, picture: Pillow.Image, **options: Any) -> None:
        data = io.BytesIO()
        picture.save(data, kind, **options)
        found[name] = data.getvalue()

    for mode in ("1", "L", "P", "RGB", "LA", "RGBA", "CMYK"):
        picture = scan.convert(mode)
        if "A" in mode:
            picture.putalpha(alpha)
        kinds = {
            "PNG": mode != "CMYK",
            "JPEG": mode in ("L", "RGB", "CMYK"),
            "TIFF": True,
            "BMP": mode in ("1", "L", "RGB"),
        }
        for kind in (kind for kind, fits in {**kinds, "WEBP": mode in ("RGB", "RGBA")}.items() if fits):
            keep(f"{kind}-{mode}.{kind.lower()}", kind, picture)
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        keep(f"TIFF-{compression}.tiff", "TIFF", scan, compression=compression)
    keep("TIFF-pages.tiff", "TIFF", scan, save_all=True, append_images=[scan.convert("L"), scan])
    keep("JPEG-progressive.jpeg", "JPEG", scan, progressive=True, dpi=(300, 300))
    keep("WEBP-lossless.webp", "WEBP", scan, lossless=True)
    keep("WEBP-animated.webp", "WEBP", scan, save_all=True, append_images=[scan.rotate(90)])
    turned = Pillow.Exif()
    turned[274] = 6
    keep("JPEG-turned.jpeg", "JPEG", scan, exif=turned)
    keep("PNG-turned.png", "PNG", scan, exif=turned)
    deep = pixels[..., ::-1].astype(np.uint16) * 257
    for suffix in ("png", "tiff"):
        found[f"deep.{suffix}"] = cv2.imencode(f".{suffix}", deep)[1].tobytes()
        found[f"deep-grey.{suffix}"] = cv2.imencode(f".{suffix}", deep[..., 0])[1].tobytes()
    return found


def mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """A file with some of its bytes changed: mostly at its beginning, where its layout is told."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3, 8))):
        if not changed:
            break
        most = len(changed) if rng.random() < 0.5 else min(len(changed), 300)
        at = rng.randrange(most)
        kind = rng.choice((0, 0, 0, 2, 2, 2, 3, 3, 4, 5, 6, 7))
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 2:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            size, order = rng.choice((2, 4)), rng.choice(("little", "big"))
            number = rng.choice(_ODD_NUMBERS) % 256**size
            changed[at : at + size] = number.to_bytes(size, order)
        elif kind == 4:
            del changed[at : at + rng.choice((1, 4, 50, 5000))]
        elif kind == 5:
            changed[at:at] = changed[at : at + rng.choice((1, 4, 50, 500))]
        elif kind == 6:
            other = rng.choice(others)
            start = rng.randrange(max(len(other), 1))
            changed[at : at + 40] = other[start : start + rng.choice((4, 40, 400))]
        else:
            del changed[rng.randrange(len(changed)) :]
    return bytes(changed)


def picture_case(seed: int) -> tuple[str, bytes]:
    """The name and content of one damaged picture."""
    rng = random.Random(seed)
    seeds = seed_pictures()
    name = rng.choice(sorted(seeds))
    data = mutated(seeds[name], list(seeds.values()), rng)
    return name, data


def read_picture(path: Path, as_large: bool) -> str:
    """What came of a file: "read", "no piece" or "refused"; anything else that is raised is a fault."""
    from pairingnet.config import PrepareSettings
    from pairingnet.errors import NoFragmentError
    from pairingnet.prepare.files import prepared_pages

    before = images.LARGE
    images.LARGE = 1000 if as_large else before
    try:
        for _ in prepared_pages("x", path, PrepareSettings()):
            pass
    except NoFragmentError as error:
        _check(error, path)
        return "no piece"
    except PairingNetError as error:
        _check(error, path)
        return "refused"
    finally:
        images.LARGE = before
    return "read"


def _check(error: PairingNetError, path: Path) -> None:
    assert path.name in str(error) and error.next_step, f"the message does not name the file: {error}"


# Our own formats -----------------------------------------------------------------------------------------------

Reader = Callable[[Path], object]


def _in_folder(name: str, read: Callable[[Path], object], beside: dict[str, bytes] | None = None) -> Reader:
    """A reader of a folder in which the file has its usual name."""

    def reading(path: Path) -> object:
        folder = path.parent / "folder"
        folder.mkdir(exist_ok=True)
        for other, data in (beside or {}).items():
            (folder / other).write_bytes(data)
        (folder / name).write_bytes(path.read_bytes())
        return read(folder)

    return reading


@lru_cache(maxsize=1)
def own_formats() -> dict[str, tuple[bytes, Reader]]:
    """A good file of each of our formats, and what reads it."""
    from pairingnet.geometry import Rigid2D
    from pairingnet.io.collection import Collection, read_collection, write_collection
    from pairingnet.io.decisions import Decision, append_decision, read_decisions, standing
    from pairingnet.io.run import append_joins, read_assembly, read_joins, read_matches, write_assembly, write_matches
    from pairingnet.io.truth import read_truth
    from pairingnet.settings import archive_settings, read_tables, read_toml, solve_settings
    from pairingnet.types import Assembly, FragmentRecord, Group, PairMatch, TruePair

    pose = Rigid2D(0.3, 20.5, -3.0)
    points = np.arange(24.0).reshape(6, 2, 2)
    join = PairMatch("a", "b#1", pose, 2.0, points, "", 0.9, {"contact_px": 50.0}, (PairMatch("a", "b#1", pose),))
    records = tuple(
        FragmentRecord(i, f"fragments/{i}.png", "p", pose, "train", 300.0, 9.0, 9.0, "s.png") for i in ("a", "b#1")
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_collection(
            Collection(
                folder, records, (TruePair("a", "b#1", 50, 0.2, "Easy", points[:, 0]),), (0.1, 0.3), {"p": (9, 9)}
            )
        )
        write_matches(folder / "matches.json", [join])
        write_assembly(folder / "assembly.json", Assembly((Group({"a": pose, "b#1": Rigid2D()}, (join,)),), ("c",)))
        append_joins(folder / "joins.jsonl", [join, join])
        for what in ("accept", "lock", "clear"):
            append_decision(folder / "decisions.jsonl", Decision(what, "a", "b#1", pose, "me", "now", "w"))
        good = {path.name: path.read_bytes() for path in folder.iterdir()}
    matrix = np.round(pose.matrix, 6).tolist()
    truth = {
        "fragments": [
            {"file": "a.png", "canvas_from_fragment": matrix},
            {"file": "b.png", "canvas_from_fragment": matrix},
        ],
        "pairs": [{"source": "a.png", "target": "b.png", "contact_px": 30}],
    }
    toml = b"candidates = 30\nleast = 0.5\n[prepare]\nmargin = 5\nbackground = 'border'\n[rivals]\n"
    found: dict[str, tuple[bytes, Reader]] = {
        "collection.json": (
            good["collection.json"],
            _in_folder("collection.json", read_collection, {"seams.npy": good["seams.npy"]}),
        ),
        "seams.npy": (
            good["seams.npy"],
            _in_folder("seams.npy", read_collection, {"collection.json": good["collection.json"]}),
        ),
        "matches.json": (good["matches.json"], read_matches),
        "assembly.json": (good["assembly.json"], read_assembly),
        "joins.jsonl": (good["joins.jsonl"], read_joins),
        "decisions.jsonl": (good["decisions.jsonl"], lambda path: standing(read_decisions(path))),
        "truth.json": (json.dumps(truth).encode(), read_truth),
        "truth.txt": (b"0\n1 0 0\n0 1 0\n0 0 1\n1\n0 1 5\n-1 0 3\n0 0 1\n", read_truth),
        "solve.toml": (toml, lambda path: solve_settings(read_toml(path))),
        "archive.toml": (b"least = 0.1\n[votes]\n[index]\n", lambda path: archive_settings(read_toml(path))),
        "slices.toml": (b"[turned]\nseed = 3\n", read_tables),
    }
    return {**found, **_weights()}


_FEATURES = "a.safetensors"


def _weights() -> dict[str, tuple[bytes, Reader]]:
    """Files with arrays in them: weights, checkpoints, features."""
    import torch

    from pairingnet.config import RingSettings
    from pairingnet.geometry import Rigid2D
    from pairingnet.match.contact import Outline
    from pairingnet.match.evidence import Side
    from pairingnet.match.registered import RegisteredPairs
    from pairingnet.match.ring import Registered, Registration, RingFeatures
    from pairingnet.match.store import read_features, write_features
    from pairingnet.match.verify import Verifier
    from pairingnet.match.weights import RingModel, load_model, save_model
    from pairingnet.models.ring import RingNet
    from pairingnet.prepare.strip import Strip
    from pairingnet.train.checkpoints import Checkpoint, read_checkpoint, save_checkpoint

    tiny = RingSettings(points=120, width=16, features=8, dilations=(1, 4), joint_dilations=(2,))
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_model(folder / "weights.safetensors", RingModel(RingNet(tiny), Verifier.plain()), {"made": "here"})
        save_checkpoint(folder / "checkpoint.pt", Checkpoint({}, {"w": torch.zeros(3)}, {}, "ring", 1, 1.0, {}))
        line, table = np.zeros((120, 2)), np.zeros((120, 8), np.float32)
        strip = Strip("a", line, line, np.zeros((120, 4, 3), np.uint8), np.zeros((0, 0), np.uint8), 1.0)
        none = np.zeros(0, np.float32)
        write_features(folder, RingFeatures("a", Side(strip, table, table, none, none, 1, 1.0), Outline(line)))
        registered = Registered((Registration(Rigid2D(), 1.0, 0.0),), 5, False)
        RegisteredPairs(folder / "registered.jsonl").add({("a", "b", False): registered, ("a", "c", True): registered})
        good = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {
        "weights.safetensors": (good["weights.safetensors"], load_model),
        "checkpoint.pt": (good["checkpoint.pt"], read_checkpoint),
        _FEATURES: (good[_FEATURES], _in_folder(_FEATURES, lambda folder: read_features(folder, "a"))),
        "registered.jsonl": (good["registered.jsonl"], RegisteredPairs),
    }


def format_case(seed: int) -> tuple[str, bytes]:
    """The name and content of one damaged or forged file of ours."""
    rng = random.Random(seed)
    name = rng.choice(sorted(own_formats()))
    data = own_formats()[name][0]
    if Path(name).suffix in (".json", ".jsonl") and rng.random() < 0.7:
        lines = data.decode().splitlines() if name.endswith("l") else [data.decode()]
        which = rng.randrange(len(lines))
        lines[which] = json.dumps(_forged(json.loads(lines[which]), rng))
        return name, ("\n".join(lines) + "\n").encode()
    others = [content for content, _ in own_formats().values()]
    return name, mutated(data, others, rng)


def _forged(content: Any, rng: random.Random) -> Any:
    """JSON with some of its values replaced, taken out or doubled."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(content))
        if not places:
            return deepcopy(rng.choice(_ODD_VALUES))
        holder, key = rng.choice(places)
        kind = rng.randrange(4)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.append(deepcopy(holder[key]))
        else:
            holder[key] = deepcopy(rng.choice(_ODD_VALUES))
    return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    keys = content.keys() if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in list(keys):
        yield content, key
        yield from _places(content[key])


def read_own(name: str, path: Path) -> str:
    """What came of a file of ours; anything but a result, none, or a PairingNetError is a fault."""
    try:
        found = own_formats()[name][1](path)
    except PairingNetError as error:
        assert error.next_step, error
        return "refused"
    return "refused" if found is None else "read"


# In a process of its own ---------------------------------------------------------------------------------------


def _work(pipe: Connection, kind: str, folder: Path) -> None:
    """Read what the pipe names, until it is closed."""
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    if kind == "formats":
        own_formats()
    while True:
        seed = pipe.recv()
        name, data = picture_case(seed) if kind == "pictures" else format_case(seed)
        own = folder / str(seed)
        own.mkdir(exist_ok=True)
        path = own / name
        path.write_bytes(data)
        began = time.process_time()
        try:
            answer = read_picture(path, bool(seed % 2)) if kind == "pictures" else read_own(name, path)
            shutil.rmtree(own)
        except Exception:
            answer = f"traceback\n{traceback.format_exc()}"
        seconds = time.process_time() - began
        pipe.send((answer, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6))


class _Worker:
    """A process that is replaced when it dies or hangs."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, self._kind, self._folder), daemon=True)
        self._process.start()
        other.close()
        self._fresh = True

    def ask(self, seed: int) -> tuple[str, float, float]:
        """The answer, the seconds it took, and the highest memory of the process in gigabytes."""
        self._pipe.send(seed)
        patience = PATIENCE * SECONDS + (120 if self._fresh else 0)  # the first case waits for the imports
        self._fresh = False
        try:
            if self._pipe.poll(patience):
                told: tuple[str, float, float] = self._pipe.recv()
                return told
            answer = "hang"
        except (EOFError, ConnectionError):
            answer = "death"
        self.close()
        self._start()
        return answer, 0.0, 0.0

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def run(kind: str, cases: int, seed: int, keep: Path) -> bool:
    """Read so many files; print what came of them. True: nothing but results and errors with a next step."""
    keep.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    slowest, memory, faults = 0.0, 0.0, []
    worker = _Worker(kind, keep)
    for number in range(seed, seed + cases):
        answer, seconds, highest = worker.ask(number)
        what = answer.partition("\n")[0]
        if what != "death" and seconds > SECONDS:
            what = "hang"
        counts[what] += 1
        slowest, memory = max(slowest, seconds), max(memory, highest)
        if what in ("traceback", "hang", "death"):
            faults.append(number)
            name = (picture_case if kind == "pictures" else format_case)(number)[0]
            print(f"seed {number} ({name}): {answer}", file=sys.stderr, flush=True)
    worker.close()
    told = {name: counts[name] for name in ("read", "no piece", "refused", "traceback", "hang", "death")}
    print(
        f"| {kind} | " + " | ".join(f"{count:,}" for count in told.values()) + f" | {slowest:.1f} s | {memory:.2f} GB |"
    )
    return not faults and memory < GIGABYTES


# Led by coverage -----------------------------------------------------------------------------------------------


def led_by_coverage(seconds: int, only: str | None) -> bool:
    """Each reader of ours for some time in a process of its own (libFuzzer ends its process)."""
    good = True
    for name in [only] if only else sorted(own_formats()):
        with tempfile.TemporaryDirectory() as scratch:
            corpus = Path(scratch) / "corpus"
            corpus.mkdir()
            (corpus / "good").write_bytes(own_formats()[name][0])
            command = [sys.executable, "-m", "benchmarks.fuzz", "_one", name, scratch, str(corpus)]
            limits = [
                f"-max_total_time={seconds}",
                "-timeout=20",
                "-rss_limit_mb=3000",
                "-print_final_stats=1",
                "-seed=1",
            ]
            told = subprocess.run(
                [*command, *limits], capture_output=True, text=True, check=False, timeout=seconds + 300
            )
        runs = next((line.split()[-1] for line in told.stderr.splitlines() if "number_of_executed_units" in line), "?")
        fault = told.returncode != 0
        good &= not fault
        print(f"| {name} | {runs} | {'FAULT' if fault else 'none'} |", flush=True)
        if fault:
            print(told.stderr[-3000:], file=sys.stderr)
    return good


def _one(name: str, scratch: str, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["pairingnet"]):
        own_formats()
    path = Path(scratch) / name

    def once(data: bytes) -> None:
        path.write_bytes(data)
        read_own(name, path)

    atheris.Setup([sys.argv[0], *arguments], once)
    atheris.Fuzz()


def main() -> None:
    if sys.argv[1:2] == ["_one"]:
        _one(sys.argv[2], sys.argv[3], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["pictures", "formats", "atheris"])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--only")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "pairingnet-fuzz")
    given = parser.parse_args()
    if given.kind == "atheris":
        print("| reader | runs | faults |\n|---|---|---|")
        good = led_by_coverage(given.seconds, given.only)
    else:
        print("| files | read | no piece | refused | traceback | hang | death | slowest | peak memory |")
        print("|---|---|---|---|---|---|---|---|---|")
        good = run(given.kind, given.cases, given.seed, given.keep)
    sys.exit(not good)


if __name__ == "__main__":
    main()
