"""Devices by name, random seeds, attention without cuDNN, and compilation that does not change results."""

from __future__ import annotations

import functools
import logging
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import transformers

from calligram import device as switches
from calligram.device import (
    IndependentDropout,
    compile_if_enabled,
    device_named,
    half_networks_on,
    half_precision,
    kernel_states,
    seed_random_numbers,
    use_compile,
    use_half_networks,
    use_independent_dropout,
    use_kernels,
    without_cudnn_attention,
)
from calligram.errors import UserError
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.mmca import MMCA, MMCASettings


@pytest.mark.parametrize("seed", [0, 7, 2**62 + 3])
def test_seeded_draws_are_those_of_torch_manual_seed(seed):
    draws = []
    with torch.random.fork_rng([]):
        for seed_numbers in (torch.manual_seed, lambda seed: seed_random_numbers(seed, torch.device("cpu"))):
            torch.rand(3)
            seed_numbers(seed)
            draws.append([torch.rand(5), torch.randn(3), torch.randperm(9), torch.randint(9, (4,))])
        assert torch.initial_seed() == seed
    assert all(torch.equal(one, two) for one, two in zip(*draws, strict=True))


def test_seeding_queues_nothing_for_other_back_ends(monkeypatch):
    called = []
    for module in (torch.cuda, torch.xpu, torch.mtia):
        monkeypatch.setattr(module, "_lazy_call", lambda *args, **kwargs: called.append(args))
    with torch.random.fork_rng([]):
        seed_random_numbers(1, torch.device("cpu"))
        assert not called
        torch.manual_seed(1)
    assert called  # the names of torch are those that are replaced above


@pytest.mark.parametrize(("device", "seeded"), [("cuda:1", [0, 5]), ("cuda", [5, 0])])
def test_the_generator_of_the_gpu_in_use_is_seeded(monkeypatch, device, seeded):
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    with torch.random.fork_rng([]):
        seed_random_numbers(5, torch.device(device))
        assert torch.initial_seed() == 5
    assert [generator.initial_seed() for generator in generators] == seeded


