"""clipn: the score against NumPy, the losses by hand, training end to end on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import roc_auc_score

from deltaenergy import Detector, Model, ZeroShotClassifier, load_model, make_score
from deltaenergy.cli.main import run
from deltaenergy.data.formats.table import read_columns
from deltaenergy.errors import ArtifactError, DeltaEnergyError, InputError
from deltaenergy.files.artifact import sealed
from deltaenergy.scores import clipn
from deltaenergy.scores.availability import Given, chosen_scores
from deltaenergy.scores.clipn.tower import NoTower
from deltaenergy.scores.clipn.training import NoRecipe, Pairs, encode_pairs, train_no_tower, yes_no_losses
from tests.checkpoints import write_clip
from tests.scores.reference import probabilities

# The tower learns from pictures of all these colours; a classifier is then told of the first four alone.
COLOURS = {
    "red": (200, 30, 30),
    "blue": (30, 30, 200),
    "green": (30, 180, 30),
    "white": (230, 230, 230),
    "yellow": (240, 220, 0),
    "purple": (120, 0, 140),
    "black": (20, 20, 20),
    "cyan": (0, 200, 200),
}
CLASSES = list(COLOURS)[:4]


def pictures(colour: tuple[int, int, int], count: int, seed: int) -> list[Image.Image]:
    """Noisy pictures of one colour."""
    rng = np.random.default_rng(seed)
    noisy = rng.normal(np.array(colour), 25, (count, 32, 32, 3)).clip(0, 255).astype(np.uint8)
    return [Image.fromarray(pixels) for pixels in noisy]


def table_of(folder: Path, per_colour: int = 12) -> Path:
    """A CSV table of coloured pictures with captions."""
    folder.mkdir(parents=True)
    lines = ["path,caption"]
    for number, (name, colour) in enumerate(COLOURS.items()):
        for i, picture in enumerate(pictures(colour, per_colour, seed=number)):
            picture.save(folder / f"{name}{i}.png")
            lines.append(f"{name}{i}.png,a photo of a {name} car")
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    return folder / "pairs.csv"


@pytest.fixture(scope="module")
def colour_clip(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny CLIP that knows colours: its text projection is solved for so that captions point to their pictures."""
    from transformers import CLIPModel

    folder = write_clip(tmp_path_factory.mktemp("checkpoints") / "colour-clip")
    model = load_model(folder)
    centres = np.stack([model.encode_images(pictures(colour, 20, 70)).mean(axis=0) for colour in COLOURS.values()])
    rows = [model.text.tokenize([f"a photo of a {name} car"])[0] for name in COLOURS]
    module = CLIPModel.from_pretrained(folder)
    with torch.no_grad():
        states = [module.text_model(input_ids=torch.tensor([row])).last_hidden_state[0, -1] for row in rows]
        wanted = torch.from_numpy(centres - centres.mean(axis=0))
        module.text_projection.weight.copy_(torch.linalg.lstsq(torch.stack(states), wanted).solution.T)
    module.save_pretrained(folder)
    return load_model(folder)


@pytest.fixture(scope="module")
def pairs(colour_clip: Model) -> Pairs:
    images = [picture for n, colour in enumerate(COLOURS.values()) for picture in pictures(colour, 12, n)]
    return encode_pairs(colour_clip, images, [f"a photo of a {name} car" for name in COLOURS for _ in range(12)])


RECIPE = NoRecipe(epochs=20, batch_size=16, learning_rate=3e-3, prompts=4, seed=1)


