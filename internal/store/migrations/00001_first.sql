-- +goose Up
-- The text is the common subset of SQLite and PostgreSQL: TEXT and BIGINT only.
-- Moments are milliseconds since 1970 in UTC; 0 is "not yet".

CREATE TABLE settings (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE workspaces (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    body       TEXT NOT NULL
);

CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY,
    workspace    TEXT NOT NULL REFERENCES workspaces (name),
    hash         TEXT NOT NULL, -- SHA-256 of the key, hexadecimal
    scopes       TEXT NOT NULL, -- a JSON array
    expires_at   BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    body         TEXT NOT NULL
);
CREATE INDEX api_keys_workspace ON api_keys (workspace, created_at, id);

CREATE TABLE sandboxes (
    uid          TEXT PRIMARY KEY,
    workspace    TEXT NOT NULL,
    name         TEXT NOT NULL,
    external_id  TEXT NOT NULL,
    search       TEXT NOT NULL, -- what a list is searched for, in lower case
    machine      TEXT NOT NULL UNIQUE,
    phase        TEXT NOT NULL,
    seq          BIGINT NOT NULL,
    revision     BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    ended_at     BIGINT NOT NULL,
    deadline     BIGINT, -- when control must look at it; NULL is never
    body         TEXT NOT NULL
);
CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (workspace, name) WHERE phase NOT IN ('deleting', 'terminated');
CREATE INDEX sandboxes_name ON sandboxes (workspace, name, uid);
CREATE INDEX sandboxes_created ON sandboxes (workspace, created_at, uid);
CREATE INDEX sandboxes_counted ON sandboxes (workspace) WHERE phase <> 'terminated';
CREATE INDEX sandboxes_external_id ON sandboxes (workspace, external_id, created_at) WHERE external_id <> '';
CREATE INDEX sandboxes_deadline ON sandboxes (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX sandboxes_unfinished ON sandboxes (phase) WHERE phase IN ('pending', 'starting', 'disabling', 'deleting');

CREATE TABLE sandbox_events (
    uid  TEXT NOT NULL REFERENCES sandboxes (uid) ON DELETE CASCADE,
    n    BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (uid, n)
);

-- Machines that no sandbox needs any more and that a node may still have.
CREATE TABLE leftovers (
    machine TEXT PRIMARY KEY
);

-- +goose Down
DROP TABLE leftovers;
DROP TABLE sandbox_events;
DROP TABLE sandboxes;
DROP TABLE api_keys;
DROP TABLE workspaces;
DROP TABLE settings;
