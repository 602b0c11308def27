"""What methods that learn from several domains share."""

from __future__ import annotations

import warnings

from deltaenergy.classifiers.methods import TrainingImages


def warn_of_one_domain(method: str, data: TrainingImages, effect: str) -> None:
    """Say that `method` works with one domain, and what that means."""
    if len(data.domain_names) > 1:
        return
    warnings.warn(
        f"{method} learns from images of several domains, and these have one, {data.domain_names[0]!r}: {effect}. "
        "If there are more, give folders DOMAIN/CLASS/ with domains=True (--domains), or a table with a domain column.",
        stacklevel=5,
    )
