"""Commands that train and judge networks: train, evaluate, ablate."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairingnet.cli.common import Config, Device, Jobs, Json, Set, Threads, finish, from_file, from_options, seconds_in
from pairingnet.cli.model_files import any_model, is_of_paper, paper_model, ring_weights
from pairingnet.config import (
    CandidateSettings,
    JigsawSettings,
    JigsawTrainSettings,
    PaperSettings,
    RingSettings,
    RingTrainSettings,
    TrainSettings,
)
from pairingnet.errors import SettingsError
from pairingnet.review.words import counted, duration
from pairingnet.settings import network_and_training, with_values

if TYPE_CHECKING:
    from pairingnet.io.collection import Collection
    from pairingnet.train.loop import TrainingResult

NO_SEARCH = "no trained search head: this checkpoint has step 1 only, so there is no R@k and no NDCG@k"

train_app = typer.Typer(help="Train the paper's network in its two steps, our own, or JigsawNet.", no_args_is_help=True)


TrainOut = Annotated[Path, typer.Argument(help="The folder for checkpoint and log; continued if it exists.")]
Validation = Annotated[Path | None, typer.Option(help="A collection to validate on now and then.")]
Part = Annotated[
    str | None, typer.Option(help="Train on this part only; its part val is watched, where no other is given.")
]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Also log for TensorBoard, in OUT/tensorboard.")]
Budget = Annotated[str | None, typer.Option(help="Stop after this time: 90m, 2h, 300s.")]
ResumeFrom = Annotated[
    Path | None, typer.Option(help="A training that `train export` stored, to go on with where OUT is empty.")
]


@train_app.command("matching")
def train_matching(
    collection: Annotated[Path, typer.Argument(help="A collection with truth.")],
    out: TrainOut,
    part: Part = None,
    validation: Validation = None,
    budget: Budget = None,
    device: Device = "auto",
    threads: Threads = 0,
    tensorboard: Tensorboard = False,
    resume_from: ResumeFrom = None,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Step 1: learn which contour points of two neighbours correspond.

    --set reaches the network's settings (layers, fusion ...) and the training's (batch, epochs, gamma ...).
    """
    from pairingnet.train.matching import MatchingTask, fresh_network

    of_network, of_training = network_and_training({**from_file(config), **from_options(assignments)})
    settings = with_values(TrainSettings(), of_training, "train")
    network = fresh_network(with_values(PaperSettings(), of_network, "train"), settings.seed)
    run = _Run(
        collection, part, validation, out, seconds_in(budget), device, threads, tensorboard, as_json, resume_from
    )
    run.train(MatchingTask, network, settings)


