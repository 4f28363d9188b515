"""A copy of the queue for a bug report: sound, and without what looks like a secret.

The values of all environments are gone. In everything else (commands, values, notes) what looks like a secret is
masked: passwords in addresses, private keys, what follows `password=` and the like, variables with such names.
"""

import re
import sqlite3
from typing import Any, Final
from zlib import crc32

import msgspec

from rota.model.errors import StoreError
from rota.store.api import Column
from rota.store.rows import Checked, column_row, columns_of, from_json, pack, to_json

__all__ = ["redact"]

GONE = "[redacted]"
WORDS = r"pass(?:word|wd|phrase)?|pw|secret|token|api[_-]?key|access[_-]?key|credentials?|bearer|dsn"
NAME: Final = re.compile(rf"(?i)(?:{WORDS})|_(?:key|keys|pat|auth|creds)$")
SECRETS: Final = (
    (re.compile(r"(://[^/\s:@?#]*:)[^/\s@?#]+(@)"), rf"\1{GONE}\2"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), GONE),
    (re.compile(r"(?i)(authorization['\"]?\s*[=:]\s*['\"]?(?:[a-z]+ +)?)[^\s'\"]+"), rf"\1{GONE}"),
    (re.compile(r"((?:^|\s)(?:-u|--(?:proxy-)?user)[ =]\s*['\"]?[^\s:'\"]+:)[^\s'\"]+"), rf"\1{GONE}"),
    (re.compile(rf"(?i)((?:{WORDS})['\"]?\s*[=: ]\s*)['\"]?[^\s'\"&;]+"), rf"\1{GONE}"),
)
OPTION: Final = re.compile(rf"(?i)--?[\w-]*(?:{WORDS})|-u|--(?:proxy-)?user")
"""A word of a command after which a secret is the next."""
_unpack: Final = msgspec.msgpack.Decoder().decode


def redact(path: str) -> None:
    """Take the secrets out of a backup, and overwrite what they were."""
    con = sqlite3.connect(path, isolation_level=None)
    try:
        con.execute("PRAGMA secure_delete=ON")
        con.execute("BEGIN IMMEDIATE")
        _environments(con)
        for seq, at, by, body in con.execute("SELECT seq, at, by, body FROM entries").fetchall():
            if (new := pack(masked(_unpack(body)))) != body:
                crc = crc32(new, crc32(pack((seq, at, by))))
                con.execute("UPDATE entries SET crc = ?, body = ? WHERE seq = ?", (crc, new, seq))
        for seq, body in con.execute("SELECT seq, body FROM snapshot").fetchall():
            new = pack(masked(_unpack(body)))
            con.execute("UPDATE snapshot SET crc = ?, body = ?", (Checked.make(new, seq), new))
        _columns(con)
        for id_, count, source, spec in con.execute("SELECT id, count, source, spec FROM batches").fetchall():
            new = to_json(masked(from_json(spec)))
            crc = Checked.make(new, id_, count, source)
            con.execute("UPDATE batches SET crc = ?, spec = ? WHERE id = ?", (crc, new, id_))
        for table, column in (("batches", "name"), ("runners", "reason"), ("allocations", "reason")):
            for id_, text in con.execute(f"SELECT id, {column} FROM {table}").fetchall():
                con.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (masked(text), id_))
        for id_, first, count, body in con.execute("SELECT id, first, count, body FROM chunks").fetchall():
            if (new := to_json(masked(from_json(body)))) != body:
                crc = Checked.make(new, first, count)
                con.execute("UPDATE chunks SET crc = ?, body = ? WHERE id = ?", (crc, new, id_))
        for batch, pos, attempt, body in con.execute("SELECT batch, pos, attempt, body FROM results").fetchall():
            if (new := to_json(masked(from_json(body)))) != body:
                place = (crc32(new), new, batch, pos, attempt)
                con.execute("UPDATE results SET crc = ?, body = ? WHERE (batch, pos, attempt) = (?, ?, ?)", place)
        con.execute("COMMIT")
        con.execute("VACUUM")
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be redacted: {error}") from error
    finally:
        con.close()


def _environments(con: sqlite3.Connection) -> None:
    for name, body in con.execute("SELECT name, body FROM environments").fetchall():
        new = to_json(dict.fromkeys(from_json(body), GONE))
        con.execute("UPDATE environments SET crc = ?, body = ? WHERE name = ?", (Checked.make(new, name), new, name))


def _columns(con: sqlite3.Connection) -> None:
    """The batches' own records in the last checkpoint: chunk -1."""
    rows = con.execute("SELECT batch, chunk, crc, states, attempts FROM columns WHERE chunk = -1").fetchall()
    for column in columns_of(rows):
        new = Column(column.batch, column.chunk, pack(masked(_unpack(column.states))), column.attempts)
        batch, chunk, crc, states, attempts = column_row(new)
        con.execute(
            "UPDATE columns SET crc = ?, states = ?, attempts = ? WHERE batch = ? AND chunk = ?",
            (crc, states, attempts, batch, chunk),
        )


def masked(value: Any) -> Any:
    """A value without what looks like a secret in its texts."""
    if isinstance(value, str):
        for pattern, instead in SECRETS:
            value = pattern.sub(instead, value)
        return value
    if isinstance(value, list):
        before = ["", *value]
        return [
            GONE if isinstance(each, str) and isinstance(last, str) and OPTION.fullmatch(last) else masked(each)
            for last, each in zip(before, value, strict=False)
        ]
    if isinstance(value, dict):
        return {
            key: GONE if isinstance(key, str) and isinstance(each, str) and NAME.search(key) else masked(each)
            for key, each in value.items()
        }
    return value