@pytest.fixture(scope="module")
def no_tower(colour_clip: Model, pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("no") / "tower"
    train_no_tower(colour_clip, pairs, folder, RECIPE)
    return folder


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 10), k=st.integers(1, 30), seed=st.integers(0, 2**31), scale=st.sampled_from([1.0, 100.0]))
def test_score_is_the_formula(n: int, k: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    yes, no = rng.uniform(-1, 1, (n, k)), rng.uniform(-1, 1, (n, k))
    q = 1 / (1 + np.exp(-scale * (yes - no)))
    atd = (probabilities(yes, 1 / scale) * q).sum(axis=1)
    ctw = q[np.arange(n), yes.argmax(axis=1)]
    np.testing.assert_allclose(clipn(yes, no, logit_scale=scale), atd, rtol=1e-9)
    np.testing.assert_allclose(clipn(yes, no, mode="ctw", logit_scale=scale), ctw, rtol=1e-9)
    tensors = torch.from_numpy(yes).float(), torch.from_numpy(no).float()
    np.testing.assert_allclose(clipn(*tensors, logit_scale=scale).numpy(), atd, rtol=1e-4, atol=1e-6)


def test_score_of_a_case_worked_by_hand() -> None:
    # softmax(0, ln 3) = (¼, ¾); σ(0) = ½ and σ(ln 3) = ¾: ¼·½ + ¾·¾ = 0.6875, and ¾ for the top class.
    yes, no = np.array([[0.0, np.log(3)]]), np.array([[0.0, 0.0]])
    assert clipn(yes, no, logit_scale=1) == pytest.approx(0.6875)
    assert clipn(yes, no, mode="ctw", logit_scale=1) == pytest.approx(0.75)


def test_losses_of_a_case_worked_by_hand() -> None:
    """Two pairs along the axes; n is −t for the first text and t for the second."""
    images = torch.eye(2, dtype=torch.float64)
    yes = torch.eye(2, dtype=torch.float64)
    no = torch.tensor([[-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    # L z_i·(t_j − n_j) at L = 3: 6 at (1, 1), 0 elsewhere. ‖t − n‖ = 2 and 0.
    losses = yes_no_losses(images, yes, no, logit_scale=3.0)
    assert float(losses.itbo_yes) == pytest.approx((np.log1p(np.exp(-6)) + np.log(2)) / 2)
    assert float(losses.itbo_no) == pytest.approx(np.log(2))
    assert float(losses.tso) == pytest.approx(1.0)
    assert float(losses.total) == pytest.approx(float(losses.itbo_yes + losses.itbo_no + losses.tso) / 2)
    same_text = yes_no_losses(images, yes, no, 3.0, text_ids=torch.tensor([5, 5]))
    assert float(same_text.itbo_no) == 0.0


def test_losses_against_loops_in_numpy() -> None:
    rng = np.random.default_rng(0)
    z, t, n = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(3, 6, 5)))
    ids = [0, 1, 2, 1, 3, 0]
    matched, denied = [], []
    for i in range(6):
        for j in range(6):
            q = 1 / (1 + np.exp(-20 * (z[i] @ t[j] - z[i] @ n[j])))
            if i == j:
                matched.append(-np.log(q))
            elif ids[i] != ids[j]:
                denied.append(-np.log(1 - q))
    apart = [2 - np.sqrt(((t[j] - n[j]) ** 2).sum()) for j in range(6)]
    found = yes_no_losses(*map(torch.from_numpy, (z, t, n)), 20.0, torch.tensor(ids))
    np.testing.assert_allclose([float(part) for part in found], [np.mean(matched), np.mean(denied), np.mean(apart)])


def test_gradients_of_the_losses_by_finite_differences() -> None:
    rng = torch.Generator().manual_seed(0)
    z, t = (torch.nn.functional.normalize(torch.randn(4, 3, generator=rng).double(), dim=1) for _ in range(2))
    no = torch.randn(4, 3, generator=rng).double().requires_grad_(True)

    def total(raw: torch.Tensor) -> torch.Tensor:
        return yes_no_losses(z, t, torch.nn.functional.normalize(raw, dim=1), 10.0).total

    assert torch.autograd.gradcheck(total, (no,))


def test_a_fresh_tower_with_no_prompts_says_what_the_model_says(tiny_clip: Model) -> None:
    texts = ["a photo of a dog.", "cat", "the red car of a cat"]
    tower = NoTower(tiny_clip, torch.zeros(2, tiny_clip.text.width))
    expected = tiny_clip.encode_texts(texts)
    np.testing.assert_allclose(tower.text.encode(texts).detach().numpy(), expected, atol=1e-6)
    rows = tiny_clip.text.tokenize(texts)
    np.testing.assert_allclose(tower(rows, torch.tensor([0, 1, 1])).detach().numpy(), expected, atol=1e-6)


def test_prompts_are_added_to_every_token_and_averaged_afterwards(tiny_clip: Model) -> None:
    """Against transformers' own tower with changed embedding weights: adding to all tokens alike is the same."""
    tower = NoTower.start(tiny_clip, prompts=3, seed=5).eval()
    texts = ["a red car", "dog"]
    rows = tiny_clip.text.tokenize(texts)
    for drawn, added in [(torch.tensor([2, 2]), tower.prompts[2]), (None, tower.prompts.mean(dim=0))]:
        changed = NoTower(tiny_clip, torch.zeros(1, tiny_clip.text.width))
        with torch.no_grad():
            changed.transformer.embeddings.token_embedding.weight += added
            expected = changed(rows, torch.tensor([0, 0])).numpy()
            found = tower.text.encode(texts) if drawn is None else tower(rows, drawn)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
        assert np.abs(expected - tiny_clip.encode_texts(texts)).max() > 1e-4


def test_training_lowers_the_loss_and_the_score_separates(colour_clip: Model, no_tower: Path, tmp_path: Path) -> None:
    record = json.loads((no_tower / "no_tower.json").read_text())
    losses = [epoch["loss"] for epoch in record["losses"]]
    assert losses[-1] < 0.5 * losses[0]
    assert not (no_tower / ".deltaenergy-training").exists()
    known = [picture for n, colour in enumerate(COLOURS.values()) for picture in pictures(colour, 10, 50 + n)]
    known, unknown = known[:40], known[40:]
    classifier = ZeroShotClassifier(colour_clip, CLASSES, template="a photo of a {} car")
    before = colour_clip.text.encode(["a photo of a red car"]).clone()
    detector = Detector(classifier, make_score("clipn", no_tower=str(no_tower))).calibrate(known)
    scores = [verdict.score for verdict in detector.predict([*known, *unknown])]
    truth = [1] * len(known) + [0] * len(unknown)
    assert roc_auc_score(truth, scores) > 0.9
    for other in ("mcm", "max-logit"):
        verdicts = Detector(classifier, other).calibrate(known).predict([*known, *unknown])
        assert roc_auc_score(truth, [verdict.score for verdict in verdicts]) < roc_auc_score(truth, scores)
    torch.testing.assert_close(colour_clip.text.encode(["a photo of a red car"]), before)

    # Saved with the detector: the tower's own folder is not needed again.
    detector.save(tmp_path / "detector")
    saved = json.loads((tmp_path / "detector" / "detector.json").read_text())
    saved["score"]["params"]["no_tower"] = str(tmp_path / "gone")
    (tmp_path / "detector" / "detector.json").write_text(json.dumps(sealed(saved)))
    loaded = Detector.load(tmp_path / "detector", model=colour_clip)
    assert [verdict.score for verdict in loaded.predict([*known, *unknown])] == scores


def test_an_interrupted_run_goes_on_to_the_same_result(
    colour_clip: Model, pairs: Pairs, no_tower: Path, tmp_path: Path
) -> None:
    stop_after = 6 * 5  # six batches of 16 of 96 pairs in an epoch: in the sixth epoch

    def interrupt(done: int, total: int | None) -> None:
        assert total == 6 * RECIPE.epochs
        if done > stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_no_tower(colour_clip, pairs, tmp_path / "tower", RECIPE, progress=interrupt)
    other = NoRecipe(epochs=12, batch_size=16, learning_rate=1e-3, prompts=4, seed=1)
    with pytest.raises(ArtifactError, match="learning_rate"):
        train_no_tower(colour_clip, pairs, tmp_path / "tower", other)
    steps: list[int] = []
    train_no_tower(colour_clip, pairs, tmp_path / "tower", RECIPE, progress=lambda done, total: steps.append(done))
    assert steps[0] == stop_after + 1
    for folder in (no_tower, tmp_path / "tower"):
        assert (folder / "no_tower.safetensors").is_file()
    first, second = (
        NoTower.load(folder, colour_clip).class_features(CLASSES, ["a {}"]) for folder in (no_tower, tmp_path / "tower")
    )
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_ensembles_are_averaged_as_the_classifiers_are(colour_clip: Model, no_tower: Path) -> None:
    tower = NoTower.load(no_tower / "no_tower.safetensors", colour_clip)
    one, other = (tower.class_features(["dog"], [template]).numpy() for template in ("a {}", "the {} car"))
    mean = (one + other) / 2
    both = tower.class_features(["dog"], ["a {}", "the {} car"]).numpy()
    np.testing.assert_allclose(both, mean / np.linalg.norm(mean), atol=1e-6)


def test_without_a_tower_or_with_a_wrong_one(colour_clip: Model, no_tower: Path, tmp_path: Path) -> None:
    classifier = ZeroShotClassifier(colour_clip, ["dog", "cat"])
    with pytest.raises(InputError, match="train_no_tower"):
        make_score("clipn").bind(classifier)
    with pytest.raises(ArtifactError, match="does not exist"):
        make_score("clipn", no_tower=str(tmp_path / "nowhere")).bind(classifier)
    with pytest.raises(InputError, match="mode must be atd or ctw"):
        make_score("clipn(mode=adt)")
    with pytest.raises(InputError, match="of one shape"):
        clipn(np.zeros((2, 3)), np.zeros((2, 2)))
    other = load_model(write_clip(tmp_path / "other", seed=9))
    with pytest.raises(ArtifactError, match="belongs to"):
        NoTower.load(no_tower, other)
    wider = load_model(write_clip(tmp_path / "wider", text_width=32))
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "weights.safetensors").write_bytes((no_tower / "no_tower.safetensors").read_bytes())
    with pytest.raises(ArtifactError, match="does not fit the text"):
        NoTower.load(tmp_path / "alone" / "weights.safetensors", wider)


@pytest.mark.parametrize(
    ("images", "texts", "message"),
    [(3, ["a", "b"], "3 images but 2 texts"), (2, ["a", "a"], "at least two different texts")],
)
def test_pairs_that_cannot_be_learned_from(tiny_clip: Model, images: int, texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        encode_pairs(tiny_clip, pictures((9, 9, 9), images, 0), texts)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"batch_size": 1}, {"prompts": 0}, {"learning_rate": 0.0}])
def test_recipes_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(DeltaEnergyError, match=next(iter(wrong))):
        NoRecipe(**wrong)  # type: ignore[arg-type]


