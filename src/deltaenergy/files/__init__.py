"""Files on disk: written whole or not at all, bound by checksums, and checked when they are read.

writing.py      a temporary name, synced and renamed
outputs.py      whether a place can be written, before the work; a finished result is kept, wherever it can be
reading.py      JSON and safetensors that cannot surprise: every damage is an `ArtifactError` that names the file
bound.py        a JSON record and its tensors as one artefact: a folder holds the old or the new one
locks.py        one run at a time in a folder
schema.py       checks of every value of a record and of every tensor
"""

from deltaenergy.files.artifact import read_bound, remove_bound, write_bound
from deltaenergy.files.atomic import replacing, write_json, write_tensors, write_text
from deltaenergy.files.hashing import hash_file, hash_strings, hash_value
from deltaenergy.files.lock import FolderLock
from deltaenergy.files.output import check_writable, keeping_result
from deltaenergy.files.reading import read_json, read_tensors

__all__ = [
    "FolderLock",
    "check_writable",
    "hash_file",
    "hash_strings",
    "hash_value",
    "keeping_result",
    "read_bound",
    "read_json",
    "read_tensors",
    "remove_bound",
    "replacing",
    "write_bound",
    "write_json",
    "write_tensors",
    "write_text",
]