@pytest.mark.parametrize(
    ("rank", "name", "expected"),
    [
        ("0", "auto", "cuda:0"),
        ("1", "auto", "cuda:1"),
        ("1", "cuda", "cuda:1"),
        ("1", "cuda:0", "cuda:0"),
        ("1", "cpu", "cpu"),
    ],
)
def test_each_process_has_its_own_gpu(monkeypatch, rank, name, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", rank)
    assert device_named(name) == torch.device(expected)


@pytest.mark.parametrize(("rank", "name"), [("2", "auto"), ("0", "cuda:2")])
def test_a_gpu_that_is_not_there_is_refused(monkeypatch, rank, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(UserError, match="there is no GPU 2: torch finds 2, numbered from 0"):
        device_named(name)


def test_cudnn_attention_is_disabled_on_a_gpu_and_restored():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn_attention(SimpleNamespace(is_cuda=True)):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_on_a_cpu_nothing_changes():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn_attention(torch.zeros(1)):
        assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_half_networks_are_of_one_thread():
    inside, leave = threading.Event(), threading.Event()

    def work() -> bool:
        with use_half_networks():
            inside.set()
            leave.wait(60)
        return half_networks_on()

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        inside.wait(60)
        with use_half_networks(False):
            leave.set()
            assert not working.result()
            assert not half_networks_on()
    assert not half_networks_on()


def test_half_precision_needs_a_fast_device_and_is_off_where_kernels_are_off(monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *half: half)
    monkeypatch.setattr(switches, "has_fast_bfloat16", {"cuda"}.__contains__)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    with use_half_networks() as block:
        assert isinstance(half_precision(cpu), nullcontext)
        assert not block.used
        assert half_precision(gpu) == ("cuda", torch.bfloat16)
        assert block.used
    with use_kernels(False), use_half_networks() as block:
        assert isinstance(half_precision(gpu), nullcontext)
        assert not block.used
    assert isinstance(half_precision(gpu), nullcontext)


@pytest.mark.parametrize(
    ("capabilities", "expected"), [({"amx_bf16": True}, True), ({"amx_bf16": False}, False), ({}, False)]
)
def test_a_cpu_has_fast_bfloat16_with_amx(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert switches.has_fast_bfloat16.__wrapped__("cpu") is expected


@pytest.fixture
def traced(monkeypatch):
    """Trace as the compiler does, without generating kernels, which takes a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


def sides(found, images, texts, words, seed):
    torch.manual_seed(seed)
    mask = torch.arange(words) < torch.randint(1, words + 1, (texts, 1))
    return found.encode_images(torch.randn(images, 3, 5)), found.encode_texts(torch.randn(texts, words, 7), mask)


@pytest.mark.parametrize("lower", [False, True])
def test_compiled_scores_and_gradients_of_mmca_are_the_same(lower, traced):
    torch.manual_seed(0)
    settings = MMCASettings(
        ImageArchitecture(feature_dim=5), TextArchitecture("states", state_dim=7), 16, heads=2, filters=4, alpha=0.7
    )
    found = MMCA(settings)
    limits = {"atol": 0.03, "rtol": 0.05} if lower else {}
    for sizes in ((3, 4, 6), (5, 7, 3)):
        scores = []
        for on in (False, True):
            with use_compile(on), torch.autocast("cpu", torch.bfloat16, enabled=lower):
                images, texts = sides(found, *sizes, seed=1)
                whole = found.score(images, texts)
                pairs = found.score_pairs(images, texts.rows(slice(sizes[0])))
            found.zero_grad()
            (whole.square().sum() + pairs.sum()).backward()
            scores.append((whole, pairs, *(p.grad.clone() for p in found.parameters())))
        for one, two in zip(*scores, strict=True):
            torch.testing.assert_close(one, two, **limits)


def test_a_function_that_cannot_be_compiled_runs_anyway_and_is_logged_once(monkeypatch, caplog, traced):
    def broken(function):
        def called(*args):
            raise RuntimeError("no compiler")

        return called

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(switches, "_KERNEL_STATES", {})
    twice = compile_if_enabled(1)(lambda x: 2 * x)
    with use_compile(), caplog.at_level(logging.INFO):
        assert [twice(torch.ones(2)).tolist() for _ in range(2)] == [[2, 2]] * 2
    (record,) = caplog.records
    expected = "<lambda> cannot be compiled and runs without compilation: no compiler (test_device.py, line "
    assert record.message.startswith(expected)
    ((name, state),) = kernel_states().items()
    assert name == "compiled <lambda>"
    assert state.startswith("plain: no compiler (test_device.py")


def test_errors_of_a_compiled_function_are_raised(traced):
    def wrong(x):
        raise ValueError("of its own")

    with use_compile(), pytest.raises(ValueError, match="of its own"):
        compile_if_enabled(1)(wrong)(torch.ones(2))


def test_dropout_of_all_modules_becomes_independent_and_stays_the_same_otherwise():
    shape = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    bert = transformers.BertModel(transformers.BertConfig(**shape, intermediate_size=16))
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.ModuleList([bert]))
    before, names = [part.p for part in dropouts(network)], list(network.state_dict())
    use_independent_dropout(network)
    assert all(type(part) is IndependentDropout for part in dropouts(network))
    assert len(before) > 2
    assert [part.p for part in dropouts(network)] == before
    assert list(network.state_dict()) == names
    given = torch.randn(50, 4, dtype=torch.bfloat16)
    masks = []
    for dropout in (network[1], torch.nn.Dropout(0.5)):
        torch.manual_seed(0)
        masks.append(dropout(given.float()))
    torch.testing.assert_close(*masks, rtol=0, atol=0)
    torch.manual_seed(0)
    torch.testing.assert_close(network[1](given), masks[0].bfloat16(), rtol=0, atol=0)
    assert network.eval()[1](given) is given


def dropouts(network):
    return [part for part in network.modules() if isinstance(part, torch.nn.Dropout)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="masks of PyTorch depend on each other on a GPU only")
def test_masks_of_one_dropout_after_the_other_are_independent_in_half_precision():
    """The second half of eight entries of a mask would be the first half in the next mask."""
    ones = torch.ones(128, 2048, dtype=torch.bfloat16, device="cuda")
    agreement = {}
    for kind in (torch.nn.Dropout, IndependentDropout):
        first, second = (kind(0.5)(ones).view(-1, 8) != 0 for _ in range(2))
        agreement[kind] = float((first[:, 4:] == second[:, :4]).float().mean())
    print(agreement)
    assert agreement[IndependentDropout] == pytest.approx(0.5, abs=0.01)


def test_the_commit_is_that_of_the_package_and_not_of_other_files_of_its_checkout(tmp_path, monkeypatch):
    package = tmp_path / "src" / "calligram"
    package.mkdir(parents=True)
    (package / "device.py").write_text("")
    (tmp_path / "results.jsonl").write_text("")
    monkeypatch.setattr(switches, "COMMIT_FILE", package / "COMMIT")
    monkeypatch.setattr(switches, "__file__", str(package / "device.py"))

    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(["git", *names, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    assert switches.commit() == "unknown"  # the checkout around it is of something else
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    clean = git("rev-parse", "--short=10", "HEAD").strip()
    (tmp_path / "results.jsonl").write_text("a result")
    assert switches.commit() == clean
    (package / "new.py").write_text("")
    assert switches.commit() == f"{clean}-dirty"
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))  # as in a hook of another repository
    assert switches.commit() == f"{clean}-dirty"
    monkeypatch.delenv("GIT_DIR")
    shutil.copytree(package, tmp_path / "venv" / "calligram")
    git("add", "--all")
    git("commit", "--quiet", "-m", "a project with its virtual environment")
    with monkeypatch.context() as installed:
        installed.setattr(switches, "COMMIT_FILE", tmp_path / "venv" / "calligram" / "COMMIT")
        assert switches.commit() == "unknown"
    (package / "COMMIT").write_text("0123456789\n")
    assert switches.commit() == "0123456789"
