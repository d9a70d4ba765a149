-- +goose Up
CREATE TABLE policies (
    id         TEXT PRIMARY KEY, -- of this record, never reused
    workspace  TEXT NOT NULL REFERENCES workspaces (name) ON DELETE CASCADE,
    name       TEXT NOT NULL,
    search     TEXT NOT NULL, -- what a list is searched for, in lower case
    phase      TEXT NOT NULL, -- its type, as lists want such a column
    created_at BIGINT NOT NULL,
    body       TEXT NOT NULL,
    UNIQUE (workspace, name)
);
CREATE INDEX policies_created ON policies (workspace, created_at, id);

-- +goose Down
DROP TABLE policies;
