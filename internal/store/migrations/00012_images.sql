-- +goose Up
CREATE TABLE images (
    workspace TEXT NOT NULL REFERENCES workspaces (name) ON DELETE CASCADE,
    name      TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (workspace, name)
);

CREATE TABLE image_shares (
    target    TEXT NOT NULL, -- the workspace that may use it too
    name      TEXT NOT NULL,
    workspace TEXT NOT NULL,
    PRIMARY KEY (target, name),
    FOREIGN KEY (workspace, name) REFERENCES images (workspace, name) ON DELETE CASCADE
);
CREATE INDEX image_shares_of ON image_shares (workspace, name);

-- +goose Down
DROP TABLE image_shares;
DROP TABLE images;