@train_app.command("searching")
def train_searching(
    collection: Annotated[Path, typer.Argument(help="A collection with truth.")],
    out: TrainOut,
    start: Annotated[
        Path,
        typer.Option(
            "--from", help="Step 1: its checkpoint, folder or weights file; or 'paper'.", callback=paper_model
        ),
    ],
    part: Part = None,
    validation: Validation = None,
    budget: Budget = None,
    device: Device = "auto",
    threads: Threads = 0,
    tensorboard: Tensorboard = False,
    resume_from: ResumeFrom = None,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Step 2: learn one vector per fragment, close for neighbours; the network of step 1 is frozen.

    --set reaches the search encoder's settings (search_layers ...) and the training's; batch is 175 and decay
    1e-3 where not set otherwise.
    """
    from pairingnet.train.portable import read_trained
    from pairingnet.train.searching import DEFAULTS, SearchingTask, with_search_encoder

    of_network, of_training = network_and_training({**from_file(config), **from_options(assignments)})
    settings = with_values(TrainSettings(), {**DEFAULTS, **of_training}, "train")
    network = with_search_encoder(read_trained(start), of_network, settings.seed)
    run = _Run(
        collection, part, validation, out, seconds_in(budget), device, threads, tensorboard, as_json, resume_from
    )
    run.train(partial(SearchingTask, store=out / "features"), network, settings)


@train_app.command("export")
def train_export(
    run: Annotated[Path, typer.Argument(help="A training of the paper's network, step 1 or 2.")],
    state: Annotated[
        Path | None, typer.Option(help="A folder for all that is needed to go on (--resume-from), a few MB.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="A weights file to make (.safetensors), of the best state.")
    ] = None,
    about: Annotated[str, typer.Option(help="Of the weights: the data, and the commands that made them.")] = "",
    calibrate: Annotated[
        Path | None,
        typer.Option(help="Of the weights: a collection with truth on which to learn how likely a pose is right."),
    ] = None,
    part: Annotated[str | None, typer.Option(help="Of that collection: only train, val or test.")] = None,
) -> None:
    """Store a training of the paper's network as files for a repository, and for other machines."""
    from pairingnet.train.confidence import calibrate_weights
    from pairingnet.train.portable import export_training, export_weights

    files = [] if state is None else export_training(run, state)
    if weights is not None:
        export_weights(run, weights, {"about": about})
        files.append(weights)
        if calibrate is not None:
            print(
                "\n".join(f"{name:<28}{value}" for name, value in calibrate_weights(weights, calibrate, part).items())
            )
    if not files:
        raise SettingsError("Nothing was asked for.", "Give --state FOLDER, --weights FILE, or both.")
    print("\n".join(f"{file.stat().st_size / 1e6:6.2f} MB  {file}" for file in files))


@train_app.command("pictures")
def train_pictures(
    originals: Annotated[Path, typer.Argument(help="A folder of downloaded originals, in any subfolders.")],
    out: Annotated[Path, typer.Argument(help="The folder for train, val and test; continued if it exists.")],
    listed: Annotated[Path, typer.Option("--list", help="The list of pictures.")] = Path("training/pictures.csv"),
    licence: Annotated[str, typer.Option(help="Only pictures of this licence, such as CC0.")] = "",
    as_json: Json = False,
) -> None:
    """Make the pictures that were trained and judged on, from their originals, and check them.

    What is missing, or shows something else, is named (exit code 1); the smaller set is made all the same.
    """
    from pairingnet.train.pictures import build_pictures, read_list

    wanted = read_list(listed, licence)
    built = build_pictures(originals, out, wanted)
    summary = {**vars(built), "wanted": len(wanted)}
    made = len(built.exact) + len(built.remade)
    lines = [
        f"{made} of {counted(len(wanted), 'picture')} in {out}",
        f"{len(built.exact)} are the files that were used, byte for byte",
        f"{len(built.remade)} were made anew: the same size and look, other bytes",
        *([] if made == len(wanted) else ["a smaller set: numbers from it are not those of the docs"]),
    ]
    finish(summary, lines, (*built.missing, *built.different), as_json)


@train_app.command("ring")
def train_ring(
    collections: Annotated[list[Path], typer.Argument(help="Collections with truth: clean, worn, several seeds.")],
    out: Annotated[Path, typer.Option(help="The folder for checkpoint and log; continued if it exists.")],
    validation: Annotated[
        list[Path] | None, typer.Option(help="A collection to watch the loss on; several: their mean.")
    ] = None,
    patience: Annotated[int, typer.Option(help="End when so many validations have brought nothing.", min=0)] = 0,
    budget: Budget = None,
    device: Device = "auto",
    threads: Threads = 0,
    tensorboard: Tensorboard = False,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A checkpoint, or a weights file (.safetensors), to start from.", callback=any_model
        ),
    ] = None,
    until: Annotated[int, typer.Option(help="Stop after this step, long before the last one.", min=0)] = 0,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Train our own network.

    --set reaches the network's settings (width, dilations ...) and the training's (batch, steps, rate ...).
    OUT/best.pt is the state with the least validation loss.
    """
    import torch

    from pairingnet.models.device import choose_device
    from pairingnet.models.ring import RingNet
    from pairingnet.train.checkpoints import ring_from
    from pairingnet.train.loop import train
    from pairingnet.train.ring import RingTask
    from pairingnet.train.scenes import load_scenes

    values = {**from_file(config), **from_options(assignments)}
    names = {field.name for field in fields(RingSettings)}
    ring = with_values(RingSettings(), {n: v for n, v in values.items() if n in names}, "train")
    settings = with_values(RingTrainSettings(), {n: v for n, v in values.items() if n not in names}, "train")
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(settings.seed)
    network = RingNet(ring) if start is None else ring_from(start)
    cache = out.parent / "strips"
    scenes = load_scenes(collections, ring, settings.step_spread, cache, settings.canny)
    checked = {folder.name: load_scenes([folder], ring, 0.0, cache) for folder in validation or ()}
    task = RingTask(network.to(choose_device(device)), scenes, settings, checked)
    _finish_training(train(task, settings, out, seconds_in(budget), tensorboard, until, patience), out, as_json)


@train_app.command("on-ray")
def train_on_ray(
    arguments: Annotated[list[str], typer.Argument(help="The training, after --: ring COLLECTION --out OUT ...")],
    processes: Annotated[int, typer.Option(help="Processes that train together.", min=1)] = 2,
    address: Annotated[str, typer.Option(help="ray://host:port; without it, as --engine ray.")] = "",
) -> None:
    """Run one of the other trainings as several processes on a Ray cluster; what dies is started again.

    pairingnet train on-ray --processes 4 -- ring torn --out trained
    """
    from pairingnet.engine import ray_train

    ray_train.train_on_ray(partial(_train_with, arguments), processes, address)


def _train_with(arguments: list[str]) -> None:
    """One of the trainings, as the command line gives it."""
    train_app(arguments, standalone_mode=False)


@train_app.command("verifier")
def train_verifier(
    collections: Annotated[list[Path], typer.Argument(help="Collections to learn joins from: clean and worn.")],
    start: Annotated[
        Path, typer.Option("--from", help="The ring network: a checkpoint, or a weights file.", callback=any_model)
    ],
    out: Annotated[Path, typer.Option(help="The weights file to make (.safetensors).")],
    calibrate: Annotated[list[Path], typer.Option(help="Of other pictures, to calibrate on; the first whole, too.")],
    crowd: Annotated[list[Path] | None, typer.Option(help="Collections to learn from whole, all mixed.")] = None,
    pictures: Annotated[int, typer.Option(help="So many pictures of each collection.", min=1)] = 40,
    candidates: Annotated[int, typer.Option(help="Candidates of each fragment.", min=1)] = 10,
    rounds: Annotated[int, typer.Option(help="Steps of the verifier's training.", min=1)] = 7000,
    seed: Annotated[int, typer.Option(help="Of the verifier's training.", min=0)] = 0,
) -> None:
    """Learn how likely a join is right, and store the ring network and the verifier as one weights file."""
    from pairingnet.match.weights import save_model
    from pairingnet.train import verify

    model, story = verify.to_learn_from(start, collections, seed)
    unverified = out.with_suffix("") / "unverified.safetensors"
    unverified.parent.mkdir(parents=True, exist_ok=True)
    save_model(unverified, model, story)
    # Most are puzzles of one picture, or of a few of its pieces: among few, there is much to tell right from.
    sizes: tuple[float, ...] = (0.4, 1, 1, 0.4, 1, 1, 4, 0.4, 1, 1, 0.4, 1, 16)
    joins = verify.joins_of(collections, unverified, pictures, sizes, candidates, crowd or ())
    learned = verify.fit_verifier(joins, seed, rounds)
    checked = verify.joins_of(calibrate, unverified, pictures, sizes, candidates, calibrate[:1])
    verifier = verify.calibrate(learned, checked)
    save_model(out, replace(model, verifier=verifier), story)
    told = verify.report(verifier, checked)
    print("\n".join([*(f"{name:<28}{value}" for name, value in told.items()), f"weights  {out}"]))


@train_app.command("layouts")
def train_layouts(
    collections: Annotated[list[Path], typer.Argument(help="Collections to learn from: clean and worn.")],
    out: Annotated[Path, typer.Option(help="The file of weights to make (.json).")],
    weights: Annotated[
        Path | None, typer.Option(help="Other weights of the network than those that ship.", callback=ring_weights)
    ] = None,
    pictures: Annotated[int, typer.Option(help="Puzzles of each collection, a picture each.", min=1)] = 24,
    skip: Annotated[int, typer.Option(help="First pictures that are left out.", min=0)] = 0,
    mixed: Annotated[int, typer.Option(help="Mixtures of four pictures, a fifth lost, of each.", min=0)] = 3,
    jobs: Jobs = 0,
) -> None:
    """Learn the energy of layouts: what a merge of two groups is worth, and how sure a layout is of its joins.

    Matches of all puzzles are kept beside the file, so that what was interrupted goes on.
    """
    from pairingnet.match.weights import SHIPPED
    from pairingnet.train import layouts

    asked = layouts.jobs_of(collections, weights or SHIPPED, skip, pictures, mixed, out.with_suffix(""))
    learned = layouts.learn(asked, jobs)
    layouts.write_weights(out, learned, layouts.story_of(collections, weights or SHIPPED, pictures, skip, mixed))
    for name, found in learned.items():
        print(f"{name:<10}{found['merges']} merges, {found['right']} right, loss {found['log_loss_a_right_merge']}")
    print(f"weights   {out}")


@train_app.command("jigsawnet")
def train_jigsawnet(
    collection: Annotated[Path, typer.Argument(help="A collection with truth.")],
    out: Annotated[Path, typer.Argument(help="The folder for samples, learners and weights; continued if it exists.")],
    validation: Annotated[Path | None, typer.Option(help="A collection to watch the mistakes on.")] = None,
    budget: Budget = None,
    device: Device = "auto",
    threads: Threads = 0,
    jobs: Jobs = 0,
    tensorboard: Tensorboard = False,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Train JigsawNet, the comparison method: learn which stitched candidates are right.

    --set reaches the candidates' settings, the network's and the training's (steps, learners ...).
    """
    import torch

    from pairingnet.models.device import choose_device
    from pairingnet.train.jigsawnet import train_ensemble
    from pairingnet.train.stitched import load_samples

    values = {**from_file(config), **from_options(assignments)}
    of_candidates, of_network, rest = _split(values, CandidateSettings, JigsawSettings)
    candidates = with_values(CandidateSettings(), of_candidates, "train")
    network = with_values(JigsawSettings(), of_network, "train")
    settings = with_values(JigsawTrainSettings(), rest, "train")
    if threads:
        torch.set_num_threads(threads)
    samples = load_samples(collection, out, candidates, settings, network.side, jobs)
    watched = None
    if validation is not None:
        watched = load_samples(validation, out / "validation", candidates, settings, network.side, jobs)
    result = train_ensemble(
        samples, network, settings, out, seconds_in(budget), choose_device(device), watched, tensorboard
    )
    summary = {
        "weights": None if result.weights is None else str(result.weights),
        "samples": len(samples),
        "right": int(samples.right.sum()),
        "learners": result.learners,
        "finished": result.finished,
    }
    more = "" if result.finished else f" (the next one is at step {result.last.step}); run it again to go on"
    lines = [
        f"{counted(len(samples), 'sample')}, {samples.right.mean():.0%} of them right",
        f"{result.learners} of {counted(settings.learners, 'learner')}{more}",
        f"weights     {result.weights or 'not yet'}",
    ]
    finish(summary, lines, (), as_json)