def test_all_scores_are_those_that_can_run() -> None:
    scores, left_out = chosen_scores("all", Given())
    names = [score.spec for score in scores]
    assert "clipn" not in names
    assert {"delta-energy", "multi-delta-energy", "mcm"} <= set(names)
    assert left_out is not None and "train_no_tower" in left_out
    [named], _ = chosen_scores("clipn(no_tower=somewhere)", Given())
    assert named.spec.startswith("clipn")


def test_a_tower_of_files_serves_the_command_line(
    tiny_clip_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_of(tmp_path / "pairs", per_colour=3)
    with table.open("a") as file:
        file.write("broken.png,a photo of a red car\n")
    (table.parent / "broken.png").write_bytes(b"no picture")
    model, tower = load_model(tiny_clip_folder), tmp_path / "tower"
    [texts] = read_columns(table, [("caption",)])
    pairs = encode_pairs(model, table, texts or [])
    assert len(pairs.texts) == 24 and [Path(one.id).name for one in pairs.unreadable] == ["broken.png"]
    losses = train_no_tower(model, pairs, tower, NoRecipe(epochs=2, batch_size=8, prompts=2))
    assert [set(epoch) for epoch in losses] == [{"loss", "itbo_yes", "itbo_no", "tso"}] * 2
    with pytest.raises(InputError, match="finished"):
        train_no_tower(model, pairs, tower, NoRecipe(epochs=2, batch_size=8, prompts=2))

    scored = ["score", str(table.parent / "red0.png"), "--classes", "red,blue", "--model", str(tiny_clip_folder)]
    for score, code in ((f"clipn(no_tower={tower})", 0), ("clipn", 2)):
        with pytest.raises(SystemExit) as stop:
            run([*scored, "--score", score, "--json"])
        assert int(stop.value.code or 0) == code
    assert "train_no_tower" in capsys.readouterr().err
