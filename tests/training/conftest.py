"""A small MMCA with its objectives, and a stand-in for captured CUDA graphs, for steps with and without graphs."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calligram import device as switches
from calligram.device import use_cuda_graphs
from calligram.models import mmca
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import EmbeddingMatcher, Encoded
from calligram.models.mmca import MMCA, MMCASettings
from calligram.training import cuda_graphs
from calligram.training.batches.batch import Batch
from calligram.training.objectives.candidates import RetrieveRerankObjective
from calligram.training.objectives.distillation import DistillationObjective, Teacher
from calligram.training.objectives.instance import InstanceObjective
from calligram.training.objectives.objective import InfoNCEObjective, JointObjective, RankingObjective


class WaitingRefused(TorchDispatchMode):
    """Raises an error where a capture fails: an operation waits for the device, or copies numbers of the host to it."""

    waits = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        lengths = name == "repeat_interleave" and isinstance(args[0], torch.Tensor)
        by_mask = name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        copied = name == "lift_fresh" and args[0].ndim > 0  # a single number is an argument of a kernel
        if name in self.waits or lengths or by_mask or copied:
            raise RuntimeError(f"{name} cannot be captured")
        return func(*args, **(kwargs or {}))


class Again:
    """A stand-in for a captured graph: runs the step again with the same input and output memory."""

    made = 0

    def __init__(self, used, inputs, graphs):
        Again.made += 1
        self.used, self.inputs, self.parameters = used, inputs, list(used.parameters())

    def forward(self):
        with torch.enable_grad(), WaitingRefused():
            self.found = self.used(*self.inputs)
        return self.found.detach()

    def backward(self, gradient):
        learning = [p for p in self.parameters if p.requires_grad]
        with WaitingRefused():
            found = iter(torch.autograd.grad(self.found, learning, gradient, allow_unused=True))
        return [next(found) if p.requires_grad else None for p in self.parameters]


LABELS = torch.tensor([0, 1, 2, -1])


def distilled():
    torch.manual_seed(5)
    return DistillationObjective(Teacher(EmbeddingMatcher(), Encoded(torch.randn(4, 3)), Encoded(torch.randn(4, 3))))


OBJECTIVES = {
    "instance": lambda: JointObjective((1.0, InstanceObjective(16, 4, dropout=0.3)), (0.5, InfoNCEObjective())),
    "distilled": distilled,
    "hardest": lambda: RankingObjective(0.2, 1),
    "infonce": InfoNCEObjective,
    "both": lambda: JointObjective((1.0, RankingObjective(0.2, 1)), (0.5, InfoNCEObjective())),
    "staged": lambda: RetrieveRerankObjective(InfoNCEObjective(), first_stage=0.3),
}


class Trained:
    """A matcher, its objective and a batch."""

    def __init__(self, objective="hardest", device="cpu", dim=16, alpha=0.7, lower=False):
        torch.manual_seed(0)
        text = TextArchitecture("states", dropout=0.2, state_dim=7)
        settings = MMCASettings(ImageArchitecture(feature_dim=5), text, dim, heads=2, filters=4, alpha=alpha)
        self.device, self.lower, self.matcher = device, lower, MMCA(settings).to(device)
        self.objective = OBJECTIVES[objective]().to(device)

    def batch(self, images=4, texts=4, words=6, seed=1):
        torch.manual_seed(seed)
        mask = torch.arange(words) < torch.randint(1, words + 1, (texts, 1))
        features, states = torch.randn(images, 3, 5), torch.randn(texts, words, 7)
        features[0, -1] = 0
        target = torch.full((images, texts), -1)
        target[torch.arange(images), torch.arange(images) % texts] = 1
        groups = torch.arange(images), LABELS[:texts]
        rows = {"image_rows": torch.arange(images), "text_rows": torch.arange(texts)}
        return Batch(
            features, *cuda_graphs.pad_words(states, mask), target, target.T.contiguous(), *groups, **rows
        ).map_tensors(lambda t: t.to(self.device))

    def loss(self, on, seed=1, **sizes):
        batch = self.batch(seed=seed, **sizes)
        torch.manual_seed(seed)
        # One block per step, as in training: autocast keeps converted weights until it is left.
        with use_cuda_graphs(on), torch.autocast(self.device, torch.bfloat16, enabled=self.lower):
            terms = self.objective(self.matcher, batch)
        return terms, sum(terms.values())

    def learning(self):
        return [*self.matcher.parameters(), *self.objective.parameters()]

    def step(self, on, **sizes):
        """Terms, spread of the vectors, and gradients of all parameters."""
        terms, loss = self.loss(on, **sizes)
        for p in self.learning():
            p.grad = None
        loss.backward()
        spread = self.objective.spread
        found = {name: term.detach() for name, term in terms.items()} | {"i": spread.images, "t": spread.texts}
        found |= self.objective.measures
        return found, [None if p.grad is None else p.grad.clone() for p in self.learning()]

    @property
    def recorded(self):
        return len(cuda_graphs._GRAPHS[self.objective]) if self.objective in cuda_graphs._GRAPHS else None


@pytest.fixture
def stepped(monkeypatch):
    """Lets the CPU use the stand-in."""
    monkeypatch.setattr(switches, "GRAPH_DEVICE_TYPE", "cpu")
    monkeypatch.setattr(cuda_graphs, "GRAPH_DEVICE_TYPE", "cpu")
    monkeypatch.setattr(cuda_graphs, "capture", Again)
    monkeypatch.setattr(mmca, "MAX_STACKED_ITEMS", 0)
    monkeypatch.setattr(Again, "made", 0)


@pytest.fixture
def again():
    """The stand-in, which counts how many of it were made."""
    return Again


@pytest.fixture
def trained():
    """Builds a matcher, its objective and batches."""
    return Trained
