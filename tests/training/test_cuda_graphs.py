"""Replays of CUDA graphs equal normal steps; on a CPU, with a stand-in that runs the step again. A trial finds the
fastest way to take steps."""

from __future__ import annotations

import gc
import logging
from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from calligram import device as switches
from calligram.device import use_compile, use_cuda_graphs
from calligram.models import mmca
from calligram.models.layers import towers
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import EmbeddingMatcher, Encoded
from calligram.models.mmca import MMCA, MMCASettings
from calligram.recipes.parts.run import train_preset
from calligram.training import cuda_graphs, loop, speed_trial
from calligram.training.batches import batch
from calligram.training.batches.batch import Batch
from calligram.training.objectives import caption
from calligram.training.objectives.candidates import RetrieveRerankObjective
from calligram.training.objectives.distillation import DistillationObjective, Teacher
from calligram.training.objectives.instance import InstanceObjective
from calligram.training.objectives.objective import InfoNCEObjective, JointObjective, RankingObjective
from calligram.training.runs import Run

HERE = "cuda" if torch.cuda.is_available() else "cpu"
on_cuda = pytest.mark.skipif(HERE != "cuda", reason="CUDA graphs need a GPU")


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


@pytest.fixture
def stepped(monkeypatch):
    """Lets the CPU use the stand-in."""
    monkeypatch.setattr(switches, "GRAPH_DEVICE_TYPE", "cpu")
    monkeypatch.setattr(cuda_graphs, "GRAPH_DEVICE_TYPE", "cpu")
    monkeypatch.setattr(cuda_graphs, "capture", Again)
    monkeypatch.setattr(mmca, "MAX_STACKED_ITEMS", 0)
    monkeypatch.setattr(Again, "made", 0)


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


def same(one, two, **limits):
    torch.testing.assert_close(one[0], two[0], check_dtype=False, **limits)
    alike(one[1], two[1], **limits)


