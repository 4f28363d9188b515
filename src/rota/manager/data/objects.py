"""Objects behind `s3://` addresses, by boto3: a program of its own that sends and receives as hosts do.

So whoever reads or writes no objects needs no boto3, and a transfer of an object is one like any other: resumed,
verified, counted. Credentials and endpoint are where boto3 looks for them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL …).
"""

import hashlib
import json
import sys
import tempfile
from typing import Any, BinaryIO

from rota.runner.staging import BLOCK, StagingError, read_line, take, write_line

__all__ = ["main"]

URL = "s3://"
SPOOL = 64 << 20


def client() -> Any:
    """The client of boto3; refuses with how to get it."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise StagingError("bad", "s3:// addresses need boto3: pip install 'rota[s3]'") from None
    import os

    # Servers that are not Amazon's seldom know the newer checksums; addresses by path need no wildcard name.
    config = Config(
        s3={"addressing_style": "path"} if os.environ.get("AWS_ENDPOINT_URL") else {},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"max_attempts": 5, "mode": "standard"},
    )
    return boto3.client("s3", config=config)


def split(url: str) -> tuple[str, str]:
    """(bucket, key) of an address."""
    bucket, _, key = url[len(URL) :].partition("/")
    return bucket, key


def head(s3: Any, url: str) -> dict[str, Any] | None:
    """Size and time of change of an object; None: there is none."""
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

    bucket, key = split(url)
    try:
        found = s3.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code"))
        if code in ("404", "NoSuchKey", "NoSuchBucket", "NotFound"):
            return None
        refused = code in ("400", "401", "403", "AccessDenied")
        raise StagingError("bad" if refused else "cut", f"{url}: {error}") from None
    except (ConnectionError, HTTPClientError) as error:
        raise StagingError("cut", f"{url}: {error}") from None
    except BotoCoreError as error:  # no credentials, a name that is none: it will not be better later
        raise StagingError("bad", f"{url}: {error}") from None
    mtime = int(found["LastModified"].timestamp()) * 1_000_000_000
    return {"size": found["ContentLength"], "mtime": mtime, "kind": "file", "etag": found["ETag"]}


def send(s3: Any, url: str, offset: int, out: BinaryIO) -> None:
    """Send an object as a file is sent."""
    info = head(s3, url)
    if info is None:
        write_line(out, {"error": "gone", "words": f"{url} is not there"})
        return
    bucket, key = split(url)
    row = {"path": "", "kind": "file", "size": info["size"], "mode": 0o444, "mtime": info["mtime"]}
    write_line(out, {"rows": [row], "size": info["size"]})
    digest, sent = hashlib.sha256(), 0
    body = s3.get_object(Bucket=bucket, Key=key, IfMatch=info["etag"])["Body"]
    for block in body.iter_chunks(BLOCK):
        digest.update(block)
        out.write(block[max(0, offset - sent) :])
        sent += len(block)
    write_line(out, {"sha256": digest.hexdigest()})


def receive(s3: Any, url: str, source: BinaryIO) -> dict[str, Any]:
    """Take a file, and make it an object: only once all of it is here and verified."""
    start = read_line(source)
    if "error" in start:
        raise StagingError(start["error"], start["words"])
    rows = start["rows"]
    if rows[0]["kind"] == "dir":
        raise StagingError("bad", f"{url}: a directory cannot become one object")
    digest, have = hashlib.sha256(), 0
    with tempfile.SpooledTemporaryFile(SPOOL) as spool:
        for block in take(source, start["size"]):
            spool.write(block)
            digest.update(block)
            have += len(block)
            sys.stderr.write(f"rota-bytes {have}\n")
            sys.stderr.flush()
        tail = read_line(source)
        if "error" in tail:
            raise StagingError(tail["error"], tail["words"])
        if tail.get("sha256") != digest.hexdigest():
            raise StagingError("changed", f"{url}: it arrived with another digest than it was sent with")
        spool.seek(0)
        bucket, key = split(url)
        s3.upload_fileobj(spool, bucket, key)
    info = head(s3, url)
    if info is None or info["size"] != start["size"]:
        raise StagingError("cut", f"{url} is not there after it was written")
    return {"size": info["size"], "mtime": info["mtime"], "sha256": digest.hexdigest()}


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    """Do one request."""
    what = request["what"]
    if what in ("received", "discard", "arrange"):
        return {"bytes": 0}
    s3 = client()
    if what == "files":
        found = {url: info for url in request["paths"] if (info := head(s3, url)) is not None}
        return {"files": found, "matches": {}}
    if what == "checksum":
        return {"error": "bad", "words": "objects have no digest of ours"}
    if what == "send":
        send(s3, request["path"], request["offset"], sys.stdout.buffer)
        return None
    return receive(s3, request["path"], sys.stdin.buffer)


def main() -> int:
    """Answer the request of the command line."""
    request = json.loads(sys.argv[1])
    try:
        found = answer(request)
    except StagingError as error:
        found = {"error": error.code, "words": str(error)}
    except Exception as error:
        found = {"error": "cut", "words": f"{type(error).__name__}: {error}"}
    if found is not None:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
