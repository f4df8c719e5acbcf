"""A folder of small files on a disk; tests/stores does the same on an object store."""

from pathlib import Path

from manifold.lake.files import Files


def test_files_are_written_read_listed_and_removed(tmp_path: Path) -> None:
    files = Files((tmp_path / "a folder").as_uri())
    files.write("runs/one:+00/index.html", b"one")
    files.write("runs/two/index.html", b"two")
    files.write("runs/two/index.html", b"two again")

    assert files.read("runs/two/index.html") == b"two again"
    assert [*files.below("runs")] == ["runs/one:+00/index.html", "runs/two/index.html"]

    files.remove("runs/one:+00")
    files.remove("runs/two/index.html")
    assert [*files.below("")] == []


def test_a_missing_file_is_none_and_can_be_removed(tmp_path: Path) -> None:
    files = Files(tmp_path.as_uri())

    assert files.read("nothing") is None
    assert [*files.below("nowhere")] == []
    files.remove("nothing")


def test_a_partly_written_file_is_invisible(tmp_path: Path) -> None:
    (tmp_path / ".index.html.abcd").write_text("hal")

    assert [*Files(tmp_path.as_uri()).below("")] == []