def _split(values: dict[str, Any], *kinds: Any) -> list[dict[str, Any]]:
    """The values that belong to each kind of settings, and the rest."""
    names = [{field.name for field in fields(kind)} for kind in kinds]
    known = set().union(*names)
    parts = [{n: v for n, v in values.items() if n in own} for own in names]
    return [*parts, {n: v for n, v in values.items() if n not in known}]


@dataclass(frozen=True)
class _Run:
    """One training, as the command line asks for it."""

    collection: Path
    part: str | None
    validation: Path | None
    out: Path
    budget_s: float
    device: str
    threads: int
    tensorboard: bool
    as_json: bool
    resume_from: Path | None

    def train(self, task: Any, network: Any, settings: TrainSettings) -> None:
        import torch

        from pairingnet.models.device import choose_device
        from pairingnet.train.data import PairData
        from pairingnet.train.loop import train
        from pairingnet.train.portable import continue_from

        if self.threads:
            torch.set_num_threads(self.threads)
        if self.resume_from is not None:
            continue_from(self.resume_from, self.out, network)
        device = choose_device(self.device)
        data, checked = (
            None if each is None else PairData(each, network.settings, settings.correspond, device)
            for each in self._collections()
        )
        result = train(
            task(network.to(device), data, settings, checked), settings, self.out, self.budget_s, self.tensorboard
        )
        _finish_training(result, self.out, self.as_json)

    def _collections(self) -> tuple[Collection, Collection | None]:
        """What is trained on, and what is watched."""
        from pairingnet.io.collection import read_collection

        whole = read_collection(self.collection)
        trained_on = whole if self.part is None else whole.part(self.part)
        if self.validation is not None:
            return trained_on, read_collection(self.validation)
        return trained_on, None if self.part is None else whole.part("val")


