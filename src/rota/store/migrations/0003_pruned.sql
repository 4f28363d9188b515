-- Version 3: batches that were pruned, until the last of their rows is deleted. A batch's columns are needed up to the
-- first checkpoint that covers entry `seq`; its results and its values (`source`) by nobody. swept: 1 when those are gone.
CREATE TABLE pruned (
    batch INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL,
    source INTEGER,
    swept INTEGER NOT NULL DEFAULT 0
);
