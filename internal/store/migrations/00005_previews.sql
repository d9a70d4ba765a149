-- +goose Up
CREATE TABLE previews (
    id         TEXT PRIMARY KEY, -- of this record, never reused
    uid        TEXT NOT NULL REFERENCES sandboxes (uid) ON DELETE CASCADE,
    workspace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    label      TEXT NOT NULL UNIQUE, -- the first of its host
    expires_at BIGINT NOT NULL,
    body       TEXT NOT NULL,
    UNIQUE (uid, name)
);

CREATE TABLE preview_tokens (
    id         TEXT PRIMARY KEY,
    preview    TEXT NOT NULL REFERENCES previews (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL,
    sealed     TEXT NOT NULL, -- the token, hexadecimal
    body       TEXT NOT NULL
);
CREATE INDEX preview_tokens_preview ON preview_tokens (preview, created_at, id);

-- +goose Down
DROP TABLE preview_tokens;
DROP TABLE previews;
