"""The two pages, each one file without anything from elsewhere, and the policy that holds a browser to that."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib.resources import files


@functools.cache
def page() -> str:
    """The page at `/`, in the colours of the reports."""
    return _filled("page.html")


@functools.cache
def docs() -> str:
    """The description of the API, made readable from `/openapi.json`."""
    return _filled("docs.html")


def _filled(name: str) -> str:
    folder = files("deltaenergy.serve")
    style = files("deltaenergy.report").joinpath("style.css").read_text(encoding="utf-8")
    text = folder.joinpath(name).read_text(encoding="utf-8")
    return text.replace("/* report style */", style, 1)


def policy(text: str) -> str:
    """Only the scripts and styles that stand in the page run, and nothing is asked of any other host."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in found]
        return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
