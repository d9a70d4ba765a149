-- +goose Up
CREATE TABLE volumes (
    id          TEXT PRIMARY KEY, -- what nodes know its disk by; never reused
    workspace   TEXT NOT NULL REFERENCES workspaces (name),
    name        TEXT NOT NULL,
    external_id TEXT NOT NULL,
    search      TEXT NOT NULL, -- what a list is searched for, in lower case
    phase       TEXT NOT NULL, -- making, ready
    attached    TEXT NOT NULL, -- the uid of the sandbox that has it; empty while it is free
    created_at  BIGINT NOT NULL,
    body        TEXT NOT NULL,
    UNIQUE (workspace, name)
);
CREATE INDEX volumes_created ON volumes (workspace, created_at, id);
CREATE INDEX volumes_external_id ON volumes (workspace, external_id) WHERE external_id <> '';
CREATE INDEX volumes_attached ON volumes (attached) WHERE attached <> '';

CREATE TABLE volume_templates (
    workspace TEXT NOT NULL REFERENCES workspaces (name),
    name      TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (workspace, name)
);

CREATE TABLE volume_template_versions (
    id         TEXT PRIMARY KEY, -- what nodes know its disk by; never reused
    workspace  TEXT NOT NULL,
    template   TEXT NOT NULL,
    name       TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    body       TEXT NOT NULL,
    UNIQUE (workspace, template, name),
    FOREIGN KEY (workspace, template) REFERENCES volume_templates (workspace, name) ON DELETE CASCADE
);

-- Disks that nobody needs and nodes may still have.
CREATE TABLE dropped_disks (
    id TEXT PRIMARY KEY
);

-- +goose Down
DROP TABLE dropped_disks;
DROP TABLE volume_template_versions;
DROP TABLE volume_templates;
DROP TABLE volumes;
