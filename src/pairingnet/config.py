"""Settings: one dataclass per stage, one sentence per field. `settings.py` reads and changes them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pairingnet.errors import SettingsError


def _require_precision(precision: str) -> None:
    choices = ("auto", "float32", "bfloat16")
    _require(precision in choices, "precision", precision, f"one of {', '.join(choices)}")


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise SettingsError(f"The setting {name} is {value}.", f"It must be {rule}.")


@dataclass(frozen=True)
class TearSettings:
    """Algorithm 1 of the paper. The first block is its header, with its values.

    Where the published generator does what the pseudo-code leaves open (or says differently), the field says
    so: docs/conventions.md, section "Tearing", lists the differences.
    """

    t_max: int = 40  # attempts to cut a piece of the picture
    tau: float = 0.9  # the chord's smaller arc, as a share of half the circumcircle, is at least this
    n_max: int = 3  # most bends in a cut
    d_min: float = 100.0  # px from a bend to the edge of the piece (at most half of what the piece allows)
    n: int = 20  # waves in an irregular line (harmonics 1 .. n-1)
    s1: float = 1 / 150  # mean of a wave's amplitude / height (the paper prints 0.25)
    s2: float = 1 / 60  # its standard deviation (the paper prints 0.0067 = 1/150)
    s3: float = 1.5  # mean of the first wave's period / width
    s4: float = 0.3  # its standard deviation
    rho: float = 0.5  # probability that a segment is irregular rather than straight
    h_min: int = 150  # px, least height of a piece
    w_min: int = 150  # px, least width of a piece

    # What the published generator does beside the pseudo-code.
    wave_span: str = "line"  # an irregular segment's waves run along the whole "line" or the "segment" only
    corridor: float = 0.05  # bends lie within this share of the height around the chord
    max_aspect: float = 4.0  # longest side / shortest side of a piece's bounding box
    min_fill: float = 0.3  # least share of its bounding box that a piece fills
    max_share: float = 0.15  # a piece larger than this share of the picture is cut again at the end

    # What we add.
    longest: int = 0  # px; shrink larger pictures to this longest side first (0: tear them as they are)
    rotate: bool = True  # turn every piece by a random angle; the paper's pieces are not turned
    drop: float = 0.0  # share of the pieces that are lost
    margin: int = 4  # px of empty border around a piece's image
    min_overlap: float = 50.0  # px of shared contour that make two pieces a true pair
    touch: float = 2.0  # px between contours that count as shared

    def __post_init__(self) -> None:
        _require(self.t_max >= 0, "t_max", self.t_max, "0 or more")
        _require(0 <= self.tau < 1, "tau", self.tau, "at least 0 and below 1")
        _require(self.n_max >= 0, "n_max", self.n_max, "0 or more")
        _require(self.h_min > 0 and self.w_min > 0, "h_min, w_min", (self.h_min, self.w_min), "above 0")
        _require(self.s3 > 0, "s3", self.s3, "above 0")
        for name in ("d_min", "n", "s2", "s4", "corridor", "max_aspect", "longest", "min_overlap", "touch"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _require(self.wave_span in ("line", "segment"), "wave_span", self.wave_span, "'line' or 'segment'")
        _require(self.margin >= 2, "margin", self.margin, "2 or more")
        for name in ("rho", "min_fill", "max_share"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        _require(0 <= self.drop < 1, "drop", self.drop, "at least 0 and below 1")


@dataclass(frozen=True)
class WearSettings:
    """What time and the scanner do to a piece. All zero: nothing. Lengths in pixels of the piece."""

    erosion: float = 0.0  # px, typical depth lost along the edge (it varies smoothly between 0 and twice this)
    erosion_scale: float = 60.0  # px along the edge over which the depth changes
    spared: float = 0.0  # share of the edge that erosion leaves alone: sherds touch here and gape there
    rubbed: float = 0.0  # px, depth lost along all of the edge, finely rough: nothing touches to the pixel any more
    rounded: float = 0.0  # px, radius to which sharp corners have worn
    chips: float = 0.0  # chips broken out per 1000 px of edge
    chip_size: float = 8.0  # px, typical radius of a chip
    gaps: float = 0.0  # stretches of edge lost deeper, per piece
    gap_depth: float = 8.0  # px, typical depth of such a stretch
    gap_length: float = 60.0  # px, typical length of such a stretch
    straight: float = 0.0  # share of cuts that are one straight seam (shears, a folded edge)
    colour: float = 0.0  # spread of brightness, contrast and tint between pieces (0.1 is clearly visible)
    blur: float = 0.0  # px, largest sigma of a piece's blur
    noise: float = 0.0  # grey levels, largest sigma of the scanner's noise
    jpeg: int = 0  # lowest JPEG quality a piece is stored with on its way (0: none)
    scanned: float = 0.0  # share of the pieces that are laid on a mat, scanned, and found again

    # What is broken and has lain in the ground: pieces no longer touch, and their surface has suffered.
    gap: float = 0.0  # px between neighbours: each has lost half of it along all of its edge
    gap_varies: float = 0.0  # share of the gap by which it changes slowly along the edge
    gap_scale: float = 150.0  # px along the edge over which it changes
    gap_pictures: float = 0.0  # share of the gap by which it differs between pictures
    corners: float = 0.0  # share of the corners that are broken off
    corner_size: float = 16.0  # px, typical length lost on both sides of a corner
    flakes: float = 0.0  # share of the surface that has flaked off and shows the plaster, most at the edges
    fading: float = 0.0  # largest share of a piece's colour that has faded
    dirt: float = 0.0  # how dark stains are, from 0 to 1
    marks: float = 0.0  # strokes of a tool per 100 x 100 px
    light: float = 0.0  # spread of how much brighter one end of a piece is lit than its middle
    lost: float = 0.0  # share of the pieces that are lost, beside those of `drop`

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            _require(value >= 0, field.name, value, "0 or more")
        for name in ("gap_varies", "gap_pictures", "corners", "flakes", "fading", "dirt"):
            _require(getattr(self, name) <= 1, name, getattr(self, name), "between 0 and 1")
        _require(self.gap_scale >= 1, "gap_scale", self.gap_scale, "1 or more")
        _require(self.lost < 1, "lost", self.lost, "below 1")
        _require(self.erosion_scale >= 1, "erosion_scale", self.erosion_scale, "1 or more")
        _require(self.spared < 1, "spared", self.spared, "below 1")
        _require(self.straight <= 1, "straight", self.straight, "between 0 and 1")
        _require(self.scanned <= 1, "scanned", self.scanned, "between 0 and 1")
        _require(self.jpeg <= 100, "jpeg", self.jpeg, "between 0 and 100")


WEAR_LEVELS = {
    "none": WearSettings(),
    "scanned": WearSettings(colour=0.02, noise=1.0, scanned=1.0),
    "light": WearSettings(
        erosion=1.0, chips=0.5, chip_size=4, straight=0.05, colour=0.03, blur=0.5, noise=2.0, jpeg=90
    ),
    "medium": WearSettings(
        erosion=2.5, chips=1.5, chip_size=6, gaps=1.0, gap_depth=6, straight=0.1, colour=0.06, blur=0.8,
        noise=4.0, jpeg=80,
    ),
    "heavy": WearSettings(
        erosion=5.0, chips=3.0, chip_size=9, gaps=2.0, gap_depth=10, straight=0.2, colour=0.12, blur=1.2,
        noise=7.0, jpeg=65,
    ),
    "sherds": WearSettings(
        erosion=5.0, erosion_scale=45, spared=0.7, rounded=3.0, chips=1.0, chip_size=6, colour=0.02, blur=0.4,
        noise=2.0, jpeg=90,
    ),
    # Gaps of 0 to 20 px: up to ten steps of the contour of photographs torn into pieces of 150 px and more.
    "broken": WearSettings(
        gap=10.0, gap_varies=0.5, gap_pictures=1.0, rubbed=0.5, rounded=3.0, chips=1.0, chip_size=6, corners=0.2,
        colour=0.03, light=0.08, blur=0.5, noise=2.0, jpeg=90,
    ),
    "fresco": WearSettings(
        gap=10.0, gap_varies=0.7, gap_pictures=1.0, rubbed=0.8, rounded=4.0, chips=1.5, chip_size=8, corners=0.35,
        flakes=0.1, fading=0.4, dirt=0.5, marks=0.3, lost=0.1, colour=0.04, light=0.12, blur=0.8, noise=3.0, jpeg=85,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class PrepareSettings:
    """From a scan to fragments."""

    background: str = "auto"  # "auto" (alpha if the image has one, else the border's colour), "alpha", "border"
    tolerance: float = 0.0  # colour distance (Lab) that counts as background; 0: measured on the border
    shadows: bool = True  # soft shadows beside a piece count as background
    holes: str = "fill"  # "fill" or "keep" enclosed areas that look like background
    min_area: float = 0.0  # px^2, smaller things are dirt; 0: 1 % of the largest piece, at least 400
    sheet_objects: bool = True  # recognise rulers and colour charts, and leave them out
    margin: int = 4  # px of empty border around a piece's image

    def __post_init__(self) -> None:
        choices = ("auto", "alpha", "border")
        _require(self.background in choices, "background", self.background, f"one of {', '.join(choices)}")
        _require(self.holes in ("fill", "keep"), "holes", self.holes, "'fill' or 'keep'")
        _require(self.tolerance >= 0, "tolerance", self.tolerance, "0 or more")
        _require(self.min_area >= 0, "min_area", self.min_area, "0 or more")
        _require(self.margin >= 2, "margin", self.margin, "2 or more")


@dataclass(frozen=True)
class PaperSettings:
    """The paper's network, with every switch of its two ablation tables. The defaults are its final choices."""

    patch: int = 7  # px, side of the square around a contour point: 3, 7 or 11
    encoding: str = "edge"  # contour patches show the "edge", the "inside", or "both"
    texture: str = "rgb"  # texture patches show "rgb", "grey" or "canny" (binarised)
    branches: str = "both"  # "both", "contour" only or "texture" only
    fusion: str = "gate"  # "gate" (weighted), "concat", or "early" (one graph network on both encodings)
    backbone: str = "resgcn"  # "resgcn", or "unet" (Graph U-Nets)
    layers: int = 14  # of the ResGCN
    neighbours: int = 8  # on each side of a point that its graph connects it with
    width: int = 64  # of local features
    dropout: float = 0.2  # in the graph network
    search_layers: int = 5  # of the linear transformer in each branch
    search_fusion: str = "concat"  # of the gated branches: "concat" or "add"
    search_input: str = "branches"  # the search encoder sees both "branches", or the "fused" matching features
    search_width: int = 128  # of the vector of a fragment
    search_head: str = "paper"  # a layer on every point, then on the average ("paper"); the latter alone ("code")

    def __post_init__(self) -> None:
        _require(self.patch in (3, 5, 7, 9, 11), "patch", self.patch, "odd, from 3 to 11")
        _require(self.layers > 0 and self.search_layers > 0, "layers", (self.layers, self.search_layers), "above 0")
        _require(self.neighbours > 0, "neighbours", self.neighbours, "above 0")
        _require(self.width % 8 == 0 and self.width > 0, "width", self.width, "a multiple of 8")
        _require(0 <= self.dropout < 1, "dropout", self.dropout, "at least 0 and below 1")
        for name, choices in {
            "encoding": ("edge", "inside", "both"),
            "texture": ("rgb", "grey", "canny"),
            "branches": ("both", "contour", "texture"),
            "fusion": ("gate", "concat", "early"),
            "backbone": ("resgcn", "unet"),
            "search_fusion": ("concat", "add"),
            "search_input": ("branches", "fused"),
            "search_head": ("paper", "code"),
        }.items():
            _require(getattr(self, name) in choices, name, getattr(self, name), f"one of {', '.join(choices)}")


