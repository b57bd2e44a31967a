"""Terms of a loss: each has a weight and settings, and builds the objective that training minimises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.lazy import Catalog
from calligram.models.matcher import Matcher
from calligram.recipes.parts.config import check_component_names
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.run_settings import RARE
from calligram.recipes.parts.tower_settings import Towers
from calligram.training.objectives.objective import InfoNCEObjective, Objective, RankingObjective

if TYPE_CHECKING:
    from calligram.recipes.parts.pseudo_pairs import Adversarial as Adversarial
    from calligram.training.objectives.instance import ClassLabels
    from calligram.training.objectives.offline import OfflineTerms

TermType = TypeVar("TermType", bound="type[Term]")
INFONCE_TEMPERATURE = 0.07
"""initial temperature of InfoNCE"""
MIN_PRETRAINED_TEMPERATURE = 0.01
"""a dual encoder with a lower temperature (SigLIP) starts from this one, the lowest that InfoNCE trains"""


@dataclass
class TermContext:
    """What a term may use when it builds its objective."""

    matcher: Matcher
    """the matcher, or one member of an ensemble"""
    towers: Towers | None
    """the towers; None where a matcher brings its own"""
    train: Pairing
    """the training pairs; equal texts are one text"""
    captions: Pairing
    """the training pairs with one text for each caption"""
    run: RunContext
    seed: int = 0
    temperature: float | None = None
    """temperature of a pretrained matcher"""
    classes: ClassLabels | None = None
    """class of each image and each text, for the instance loss"""
    word_dropout: float = 0.0
    """share of masked words"""
    shared: dict[str, Any] = field(default_factory=dict)

    def share(self, key: str, make: Callable[[], Any]) -> Any:
        """Return a module that all stages share; the first call makes it."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]


@dataclass(frozen=True)
class Term:
    """One term of a loss. A subclass adds its settings and builds its objective.

    A term from outside is a subclass with the decorator ``calligram.term("name")``. Users then name it in ``terms``.
    """

    name: ClassVar[str] = ""
    of_scores: ClassVar[bool] = False
    """whether it is a loss of the scores of pairs, so that it can be computed for candidates only"""
    for_pseudo_pairs: ClassVar[bool] = False
    """whether it also applies to pseudo pairs"""
    hard_negatives: ClassVar[bool] = False
    """whether it relies on hard negatives, so that a warm-up with all negatives comes first"""

    weight: Annotated[float, "weight of the term in the loss", (0, 100000), RARE] = 1.0

    @property
    def teachers(self) -> dict[str, str]:
        """Other runs that the term learns from, by the setting that names each."""
        return {}

    def build(self, context: TermContext) -> Objective:
        """Return the objective; its weights are initial ones."""
        raise NotImplementedError


class TermCatalog(Catalog["type[Term]"]):
    """Terms by name: terms of the package, registered terms, and terms that installed packages declare."""

    def __getitem__(self, name: str) -> type[Term]:
        found = super().__getitem__(name)
        if not vars(found).get("name"):  # from an entry point; a base class may have a name
            found.name = name
        return found

    def name_of(self, settings: Term) -> str:
        """Return the name of a term."""
        return settings.name


def term(name: str) -> Callable[[TermType], TermType]:
    """Register a term class under a name, as a class decorator; the class is a frozen dataclass."""

    def register(term_class: TermType) -> TermType:
        from calligram.recipes.pairs import MATCHER_SETTINGS, PairsSettings

        check_component_names("term", [name], {*MATCHER_SETTINGS, *(item.name for item in fields(PairsSettings))})
        term_class.name = name
        TERMS.register(name, term_class)
        return term_class

    return register


@dataclass(frozen=True)
class Ranking(Term):
    """Triplet hinge in both directions (vse++; dual-path, Eq. 4; aoq, Eq. 1)."""

    name = "ranking"
    of_scores = True
    for_pseudo_pairs = True

    margin: Annotated[float, "margin of the hinge", (0, 100)] = 0.2
    top_k: Annotated[int | None, "number of hardest negatives per anchor that count; none for all", (1, 1000000)] = 1
    random: Annotated[bool, "use one random negative per anchor instead of the hardest", RARE] = False

    @property
    def hard_negatives(self) -> bool:  # type: ignore[override]
        """Whether only the hardest negatives count."""
        return self.top_k is not None and not self.random

    def build(self, context: TermContext) -> Objective:
        """Return the hinge loss."""
        return RankingObjective(self.margin, None if self.random else self.top_k, draw=self.random)


@dataclass(frozen=True)
class InfoNCE(Term):
    """Symmetric InfoNCE with a temperature that is trained."""

    name = "infonce"
    of_scores = True
    for_pseudo_pairs = True

    temperature: Annotated[
        float | None, "initial temperature, which is trained; none for 0.07 or that of a pretrained model", (0.001, 100)
    ] = INFONCE_TEMPERATURE

    def build(self, context: TermContext) -> Objective:
        """Return InfoNCE."""
        own = INFONCE_TEMPERATURE if context.temperature is None else context.temperature
        return InfoNCEObjective(max(MIN_PRETRAINED_TEMPERATURE, own) if self.temperature is None else self.temperature)


