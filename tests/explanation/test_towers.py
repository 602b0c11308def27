"""Maps through whole towers: a random ViT and `lite`, against gradients and attention taken by other means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.explanation import Explainer
from deltaenergy.models.encoding import EncodedBatch
from tests.checkpoints import write_clip
from tests.colours import ColourModel

CLASSES = ["dog", "cat", "red car"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("explain") / "clip", layers=3)


@pytest.fixture(scope="module")
def clip(folder: Path) -> de.TowerModel:
    model = de.load_model(folder)
    assert isinstance(model, de.TowerModel)
    return model


@pytest.fixture(scope="module")
def lite() -> de.TowerModel:
    model = de.load_model("lite")
    assert isinstance(model, de.TowerModel)
    return model


def pictures(count: int = 3, seed: int = 0) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)) for _ in range(count)]


def detector(model: de.Model, score: str = "energy") -> de.Detector:
    made = de.Detector(de.ZeroShotClassifier(model, CLASSES), score)
    return made.calibrate(pictures(12, seed=1), confidence=None, batch_size=4)


def pixels_of(model: de.TowerModel, images: list[Image.Image]) -> torch.Tensor:
    return torch.from_numpy(np.stack([model.preprocessing(image) for image in images]))


def transformers_rollout(folder: Path, pixels: torch.Tensor, text: torch.Tensor) -> np.ndarray[Any, Any]:
    """Chefer et al. with transformers' own attention outputs, in double precision, image by image."""
    from transformers import CLIPModel

    module: Any = CLIPModel.from_pretrained(folder, attn_implementation="eager").double().eval()
    maps = []
    for image in pixels.double():
        out = module.vision_model(image[None], output_attentions=True)
        for attention in out.attentions:
            attention.retain_grad()
        feature = module.visual_projection(out.pooler_output)[0]
        (feature / feature.norm() @ text.double()).backward()
        r = np.eye(out.attentions[0].shape[-1])
        for attention in out.attentions:
            a, g = attention.detach()[0].numpy(), attention.grad[0].numpy()
            r = r + np.maximum(a * g, 0).mean(axis=0) @ r
        maps.append(r[0, 1:].reshape(4, 4))
    return np.stack(maps)


def test_rollout_of_a_class_is_that_of_transformers(clip: de.TowerModel, folder: Path) -> None:
    classifier = de.ZeroShotClassifier(clip, CLASSES)
    found = de.explain(classifier, pictures(), method="rollout", target="cat")
    expected = transformers_rollout(folder, pixels_of(clip, pictures()), classifier.text_features[1])
    assert expected.std() > 1e-4
    np.testing.assert_allclose(np.stack([one.heatmap for one in found]), expected, rtol=1e-3, atol=1e-6)


def test_rollout_of_the_score_follows_the_score(clip: de.TowerModel, folder: Path) -> None:
    # energy's gradient with respect to z is Σ_k p_k t_k, at τ = 0.01.
    judge = detector(clip)
    found = de.explain(judge, pictures(), method="rollout", target="score")
    texts = judge.classifier.text_features.double()
    pixels = pixels_of(clip, pictures())
    for i, one in enumerate(found):
        with torch.no_grad():
            z = clip.image_features(pixels[i : i + 1])[0].double()
        towards = torch.softmax(texts @ z / 0.01, 0) @ texts
        expected = transformers_rollout(folder, pixels[i : i + 1], towards)[0]
        np.testing.assert_allclose(one.heatmap, expected, rtol=2e-3, atol=2e-6)
        assert one.target == "score" and one.verdict is not None and one.value == one.verdict.score


def test_value_path_of_a_class_is_the_similarity_of_each_patch(clip: de.TowerModel) -> None:
    classifier = de.ZeroShotClassifier(clip, CLASSES)
    found = de.explain(classifier, pictures(), method="value-path", target="red car")
    with torch.no_grad():
        patches = clip.image_and_patch_features(pixels_of(clip, pictures()))[1].double().numpy()
    text = classifier.text_features[2].double().numpy()
    for one, rows in zip(found, patches):
        np.testing.assert_allclose(one.heatmap, np.array([u @ text for u in rows]).reshape(4, 4), atol=1e-6)
        assert one.target == "red car" and one.verdict is None