@dataclass(frozen=True)
class PaperMatchSettings:
    """From a similarity matrix to a transform, as in the paper (3.4) and its published code."""

    epsilon: float = 0.006  # similarities below this are noise
    sample: int = 5  # correspondences that propose a transform
    threshold: float = 10.0  # px a correspondence may stray from it
    iterations: int = 4000  # most proposals
    most_points: int = 4000  # correspondences used, the most similar ones
    seed: int = 0  # of the proposals

    def __post_init__(self) -> None:
        for name in ("epsilon", "threshold", "iterations", "most_points"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        _require(self.sample >= 2, "sample", self.sample, "2 or more")


@dataclass(frozen=True)
class RingSettings:
    """Our own network. Distances are in steps of the contour."""

    points: int = 450  # contour points of the median fragment: fixes the step
    width: int = 64  # of the layers
    features: int = 64  # numbers per contour point
    reach: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 18, 26)  # where the contour is, so far ahead and behind
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16, 4)  # of the layers in each branch
    joint_dilations: tuple[int, ...] = (1, 4, 16, 2, 8)  # of the layers after the gate
    texture: str = "rgb"  # of the pieces: "rgb", "grey" or "canny"


@dataclass(frozen=True)
class RingMatchSettings:
    """From our own network's features to a transform. Distances are in steps of the contour."""

    most_points: int = 400  # correspondences used, the most probable ones
    least: float = 1e-3  # least probability of a correspondence
    threshold: float = 3.0  # a correspondence may stray so far from a hypothesis
    proposals: int = 24  # different transforms that are looked at
    hypotheses: int = 6  # of them that are laid contour on contour
    hopeless: float = 30.0  # those that are so much behind the best are not laid
    worn: float = 0.03  # pieces whose surest joins lie looser than that are worn, and more ways to join them are tried:
    worn_proposals: int = 64
    worn_hypotheses: int = 16
    worn_hopeless: float = 90.0
    contact: float = 3.0  # contours this near to each other touch
    allowed: float = 2.0  # contour points may lie so deep inside the other piece
    ways: int = 16  # different ways to join a pair that are told, where more than one is likely
    different: float = 8.0  # they lay the seam so far from each other, or turn the pieces by more than 12 degrees


