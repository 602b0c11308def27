"""Images in memory: NumPy arrays, torch's tensors, Datasets and DataLoaders. torch is not imported here.

An array is (height, width), (height, width, channels) or several of these, of 8-bit integers. A tensor is one image
(channels, height, width) or several (N, channels, height, width), as 8-bit integers or as floats from 0 to 1; (height,
width, channels) is accepted where the channels cannot come first. A Dataset is read image by image when they are
needed; of a pair or a dictionary the image is used. Of a DataLoader the dataset is read, in the order and with the
images that the loader would give, without its collating.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.file import file_at
from deltaenergy.data.items import Content, ImageItem, Lazy
from deltaenergy.errors import InputError

# What an image is called in the dictionaries of common datasets.
_KEYS = ("image", "img", "pixel_values", "images")
_CHANNELS = (1, 3, 4)
# Rounding of an image that was resized or stored with fewer bits.
_SLACK = 1e-3


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_torch_data(value: Any) -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(value, (data.Dataset, data.DataLoader))


def tensor_images(tensor: Any, what: str = "images") -> list[Image.Image]:
    array = _to_numpy(tensor, what)
    if array.ndim == 4:
        return [_to_image(one, what) for one in array]
    return [_to_image(array, what)]


def array_images(array: np.ndarray[Any, Any]) -> list[Image.Image]:
    if array.ndim == 4:
        return [image for one in array for image in array_images(one)]
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in _CHANNELS):
        remedy = "Pixels must be 8-bit integers (uint8) of shape (height, width, 3)."
        if array.dtype.kind == "f":
            remedy += " For floats from 0 to 1 write (255 * array).round().astype('uint8')."
        elif array.ndim == 3 and array.shape[0] in (1, 3):
            remedy += " The channels seem to come first: write array.transpose(1, 2, 0)."
        raise InputError(f"images contains an array of {array.dtype} with shape {array.shape}. {remedy}")
    pixels = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    return [Image.fromarray(np.ascontiguousarray(pixels))]


def torch_images(data: Any) -> Iterator[ImageItem]:
    """One item per image of a Dataset or DataLoader, with its label where the dataset has it."""
    from torch.utils.data import DataLoader, IterableDataset

    order: Iterable[Any] | None = None
    if isinstance(data, DataLoader):
        dataset = data.dataset
        if not isinstance(dataset, IterableDataset):
            order = itertools.chain.from_iterable(data.batch_sampler) if data.batch_sampler else data.sampler
    else:
        dataset = data
    if isinstance(dataset, IterableDataset):
        for i, element in enumerate(dataset):
            yield ImageItem(f"image {i}", _content_of(element))
        return
    if not hasattr(dataset, "__len__"):
        raise InputError(f"images is a dataset of type {type(dataset).__name__} that has no length.")
    lock = threading.Lock()
    indices = range(len(dataset)) if order is None else order
    for index in indices:
        yield ImageItem(f"image {index}", Lazy(partial(_read, dataset, index, lock)), label=_label(dataset, index))


def _read(dataset: Any, index: Any, lock: threading.Lock) -> Content:
    """The image at `index`. Datasets are seldom made for several threads at once."""
    with lock:
        element = dataset[index]
    return _content_of(element)


def _content_of(element: Any) -> Content:
    """The image of what a dataset gives: itself, the first of a pair, or by name."""
    while isinstance(element, (tuple, list)) and len(element):
        element = element[0]
    if isinstance(element, Mapping):
        key = next((key for key in _KEYS if key in element), None)
        if key is None:
            raise UnreadableImage(f"the dataset gives a dictionary without {' or '.join(_KEYS)}")
        element = element[key]
    if isinstance(element, (Image.Image, bytes)):
        return element
    if isinstance(element, (str, os.PathLike)):
        return file_at(element)
    if is_tensor(element) or isinstance(element, np.ndarray):
        try:
            (image,) = tensor_images(element, "the dataset")
        except InputError as error:
            raise UnreadableImage(str(error)) from None
        except ValueError:
            raise UnreadableImage("the dataset gives several images at once") from None
        return image
    raise UnreadableImage(f"the dataset gives a {type(element).__name__}, which is not an image")


def _label(dataset: Any, index: Any) -> str | None:
    """The class of an image, where the dataset lists numbers (`targets`) and their names (`classes`)."""
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):  # a Subset
        return _label(dataset.dataset, dataset.indices[index])
    names, targets = getattr(dataset, "classes", None), getattr(dataset, "targets", None)
    if not isinstance(names, Sequence) or targets is None or len(targets) != len(dataset):
        return None
    number = int(targets[index])
    name = names[number] if 0 <= number < len(names) else None
    return name if isinstance(name, str) else None


def _to_numpy(tensor: Any, what: str) -> np.ndarray[Any, Any]:
    if not is_tensor(tensor):
        return np.asarray(tensor)
    plain = tensor.detach()
    if plain.is_floating_point():
        plain = plain.float()  # NumPy knows no bfloat16
    try:
        return np.asarray(plain.cpu().numpy())
    except (TypeError, RuntimeError) as error:  # sparse, quantised, without content
        raise InputError(f"{what} contains a tensor that cannot become a NumPy array: {error}") from error


def _to_image(array: np.ndarray[Any, Any], what: str) -> Image.Image:
    shape = array.shape
    if array.ndim == 3 and shape[0] in _CHANNELS:
        array = array.transpose(1, 2, 0)
    elif not (array.ndim == 2 and array.dtype == np.uint8) and not (array.ndim == 3 and shape[2] in _CHANNELS):
        raise InputError(
            f"{what} contains a tensor of shape {shape}. An image is (channels, height, width) with 1, 3 or 4 "
            "channels; several are (N, channels, height, width)."
        )
    if 0 in array.shape:
        raise InputError(f"{what} contains a tensor of shape {shape}, which has no pixels.")
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= -_SLACK and high <= 1 + _SLACK):  # also for NaN
            raise InputError(
                f"{what} contains a float tensor with values from {low:.3g} to {high:.3g}; pixels must be from 0 to 1. "
                "Give images before they are normalised: the model brings its own preprocessing."
            )
        array = np.rint(array.clip(0, 1) * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise InputError(f"{what} contains a tensor of {array.dtype}; pixels are uint8, or floats from 0 to 1.")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    return Image.fromarray(np.ascontiguousarray(array))