def test_value_path_of_a_score_that_looks_at_patches(clip: de.TowerModel) -> None:
    # gl-mcm's local part is the one patch with the surest class: the only one with a gradient of its own.
    judge, alone = detector(clip, "gl-mcm"), detector(clip, "mcm")
    found = de.explain(judge, pictures(), method="value-path", target="score")
    bare = de.explain(alone, pictures(), method="value-path", target="score")
    texts = judge.classifier.text_features.double()
    with torch.no_grad():
        patches = clip.image_and_patch_features(pixels_of(clip, pictures()))[1].double()
    for one, without, rows in zip(found, bare, patches):
        beliefs = torch.softmax(rows @ texts.T, 1)
        best = int(beliefs.amax(1).argmax())
        p, k = beliefs[best], int(beliefs[best].argmax())
        towards = p[k] * (texts[k] - p @ texts)  # of softmax_k
        extra = np.zeros(16)
        extra[best] = float(rows[best] @ towards)
        np.testing.assert_allclose(one.heatmap - without.heatmap, extra.reshape(4, 4), atol=1e-6)


def test_grad_cam_against_autograd_through_the_whole_tower(lite: de.TowerModel) -> None:
    classifier = de.ZeroShotClassifier(lite, CLASSES)
    found = de.explain(classifier, pictures(2), method="grad-cam")
    kept: list[torch.Tensor] = []
    network = lite.towers.network  # type: ignore[attr-defined]

    def keep(_: Any, __: Any, output: torch.Tensor) -> None:
        kept.append(output)

    # The map is what relu6 makes of the head's convolution: caught there, and its gradient taken by autograd.
    hook = network._conv_head.register_forward_hook(keep)
    try:
        for one, image in zip(found, pictures(2)):
            kept.clear()
            x = pixels_of(lite, [image]).requires_grad_()
            similarities = lite.image_features(x) @ classifier.text_features.T
            k = int(similarities[0].argmax())
            # relu6 is taken in place: the kept tensor is the map.
            (gradient,) = torch.autograd.grad(similarities[0, k], kept[0])
            a, g = kept[0].detach()[0].double().numpy(), gradient[0].double().numpy()
            expected = np.maximum(np.einsum("c,chw->hw", g.mean((1, 2)), a), 0)
            assert one.label == CLASSES[k] and one.heatmap.shape == (7, 7) and expected.max() > 0
            np.testing.assert_allclose(one.heatmap, expected, rtol=1e-3, atol=1e-6)
    finally:
        hook.remove()


@pytest.mark.parametrize("target", ["class", "score"])
def test_occlusion_covers_the_pixels_themselves(lite: de.TowerModel, target: str) -> None:
    judge = detector(lite, "mcm")
    (one,) = de.explain(judge, pictures(1), method="occlusion", target=target)
    pixels = pixels_of(lite, pictures(1))
    texts = judge.classifier.text_features.double()
    covered = pixels.clone()
    covered[:, :, 192:, 192:] = 0  # the only window that covers nothing but the last cell

    def value(x: torch.Tensor, k: int | None) -> float:
        with torch.no_grad():
            s = (lite.image_features(x).double() @ texts.T)[0]
        return float(torch.softmax(s, 0).max() if k is None else s[k])

    k = CLASSES.index(one.label) if target == "class" else None
    # The last cell is the mean of four windows; the other three are 64 pixels wide or high.
    windows = [(160, 160), (160, 192), (192, 160), (192, 192)]
    losses = []
    for top, left in windows:
        covered = pixels.clone()
        covered[:, :, top:224, left:224] = 0
        losses.append(value(pixels, k) - value(covered, k))
    assert one.heatmap[6, 6] == pytest.approx(np.mean(losses), abs=2e-6)


def test_a_batch_gives_what_single_images_give(clip: de.TowerModel, lite: de.TowerModel) -> None:
    for model, method in ((clip, "rollout"), (clip, "value-path"), (lite, "grad-cam"), (clip, "occlusion")):
        judge = detector(model)
        together = de.explain(judge, pictures(5), method=method, target="score", on="batch=5")
        for one, image in zip(together, pictures(5)):
            (alone,) = de.explain(judge, [image], method=method, target="score")
            np.testing.assert_allclose(one.heatmap, alone.heatmap, rtol=1e-3, atol=1e-5)
            assert one.verdict is not None and alone.verdict is not None
            assert one.verdict.is_ood == alone.verdict.is_ood


def test_verdicts_are_the_detector_s_own(lite: de.TowerModel) -> None:
    judge = detector(lite)
    for one, verdict in zip(de.explain(judge, pictures(4), target="score"), judge.predict(pictures(4))):
        assert one.verdict == verdict and one.value == verdict.score
        assert one.label == verdict.label and one.confidence == verdict.confidence
        assert int(one.similarities.argmax()) == CLASSES.index(one.label)