def _finish_training(result: TrainingResult, out: Path, as_json: bool) -> None:
    summary = {
        "checkpoint": str(result.checkpoint),
        "steps": result.step,
        "seconds": round(result.seconds),
        "loss": result.loss,
        "finished": result.finished,
    }
    lines = [
        f"{counted(result.step, 'step')} in {duration(result.seconds)}, loss {result.loss:.3f}"
        + ("" if result.finished else "; run it again to go on"),
        f"checkpoint  {result.checkpoint}",
        f"log         {out / 'log.jsonl'}",
    ]
    finish(summary, lines, (), as_json)


def evaluate(
    collection: Annotated[Path, typer.Argument(help="A collection with truth.")],
    model: Annotated[
        Path,
        typer.Option(
            help="'paper' (the weights that ship), a checkpoint or weights of the paper's network, or weights of ours.",
            callback=any_model,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where the answers and the tables go.", show_default="COLLECTION-MODEL"),
    ] = None,
    part: Annotated[str | None, typer.Option(help="Only train, val or test.")] = None,
    device: Device = "auto",
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Ask a model about a collection, and score its answers as the paper does."""
    import torch

    from pairingnet.benchmark.ask import ask
    from pairingnet.benchmark.entrants import MethodEntrant, RingEntrant
    from pairingnet.evaluate import scores
    from pairingnet.io.collection import read_collection
    from pairingnet.train.portable import load_trained

    out = out or Path(f"{collection.resolve().name}-{model.stem}")
    if threads:
        torch.set_num_threads(threads)
    chosen = read_collection(collection)
    chosen = chosen if part is None else chosen.part(part)
    if is_of_paper(model):
        paper = load_trained(model, device)
        answers = ask(chosen, MethodEntrant(paper.method(), chosen, searches=paper.searches), out)
    else:
        answers = ask(chosen, RingEntrant(chosen, model, out, jobs=0), out)
    rows = scores.score(chosen, answers)
    note = "" if answers.ranked.size else NO_SEARCH
    texts = {
        "md": scores.as_markdown(rows) + (f"\n\n{note}" if note else ""),
        "csv": scores.as_csv(rows),
        "json": scores.as_json(rows),
    }
    for name, text in texts.items():
        (out / f"scores.{name}").write_text(text + "\n", encoding="utf-8")
    print(texts["json" if as_json else "md"])
    if note and as_json:
        print(f"note    {note}", file=sys.stderr)


def ablate(
    training: Annotated[Path, typer.Argument(help="The collection to train on.")],
    judged: Annotated[Path, typer.Argument(help="The collection to judge on.")],
    out: Annotated[Path, typer.Argument(help="The folder for trainings and tables; continued if it exists.")],
    only: Annotated[list[str] | None, typer.Option(help="Run this configuration only. May be repeated.")] = None,
    main: Annotated[bool, typer.Option("--main", help="The nine of the table in the paper itself.")] = False,
    steps: Annotated[int, typer.Option(help="Steps of matching.", min=1)] = 150,
    batch: Annotated[int, typer.Option(help="Pairs in each.", min=1)] = 4,
    search_steps: Annotated[int, typer.Option(help="Steps of searching.", min=1)] = 20,
    search_batch: Annotated[int, typer.Option(help="Pairs in each.", min=2)] = 48,
    seed: Annotated[int, typer.Option(help="Of all trainings.", min=0)] = 0,
    seeds: Annotated[
        int, typer.Option(help="So many trainings of each row, with this seed and the next ones.", min=1)
    ] = 1,
    device: Device = "auto",
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Train and judge every row of the paper's ablation tables under the same budget.

    A stopped command goes on within the training that it was in. Rows can be shared out: several commands with
    different --only may work in one folder. With --seeds, each has a folder, and a table compares the rows.
    """
    import torch

    from pairingnet.io.collection import read_collection
    from pairingnet.models.device import choose_device
    from pairingnet.train import ablations

    if threads:
        torch.set_num_threads(threads)
    numbers = range(seed, seed + seeds)
    names = [*(only or ()), *(ablations.MAIN if main else ())]
    data = read_collection(training), read_collection(judged)
    for number in numbers:
        folder = out if seeds == 1 else ablations.seed_folder(out, number)
        budget = ablations.Budget(steps, batch, search_steps, search_batch, number)
        ablations.ablate(*data, folder, budget, names, choose_device(device))
        results = ablations.read_results(folder)
        ablations.write_tables(folder, results)
    if seeds == 1:
        print(json.dumps(results, indent=1) if as_json else ablations.as_markdown(results))
        return
    compared = ablations.read_seeds(out, numbers)
    table = ablations.seeds_as_markdown(compared)
    (out / "seeds.md").write_text(table + "\n", encoding="utf-8")
    print(json.dumps(compared, indent=1) if as_json else table)
