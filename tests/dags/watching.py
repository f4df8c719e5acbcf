"""Search for secrets in every file below some folders and in every process's argument list while a block runs."""

import io
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PAUSE_S = 0.3  # between two searches: Spark keeps its blocks as long as a job runs
LEFT_OUT = {"environment"}  # folders of the unpacked bundle
LEFT_OUT_ENDINGS = (".jar", ".zip", ".tar.gz")


class Watched:
    """The files and processes searched so far, and where a secret was found."""

    def __init__(self, folders: Iterable[Path], secrets: Mapping[str, Iterable[bytes]]) -> None:
        self._folders = list(folders)
        self._secrets = {name: list(forms) for name, forms in secrets.items()}
        self._known: dict[Path, tuple[int, int]] = {}
        self.files: set[str] = set()
        self.processes: set[str] = set()
        self.paths_of_workers: set[str] = set()  # PYTHONPATH of Python workers that run in the folders
        self.told: set[str] = set()

    def look(self) -> None:
        """Search everything changed since the last call; content that comes and goes in between is missed."""
        for file in self._all_files():
            try:
                about = file.stat().st_size, file.stat().st_mtime_ns
                if self._known.get(file) != about:
                    content = file.read_bytes()
                    self._search(str(file), content + _rows(content) if file.suffix == ".parquet" else content)
                    self._known[file] = about
                    self.files.add(str(file))
            except OSError:
                continue
        for process in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (process / "cmdline").read_bytes()
                if b"pyspark.daemon" in arguments and any(map((process / "cwd").readlink().is_relative_to, self._folders)):
                    variables = (process / "environ").read_text().split("\0")
                    self.paths_of_workers |= {each.partition("=")[2] for each in variables if each.startswith("PYTHONPATH=")}
            except OSError:
                continue
            self._search(f"the arguments of process {process.name}", arguments)
            self.processes.add(arguments.replace(b"\0", b" ").decode("utf-8", "replace"))

    def search(self, name: str, text: str) -> None:
        """Search another text."""
        self._search(name, text.encode())

    def _all_files(self) -> Iterator[Path]:
        for top in self._folders:
            for folder, below, names in os.walk(top):
                below[:] = [name for name in below if name not in LEFT_OUT]
                yield from (Path(folder, name) for name in names if not name.endswith(LEFT_OUT_ENDINGS))

    def _search(self, where: str, content: bytes) -> None:
        self.told |= {f"{name} in {where}" for name, forms in self._secrets.items() if any(form in content for form in forms)}


def _rows(content: bytes) -> bytes:
    """The decompressed rows of a Parquet file; empty while it is being written."""
    try:
        return str(pq.read_table(io.BytesIO(content)).to_pylist()).encode()
    except (pa.ArrowException, OSError):
        return b""


@contextmanager
def watching(folders: Iterable[Path], secrets: Mapping[str, Iterable[bytes]]) -> Iterator[Watched]:
    """Search repeatedly during the block and once after it. `secrets` maps a name to all encodings of a secret."""
    watched, over = Watched(folders, secrets), threading.Event()

    def look() -> None:
        while not over.wait(PAUSE_S):
            watched.look()

    thread = threading.Thread(target=look, name="watching")
    thread.start()
    try:
        yield watched
    finally:
        over.set()
        thread.join()
        watched.look()
