-- +goose Up
-- How many sandboxes of a workspace are not terminated: to count them for each
-- list would cost more the more there are.
CREATE TABLE counts (
    workspace TEXT PRIMARY KEY,
    sandboxes BIGINT NOT NULL
);
INSERT INTO counts (workspace, sandboxes)
    SELECT workspace, COUNT(*) FROM sandboxes WHERE phase <> 'terminated' GROUP BY workspace;
DROP INDEX sandboxes_counted;

-- +goose Down
CREATE INDEX sandboxes_counted ON sandboxes (workspace) WHERE phase <> 'terminated';
DROP TABLE counts;
