-- +goose Up
CREATE TABLE certificate_files (
    key         TEXT PRIMARY KEY, -- a path, with slashes
    modified_at BIGINT NOT NULL,
    size        BIGINT NOT NULL,
    sealed      TEXT NOT NULL
);

-- +goose Down
DROP TABLE certificate_files;