@dataclass(frozen=True)
class Instance(Term):
    """Instance loss: a shared classifier of images and texts by their group (dual-path, Eqs. 5-8)."""

    name = "instance"

    weight: Annotated[float, "weight of the term in the loss", (0, 1000)] = 1.0
    weights: Annotated[
        tuple[float, float], "weights of the classification of images and of texts, lambda 2 and 3", (0, 1000), RARE
    ] = (1.0, 1.0)
    dropout: Annotated[float, "dropout rate of vectors before the classifier", (0, 0.99)] = 0.0
    scale: Annotated[
        float, "factor on cosines that are classified; 0 for inner products, as in the paper", (0, 1000), RARE
    ] = 0.0
    clusters: Annotated[
        int, "number of classes made by K-means of image features; 0 for one class per group", (0, 1000000), RARE
    ] = 0
    init: Annotated[
        Literal["random", "images"],
        "initial weights of classes: random, or the vectors of their images before training (images)",
        RARE,
    ] = "random"

    def __post_init__(self) -> None:
        if not any(self.weights):
            raise UserError(
                "instance.weights are both zero, so the term trains nothing; give a weight above zero, or leave "
                "instance out of terms= or of the stage"
            )

    def build(self, context: TermContext) -> Objective:
        """Return the instance loss; all stages share its classifier."""
        from calligram.recipes.parts.instance_classifier import classifier

        made = classifier(self, context)
        made.classes = context.share("classes", lambda: made.classes)
        return made


@dataclass(frozen=True)
class Offline(Term):
    """Online and offline hard negatives (aoq, Eqs. 3-5); the negatives are mined over the whole training split."""

    name = "offline"
    of_scores = True
    hard_negatives = True

    loss: Annotated[Literal["adaptive", "quintuplet", "triplet"], "loss: Eq. 5, 4 or 3 of aoq"] = "adaptive"
    negatives: Annotated[
        str, 'folder made by "calligram mine", or of a run that mines (a teacher); empty for the run itself'
    ] = ""
    share: Annotated[
        float, "length of lists that the run mines, as a share of all texts or of all images; at least 10 items", (0, 1)
    ] = 0.002
    texts: Annotated[
        int | None,
        "number of hardest texts of an image that are drawn from, h; none for offline.share, or for all that are given",
        (1, 1000000),
    ] = None
    images: Annotated[
        int | None, "number of hardest images of a text that are drawn from; none for offline.share", (1, 1000000), RARE
    ] = None
    spread: Annotated[
        Literal["uniform", "normal"], "distribution of the drawn ranks: uniform, or normal around the middle", RARE
    ] = "uniform"
    by_vectors: Annotated[
        bool, "mine by the cosine of vectors, for matchers whose scores take long to compute", RARE
    ] = False
    margin: Annotated[float, "margin of online negatives, gamma_1", (0, 100)] = 0.2
    offline_margin: Annotated[float, "margin of offline negatives, gamma_2", (-100, 100), RARE] = 0.0
    alpha: Annotated[float, "difference of scores that changes an online weight by one, alpha", (0.001, 1000)] = 0.3
    beta: Annotated[float, "online weight where the scores are equal, beta", (0, 1000)] = 1.5
    online: Annotated[bool, "keep the online term; false for OnlyOffline of Table 3", RARE] = True
    derive: Annotated[
        Literal["offline", "online"],
        "source of the negative pairs without the anchor, of the quintuplet; online for OnlineQuin of Table 3",
        RARE,
    ] = "offline"
    weigh_by: Annotated[
        Literal["offline", "positive"],
        "score that adaptive weights are relative to; positive for w/o OfflineAdap of Table 3",
        RARE,
    ] = "offline"
    squared: Annotated[bool, "square every hinge (aoq, Sec. 3.3)", RARE] = False

    @property
    def inert(self) -> frozenset[str]:
        """Settings without effect."""
        return frozenset(("share",) if self.texts and self.images else ())

    def __post_init__(self) -> None:
        if not self.online and self.loss != "quintuplet":
            raise UserError("offline.online=false needs offline.loss=quintuplet; other losses need an online term")

    @property
    def teachers(self) -> dict[str, str]:
        """The run that mines, or whose mined lists are used."""
        return {"offline.negatives": self.negatives} if self.negatives else {}

    @property
    def options(self) -> OfflineTerms:
        """The loss and its variants."""
        from calligram.training.objectives.offline import OfflineTerms

        kind: Any = self.loss if self.loss == "adaptive" else f"offline-{self.loss}"
        return OfflineTerms(
            kind, self.margin, self.offline_margin, self.alpha, self.beta, self.online, self.derive, self.weigh_by,
            self.squared,
        )  # fmt: skip

    def build(self, context: TermContext) -> Objective:
        """Return the loss of online and offline negatives."""
        from calligram.training.objectives.offline import OfflineObjective

        return OfflineObjective(self.options)


