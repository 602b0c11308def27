"""What the service answers, and the one request of /v1 that is JSON."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from deltaenergy.detector.verdict import KNOWN, NONE_OF_THESE


class ClassConfidence(BaseModel):
    """One of the closest classes."""

    label: str
    confidence: float = Field(description="Softmax probability at the model's own temperature.")
    similarity: float


class ImageAnswer(BaseModel):
    """One image: either `error`, or everything else."""

    path: str = Field(description="File name, or the position in the request.")
    label: str | None = Field(default=None, description="The closest class.")
    confidence: float | None = None
    score_name: str | None = Field(default=None, description="The score, with its parameters.")
    score: float | None = Field(
        default=None, description="Larger = more like the known classes. Null if it is not a number."
    )
    p_value: float | None = Field(default=None, description="Conformal p-value against the calibration images.")
    is_ood: bool | None = Field(
        default=None, description="Whether the image is none of the classes. Null without a threshold."
    )
    verdict: str | None = Field(default=None, description=f"`{KNOWN}` or `{NONE_OF_THESE}`.")
    answer: str | None = Field(default=None, description=f"The class, or `{NONE_OF_THESE}`.")
    more_like: str | None = Field(default=None, description="The closest word to a rejected image.")
    threshold: float | None = None
    top: list[ClassConfidence] | None = None
    detector: str | None = None
    version: str | None = Field(default=None, description="Changes when the detector changes.")
    error: str | None = Field(default=None, description="Why this image has no verdict. Other images are not affected.")


class VerdictList(BaseModel):
    """Answers in the order of the images."""

    detector: str | None = None
    version: str | None = None
    score: str = Field(description="Which score was used, with its parameters.")
    threshold: float | None = None
    guarantee: str | None = Field(default=None, description="What the threshold guarantees.")
    images: list[ImageAnswer]


class FeaturesRequest(BaseModel):
    """Rows of unit features."""

    detector: str | None = Field(default=None, description="Name of the detector; optional if there is only one.")
    features: list[list[float]] = Field(min_length=1, description="Unit features of the detector's own model.")
    top_k: int = Field(default=5, ge=1, le=1000)


class Thresholds(BaseModel):
    """A threshold, its guarantee, and its verdicts on the given scores."""

    threshold: float
    rank: int = Field(description="Rank of the threshold among the known images' scores, in ascending order.")
    keep: float = Field(description="Share of known images to keep; `/v1/calibrate` sets this threshold with it.")
    images: int = Field(description="Number of known images.")
    guarantee: str
    p_values: list[float | None] = Field(description="One for each of `scores`.")
    is_ood: list[bool] = Field(description="One for each of `scores`: whether it is rejected.")


class Explained(BaseModel):
    """A heatmap of an image."""

    id: str
    label: str
    verdict: str | None = None
    method: str
    target: str = Field(description="`score`, or the class whose similarity is explained.")
    value: float | None = Field(description="The score, or the similarity of that class. Null if it is not a number.")
    heatmap: list[list[float]] = Field(description="Rows of cells; larger = supports the target more.")
    overlay: str = Field(description="The heatmap over the image in grey, a PNG as a data URL.")
    alternative: str = Field(description="What the overlay shows, in words.")


class DetectorInfo(BaseModel):
    """A detector of the service."""

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
    """The scores of a detector's known images in ascending order; at most 2,000, evenly spaced."""

    scores: list[float]
    images: int
    threshold: float | None
    rank: int | None = Field(description="Rank of the threshold among the scores; null without a single threshold.")


class Sample(BaseModel):
    """A sample photo."""

    name: str
    label: str | None


class ServiceSettings(BaseModel):
    """Settings of the service."""

    own_classes: bool = Field(description="Whether requests can bring their own class names.")
    scores: list[str] = Field(description="Scores for requests with their own class names.")
    default_score: str
    files: int = Field(description="Maximum images per request.")
    body_mb: float
    samples: list[Sample]


class Problem(BaseModel):
    """A request that was refused, or that failed."""

    error: str
    detail: Any = None
