-- +goose Up
CREATE TABLE domain_shares (
    workspace TEXT NOT NULL,
    name      TEXT NOT NULL,
    target    TEXT NOT NULL, -- a workspace, or account for all of them
    PRIMARY KEY (workspace, name, target),
    FOREIGN KEY (workspace, name) REFERENCES custom_domains (workspace, name) ON DELETE CASCADE
);
CREATE INDEX domain_shares_by_target ON domain_shares (target);

-- +goose Down
DROP TABLE domain_shares;
