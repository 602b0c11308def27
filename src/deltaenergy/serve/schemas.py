"""What the service answers for one image: as a verdict, without a threshold, or why there is none."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from deltaenergy.detector.verdicts import KNOWN, NONE_OF_THESE


class ClassConfidence(BaseModel):
    """One of the likeliest classes."""

    label: str
    confidence: float = Field(description="Softmax probability at the model's own temperature.")
    similarity: float


class ImageAnswer(BaseModel):
    """One image: either `error`, or everything else."""

    id: str = Field(description="The file's name or the id that was sent with it, else its position.")
    label: str | None = Field(default=None, description="The most similar class.")
    confidence: float | None = None
    score: float | None = Field(
        default=None, description="Larger = more like the known classes. Null if it is not a number."
    )
    p_value: float | None = Field(default=None, description="Conformal p-value against the calibration images.")
    is_ood: bool | None = Field(
        default=None, description="Whether it is none of the classes. Null without a threshold."
    )
    verdict: str | None = Field(default=None, description=f"`{KNOWN}` or `{NONE_OF_THESE}`.")
    threshold: float | None = None
    top: list[ClassConfidence] | None = None
    detector: str | None = None
    version: str | None = Field(default=None, description="Changes whenever the detector does.")
    error: str | None = Field(default=None, description="Why this image has no verdict; the others have theirs.")


class Verdicts(BaseModel):
    """Answers in the order of the images."""

    detector: str | None = None
    version: str | None = None
    score: str = Field(description="Which score was used, with its parameters.")
    threshold: float | None = None
    guarantee: str | None = Field(default=None, description="What the threshold promises.")
    images: list[ImageAnswer]


class SentImage(BaseModel):
    """An image in a JSON request."""

    id: str | None = Field(default=None, max_length=1000)
    data: str = Field(description="The file's bytes, base64.")


class VerdictRequest(BaseModel):
    """`images` or `features`."""

    detector: str | None = Field(default=None, description="Its name; may be left out if there is one alone.")
    images: list[SentImage] | None = None
    features: list[list[float]] | None = Field(default=None, description="Unit features of the detector's own model.")
    top_k: int = Field(default=5, ge=1, le=1000)


class ClassifyRequest(BaseModel):
    """Class names of your own, on the service's model."""

    classes: list[str] | str = Field(description="Names, or one text with commas.")
    images: list[SentImage]
    template: str | None = Field(default=None, max_length=500)
    score: str | None = Field(default=None, max_length=500, description="A score that needs no calibration images.")
    top_k: int = Field(default=5, ge=1, le=1000)


class DetectorInfo(BaseModel):
    """A detector that the service has."""

    name: str
    version: str
    classes: list[str]
    score: str
    method: str
    threshold: float | None
    keep: float | None
    guarantee: str | None
    calibration_images: int
    feature_dim: int
    takes_features: bool
    model_fingerprint: str


class CalibrationScores(BaseModel):
    """The scores that the threshold was set among, ascending; at most 2,000 of them, evenly taken."""

    scores: list[float]
    images: int
    threshold: float | None


class Problem(BaseModel):
    """An answer that is none."""

    error: str
    detail: Any = None
