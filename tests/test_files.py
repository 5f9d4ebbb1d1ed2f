"""Files: written whole or not at all, and nothing else is touched."""

import contextlib
import os
import resource
import shutil
import stat
import tempfile
import threading
from pathlib import Path

import pytest

import shardwright as sw
from benchmarks.contenders.page import write_page
from benchmarks.contenders.rows import Rows
from shardwright._files import check_outputs, open_stream, write_whole

NOBODY = 65534


@pytest.fixture
def shared():
    """A folder that everybody may enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


@contextlib.contextmanager
def without_privileges():
    """Permissions are for others than root, who therefore becomes nobody for a while."""
    before = os.geteuid(), os.getegid()
    if before[0] == 0:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before[0])
        os.setegid(before[1])


@contextlib.contextmanager
def files_of_at_most(size):
    """Files of this process cannot grow beyond so many bytes: a write ends in the middle, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_honours_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "plan.json", "text\n", "the plan")
    finally:
        os.umask(before)
    assert (tmp_path / "plan.json").read_text() == "text\n"
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o640
    assert names(tmp_path) == ["plan.json"]


def test_mode_owner_and_what_else_belongs_to_an_old_file(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("old, and longer than the new")
    file.chmod(0o604)
    if os.geteuid() == 0:
        os.chown(file, 1234, 4321)
    before = file.stat()
    write_whole(file, b"new", "the plan")
    after = file.stat()
    assert file.read_text() == "new"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_mtime_ns >= before.st_mtime_ns
    assert after.st_ino != before.st_ino  # replaced at once: whoever reads has the old or the new


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed_and_nothing_goes_through_a_name_that_can_be_foreseen(tmp_path, there):
    (tmp_path / "real").mkdir()
    target, victim = tmp_path / "real" / "plan.json", tmp_path / "victim"
    victim.write_text("precious")
    if there:
        target.write_text("old")
    for folder in (tmp_path, tmp_path / "real"):
        (folder / "plan.json.part").symlink_to(victim)
    (tmp_path / "plan.json").symlink_to("real/plan.json")
    write_whole(tmp_path / "plan.json", "new", "the plan")
    assert (tmp_path / "plan.json").is_symlink()
    assert (target.is_symlink(), target.read_text(), victim.read_text()) == (False, "new", "precious")
    assert names(tmp_path) == ["plan.json", "plan.json.part", "real", "victim"]
    assert names(tmp_path / "real") == ["plan.json", "plan.json.part"]


def test_links_that_lead_nowhere(tmp_path):
    (tmp_path / "gone").symlink_to("none/plan.json")
    with pytest.raises(sw.PlanError, match=r"cannot write the plan to .*/gone: there is no folder .*/none\.$"):
        write_whole(tmp_path / "gone", "text", "the plan")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(sw.PlanError, match=r"to .*/circle: Too many levels of symbolic links\.$"):
        write_whole(tmp_path / "circle", "text", "the plan")
    with pytest.raises(sw.PlanError, match="null"):
        write_whole(tmp_path / "a\0b", "text", "the plan")
    assert names(tmp_path) == ["circle", "gone"]


def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, "x" * 200_000, "the plan")  # more than a pipe holds
    reader.join(10)
    assert read == [b"x" * 200_000]
    assert pipe.is_fifo()
    assert names(tmp_path) == ["pipe"]


def test_a_reader_that_went_away(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: os.close(os.open(pipe, os.O_RDONLY)))
    reader.start()
    with pytest.raises(sw.PlanError, match=r"cannot write the plan to .*/pipe: Broken pipe\.$"):
        write_whole(pipe, "x" * 200_000, "the plan")
    reader.join(10)
    assert pipe.is_fifo()


def test_a_device_is_written_to(tmp_path):
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        null.write_text("")
    except OSError:
        pytest.skip("devices cannot be made here")
    write_whole(null, "text", "the plan")
    assert null.is_char_device()
    assert names(tmp_path) == ["null"]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_a_full_device(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(sw.PlanError, match=r"to .*/full: No space left on device\.$"):
        write_whole(tmp_path / "full", "text", "the plan")


def test_an_open_stream_is_written_to(capfd, tmp_path):
    print("before")
    write_whole("/dev/stdout", "the plan\n", "the plan")
    print("after")
    assert capfd.readouterr().out == "before\nthe plan\nafter\n"
    (tmp_path / "out").symlink_to("/dev/stdout")
    assert [open_stream(p) for p in ("/dev/stdout", "/dev/stderr", "/dev/fd/7", tmp_path / "out", tmp_path, "1")] == [
        1,
        2,
        7,
        1,
        None,
        None,
    ]
    with pytest.raises(sw.PlanError, match="Bad file descriptor"):
        write_whole("/dev/fd/999", "text", "the plan")


@pytest.mark.parametrize("there", [True, False])
def test_a_disk_that_becomes_full(tmp_path, there):
    file = tmp_path / "plan.json"
    if there:
        file.write_text("old")
    with files_of_at_most(1000), pytest.raises(sw.PlanError, match=r"cannot write the plan to .*: File too large\.$"):
        write_whole(file, "x" * 5000, "the plan")
    assert names(tmp_path) == ["plan.json"] * there
    assert not there or file.read_text() == "old"


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "plan.json", "text", "the plan")
    assert names(tmp_path) == []


