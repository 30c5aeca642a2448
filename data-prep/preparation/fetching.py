"""Downloads the files of a corpus once, resumably, and verifies their checksums; or takes them from a mirror."""

import functools
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import requests

from .archives import Limited, most_of, reading
from .errors import PreparationError
from .locking import locked
from .parallel import progress
from .text import sha256

LOCAL = ("127.0.0.1", "::1")  # hosts to which nobody can intercept a connection
REMEDY = "use --mirror FOLDER with a copy of it"


@dataclass(frozen=True)
class Remote:
    """A file at a url, or a file of a package in a package index.

    Checksum and size are unknown if the registry's author could not fetch the file.
    """

    name: str
    sha256: str = ""
    bytes: int = 0
    url: str = ""
    package: str = ""


def fetch(remote: Remote, cache: Path, mirror: Path | None) -> Path:
    """The local file, verified: from the mirror folder if there is one, else from the cache, else downloaded."""
    if mirror is None:
        by_url = hashlib.sha256(remote.url.encode()).hexdigest()  # for a file whose checksum is not known yet
        unverified = cache / by_url[:16] / remote.name
        return cached(cache, remote.sha256 or by_url, remote, functools.partial(download_verified, remote, unverified))
    file, compressed = mirror / remote.name, mirror / f"{remote.name}.gz"
    if file.is_file():
        verify(file, remote)
        return file
    if not compressed.is_file():
        place = remote.url or f"package {remote.package}"
        raise PreparationError(f"{mirror}: has no file {remote.name}; put it there ({place}), or omit --mirror")
    return cached(cache, sha256(compressed), remote, functools.partial(decompress_verified, compressed, remote))


def cached(cache: Path, key: str, remote: Remote, bring: Callable[[Path], None]) -> Path:
    """The file in the cache's folder for `key`, verified; `bring` writes it, and verifies it first, where it is not."""
    file = cache / key[:16] / remote.name
    if not file.is_file():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # a home folder that cannot be written, as in some containers
            remedy = "name another folder with --cache, or with the variable XDG_CACHE_HOME"
            raise PreparationError(f"{cache}: downloads cannot be kept there ({error.strerror}); {remedy}") from None
        with locked(file.with_name(f"{file.name}.lock"), str(file)):
            if not file.is_file():  # another process may have brought it meanwhile
                bring(file)
                return file
    verify(file, remote)
    return file


def decompress_verified(compressed: Path, remote: Remote, file: Path) -> None:
    """Decompresses a mirror's file and verifies it."""
    partial = file.with_name(file.name + ".partial")
    try:
        with reading(compressed), gzip.open(compressed) as packed, open(partial, "wb") as unpacked:
            shutil.copyfileobj(Limited(packed, most_of(compressed), str(compressed)), unpacked)
        verify(partial, remote, compressed)
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def download_verified(remote: Remote, unverified: Path, file: Path) -> None:
    """Downloads the file, or the rest of it after an earlier attempt, which may be `unverified`, and verifies it."""
    partial = file.with_name(file.name + ".partial")
    if unverified.is_file():
        unverified.replace(partial)
    missing = remote.bytes - arrived(partial)
    if shutil.disk_usage(file.parent).free < missing:
        raise PreparationError(f"{file}: no disk space for {missing:,} bytes; free some")
    with requests.Session() as session:
        settings = pip_settings()
        session.verify = settings.get("cert", True)
        url = remote.url or package_url(remote, session, settings.get("index-url"))
        try:
            download(url, partial, remote, session)
        except requests.RequestException as error:
            raise PreparationError(
                f"{remote.name}: the download from {without_password(url)} failed ({reason(error)}); run the command "
                f"again to continue, or {REMEDY}"
            ) from None
    try:
        verify(partial, remote)
    except PreparationError:
        partial.unlink()  # otherwise later attempts would resume the wrong file
        raise
    os.replace(partial, file)


def arrived(partial: Path) -> int:
    """The bytes that earlier attempts have downloaded."""
    return partial.stat().st_size if partial.exists() else 0


