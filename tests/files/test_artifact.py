"""A record and its tensors belong together, or are not read; nothing but our own is replaced or removed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import hash_file, lock_folder, read_bound, remove_bound, write_bound
from deltaenergy.files.artifact import check_seal, sealed
from tests.sampling import examples

NAME = "thing.json"


def write(folder: Path, number: int, name: str = NAME, **more: Any) -> None:
    write_bound(folder, name, {"format": "deltaenergy thing 1", "n": number, **more}, {"x": torch.tensor([number])})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tensors_file(folder: Path, stem: str = "thing") -> Path:
    (path,) = folder.glob(f"{stem}-*.safetensors")
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tensors = {"a.b": torch.rand(2, 3, dtype=torch.float64), "n": torch.tensor(3)}
    record = {"format": "deltaenergy thing 1", "name": "Ähre", "list": [1, [2.5, None]], "pair": (1, 2)}
    write_bound(tmp_path / "new" / "folder", NAME, record, tensors)
    found, read = read_bound(tmp_path / "new" / "folder", NAME)
    assert found == {**record, "pair": [1, 2]}
    assert read.keys() == tensors.keys() and all(torch.equal(read[name], tensors[name]) for name in tensors)
    path = tensors_file(tmp_path / "new" / "folder")
    assert path.stem == f"thing-{hash_file(path)[:16]}"
    # Aligned as a computed tensor is, whatever the file's layout.
    assert all(tensor.data_ptr() % 64 == 0 for tensor in read.values())


def test_an_overwrite_leaves_the_new_one_alone(tmp_path: Path) -> None:
    write(tmp_path, 1)
    first = tensors_file(tmp_path)
    write(tmp_path, 2)
    assert read_bound(tmp_path, NAME)[1]["x"].tolist() == [2]
    assert not first.exists() and len(names(tmp_path)) == 2
    write(tmp_path, 2, note="the same tensors")
    assert read_bound(tmp_path, NAME)[0]["note"] == "the same tensors" and len(names(tmp_path)) == 2


def test_several_artefacts_share_a_folder(tmp_path: Path) -> None:
    write(tmp_path, 1, "a.json")
    write(tmp_path, 1, "a-b.json")
    write(tmp_path, 2, "a.json")
    assert read_bound(tmp_path, "a-b.json")[1]["x"].tolist() == [1]
    remove_bound(tmp_path, "a.json")
    assert read_bound(tmp_path, "a-b.json")[1]["x"].tolist() == [1] and len(names(tmp_path)) == 2


def test_files_of_two_artefacts_do_not_mix(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / str(number), number)
    record = (tmp_path / "2" / NAME).read_bytes()
    tensors = tensors_file(tmp_path / "2").read_bytes()
    mine = tensors_file(tmp_path / "1")
    mine_before = mine.read_bytes()
    mine.write_bytes(tensors)
    with pytest.raises(ArtifactError, match=r"damaged.*thing\.json"):
        read_bound(tmp_path / "1", NAME)
    mine.write_bytes(mine_before)
    (tmp_path / "1" / NAME).write_bytes(record)
    with pytest.raises(ArtifactError, match="does not exist"):
        read_bound(tmp_path / "1", NAME)


def test_a_changed_record_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 1)
    record = json.loads((tmp_path / NAME).read_text())
    for changed, message in [
        ({**record, "n": 2}, "was changed after it was written"),
        ({**record, "more": 1}, "was changed after it was written"),
        ({**record, "checksum": "0" * 64}, "was changed after it was written"),
        ({**record, "checksum": None}, "checksum is null; expected a text"),
        ({key: value for key, value in record.items() if key != "checksum"}, "'checksum' is missing"),
        ({key: value for key, value in record.items() if key != "tensors"}, "'tensors' is missing"),
        (sealed({**record, "tensors": {**record["tensors"], "sha256": "0" * 64}}), r"thing-0000.* not exist"),
    ]:
        (tmp_path / NAME).write_text(json.dumps(changed))
        with pytest.raises(ArtifactError, match=message):
            read_bound(tmp_path, NAME)


def test_a_record_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    """Not even one that somebody changed and sealed again: the tensors' name follows from their checksum."""
    write(tmp_path / "a", 1)
    record = json.loads((tmp_path / "a" / NAME).read_text())
    tensors_file(tmp_path / "a").rename(tmp_path / "x.safetensors")
    changed = sealed({**record, "tensors": {**record["tensors"], "file": "../x.safetensors"}})
    (tmp_path / "a" / NAME).write_text(json.dumps(changed))
    with pytest.raises(ArtifactError, match="does not exist"):
        read_bound(tmp_path / "a", NAME)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5), st.text(max_size=8), json_values)