@dataclass(frozen=True)
class Neighbourhood(Term):
    """Bi-directional ranking with neighbourhood constraints (two-branch, Eq. 6)."""

    name = "neighbourhood"
    for_pseudo_pairs = True

    weights: Annotated[
        tuple[float, float, float, float],
        "weights of image anchors, text anchors, image neighbourhoods and text neighbourhoods, lambda 1 to 4; the "
        "paper has 1,2,0,0.2 for sentences",
        (0, 1000),
    ] = (1.0, 2.0, 0.0, 0.0)
    margin: Annotated[float, "margin of the hinge, in Euclidean distance", (0, 2)] = 0.1
    top_k: Annotated[
        int | None, "number of triplets with the highest loss that are kept for every pair; none for all", (1, 1000000)
    ] = 50

    def __post_init__(self) -> None:
        if not any(self.weights):
            raise UserError("neighbourhood.weights are all zero, so the term trains nothing; give a weight above zero")

    def build(self, context: TermContext) -> Objective:
        """Return the ranking loss across and within modalities."""
        from calligram.training.objectives.two_branch import NeighbourhoodObjective

        return NeighbourhoodObjective(self.weights, self.margin, self.top_k)


@dataclass(frozen=True)
class Logistic(Term):
    """Logistic regression of matching and other pairs (two-branch, Eq. 7)."""

    name = "logistic"
    for_pseudo_pairs = True

    def build(self, context: TermContext) -> Objective:
        """Return the logistic loss; a score that is not log-odds gets a scale and a bias, which are trained."""
        from calligram.training.objectives.two_branch import LogisticObjective

        return LogisticObjective(calibrate=context.matcher.scoring.kind != "log-odds")


@dataclass(frozen=True)
class Caption(Term):
    """A decoder that generates the captions of an image from its parts (vsrn)."""

    name = "caption"

    weight: Annotated[
        float, "weight of the captioning loss; 1 in the release of vsrn, which sums its loss over a batch", (0, 1000)
    ] = 0.01
    hidden: Annotated[int, "dimension of the state of the caption decoder", (1, 65536), RARE] = 512

    def build(self, context: TermContext) -> Objective:
        """Return the captioning loss."""
        from calligram.training.objectives.caption import CaptionObjective

        towers = context.towers
        if towers is None:
            raise UserError("the term caption needs built-in towers; leave it out of terms= with a matcher object")
        if towers.architectures[1].kind in ("states", "vectors"):
            raise UserError(
                "the term caption generates words, and stored encoder states or text vectors have none; take "
                "text.train=true, no text.encoder, or leave caption out of terms="
            )
        words, masked = towers.inputs.texts, towers.inputs.texts.mask_token if context.word_dropout else None
        return CaptionObjective(
            context.matcher.part_size, len(words), hidden=self.hidden, word_dim=towers.text.word_dim, mask_token=masked
        )


@dataclass(frozen=True)
class Distillation(Term):
    """KL divergence from the scores of a trained run, the teacher."""

    name = "distillation"

    weight: Annotated[float, "weight of the term in the loss", (0, 1000)] = 1.0
    teacher: Annotated[str, "folder of the run whose scores are distilled, such as one of mmca"] = ""
    teacher_temperature: Annotated[
        float, "divisor of the teacher's scores; a smaller one stresses its first candidates", (0.0001, 100)
    ] = 0.05
    texts: Annotated[str, "text file of further texts, also .gz, one per line, whose scores are distilled too"] = ""

    @property
    def teachers(self) -> dict[str, str]:
        """The run whose scores are distilled."""
        return {"distillation.teacher": self.teacher} if self.teacher else {}

    def build(self, context: TermContext) -> Objective:
        """Return the divergence from the teacher."""
        from calligram.recipes.parts.run import load_teacher
        from calligram.training.objectives.distillation import DistillationObjective

        if not self.teacher:
            raise UserError("the term distillation needs a teacher: give distillation.teacher= with a run folder")
        pixels = None if context.towers is None else context.towers.inputs.images
        teacher = context.share("teacher", lambda: [load_teacher(self.teacher, context.train, context.run, pixels)])
        return DistillationObjective(teacher[0], self.teacher_temperature)


TERMS = TermCatalog(
    {
        "ranking": f"{__name__}:Ranking",
        "infonce": f"{__name__}:InfoNCE",
        "instance": f"{__name__}:Instance",
        "offline": f"{__name__}:Offline",
        "neighbourhood": f"{__name__}:Neighbourhood",
        "logistic": f"{__name__}:Logistic",
        "caption": f"{__name__}:Caption",
        "distillation": f"{__name__}:Distillation",
        "adversarial": "calligram.recipes.parts.pseudo_pairs:Adversarial",
    },
    "calligram.terms",
)
"""all terms, by the name in ``terms=``"""


def __getattr__(name: str) -> Any:
    """Import the adversarial term on use: its module needs this one, and most runs do not need it."""
    if name == "Adversarial":
        return TERMS["adversarial"]
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List the names of this module for completion."""
    return sorted({*globals(), "Adversarial"})
