"""Pictures inside Parquet files at addresses, read where they lie, row after row, through shared parts of the file."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import IO, ClassVar

from deltaenergy.data.decode import Streamed, UnreadableImage
from deltaenergy.data.file import RemoteFile
from deltaenergy.data.formats.parquet import column_reader, picture_of
from deltaenergy.data.remote.blocks import PartFile, PartReader
from deltaenergy.data.remote.client import RemoteObject
from deltaenergy.data.remote.url import checked_url, folder_of, is_url
from deltaenergy.errors import InputError


@dataclass(frozen=True, slots=True)
class RemoteParquetImage(Streamed):
    """The picture in one row of a Parquet file at an address, counted from 0; `length` and `version` are the file's."""

    url: str
    length: int
    version: str
    column: str
    row: int

    far: ClassVar[bool] = True

    @property
    def stamp(self) -> str:
        """A row is as old as its table."""
        return f"{self.length} bytes, tag {self.version}, row {self.row}"

    def open(self) -> IO[bytes]:
        """The picture's bytes. A record without bytes names an address, or a file that counts from the table's folder.

        Raises `UnreachableError` if the store is out of reach.
        """
        of = RemoteObject(self.url, self.length, self.version)
        reader = column_reader(self.url, self.column, self.version, lambda: PartFile(PartReader(of)))
        found = picture_of(reader.cell(self.row))
        if isinstance(found, bytes):
            return io.BytesIO(found)
        try:
            address = checked_url(found if is_url(found) else f"{folder_of(self.url)}/{found}", "the record")
        except InputError as error:
            raise UnreadableImage(str(error)) from error
        return RemoteFile(address).open()