def verify(file: Path, remote: Remote, source: Path | None = None) -> None:
    """Raises a PreparationError unless the file is the registry's; prints its checksum if the registry has none.

    source: the file to blame, from which `file` was made
    """
    size, blamed = file.stat().st_size, source or file
    if size < remote.bytes:
        raise PreparationError(f"{blamed}: truncated, {size:,} of {remote.bytes:,} bytes; delete it and fetch it again")
    checksum = sha256(file)
    if not remote.sha256:
        print(f"{blamed}: sha256 {checksum}; the registry of corpora has none to compare it with")
    elif checksum != remote.sha256:
        raise PreparationError(
            f"{blamed}: wrong checksum, sha256 {checksum} instead of {remote.sha256}; delete it and fetch it again"
        )


def download(url: str, partial: Path, remote: Remote, session: requests.Session) -> None:
    """Appends the missing bytes to the partial file."""
    have = arrived(partial)
    if remote.bytes and have >= remote.bytes:
        return
    # Without compression, so that ranges and sizes are those of the file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with session.get(url, headers=headers, stream=True, timeout=(15, 60)) as response:
        if response.status_code == 416 and not remote.bytes:  # the partial file is complete
            return
        response.raise_for_status()
        if not remote.sha256:
            refuse_insecure([hop.url for hop in (*response.history, response)], remote)
        if response.status_code != 206:  # this server ignores ranges and sends the whole file
            have = 0
        total = remote.bytes or have + int(response.headers.get("Content-Length", 0))
        bar = progress(None, f"fetching {remote.name}", total=total, initial=have, unit="B", unit_scale=True)
        response.raw.headers.pop("Content-Encoding", None)  # some servers say so of .gz files, which would be unpacked
        with open(partial, "ab" if have else "wb") as stream, bar:
            for chunk in response.iter_content(1 << 14):  # this much is lost when the connection breaks
                stream.write(chunk)
                bar.update(len(chunk))
    if partial.stat().st_size < total:
        raise requests.ConnectionError(f"only {partial.stat().st_size:,} of {total:,} bytes arrived")


def refuse_insecure(urls: list[str], remote: Remote) -> None:
    """Raises a PreparationError if a file without a known checksum could have been replaced on the network."""
    for url in map(urllib.parse.urlsplit, urls):
        if url.scheme != "https" and url.hostname not in LOCAL:
            raise PreparationError(
                f"{remote.name}: {without_password(url.geturl())} is not https, and its checksum is unknown; add its "
                f"https address or its sha256 to the registry of corpora, or {REMEDY}"
            )


def package_url(remote: Remote, session: requests.Session, index: str | None) -> str:
    """The address of a package's file in pip's configured index."""
    import pypi_simple  # here, because it takes a second and is rarely needed

    if index and not remote.sha256:
        refuse_insecure([index], remote)
    with pypi_simple.PyPISimple(index or pypi_simple.PYPI_SIMPLE_ENDPOINT, session=session) as client:
        try:
            packages = client.get_project_page(remote.package, timeout=(15, 60)).packages
        except (requests.RequestException, pypi_simple.NoSuchProjectError, ValueError) as error:  # no index at all
            raise PreparationError(
                f"{remote.name}: the request to the package index failed ({reason(error)}); "
                f"check the network and pip's index-url, or {REMEDY}"
            ) from None
    for package in packages:
        if package.filename == remote.name:
            return package.url
    raise PreparationError(f"{remote.name}: not in the package index; set pip's index-url to another, or {REMEDY}")


def pip_settings() -> dict[str, str]:
    """pip's options by name; its environment variables (`:env:`) override its files."""
    command = [sys.executable, "-P", "-m", "pip", "config", "list"]  # -P: no pip.py of the current folder
    env = {**os.environ, "PIP_QUIET": "0"}  # else a quiet pip lists nothing
    listing = subprocess.run(command, env=env, capture_output=True, text=True).stdout  # empty without pip
    lines = sorted((line for line in listing.splitlines() if "=" in line), key=lambda line: line.startswith(":env:"))
    pairs = ((key.rpartition(".")[2], value.strip("'\"")) for key, _, value in (line.partition("=") for line in lines))
    return {name: value for name, value in pairs if value}  # with cert='', which pip ignores, nothing would be verified


def reason(error: Exception) -> str:
    """The original error, without the layers of the libraries."""
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__
    return without_password(str(cause).split(">: ")[-1].replace("\n", " "))[:200]


def without_password(text: str) -> str:
    """The text without the name and password in the address of a private index."""
    return re.sub(r"//[^/\s]*@", "//", text)
