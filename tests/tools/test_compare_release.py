"""The comparison with the authors' code, on a stand-in for it: nothing is run unless it is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import compare_release

CODE = '''
import pathlib, torch
pathlib.Path(__file__).with_name("ran").write_text("")

def score(cosines, tau=0.02):
    """c = 2, written out: the mean of two resets."""
    total = []
    for row in cosines:
        order = row.argsort(descending=True)
        e0 = -torch.log((row / tau).exp().sum())
        e1 = 0
        for k in order[:2]:
            changed = row.clone()
            changed[k] = 0
            e1 = e1 - torch.log((changed / tau).exp().sum()) / 2
        total.append(-3 * (e1 - e0) + 1)
    return torch.stack(total)

def loss(images, texts):
    kept = images * texts[(images @ texts.T).argmax(1)]
    mask = torch.zeros_like(kept)
    for i, row in enumerate(kept):
        mask[i, row.argsort(descending=True)[: int(-(-0.5 * len(row) // 1))]] = 1
    energy = lambda z: -torch.logsumexp(z @ texts.T, dim=1)
    return (energy(images * mask) - energy(images)).mean().exp()
'''


@pytest.fixture
def release(tmp_path: Path) -> Path:
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "ebm.py").write_text(CODE)
    (tmp_path / "run.sh").write_text("python eval.py --tau 0.01\n# neg_label pool of table 7\n")
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call the tool with arguments; what it printed."""

    def call(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["compare_release.py", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        compare_release.main()
        return capsys.readouterr().out

    return call


def test_it_prints_the_lines_that_may_answer_and_runs_nothing(release: Path, run: Callable[..., str]) -> None:
    printed = run(release)
    for line in ("run.sh:1: python eval.py --tau 0.01", "run.sh:2:", "trainers/ebm.py"):
        assert line in printed
    assert printed.count("== ") == 3
    assert not (release / "trainers" / "ran").exists()


def test_it_says_which_of_our_settings_gives_the_same_numbers(release: Path, run: Callable[..., str]) -> None:
    printed = run(release, "--score", "trainers/ebm.py:score", "--loss", "trainers/ebm.py:loss")
    _, answers = printed.split("== trainers/ebm.py:score\n")
    score, loss = answers.split("== trainers/ebm.py:loss\n")
    assert score.split() == ["delta-energy(tau=0.02,c=2)"]
    assert loss.strip() == "ebm(p=0.5,loss_tau=1), exp(mean)"


@pytest.mark.parametrize("place", ["trainers/ebm.py", "trainers/none.py:score", "trainers/ebm.py:scores"])
def test_a_wrong_place_is_named(release: Path, run: Callable[..., str], place: str) -> None:
    with pytest.raises(SystemExit, match=place.partition(":")[0]):
        run(release, "--score", place)


def test_a_missing_folder_is_named(tmp_path: Path, run: Callable[..., str]) -> None:
    with pytest.raises(SystemExit, match="nothing"):
        run(tmp_path / "nothing")
