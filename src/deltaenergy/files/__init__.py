"""Files on disk: written whole or not at all, bound by checksums, and checked when they are read.

atomic.py       a temporary name, synced and renamed
output.py       whether a place can be written, before the work; a finished result is kept somewhere else if need be
reading.py      JSON and safetensors: every damage is an `ArtifactError` that names the file
artifact.py     a JSON record and its tensors as one artefact: a folder has the old or the new one
lock.py         one run at a time in a folder
schema.py       checks of every value of a record and of every tensor
"""

from deltaenergy.files.artifact import read_bound, remove_bound, write_bound
from deltaenergy.files.atomic import replacing, write_json, write_tensors, write_text
from deltaenergy.files.hashing import hash_file, hash_strings, hash_value
from deltaenergy.files.lock import lock_folder
from deltaenergy.files.output import check_writable, keeping_result
from deltaenergy.files.reading import read_json, read_tensors

__all__ = [
    "check_writable",
    "hash_file",
    "hash_strings",
    "hash_value",
    "keeping_result",
    "lock_folder",
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
