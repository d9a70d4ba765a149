-- +goose Up
CREATE TABLE bucket_files (
    object    TEXT PRIMARY KEY,          -- one upload of a file, by its name in the bucket
    label     TEXT NOT NULL DEFAULT '',  -- of the file; empty: no copy may rely on this upload from now on
    mark      TEXT NOT NULL DEFAULT '',  -- of the upload
    idle_at   BIGINT NOT NULL DEFAULT 0, -- since when nothing needs it, in nanoseconds by control's clock; 0: something may
    bucket_at BIGINT NOT NULL DEFAULT 0, -- the same by the clock of the bucket
    dropped   BIGINT NOT NULL DEFAULT 0  -- 1: it is being removed
);
CREATE UNIQUE INDEX bucket_files_label ON bucket_files (label) WHERE label <> '';

-- +goose Down
DROP TABLE bucket_files;
