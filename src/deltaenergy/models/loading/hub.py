"""Find the files of a Hugging Face Hub model: in the local cache or, if allowed, downloaded into it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from deltaenergy.errors import ModelUnavailableError, did_you_mean, first_line
from deltaenergy.models.loading.tokenizing import TOKENIZER_FILES, has_tokenizer
from deltaenergy.models.loading.weights import INDEX, OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, WEIGHTS, is_open_clip

logger = logging.getLogger(__name__)

# Suggested for a misspelt name; any other model of a known family also loads.
WELL_KNOWN = (
    "openai/clip-vit-base-patch32",
    "openai/clip-vit-base-patch16",
    "openai/clip-vit-large-patch14",
    "openai/clip-vit-large-patch14-336",
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
    "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    "laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
    "facebook/metaclip-b16-fullcc2.5b",
    "facebook/metaclip-l14-fullcc2.5b",
    "google/siglip-base-patch16-224",
    "google/siglip2-base-patch16-224",
    "facebook/metaclip-2-worldwide-huge-quickgelu",
    "OFA-Sys/chinese-clip-vit-base-patch16",
    "kakaobrain/align-base",
)
# The files of a model. Only safetensors: the older .bin weights are pickles.
_PATTERNS = (
    "config.json", WEIGHTS, INDEX, "model-*.safetensors", "preprocessor_config.json", "processor_config.json",
    OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, *TOKENIZER_FILES,
)  # fmt: skip
# If a repository's main branch has only pickles, the Hub's own bot offers the same weights as safetensors.
_CONVERTER = "SFconvertbot"


def find_snapshot(name: str, *, download: bool) -> Path:
    """The folder with the files of the Hub model `name`."""
    not_cached = "it has no model of that name"
    for revision in ("main", *_cached_conversions(name)):
        try:
            folder = _snapshot(name, revision, local_files_only=True)
        except Exception as error:  # many types, all meaning: not cached
            logger.debug("%s at %s is not cached: %s", name, revision, error)
            continue
        missing = _missing(folder)
        if not missing:
            return folder
        not_cached = f"it is incomplete, without {', '.join(missing)}"
    if not download:
        raise ModelUnavailableError(
            f"The model {name!r} is not in the local cache {_cache()}: {not_cached}.\n"
            f"A name that was read from a file is not downloaded. Download it with `load_model({name!r})` or `hf "
            f"download {name}`, or pass the loaded model."
        )
    logger.warning("%s is not in the local cache; downloading it from the Hugging Face Hub.", name)
    try:
        folder = _snapshot(name, "main", local_files_only=False)
        if "weights" in _missing(folder):
            folder = _snapshot(name, _conversion(name), local_files_only=False)
        if missing := _missing(folder):
            raise FileNotFoundError(f"the repository has no {', '.join(missing)}")
    except Exception as error:  # many types: no network, no such repository, no permission to read it
        hint = "" if name in WELL_KNOWN else f"\nIf the name is misspelt:{did_you_mean(name, WELL_KNOWN)}"
        raise ModelUnavailableError(
            f"Could not find the weights of {name!r}.\n"
            "  tried: a folder of that name: there is none\n"
            f"  tried: the local cache {_cache()}: {not_cached}\n"
            f"  tried: the Hugging Face Hub: {first_line(error)}\n"
            "Two ways to get them:\n"
            f"  1. on a machine with network, run `hf download {name}`, which fills the cache named above;\n"
            "  2. copy the model's folder (config.json, model.safetensors, tokenizer and preprocessor files) here "
            "and pass its path instead of the name.\n"
            f"To try deltaenergy without a download, use the bundled model `lite`.{hint}"
        ) from error
    return folder


def is_repository(name: str) -> bool:
    """Whether it can be a repository of the Hub: owner/name."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1


def _snapshot(name: str, revision: str, *, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(name, revision=revision, allow_patterns=list(_PATTERNS), local_files_only=local_files_only)
    )


def _missing(folder: Path) -> list[str]:
    """What the folder lacks of a model, in words."""
    open_clip = is_open_clip(folder)
    weights = (WEIGHTS, OPEN_CLIP_WEIGHTS) if open_clip else (WEIGHTS, INDEX)
    preprocessing = (OPEN_CLIP_CONFIG,) if open_clip else ("preprocessor_config.json", "processor_config.json")
    present = {
        "config.json": open_clip or (folder / "config.json").is_file(),
        "weights": any((folder / name).is_file() for name in weights),
        "tokenizer": has_tokenizer(folder),
        "preprocessor_config.json": any((folder / name).is_file() for name in preprocessing),
    }
    return [what for what, there in present.items() if not there]


def _conversion(name: str) -> str:
    """The revision at which the converter offers the weights of `name`."""
    from huggingface_hub import HfApi

    for offer in HfApi().get_repo_discussions(name, author=_CONVERTER, discussion_type="pull_request"):
        if offer.author == _CONVERTER and offer.status == "open":
            return f"refs/pr/{offer.num}"
    raise FileNotFoundError("the repository has its weights only as pickles, which can run code and are never read")


def _cached_conversions(name: str) -> Iterator[str]:
    """The converter's revisions in the cache."""
    from huggingface_hub.file_download import repo_folder_name

    for ref in sorted(
        (_cache() / repo_folder_name(repo_id=name, repo_type="model") / "refs" / "refs" / "pr").glob("*")
    ):
        yield f"refs/pr/{ref.name}"


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