def alike(one, two, **limits):
    for left, right in zip(one, two, strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            torch.testing.assert_close(left, right, **limits)


def about_alike(one, two):
    """Equal within eight bits, and for sums in another order."""
    for left, right in zip(one, two, strict=True):
        assert float((left - right).norm()) <= 0.05 * float(right.norm()) + 1e-3


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_shape_is_captured_when_it_repeats(objective):
    found = Trained(objective)
    for words, seed, kept in ((6, 1, 0), (6, 2, 1), (8, 3, 1), (5, 4, 1), (9, 5, 1), (12, 6, 2), (5, 7, 2), (4, 8, 2)):
        same(found.step(True, words=words, seed=seed), found.step(False, words=words, seed=seed))
        assert found.recorded == kept, words
    found.step(True, texts=3)
    found.step(True, texts=3)
    assert found.recorded == Again.made == 3


@pytest.mark.usefixtures("stepped")
def test_random_numbers_equal_those_without_graphs():
    found = Trained()
    for seed in (1, 2, 3):
        same(found.step(True, words=8, seed=seed), found.step(False, words=8, seed=seed))
    assert found.recorded == 1
    found = Trained()
    before = found.step(True, words=6)
    assert found.recorded == 0
    same(before, found.step(True, words=6))
    assert found.recorded == 1


@pytest.mark.usefixtures("stepped")
def test_gradients_of_several_replays_accumulate():
    found, sums = Trained(), []
    found.step(True, words=8)
    for on in (False, True):
        for p in found.learning():
            p.grad = None
        for seed in (1, 2, 3):
            found.loss(on, words=8, seed=seed)[1].backward()
        sums.append([p.grad.clone() for p in found.learning()])
    alike(*sums)
    assert found.recorded == 1


@pytest.mark.usefixtures("stepped")
def test_calls_between_a_replay_and_its_backward_pass_run_without_graphs():
    found, sums = Trained(), []
    found.step(True, words=8)
    found.step(True, words=8)
    turns = cuda_graphs._GRAPHS[found.objective]
    for on in (False, True):
        before = turns.replays
        one, two = (found.loss(on, words=8, seed=seed)[1] for seed in (1, 2))
        assert turns.replays - before == on
        for p in found.learning():
            p.grad = None
        (one + 2 * two).backward()
        sums.append([p.grad.clone() for p in found.learning()])
    alike(*sums)
    left = found.loss(True, words=8)  # its backward pass never runs
    before = turns.replays
    del left
    gc.collect()
    found.loss(True, words=8)
    assert turns.replays == before + 1


@pytest.mark.usefixtures("stepped")
def test_a_late_backward_pass_is_refused():
    found = Trained()
    found.step(True)
    old = found.loss(True)[1]
    old.backward(retain_graph=True)
    new = found.loss(True)[1]
    with pytest.raises(RuntimeError, match="not possible with CUDA graphs; use speed=plain"):
        old.backward()
    new.backward()


@pytest.mark.usefixtures("stepped")
def test_moved_or_frozen_parameters_are_captured_again():
    found = Trained()
    found.step(True, words=8)
    found.step(True, words=8)
    found.matcher.load_state_dict({k: v + 0.1 for k, v in found.matcher.state_dict().items()})
    same(found.step(True, words=8), found.step(False, words=8))
    assert (found.recorded, Again.made) == (1, 1)
    weight = found.matcher.pairs.unit.query.weight
    weight.data = weight.data.clone()
    same(found.step(True, words=8), found.step(False, words=8))
    assert (found.recorded, Again.made) == (1, 2)
    weight.requires_grad_(False)
    same(found.step(True, words=8), found.step(False, words=8))
    assert (found.recorded, Again.made) == (1, 3)
    assert deepcopy(found.objective) not in cuda_graphs._GRAPHS


@pytest.mark.usefixtures("stepped")
def test_unused_parameters_have_no_gradient():
    found = Trained(alpha=0.0)
    found.step(True, words=8)
    same(found.step(True, words=8), found.step(False, words=8))
    assert found.recorded == 1
    assert found.matcher.pairs.unit.query.weight.grad is None


@pytest.mark.usefixtures("stepped")
def test_no_graph_is_captured_without_gradients_or_for_unsafe_objectives_or_too_many_shapes(monkeypatch):
    found = Trained()
    with torch.no_grad():
        found.loss(True)
    assert found.recorded is None
    for objective in (
        RankingObjective(0.2),
        RankingObjective(0.2, 1, draw=True),
        RetrieveRerankObjective(InfoNCEObjective(), 2),
    ):
        found.objective = objective
        found.step(True)
        assert found.recorded is None
    found.objective = RankingObjective(0.2, 1)
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 1)
    for texts in (3, 3, 4, 4):
        same(found.step(True, texts=texts, words=8), found.step(False, texts=texts, words=8))
    assert found.recorded == 1


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize("where", ["__init__", "forward"])
def test_a_failed_capture_or_replay_runs_without_graphs_and_is_logged_once(monkeypatch, caplog, where):
    def broken(*_):
        try:
            raise torch.OutOfMemoryError("no room")
        except torch.OutOfMemoryError:
            raise RuntimeError("the capture failed")  # noqa: B904  as torch does at the end of a capture

    monkeypatch.setattr(Again, where, broken)
    found = Trained()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            same(found.step(True, words=8), found.step(False, words=8))
    (record,) = caplog.records
    expected = "RankingObjective cannot use CUDA graphs and runs without them: no room (test_cuda_graphs.py, line "
    assert record.message.startswith(expected)
    assert found.recorded == 0


def test_words_are_padded_to_a_multiple_of_four_and_vectors_are_not():
    mask = torch.tensor([[True, True, True], [True, False, False]])
    ids, padded = cuda_graphs.pad_words(torch.tensor([[5, 6, 7], [8, 0, 0]]), mask)
    assert ids.tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert padded.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert cuda_graphs.pad_words(torch.ones(2, 3, 5), mask)[0].shape == (2, 4, 5)
    vectors, one = torch.ones(2, 6), torch.ones(2, 1, dtype=torch.bool)
    assert cuda_graphs.pad_words(vectors, one) == (vectors, one)


class Clock:
    """Time that passes in steps of a trial: each way has its own."""

    def __init__(self, monkeypatch, **seconds):
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr(speed_trial.time, "perf_counter", lambda: self.now)

    def run(self, trial, steps, work=lambda: None):
        ways = []
        for _ in range(steps):
            with trial.step():
                way = speed_trial.Way(switches._GRAPHS.on, switches._COMPILE.on)
                work()
                self.now += self.seconds[way.name.replace(" and ", "_")]
                ways.append(way.name)
        return ways