@dataclass(frozen=True)
class SolveSettings:
    """The main job: which pairs are looked at, and what counts; with the settings of its stages."""

    all_pairs_up_to: int = 120  # fragments; of more, only the candidates are laid on each other
    candidates: int = 16  # of each fragment
    least: float = 0.02  # joins below this probability are not worth a look
    restarts: int = (
        32  # layouts of a puzzle that are made at most, of which the best stays; of many fragments fewer are
    )
    prepare: PrepareSettings = PrepareSettings()

    def __post_init__(self) -> None:
        _require(self.candidates > 0, "candidates", self.candidates, "above 0")
        _require(0 <= self.least < 1, "least", self.least, "at least 0 and below 1")
        _require(self.restarts > 0, "restarts", self.restarts, "above 0")


@dataclass(frozen=True)
class VoteSettings:
    """How contour points find candidates. Neighbouring points know nearly the same: some of them are enough."""

    ask_every: int = 4  # every n-th contour point of a fragment asks
    keep_every: int = 3  # every n-th contour point of a fragment can be found
    partners: int = 8  # that a contour point finds

    def __post_init__(self) -> None:
        for name in ("ask_every", "keep_every", "partners"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")


@dataclass(frozen=True)
class IndexSettings:
    """The index of contour points: it looks at all of a few, and into cells of similar ones when there are many."""

    exact_below: int = 100_000  # vectors; up to there every one is looked at
    cells: float = 1.0  # cells, in roots of the number of vectors
    probes: int = 8  # cells that a search looks into
    rescored: int = 2  # times as many as wanted are compared once more, in full precision

    def __post_init__(self) -> None:
        for name in ("cells", "probes", "rescored"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        _require(self.exact_below >= 0, "exact_below", self.exact_below, "0 or more")


@dataclass(frozen=True)
class ArchiveSettings:
    """A collection that grows: how its fragments are found and searched; fixed when the archive is made."""

    candidates: int = 16  # of each new fragment, that are laid on it
    least: float = 0.02  # joins below this probability are not kept
    bank_until: int = 2048  # fragments; up to there the background is drawn anew whenever their number has doubled
    prepare: PrepareSettings = PrepareSettings()
    votes: VoteSettings = VoteSettings()
    index: IndexSettings = IndexSettings()

    def __post_init__(self) -> None:
        _require(self.candidates > 0, "candidates", self.candidates, "above 0")
        _require(0 <= self.least < 1, "least", self.least, "at least 0 and below 1")
        _require(self.bank_until >= 0, "bank_until", self.bank_until, "0 or more")


@dataclass(frozen=True)
class TrainSettings:
    """How the paper's network is trained; the defaults are the paper's and its published code's."""

    batch: int = 20  # pairs in a step of matching (the paper: 20; searching: 175)
    epochs: int = 128  # over which the learning rate falls to zero
    steps: int = 0  # where not 0: end after this many steps instead
    rate: float = 1e-3  # Adam's learning rate at the start
    decay: float = 5e-4  # weight decay (the published code: 5e-4 in matching, 1e-3 in searching)
    beta1: float = 0.55  # focal loss: weight of true correspondences (eq. 5)
    gamma: float = 8.0  # focal loss: how little easy ones count
    temperature: float = 0.12  # of InfoNCE in searching
    correspond: float = 2.0  # px between contour points that correspond
    precision: str = "auto"  # "float32"; "bfloat16" in matrix products; "auto": the latter on graphics cards
    seed: int = 0  # of the weights, the order of the pairs and the dropout

    def __post_init__(self) -> None:
        _require_precision(self.precision)
        for name in ("batch", "epochs", "rate", "gamma", "temperature", "correspond"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        _require(0 <= self.beta1 <= 1, "beta1", self.beta1, "between 0 and 1")
        for name in ("decay", "steps"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")


@dataclass(frozen=True)
class RingTrainSettings:
    """How our own network is trained: fresh pieces of pictures, all their contour points against each other."""

    batch: int = 2  # pictures in a step; all their pieces are told apart
    epochs: int = 40  # over which the learning rate falls to zero
    steps: int = 0  # where not 0: end after this many steps instead
    rate: float = 2e-3  # Adam's learning rate at the start
    decay: float = 0.0  # weight decay
    strangers: int = 0  # other pictures in a step whose points are wrong answers only
    most_points: int = 2400  # contour points with a known partner that a step asks about
    step_spread: float = 0.2  # each picture's contour step is changed by up to this share
    grey: float = 0.15  # share of the pictures that are shown grey
    canny: float = 0.0  # share of the pictures that are shown as Canny edges
    colour: float = 0.06  # spread of brightness, contrast and tint between the pieces of a picture
    near: int = 2  # steps beside the true partner that are neither right nor wrong
    precision: str = "auto"  # as in the paper's training; "bfloat16" is a third faster on processors that have it
    seed: int = 0  # of the weights, the order of the pictures and what is changed in them

    def __post_init__(self) -> None:
        _require_precision(self.precision)
        for name in ("batch", "epochs", "rate", "most_points"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        for name in ("decay", "steps", "strangers", "colour", "near"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("step_spread", "grey", "canny"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "at least 0 and below 1")


@dataclass(frozen=True)
class CandidateSettings:
    """Ways two pieces might fit, for the comparison methods. Known values where there are any; lengths in pixels."""

    tolerance: float = 0.001  # of the contour's length; the polygon strays so far from it at most
    depth: float = 2.5  # px inside of the contour, where colours are taken
    shortest: float = 3.0  # px, shorter segments are ignored
    shortest_chord: float = 10.0  # px, shorter segments propose no pose
    length_px: float = 5.0  # px by which the lengths of paired segments may differ
    length_share: float = 0.1  # or this share of the longer one, where that is more
    similarity: float = 0.9  # least likeness in colour, from 0 (black and white) to 1 (the same)
    overlap: float = 0.05  # share of a piece from which on it may not lie on the other
    centroid: float = 3.6  # px between the centroids of segments that match
    per_match: float = 5.0  # px that a match counts beside its length (a of W2 + a W3)
    refined: int = 10  # poses that are laid contour on contour
    reach: float = 4.0  # px in which that looks for the other contour
    touch: float = 2.0  # px between points of the stitch line
    allowed: float = 3.0  # px that contour points may lie inside the other piece
    least: float = 20.0  # px, least score of a candidate
    candidates: int = 5  # most candidates of a pair

    def __post_init__(self) -> None:
        for name in ("tolerance", "centroid", "reach", "touch", "refined", "candidates"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        for name in ("depth", "shortest", "shortest_chord", "length_px", "length_share", "per_match"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("allowed", "least"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _require(0 <= self.similarity < 1, "similarity", self.similarity, "at least 0 and below 1")
        _require(0 < self.overlap <= 1, "overlap", self.overlap, "above 0 and at most 1")


@dataclass(frozen=True)
class JigsawSettings:
    """The network that judges stitched candidates (JigsawNet), as published."""

    side: int = 160  # px of the square into which a stitched pair is stretched
    widths: tuple[int, ...] = (8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64, 128)  # of the residual blocks
    pools: tuple[int, ...] = (6, 9)  # blocks after which the map is halved
    cells: int = 4  # samples on each side of the region of interest
    hidden: int = 64  # numbers between the two last layers

    def __post_init__(self) -> None:
        _require(len(self.widths) > 0, "widths", self.widths, "at least one number")
        _require(self.side >= 2 ** (2 + len(self.pools)), "side", self.side, "twice as large for every pool")
        _require(self.cells >= 2, "cells", self.cells, "2 or more")
        _require(self.hidden > 0, "hidden", self.hidden, "above 0")


@dataclass(frozen=True)
class JigsawTrainSettings:
    """How JigsawNet is trained. The first block is published, the second was chosen."""

    batch: int = 64  # samples in a step
    steps: int = 30_000  # of each learner; 0: as many as `epochs` have
    rate: float = 1e-4  # Adam's learning rate, the same to the end
    decay: float = 1e-4  # weight of half the sum of squares of the weights
    learners: int = 5  # each from scratch, on samples weighted by what the last ones got wrong
    published_weighting: bool = False  # the published slip: no sample counts more than another
    right_deg: float = 4.0  # a candidate is right when it is turned by less than this from the truth
    right_px: float = 50.0  # and shifted by less, at the origin of the target's image

    epochs: int = 20  # over all samples, where `steps` is 0
    samples: int = 150  # of each picture, at most
    negatives: float = 4.0  # wrong samples for each right one
    jitters: int = 3  # poses beside the true one of each true pair, slightly off, that count as right
    jitter_deg: float = 2.0  # they are turned by up to this
    jitter_px: float = 3.0  # and shifted by up to this, each way
    strangers: float = 1.0  # pairs with pieces of other pictures, for each true pair
    seed: int = 0  # of the samples, the weights and the order

    def __post_init__(self) -> None:
        for name in ("batch", "rate", "learners", "right_deg", "right_px", "epochs", "samples"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        for name in ("steps", "decay", "negatives", "jitters", "jitter_deg", "jitter_px", "strangers", "seed"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")


@dataclass(frozen=True)
class BenchmarkSettings:
    """What a benchmark asks of every method."""

    sample_pairs: int = 0  # true pairs that are matched, chosen at random; 0: all
    sample_queries: int = 0  # fragments whose neighbours are searched for, chosen at random; 0: all
    pool: int = 0  # fragments among which a query is answered, its neighbours and others at random; 0: all others
    limit_s: float = 7200.0  # a method that would lay pairs for longer is asked a sample instead; 0: never
    candidates: int = 20  # of each fragment, that `ring` lays on each other
    seed: int = 0  # of the samples, and of the methods that choose at random

    def __post_init__(self) -> None:
        for name in ("sample_pairs", "sample_queries", "pool", "limit_s", "seed"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _require(self.candidates > 0, "candidates", self.candidates, "above 0")


@dataclass(frozen=True)
class SliceSettings:
    """One collection of a benchmark over several: how pictures are torn, and which fragments of it are asked about."""

    rotate: bool = True  # turn every piece by a random angle
    wear: str = "none"  # "none", "scanned", "light", "medium", "heavy", "sherds", "broken" or "fresco"
    straight: float = 0.0  # share of cuts that are one straight seam, beside those of the wear
    texture: str = "rgb"  # pieces are shown as "rgb", "grey" or "canny" (black and white edges) to every method
    split: str = "picture"  # "picture", or "paper": fragments are shuffled 5:1:4 whatever picture they are from
    part: str = ""  # only this part ("train", "val", "test"); empty: all fragments
    pictures: int = 0  # only the first so many pictures; 0: all

    def __post_init__(self) -> None:
        _require(0 <= self.straight <= 1, "straight", self.straight, "between 0 and 1")
        _require(self.pictures >= 0, "pictures", self.pictures, "0 or more")
        for name, choices in {
            "wear": tuple(WEAR_LEVELS),
            "texture": ("rgb", "grey", "canny"),
            "split": ("picture", "paper"),
            "part": ("", "train", "val", "test"),
        }.items():
            shown = ", ".join(choice or "''" for choice in choices)
            _require(getattr(self, name) in choices, name, getattr(self, name), f"one of {shown}")
