"""What an error from an object store or a web server means: for one picture, for this try, or for the whole run.

Four libraries read the stores, and each has errors of its own. They are told apart by the status that the server
gave and by the names of their classes, so that none of the libraries need be there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

# Of time-outs and connections that were refused or reset: botocore, aiohttp, azure, requests, google, fsspec.
_CONNECTION = {
    "ConnectionError", "TimeoutError", "gaierror",
    "HTTPClientError", "ResponseParserError",
    "ClientConnectionError",
    "ServiceRequestError", "ServiceResponseError",
    "RequestException", "TransportError", "FSTimeoutError",
}  # fmt: skip
# Of answers that began well: aiohttp, azure, gcsfs.
_CUT = {"ClientPayloadError", "IncompleteReadError", "ChecksumError"}
_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound",
                "TokenRetrievalError", "SSOError", "GoogleAuthError", "ClientAuthenticationError"}  # fmt: skip
# What S3 answers when it does not know who is asking, or no longer; Azure to whom its whole account is closed.
_CREDENTIAL_CODES = {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired", "InvalidSecurity",
                     "SignatureDoesNotMatch", "RequestTimeTooSkewed", "AuthorizationHeaderMalformed",
                     "AuthorizationFailure", "AccountIsDisabled", "PublicAccessNotPermitted"}  # fmt: skip
_NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound"}
_SECRET = re.compile(r"\b(access_token|sig|signature|AccountKey|SharedAccessSignature)=[^\s;&]*", re.IGNORECASE)
_BUSY = {408, 409, 425, 429, 500, 502, 503, 504}


class Meaning(Enum):
    """What an error says."""

    MISSING = "nothing is there"
    DENIED = "this may not be read"
    UNKNOWN_CALLER = "the credentials are missing, wrong or too old"
    NO_BUCKET = "there is no such bucket"
    NOT_REACHED = "the server did not answer"
    BUSY = "the server answered that it cannot answer now"
    FAILED = "the server failed on this request"
    CUT = "the answer broke off"
    EXISTS = "something is there already"
    EMPTY = "there is nothing in the part that was asked for"
    OTHER = "something else"

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed a little later."""
        return self in {Meaning.NOT_REACHED, Meaning.BUSY, Meaning.FAILED, Meaning.CUT}


def meaning_of(error: BaseException) -> Meaning:
    """What an error says, from the server's answer where there was one."""
    chain = list(_causes(error))
    names = {kind.__name__ for one in chain for kind in type(one).__mro__}
    codes = {code for one in chain if (code := _code(one)) is not None}
    status = next((found for one in chain if (found := _status(one)) is not None), None)
    if names & _CUT:  # first, for what parses the answer gives it a status of its own
        return Meaning.CUT
    if codes & _CREDENTIAL_CODES or (names & _CREDENTIALS and "TransportError" not in names) or status == 401:
        return Meaning.UNKNOWN_CALLER
    if codes & _NO_BUCKET_CODES:
        return Meaning.NO_BUCKET
    if "FileNotFoundError" in names or status in {404, 410}:
        return Meaning.MISSING
    if "FileExistsError" in names or status == 412:
        return Meaning.EXISTS
    if "PermissionError" in names or status == 403 or str(error).startswith("Forbidden"):
        return Meaning.DENIED
    if status == 416 or "InvalidRange" in codes:
        return Meaning.EMPTY
    if status == 500 or "InternalError" in codes:
        return Meaning.FAILED
    if status in _BUSY or codes & {"SlowDown", "ServiceUnavailable", "RequestTimeout", "Throttling"}:
        return Meaning.BUSY
    if status is None and names & _CONNECTION:
        return Meaning.NOT_REACHED
    return Meaning.OTHER


def in_words(error: BaseException) -> str:
    """The error as half a sentence of at most one line: the server's status, or else what the library says."""
    chain = list(_causes(error))
    names = {kind.__name__ for one in chain for kind in type(one).__mro__}
    if names & _CUT:
        return "its bytes break off"
    status = next((found for one in chain if (found := _status(one)) is not None), None)
    if status is not None:
        return f"the server answers with status {status}"
    if any("Timeout" in name for name in names):
        return "it does not answer in time"
    text = (str(error).splitlines() or [""])[0].strip().rstrip(".")
    # An address that a library asked may hold what it was given to ask with.
    return _SECRET.sub(r"\1=…", text or type(error).__name__)[:160]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(5):
        if error is None:
            return
        yield error
        error = error.__cause__


def _code(error: BaseException) -> str | None:
    """The store's own word for it: S3's, which botocore leaves in the answer, or Azure's."""
    azure = getattr(error, "error_code", None)
    if isinstance(azure, str):
        return str(getattr(azure, "value", azure))
    response = getattr(error, "response", None)
    found = response.get("Error") if isinstance(response, dict) else None
    code = found.get("Code") if isinstance(found, dict) else None
    return code if isinstance(code, str) else None


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        found = (response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
        return found if isinstance(found, int) else None
    if type(error).__name__ == "ProxyError" and not error.args:  # gcsfs, of this status alone
        return 502
    for name in ("status", "status_code", "code"):
        found = getattr(error, name, None)
        if isinstance(found, int) and not isinstance(found, bool) and 400 <= found < 600:
            return int(found)
    return None
