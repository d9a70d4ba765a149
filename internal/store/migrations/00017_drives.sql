-- +goose Up
CREATE TABLE drives (
    id          TEXT PRIMARY KEY, -- where it is in the bucket; never reused
    workspace   TEXT NOT NULL REFERENCES workspaces (name),
    name        TEXT NOT NULL,
    external_id TEXT NOT NULL,
    search      TEXT NOT NULL, -- what a list is searched for, in lower case
    phase       TEXT NOT NULL, -- ready
    created_at  BIGINT NOT NULL,
    body        TEXT NOT NULL,
    UNIQUE (workspace, name)
);
CREATE INDEX drives_created ON drives (workspace, created_at, id);
CREATE INDEX drives_external_id ON drives (workspace, external_id) WHERE external_id <> '';

-- Drives that nobody needs and that the bucket may still have.
CREATE TABLE dropped_drives (
    id TEXT PRIMARY KEY
);

-- +goose Down
DROP TABLE dropped_drives;
DROP TABLE drives;
