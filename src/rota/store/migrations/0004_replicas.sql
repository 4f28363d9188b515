-- Version 4: which files are at which places (rota.model.data.Replica).
CREATE TABLE replicas (
    path TEXT NOT NULL,
    location TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    checksum TEXT,
    valid INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    used REAL NOT NULL,
    why TEXT NOT NULL,
    PRIMARY KEY (path, location)
) WITHOUT ROWID;
