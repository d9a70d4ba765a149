-- +goose Up
CREATE TABLE networks (
    workspace  TEXT NOT NULL REFERENCES workspaces (name) ON DELETE CASCADE,
    kind       TEXT NOT NULL, -- vpc, gateway or ip
    name       TEXT NOT NULL,
    parent     TEXT NOT NULL, -- name of the VPC or gateway that it belongs to
    created_at BIGINT NOT NULL,
    body       TEXT NOT NULL,
    PRIMARY KEY (workspace, kind, name)
);
CREATE INDEX networks_parent ON networks (workspace, kind, parent, name);

-- +goose Down
DROP TABLE networks;
