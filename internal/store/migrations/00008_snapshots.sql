-- +goose Up
CREATE TABLE snapshots (
    id         TEXT PRIMARY KEY, -- what nodes know it by; never reused
    workspace  TEXT NOT NULL REFERENCES workspaces (name),
    uid        TEXT NOT NULL, -- of its sandbox, which may be gone
    name       TEXT NOT NULL,
    search     TEXT NOT NULL, -- what a list is searched for, in lower case
    phase      TEXT NOT NULL, -- pending, ready, failed; gone while a node may still have its files
    created_at BIGINT NOT NULL,
    body       TEXT NOT NULL
);
CREATE UNIQUE INDEX snapshots_held_name ON snapshots (uid, name) WHERE phase IN ('pending', 'ready');
CREATE INDEX snapshots_created ON snapshots (workspace, created_at, id);
CREATE INDEX snapshots_name ON snapshots (workspace, name, id);
CREATE INDEX snapshots_unfinished ON snapshots (phase) WHERE phase IN ('pending', 'gone');

DROP INDEX sandboxes_unfinished;
CREATE INDEX sandboxes_unfinished ON sandboxes (phase)
    WHERE phase IN ('pending', 'starting', 'disabling', 'archiving', 'unarchiving', 'deleting');

-- +goose Down
DROP INDEX sandboxes_unfinished;
CREATE INDEX sandboxes_unfinished ON sandboxes (phase) WHERE phase IN ('pending', 'starting', 'disabling', 'deleting');
DROP TABLE snapshots;