def test_a_seal_holds_for_what_was_sealed_and_nothing_else(record: dict[str, Any], key: str, value: Any) -> None:
    written = json.loads(json.dumps(sealed(record)))
    check_seal(written, "a.json")
    changed = {**written, key: value}
    if key == "checksum" or json.dumps(changed, sort_keys=True) == json.dumps(written, sort_keys=True):
        return
    with pytest.raises(ArtifactError):
        check_seal(changed, "a.json")


def test_a_user_s_file_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    for content in ('{"format": 1}', '{"mine": true}', "[1, 2]", "no JSON", "", '{"format": "other 1"}'):
        (tmp_path / NAME).write_text(content)
        for action in (lambda: write(tmp_path, 1), lambda: remove_bound(tmp_path, NAME)):
            with pytest.raises(ArtifactError, match=r"thing\.json.*not overwritten"):
                action()
        assert (tmp_path / NAME).read_text() == content and names(tmp_path) == [NAME]


def test_orphans_are_removed_only_if_they_are_ours(tmp_path: Path) -> None:
    write(tmp_path, 1)
    orphan = tensors_file(tmp_path).read_bytes(), tensors_file(tmp_path).name
    write(tmp_path, 2)
    (tmp_path / orphan[1]).write_bytes(orphan[0])  # as a killed overwrite leaves it
    users = ("thing-0123456789abcdef.safetensors", f"other-{orphan[1][6:]}", f"{orphan[1]}.bak", "thing.safetensors")
    for name in users:
        (tmp_path / name).write_bytes(orphan[0])
    (tmp_path / "thing-aaaaaaaaaaaaaaaa.safetensors").symlink_to(tmp_path / users[0])
    write(tmp_path, 3)
    assert not (tmp_path / orphan[1]).exists()
    assert all((tmp_path / name).read_bytes() == orphan[0] for name in users)
    assert (tmp_path / "thing-aaaaaaaaaaaaaaaa.safetensors").is_symlink()
    remove_bound(tmp_path, NAME)
    assert all((tmp_path / name).exists() for name in users) and len(names(tmp_path)) == len(users) + 1


def test_removing_takes_an_empty_folder_with_it(tmp_path: Path) -> None:
    write(tmp_path / "a", 1)
    remove_bound(tmp_path / "a", NAME)
    assert not (tmp_path / "a").exists()
    remove_bound(tmp_path / "a", NAME)


def test_a_failed_record_takes_its_tensors_with_it(tmp_path: Path) -> None:
    write(tmp_path, 1)
    before = names(tmp_path)
    with pytest.raises(ValueError, match="JSON compliant"):
        write(tmp_path, 2, bad=float("nan"))
    assert names(tmp_path) == before and read_bound(tmp_path, NAME)[1]["x"].tolist() == [1]
    with pytest.raises(ValueError, match="format"):
        write_bound(tmp_path, NAME, {"n": 1}, {})


def test_readers_beside_a_writer_see_the_old_or_the_new(tmp_path: Path) -> None:
    write(tmp_path, 0)
    problems: list[str] = []
    reads = 0
    done = threading.Event()

    def reader() -> None:
        nonlocal reads
        while not done.is_set():
            try:
                record, tensors = read_bound(tmp_path, NAME)
            except ArtifactError as error:
                problems.append(str(error))
                return
            reads += 1
            if record["n"] != tensors["x"].item():
                problems.append(f"record {record['n']} with tensors {tensors['x'].item()}")

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    number = 0
    while number < 30 or (reads < 20 and not problems):
        number += 1
        write(tmp_path, number)
    done.set()
    for thread in threads:
        thread.join()
    assert not problems


def test_a_folder_that_another_run_holds_is_not_written(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def try_to_write() -> None:
        try:
            write(tmp_path, 2)
        except InputError as error:
            errors.append(error)

    with lock_folder(tmp_path):
        write(tmp_path, 1)  # the holder itself may
        thread = threading.Thread(target=try_to_write)
        thread.start()
        thread.join()
    assert len(errors) == 1 and "is writing to" in str(errors[0])
    assert read_bound(tmp_path, NAME)[0]["n"] == 1
