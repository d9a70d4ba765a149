-- +goose Up
CREATE TABLE schedules (
    id         TEXT PRIMARY KEY, -- of this record, never reused
    uid        TEXT NOT NULL REFERENCES sandboxes (uid) ON DELETE CASCADE,
    workspace  TEXT NOT NULL,
    sandbox    TEXT NOT NULL, -- its name
    name       TEXT NOT NULL, -- what callers know it by
    search     TEXT NOT NULL, -- what a list is searched for, in lower case
    phase      TEXT NOT NULL, -- its type, cron or at, by which lists select
    next_at    BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    sealed     TEXT NOT NULL, -- the variables of its process, hexadecimal
    body       TEXT NOT NULL,
    UNIQUE (uid, name)
);
CREATE INDEX schedules_next ON schedules (next_at);
CREATE INDEX schedules_created ON schedules (workspace, created_at, id);

CREATE TABLE executions (
    id         TEXT PRIMARY KEY, -- the uid and n
    uid        TEXT NOT NULL REFERENCES sandboxes (uid) ON DELETE CASCADE,
    n          BIGINT NOT NULL, -- grows with each of the sandbox
    workspace  TEXT NOT NULL,
    sandbox    TEXT NOT NULL,
    name       TEXT NOT NULL, -- what callers know its schedule by
    search     TEXT NOT NULL,
    phase      TEXT NOT NULL, -- pending, succeeded, failed
    created_at BIGINT NOT NULL,
    body       TEXT NOT NULL
);
CREATE UNIQUE INDEX executions_sandbox ON executions (uid, n);
CREATE INDEX executions_schedule ON executions (uid, name, n);
CREATE INDEX executions_created ON executions (workspace, created_at, id);
CREATE INDEX executions_unfinished ON executions (phase) WHERE phase = 'pending';

-- +goose Down
DROP TABLE executions;
DROP TABLE schedules;