def test_a_file_that_may_not_be_written_is_not_replaced(shared):
    file = shared / "plan.json"
    file.write_text("precious")
    file.chmod(0o444)
    with without_privileges(), pytest.raises(sw.PlanError, match=r"plan\.json: Permission denied\.$"):
        write_whole(file, "new", "the plan")
    with without_privileges(), pytest.raises(sw.PlanError, match=r"^cannot write .*plan\.json: Permission denied\.$"):
        check_outputs({"--save": file})
    assert file.read_text() == "precious"
    assert names(shared) == ["plan.json"]


def test_a_folder_that_may_not_be_written(shared):
    file = shared / "plan.json"
    file.write_text("old, and longer than the new")
    file.chmod(0o666)
    shared.chmod(0o555)
    before = file.stat()
    with without_privileges():
        write_whole(file, "new", "the plan")
        assert file.read_text() == "new"
        with files_of_at_most(1000), pytest.raises(sw.PlanError, match=r"File too large\.$"):
            write_whole(file, "x" * 5000, "the plan")
        with pytest.raises(sw.PlanError, match=r"other: Permission denied\.$"):
            write_whole(shared / "other", "text", "the plan")
        with pytest.raises(sw.PlanError, match=r"^cannot write .*/other: Permission denied: /"):
            check_outputs({"--save": shared / "other"})
    assert file.read_text() == "new"  # what it was came back
    assert file.stat().st_ino == before.st_ino
    assert names(shared) == ["plan.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of two owners")
def test_an_owner_that_cannot_be_kept_otherwise(shared):
    file = shared / "plan.json"
    file.write_text("old")
    file.chmod(0o666)
    with without_privileges():
        write_whole(file, "new", "the plan")
    assert (file.read_text(), file.stat().st_uid) == ("new", 0)
    assert names(shared) == ["plan.json"]


def test_many_writers_of_one_file(tmp_path):
    file, texts, wrong = tmp_path / "plan.json", [str(k) * 100_000 for k in range(8)], []

    def work(text):
        for _ in range(10):
            try:
                write_whole(file, text, "the plan")
                found = file.read_text()
                if found not in texts:
                    wrong.append(f"{len(found)} characters")
            except sw.PlanError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert names(tmp_path) == ["plan.json"]


def test_two_outputs_with_one_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "new").symlink_to("plan.json")
    (tmp_path / "old").write_text("old")
    os.link("old", "other")
    for one, other in (
        ("plan.json", "plan.json"),
        ("plan.json", "folder/../plan.json"),
        ("plan.json", tmp_path / "plan.json"),
        ("plan.json", "new"),
        ("old", "other"),
        ("/dev/stdout", "/dev/fd/1"),
    ):
        with pytest.raises(sw.PlanError, match=r"^--save and --report would both write to .*; name two files\.$"):
            check_outputs({"--save": one, "--report": other})
        with pytest.raises(sw.PlanError, match=r"--output would overwrite .*, which TARGET is read from"):
            check_outputs({"--output": one}, {"TARGET": other})
    check_outputs({"--save": "plan.json", "--report": "old", "--output": None}, {"TARGET": "model.mlir"})
    check_outputs({"--save": "/dev/null", "--report": "/dev/null"})
    with pytest.raises(sw.PlanError, match="cannot write folder: it is a folder; name a file in it"):
        check_outputs({"--save": "folder"})
    assert names(tmp_path) == ["folder", "new", "old", "other"]


def test_rows_and_pages_of_the_benchmark(tmp_path):
    file = tmp_path / "new" / "rows.jsonl"
    rows = Rows(file)
    rows.add({"case": 1}, {"status": "ok"})
    with (
        files_of_at_most(200),
        pytest.raises(sw.PlanError, match=r"a row to .*rows\.jsonl: File too large"),
    ):
        rows.add({"case": 2}, {"status": "x" * 500})
    assert Rows(file).find({"case": 1}) == {"key": {"case": 1}, "status": "ok"}
    assert Rows(file).find({"case": 2}) is None
    Rows(file).add({"case": 2}, {"status": "ok"})  # after what was cut short
    assert Rows(file).find({"case": 2}) == {"key": {"case": 2}, "status": "ok"}
    Rows(Path("/dev/null")).add({"case": 1}, {})
    (tmp_path / "page.md").write_bytes(b"\xff\xfe")
    with pytest.raises(sw.PlanError, match=r"page\.md is no text, so what people wrote there cannot be kept"):
        write_page([], tmp_path / "page.md")
    assert (tmp_path / "page.md").read_bytes() == b"\xff\xfe"