def test_learned_tokens_in_the_tower_are_part_of_the_map(clip: de.TowerModel) -> None:
    tokens = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    prompted = clip.with_vision_prompts(tokens)
    bare = de.explain(de.ZeroShotClassifier(clip, CLASSES), pictures(2), method="rollout", target="dog")
    found = de.explain(de.ZeroShotClassifier(prompted, CLASSES), pictures(2), method="rollout", target="dog")
    assert found[0].heatmap.shape == (4, 4)
    assert np.abs(found[0].heatmap - bare[0].heatmap).max() > 1e-4


def test_auto_is_the_tower_s_usual_method(clip: de.TowerModel, lite: de.TowerModel) -> None:
    assert Explainer(de.ZeroShotClassifier(lite, CLASSES)).method.name == "grad-cam"
    assert Explainer(de.ZeroShotClassifier(clip, CLASSES)).method.name == "rollout"
    assert Explainer(de.ZeroShotClassifier(ColourModel(), ["red", "blue"])).method.name == "occlusion"


def test_mistakes_are_told_at_once(clip: de.TowerModel, lite: de.TowerModel) -> None:
    classifier, judge = de.ZeroShotClassifier(lite, CLASSES), detector(lite, "mcm")
    for arguments, message in (
        ((classifier, "gradcam"), "Unknown `method` 'gradcam'. Did you mean 'grad-cam'"),
        ((classifier, "auto", "score"), "A classifier has no score"),
        ((judge, "auto", "catt"), "Unknown `target` 'catt'.*Did you mean 'cat'"),
        ((judge, "auto", "scor"), "Did you mean 'score'"),
        ((lite,), "needs a classifier, not a model"),
    ):
        with pytest.raises(InputError, match=message):
            Explainer(*arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'lite'.*value-path.*occlusion"):
        de.explain(judge, pictures(1), method="rollout")
    with pytest.raises(InputError, match=r"grad-cam.*rollout"):
        de.explain(de.ZeroShotClassifier(clip, CLASSES), pictures(1), method="grad-cam")
    with pytest.raises(InputError, match="give it images, not features"):
        de.explain(judge, np.zeros((2, lite.feature_dim), np.float32))
    batch = EncodedBatch(de.load_images(pictures(1)), None, torch.zeros(1, lite.feature_dim), None, [])
    with pytest.raises(InputError, match="not a feature store"):
        Explainer(judge).explain_batch(batch)


def test_of_many_classes_only_near_names_are_told(lite: de.TowerModel) -> None:
    classifier = de.ZeroShotClassifier(lite, [f"thing {i}" for i in range(40)] + ["zebra"])
    with pytest.raises(InputError, match="Did you mean 'zebra'") as error:
        Explainer(classifier, target="zebr")
    assert "thing 3" not in str(error.value)


def test_a_score_without_a_gradient_names_the_remedy(clip: de.TowerModel) -> None:
    judge = detector(clip, "odin")
    with pytest.raises(InputError, match=r"'odin'.*occlusion"):
        de.explain(judge, pictures(1), method="rollout", target="score")
    (one,) = de.explain(judge, pictures(1), target="score")
    assert one.method == "occlusion" and one.heatmap.shape == (7, 7), "auto knows that"
    assert de.explain(judge, pictures(1))[0].method == "rollout", "its classes have gradients"


def test_unreadable_images_are_listed(lite: de.TowerModel, photos: Path) -> None:
    (photos / "broken.png").write_text("no picture")
    found = de.explain(detector(lite), photos)
    assert len(found) == 8 and [one.id.split("/")[-1] for one in found.unreadable] == ["broken.png"]
    steps: list[tuple[int, int | None]] = []
    explainer = Explainer(detector(lite))
    assert len(list(explainer.stream(photos, batch_size=3, progress=lambda *step: steps.append(step)))) == 8
    assert steps[-1] == (9, 9) and len(steps) == 3
    parts = list(explainer.batches(photos, batch_size=3))
    assert sum(map(len, parts)) == 8 and [one for part in parts for one in part.unreadable] == found.unreadable


def test_an_uncalibrated_detector_explains_without_a_verdict(lite: de.TowerModel) -> None:
    (one,) = de.explain(de.Detector(de.ZeroShotClassifier(lite, CLASSES), "mcm"), pictures(1), target="score")
    assert one.verdict is None and 0 < one.value < 1
    unfitted = de.Detector(de.ZeroShotClassifier(lite, CLASSES), "react")
    with pytest.raises(de.DeltaEnergyError, match="learns from known images"):
        de.explain(unfitted, pictures(1), target="score")
