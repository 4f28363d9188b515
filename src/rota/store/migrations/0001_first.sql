-- Version 1: the first one. Never edited again once released; a change is a new file, and a new database runs them all.
--
-- entries is the truth. batches, runners, allocations, limits and meta.manager follow from it and are written in the
-- same transaction, so that a person with `sqlite3` sees the present. columns and snapshot are the last checkpoint.
-- `crc` is zlib.crc32 of the row as rota.store.rows packs it: SQLite itself has no checksums on pages.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value
) WITHOUT ROWID;

-- The log. body: the event as MessagePack.
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY,
    at,
    by,
    kind TEXT NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
);

-- Values arrive under a name before their batch exists. `name` is NULL once a batch has taken them (batches.source).
CREATE TABLE sources (
    id INTEGER PRIMARY KEY,
    name TEXT UNIQUE
);

-- body: a JSON list of `count` values, for the positions from `first` on. runs: JSON [template, count, ...] or NULL.
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    source INTEGER NOT NULL,
    first INTEGER NOT NULL CHECK (first >= 0),
    count INTEGER NOT NULL CHECK (count > 0),
    crc INTEGER NOT NULL,
    runs BLOB,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX chunks_place ON chunks (source, first, count);

CREATE TABLE batches (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    count INTEGER NOT NULL CHECK (count > 0),
    submitted,
    key TEXT UNIQUE,
    by TEXT NOT NULL,
    env TEXT,
    source INTEGER,
    crc INTEGER NOT NULL,
    spec BLOB NOT NULL
);

CREATE TABLE environments (
    name TEXT PRIMARY KEY,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;

-- One row an attempt. body: the Result as a JSON list (attempts shows its fields); state, started and ended repeat what is in it.
CREATE TABLE results (
    batch INTEGER NOT NULL,
    pos INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('COMPLETED', 'FAILED', 'ABORTED', 'RETRIED', 'LOST', 'SUPERSEDED')),
    started,
    ended,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (batch, pos, attempt)
) WITHOUT ROWID;
CREATE INDEX results_recent ON results (coalesce(ended, 0.0), batch, pos, attempt);
CREATE VIEW attempts AS SELECT
    batch, pos, attempt, state,
    json_extract(CAST(body AS TEXT), '$[4]') AS exit_code,
    json_extract(CAST(body AS TEXT), '$[5]') AS signal,
    json_extract(CAST(body AS TEXT), '$[6]') AS reason,
    json_extract(CAST(body AS TEXT), '$[7]') AS runner,
    json_extract(CAST(body AS TEXT), '$[8]') AS host,
    started, ended,
    json_extract(CAST(body AS TEXT), '$[11]') AS cpu_s,
    json_extract(CAST(body AS TEXT), '$[12]') AS peak_memory,
    json_extract(CAST(body AS TEXT), '$[13]') AS output,
    json_extract(CAST(body AS TEXT), '$[14]') AS note
FROM results;

CREATE TABLE runners (
    id TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('SERVING', 'DRAINING', 'MISSING', 'CLOSED', 'EXPIRED')),
    allocation TEXT,
    site TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    connect INTEGER NOT NULL,
    session INTEGER NOT NULL,
    until,
    reason TEXT,
    seq INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE allocations (
    id TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('WAITING', 'SUBMITTING', 'PENDING', 'RUNNING', 'KILLING', 'COMPLETED', 'FAILED', 'ABORTED')),
    site TEXT NOT NULL,
    tag TEXT NOT NULL,
    queue TEXT,
    planned,
    native_id TEXT,
    reason TEXT,
    unsure INTEGER NOT NULL,
    seq INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE limits (
    name TEXT PRIMARY KEY,
    count INTEGER NOT NULL
) WITHOUT ROWID;

-- states: one byte a job, its place in job_states; attempts: two bytes a job, little-endian. Both zlib.
CREATE TABLE columns (
    batch INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    states BLOB NOT NULL,
    attempts BLOB NOT NULL,
    PRIMARY KEY (batch, chunk)
);

CREATE TABLE snapshot (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    seq INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL
);

-- For people who read the columns.
CREATE TABLE job_states (
    code INTEGER PRIMARY KEY,
    name TEXT NOT NULL
);
INSERT INTO job_states VALUES (0, 'WAITING'), (1, 'PENDING'), (2, 'HOLDING'), (3, 'STARTING'), (4, 'RUNNING'),
    (5, 'MISSING'), (6, 'KILLING'), (7, 'COMPLETED'), (8, 'FAILED'), (9, 'ABORTED'), (10, 'OMITTED'), (11, 'REMOVED');
