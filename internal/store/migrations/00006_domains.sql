-- +goose Up
CREATE TABLE custom_domains (
    workspace TEXT NOT NULL REFERENCES workspaces (name) ON DELETE CASCADE,
    name      TEXT NOT NULL,
    verified  TEXT UNIQUE, -- the name while it is verified: one workspace has it then
    body      TEXT NOT NULL,
    PRIMARY KEY (workspace, name)
);

-- +goose Down
DROP TABLE custom_domains;