def trial_of(owner, steps, *, graphs=True):
    reports = []
    return speed_trial.SpeedTrial(owner, steps, torch.device("cpu"), graphs=graphs, report=reports.append), reports


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize(("seconds", "chosen"), [(0.02, "graphs"), (0.08, "plain")])
def test_a_trial_selects_graphs_where_they_are_faster(monkeypatch, seconds, chosen):
    found, clock = Trained(), Clock(monkeypatch, plain=0.04, graphs=seconds)
    trial, reports = trial_of(found.objective, 1000)

    def work():
        torch.autograd.backward(sum(found.objective(found.matcher, found.batch()).values()))

    ways = clock.run(trial, 40, work)
    assert ways[:13] == ["plain"] * 13
    assert ways[13:26] == ["graphs"] * 13
    assert set(ways[26:]) == {chosen}
    assert reports == [{"chosen": chosen, "milliseconds": {"plain": 40.0, "graphs": 1000.0 * seconds}}]
    assert not switches._GRAPHS.on


@pytest.mark.parametrize(("share", "tried"), [(0.05, True), (0.2, False)])
def test_a_trial_tries_graphs_where_they_keep_little_memory(monkeypatch, share, tried):
    monkeypatch.setattr(speed_trial.SpeedTrial, "_memory_share", lambda trial: share)
    trial, _ = trial_of(torch.nn.Linear(1, 1), 1000)
    assert ("graphs" in Clock(monkeypatch, plain=0.2, graphs=0.01).run(trial, 100)) == tried


@pytest.mark.parametrize(
    ("steps", "graphs", "step_seconds"),
    [(1000, False, 0.04), (100, True, 0.01), (5, True, 100.0), (13, True, 100.0)],
)
def test_a_trial_tries_nothing_where_it_cannot_pay(monkeypatch, steps, graphs, step_seconds):
    clock = Clock(monkeypatch, plain=step_seconds)
    trial, reports = trial_of(torch.nn.Linear(1, 1), steps, graphs=graphs)
    assert set(clock.run(trial, steps)) == {"plain"}
    assert [report["chosen"] for report in reports] == ["plain"]


def test_a_trial_gives_up_graphs_of_shapes_that_do_not_repeat(monkeypatch):
    clock = Clock(monkeypatch, plain=0.04, graphs=0.01)
    trial, reports = trial_of(torch.nn.Linear(1, 1), 1000)
    ways = clock.run(trial, 200)
    assert ways.count("graphs") == speed_trial.MAX_TRIAL_STEPS
    assert ways[-1] == "plain"
    assert reports == [{"chosen": "plain", "milliseconds": {"plain": 40.0}}]


def test_a_trial_gives_up_graphs_at_once_where_a_capture_fails(monkeypatch):
    def broken(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "capture", broken)
    monkeypatch.setattr(switches, "GRAPH_DEVICE_TYPE", "cpu")
    found, clock = Trained(), Clock(monkeypatch, plain=0.04, graphs=0.01)
    trial, reports = trial_of(found.objective, 1000)
    ways = clock.run(trial, 40, lambda: found.objective(found.matcher, found.batch()))
    assert ways.count("graphs") == cuda_graphs.CAPTURE_AT_COUNT
    assert reports == [{"chosen": "plain", "milliseconds": {"plain": 40.0}}]


@pytest.mark.parametrize(
    ("asked", "steps", "tried"),
    [([60], 2000, True), ([], 2000, False), ([60], 200, False), ([20], 200, True), ([20, 60, 20], 200, False)],
)
def test_a_trial_compiles_long_stages_with_anything_to_compile(monkeypatch, asked, steps, tried):
    clock = Clock(monkeypatch, plain=1.0, compiled=0.5)
    trial, reports = trial_of(torch.nn.Linear(1, 1), steps, graphs=False)
    ways = clock.run(trial, 100, lambda: [switches.compile_enabled(seconds) for seconds in asked])
    assert ways[-1] == reports[0]["chosen"] == ("compiled" if tried else "plain")


