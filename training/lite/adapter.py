"""The residual adapter: teaches the image features to look through style, and sets the range of the cosines.

Needs pictures, and uses only those of even class index of a folder with one ImageNet picture per class; without one
the adapter stays zero and the cosines keep their default range. No label is used by the adapter: a stylised picture
shall get the joint vector and the class beliefs of the photograph that it was made from, and a photograph shall keep
its own.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from training.lite import styles
from training.lite.joint import DIMENSIONS, class_list

BOTTLENECK = 256
EPOCHS, BATCH, RATE, DECAY = 50, 256, 3e-4, 0.05
DEFAULT_RANGE = (0.25, 0.17)
BACKGROUND = 0.17  # cosine of a picture and a name that have nothing to do with each other
Progress = Callable[[str], None]


def train(
    work: Path,
    space: dict[str, Tensor],
    encode_texts: Callable[[list[str]], Tensor],
    pictures: Path | None,
    progress: Progress,
) -> tuple[dict[str, Tensor], tuple[float, float]]:
    """Weights of the joint head, and (alpha, beta) of the cosine range."""
    from deltaenergy.models.lite.network import load_network

    head = new_head(space)
    if pictures is None:
        return head.state_dict(), DEFAULT_RANGE
    classifier = load_network()._fc
    file = work / "adapter.safetensors"
    features = picture_features(pictures, work / "pictures", progress)
    if file.exists():
        head.load_state_dict(load_file(file))
    else:
        fit(head, classifier, features, progress)
        save_file(head.state_dict(), file)
    names = [f"a photo of a {name}." for _, name in class_list()]
    with torch.inference_mode():
        similarity = head(features[:, 0], classifier) @ encode_texts(names).T
    labels = torch.arange(0, 1000, 2)
    alpha = calibrate(similarity, labels)
    background = similarity.mean().item()
    accuracy = (similarity.argmax(1) == labels).float().mean()
    progress(f"adapter: alpha {alpha:.3f}, accuracy {accuracy:.3f} on its own pictures")
    return head.state_dict(), (alpha, BACKGROUND - alpha * background)


def new_head(space: dict[str, Tensor]) -> nn.Module:
    """The head of the joint space with an adapter that does nothing yet."""
    from deltaenergy.models.lite.model import JointHead

    torch.manual_seed(0)
    head = JointHead(len(space["mean"]), len(space["meaning"]), DIMENSIONS, BOTTLENECK)
    with torch.no_grad():
        for name in ("mean", "look", "meaning"):
            getattr(head, name).copy_(space[name])
        head.up.weight.zero_()
    return head


def picture_features(folder: Path, cache: Path, progress: Progress) -> Tensor:
    """Pooled features (500, 1 + styles, 1280) of the even classes' pictures, the photograph itself first."""
    from deltaenergy.models.lite.model import PREPROCESSING
    from deltaenergy.models.lite.network import load_network

    cache.mkdir(parents=True, exist_ok=True)
    network = load_network()
    rows = []
    for index, (key, _) in enumerate(class_list()):
        if index % 2:
            continue
        file = cache / f"{index:04d}.npy"
        if not file.exists():
            picture = next(iter(sorted(next(folder.glob(f"{key}*")).iterdir())))
            frame = PREPROCESSING.frame(Image.open(picture))
            rng = np.random.default_rng([index, 1])
            views = [frame, *styles.views(frame, index, rng)]
            pixels = torch.from_numpy(np.stack([PREPROCESSING.normalise(view) for view in views]))
            with torch.inference_mode():
                pooled = network.feature_map(pixels).mean((2, 3))
            unfinished = file.with_suffix(".part.npy")
            np.save(unfinished, pooled.numpy().astype(np.float16))
            unfinished.rename(file)
            if index % 100 == 0:
                progress(f"adapter: features of picture {index // 2} of 500")
        rows.append(np.load(file))
    return torch.from_numpy(np.stack(rows)).float()


def fit(head: nn.Module, classifier: nn.Module, features: Tensor, progress: Progress, epochs: int = EPOCHS) -> None:
    """Train the adapter by what it does to the styles of each picture (pictures, styles, 1280)."""
    with torch.no_grad():
        wanted = head(features[:, 0], classifier)
        beliefs = softmax(classifier(features[:, 0]), 1)
    for parameter in (head.mean, head.look, head.meaning):
        parameter.requires_grad_(False)
    trained = [*head.down.parameters(), *head.up.parameters()]
    optimiser = torch.optim.AdamW(trained, lr=RATE, weight_decay=DECAY)
    generator = torch.Generator().manual_seed(0)
    pictures, views = features.shape[:2]
    steps = epochs * pictures * views // BATCH
    for step in range(steps):
        picture = torch.randint(pictures, (BATCH,), generator=generator)
        view = torch.randint(-2, views, (BATCH,), generator=generator).clamp(min=0)  # the photograph itself three times
        f = features[picture, view]
        centred = f - head.mean
        adapted = f + head.up(nn.functional.dropout(torch.relu(head.down(centred)), 0.3))
        looks = nn.functional.normalize((adapted - head.mean) @ head.look, dim=1)
        logits = classifier(adapted)
        joint = nn.functional.normalize(looks + softmax(logits, 1) @ head.meaning, dim=1)
        apart = 1 - (joint * wanted[picture]).sum(1).mean()
        loss = 2 * apart + 0.3 * kl_div(log_softmax(logits, 1), beliefs[picture], reduction="batchmean")
        for group in optimiser.param_groups:
            group["lr"] = RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 0:
            progress(f"adapter: step {step} of {steps}, loss {loss.item():.3f}")


def calibrate(similarity: Tensor, labels: Tensor, scale: float = 100.0) -> float:
    """The alpha with the likeliest labels under softmax(scale * alpha * similarity)."""
    grid = torch.linspace(0.1, 0.6, 101)
    losses = torch.stack([cross_entropy(scale * alpha * similarity, labels) for alpha in grid])
    return grid[losses.argmin()].item()
