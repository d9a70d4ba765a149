-- +goose Up
CREATE TABLE secrets (
    workspace TEXT NOT NULL REFERENCES workspaces (name),
    name      TEXT NOT NULL,
    body      TEXT NOT NULL,
    sealed    TEXT NOT NULL, -- the values, hexadecimal
    PRIMARY KEY (workspace, name)
);

-- +goose Down
DROP TABLE secrets;
