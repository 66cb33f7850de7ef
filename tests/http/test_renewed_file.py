"""A file that is renewed meanwhile, in every way in which files are: swapped, rewritten in steps, broken, gone."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from discovery.http import renewed_file
from discovery.http.renewed_file import MAX_BYTES, RenewedFile


def parse(content: bytes) -> int:
    if content.startswith(b"!"):
        raise ValueError("it is broken")
    return int(content or b"0")


class Followed(RenewedFile[int]):
    """A file with a number, looked at when a test says so; ``renewals`` are those that were told."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), "the file", parse)
        self.renewals: list[tuple[int, int]] = []
        self.on_renewal(lambda before, after: self.renewals.append((before, after)))

    async def come_to_rest(self) -> int:
        """Look twice: what has changed is taken when it is still the same."""
        await self.look()
        await self.look()
        return self.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines of the log since the last time."""
    caplog.set_level(logging.INFO)

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == renewed_file.__name__]
        caplog.clear()
        return found

    return lines


def swap(path: Path, text: str) -> None:
    """A whole new file in its place."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


async def test_a_new_file_is_taken_once_it_has_come_to_rest(path: Path, said: Callable[[], list[str]]) -> None:
    file = Followed(path)
    assert await file.come_to_rest() == 1
    swap(path, "2")
    await file.look()
    assert file.value == 1
    await file.look()
    assert file.value == 2
    for _ in range(3):
        await file.look()
    assert file.renewals == [(1, 2)]
    assert said() == []


async def test_a_mounted_secret_that_is_swapped_two_links_up_is_seen(tmp_path: Path) -> None:
    for number in ("1", "2"):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "tokens").write_text(number)
        os.utime(tmp_path / f"..{number}" / "tokens", (1_000_000, 1_000_000))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "tokens").symlink_to("..data/tokens")
    file = Followed(tmp_path / "tokens")
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    assert await file.come_to_rest() == 2
    (tmp_path / "..1" / "tokens").write_text("3")
    assert await file.come_to_rest() == 2


async def test_a_file_that_is_written_in_steps_is_not_taken_in_between(path: Path) -> None:
    file = Followed(path)
    with path.open("w") as writer:
        for digit in "234567":
            writer.write(digit)
            writer.flush()
            await file.look()
            assert file.value == 1
    assert await file.come_to_rest() == 234567
    assert file.renewals == [(1, 234567)]


async def test_a_file_that_changes_while_it_is_read_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Followed(path)
    swap(path, "2")
    await file.look()
    read = file._read

    def read_too_early() -> bytes:
        content = read()
        swap(path, "3")
        monkeypatch.setattr(file, "_read", read)
        return content

    monkeypatch.setattr(file, "_read", read_too_early)
    await file.look()
    assert file.value == 1
    assert await file.come_to_rest() == 3
    assert file.renewals == [(1, 3)]


async def test_a_file_of_the_same_size_and_time_is_seen_all_the_same(path: Path) -> None:
    file = Followed(path)
    before = path.stat()
    swap(path, "2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await file.come_to_rest() == 2


async def test_a_broken_file_keeps_the_old_one_and_is_said_once(path: Path, said: Callable[[], list[str]]) -> None:
    file = Followed(path)
    for _ in range(3):
        swap(path, "!")
        assert await file.come_to_rest() == 1
    assert said() == ["the file is not taken, and what it held before stays in force: it is broken"]
    swap(path, "1")
    assert await file.come_to_rest() == 1
    assert said() == ["the file holds again what is in force"]
    swap(path, "!")
    assert await file.come_to_rest() == 1
    swap(path, "2")
    assert await file.come_to_rest() == 2
    assert said() == ["the file is not taken, and what it held before stays in force: it is broken"]
    assert file.renewals == [(1, 2)]


async def test_a_file_that_is_gone_or_cannot_be_read_keeps_the_old_one(
    path: Path, said: Callable[[], list[str]]
) -> None:
    file = Followed(path)
    path.unlink()
    assert await file.come_to_rest() == 1
    path.mkdir()
    assert await file.come_to_rest() == 1
    path.rmdir()
    path.write_bytes(b"1" * (MAX_BYTES + 1))
    assert await file.come_to_rest() == 1
    path.unlink()
    path.symlink_to(path)
    assert await file.come_to_rest() == 1
    kept = "the file is not taken, and what it held before stays in force: "
    assert said() == [
        kept + "No such file or directory",
        kept + "Is a directory",
        kept + "it is over 4,194,304 bytes",
        kept + "Too many levels of symbolic links",
    ]
    path.unlink()
    path.write_text("2")
    assert await file.come_to_rest() == 2


async def test_it_is_followed_until_cancelled_and_a_pipe_is_read_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewed_file, "LOOK_SECS", 0.001)
    file = Followed(path)
    renewed = asyncio.Event()
    file.on_renewal(lambda before, after: renewed.set())
    following = asyncio.create_task(file.run())
    swap(path, "2")
    async with asyncio.timeout(20):
        await renewed.wait()
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following

    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    writing = asyncio.create_task(asyncio.to_thread(pipe.write_text, "7"))
    piped = await asyncio.to_thread(Followed, pipe)
    await writing
    assert piped.value == 7
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):  # were it opened again, nothing would ever be read from it
            await piped.run()


@pytest.mark.parametrize("content", [b"!", b"x", b"1" * (MAX_BYTES + 1)])
def test_a_file_that_is_broken_from_the_start_is_an_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError):  # noqa: PT011
        Followed(path)
