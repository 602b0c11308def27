"""Files that are no model: OpenAI's TorchScript archives and other pickles, with the command that converts them."""

from __future__ import annotations

import shlex
import zipfile
from pathlib import Path

from deltaenergy.models.loading.weights import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS

ARCHIVES = (".pt", ".pth", ".bin", ".ckpt")
# OpenAI's archives, and where the same weights are as safetensors.
_OPENAI = {
    "vit-b-32": "openai/clip-vit-base-patch32",
    "vit-b-16": "openai/clip-vit-base-patch16",
    "vit-l-14": "openai/clip-vit-large-patch14",
    "vit-l-14-336px": "openai/clip-vit-large-patch14-336",
}
_LOAD = {
    True: "m = torch.jit.load({file!r}, map_location='cpu').state_dict()",
    False: "m = torch.load({file!r}, map_location='cpu', weights_only=True); m = m.get('state_dict', m)",
}
_SAVE = "save_file({{k.removeprefix('module.'): v.contiguous().clone() for k, v in m.items()}}, {out!r})"


def why_no_model(file: Path) -> str:
    """Why a file is no model, and what to do."""
    if file.suffix not in ARCHIVES:
        return f"model {str(file)!r} is a file; give the folder that holds it, with config.json beside it."
    same = _OPENAI.get(file.stem.lower().replace("@", "-").replace("_", "-"))
    known = f" OpenAI's {file.name} holds the same weights as {same!r}: load that instead." if same else ""
    return (
        f"model {str(file)!r} is an archive that can run code when it is opened, and is never read.{known} Weights of "
        "your own you can convert where you trust them:\n"
        f"  {conversion(file)}\n"
        f"Then put {OPEN_CLIP_CONFIG} and the tokenizer files beside {OPEN_CLIP_WEIGHTS}, and load the folder "
        f"{str(file.with_suffix(''))!r}."
    )


def conversion(file: Path) -> str:
    """The command that writes the archive's weights, as they are, to a folder of the same name."""
    folder = file.with_suffix("")
    code = "; ".join(
        [
            "import torch, pathlib",
            "from safetensors.torch import save_file",
            _LOAD[_is_torch_script(file)].format(file=str(file)),
            f"pathlib.Path({str(folder)!r}).mkdir(exist_ok=True)",
            _SAVE.format(out=str(folder / OPEN_CLIP_WEIGHTS)),
        ]
    )
    return shlex.join(["python", "-c", code])


def _is_torch_script(file: Path) -> bool:
    """Told by the names in the archive alone; what is no archive is taken for weights."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.split("/")[1:2] == ["code"] for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False
