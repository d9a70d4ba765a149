-- +goose Up
-- Who changed what, and who was denied. Lines are added; one that was written
-- before a change gets its outcome. Nothing else changes or removes one but its
-- age, or newer ones of its class in its workspace.
CREATE TABLE audit (
    id         TEXT PRIMARY KEY, -- grows
    workspace  TEXT NOT NULL,    -- empty: of the platform
    class      TEXT NOT NULL,    -- change, denial, stranger: what it is kept with
    phase      TEXT NOT NULL,    -- its outcome, by which lists select
    created_at BIGINT NOT NULL,
    actor      TEXT NOT NULL,    -- sub, or empty
    action     TEXT NOT NULL,
    object     TEXT NOT NULL,    -- its name
    source     TEXT NOT NULL,    -- address
    search     TEXT NOT NULL,    -- what a list is searched for, in lower case
    body       TEXT NOT NULL
);
CREATE INDEX audit_created ON audit (workspace, created_at, id);
CREATE INDEX audit_class ON audit (workspace, class, id);
CREATE INDEX audit_age ON audit (created_at);

-- +goose Down
DROP TABLE audit;
