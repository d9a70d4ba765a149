-- +goose Up
CREATE TABLE builds (
    id         TEXT PRIMARY KEY, -- of this record, never reused
    workspace  TEXT NOT NULL REFERENCES workspaces (name) ON DELETE CASCADE,
    name       TEXT NOT NULL, -- of the image
    phase      TEXT NOT NULL, -- uploading, queued, building, deploying, ended
    created_at BIGINT NOT NULL,
    sealed     TEXT NOT NULL, -- what nobody may read in a copy of the database, hexadecimal; empty at the end
    body       TEXT NOT NULL
);
CREATE INDEX builds_created ON builds (workspace, created_at, id);
CREATE INDEX builds_name ON builds (workspace, name, created_at);
CREATE INDEX builds_unfinished ON builds (phase) WHERE phase <> 'ended';

-- +goose Down
DROP TABLE builds;