OFFLINE = ["matcher=vsrn", "terms=ranking,offline", "offline.texts=4", "offline.images=3", "vsrn.norm=features"]


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize(
    ("preset", "changes"), [("vse", ["warmup_epochs=6"]), ("aoq", ["warmup_epochs=0", "epochs=3", *OFFLINE])]
)
def test_a_run_records_the_chosen_way_and_takes_the_same_steps_as_a_plain_run(
    tiny, tmp_path, monkeypatch, preset, changes
):
    for module in (loop, batch, caption, towers):
        monkeypatch.setattr(module, "GRAPH_DEVICE_TYPE", "cpu")
    monkeypatch.setattr("calligram.recipes.parts.run.device_named", lambda: torch.device("cpu"))  # also beside a GPU
    for name, value in {"GRAPH_MIN_SECONDS": 0.0, "WARMUP_STEPS": 1, "TIMED_STEPS": 3}.items():
        monkeypatch.setattr(speed_trial, name, value)
    settings = ["image.size=16", "image.channels=4,8", "dim=8", "text.word_dim=4", "text.hidden=8", "text.dropout=0.2"]
    settings += ["epochs=6", "batch=4", "texts=1", "epoch_of=pairs", *changes]
    weights = {}
    for speed in ("auto", "plain"):
        train_preset(preset, tiny, tmp_path / speed, *settings, f"speed={speed}")
        weights[speed] = load_file(tmp_path / speed / "best.safetensors")
    recorded = {speed: Run(tmp_path / speed).about.get("speed") for speed in weights}
    assert recorded["plain"] is None
    assert list(recorded["auto"]) == list(dict.fromkeys(row["stage"] for row in Run(tmp_path / "auto").metrics()))
    for found in recorded["auto"].values():
        assert set(found["milliseconds"]) == {"plain", "graphs"}
        assert found["chosen"] == min(found["milliseconds"], key=found["milliseconds"].get)
    torch.testing.assert_close(weights["auto"], weights["plain"], atol=1e-4, rtol=1e-3)
    assert Again.made


def test_capture_does_not_change_running_statistics():
    norm = torch.nn.BatchNorm1d(3)
    with cuda_graphs.preserve_state(list(norm.buffers())):
        norm(torch.randn(8, 3))
    assert norm.running_mean.tolist() == [0.0] * 3
    assert norm.num_batches_tracked == 0


@on_cuda
@pytest.mark.parametrize("objective", ["hardest", "staged"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_cuda_graphs_give_the_same_terms_and_gradients(lower, compiled, objective, caplog):
    found, kept = Trained(objective, "cuda", dim=64, lower=lower), []
    with caplog.at_level(logging.INFO, "calligram"), use_compile(compiled):
        for turn, words in enumerate((8, 8, 12, 12, 8, 12, 8)):
            kept.append(found.loss(False, words=words))  # an older step that still exists must not block a replay
            one, two = (found.step(on, words=words, seed=turn) for on in (True, False))
            if lower:
                torch.testing.assert_close(one[0], two[0], atol=0.03, rtol=0.05, check_dtype=False)
                about_alike(one[1], two[1])
            else:
                same(one, two, atol=1e-4, rtol=1e-3)
            with torch.no_grad():
                for p in found.matcher.parameters():
                    p += 0.01 * torch.randn_like(p)
    assert found.recorded == 2
    assert not caplog.records


@on_cuda
def test_random_numbers_continue_after_a_failed_capture():
    found = Trained(device="cuda")
    found.step(True, words=8)
    with pytest.MonkeyPatch.context() as patch:
        whole = found.objective.terms
        patch.setattr(found.objective, "terms", lambda *a: {k: v + v.item() for k, v in whole(*a).items()})
        found.step(True, words=8)
    assert found.recorded == 0
    assert torch.rand(3, device="cuda").unique().numel() == 3
    found.step(True, words=8)


@on_cuda
def test_gradients_of_cuda_graphs_accumulate_over_steps():
    found, sums = Trained(device="cuda"), []
    for seed in (1, 2):
        found.step(True, seed=seed, words=8)
    for on in (False, True):
        for p in found.learning():
            p.grad = None
        for seed in (1, 2, 3):
            found.loss(on, seed=seed, words=8)[1].backward()
        sums.append([p.grad.clone() for p in found.learning()])
    alike(*sums, atol=1e-4, rtol=1e-3)
