-- +goose Up
-- Limits that an operator set for a workspace. A quota without a row has the
-- default of the platform.
CREATE TABLE workspace_quotas (
    workspace TEXT NOT NULL,
    name      TEXT NOT NULL,
    most      BIGINT NOT NULL,
    PRIMARY KEY (workspace, name)
);

-- What the sandboxes of a workspace sent and received on a day in UTC.
CREATE TABLE egress_days (
    workspace TEXT NOT NULL,
    day       TEXT NOT NULL, -- such as 2026-01-31
    bytes     BIGINT NOT NULL,
    PRIMARY KEY (workspace, day)
);

-- +goose Down
DROP TABLE egress_days;
DROP TABLE workspace_quotas;
