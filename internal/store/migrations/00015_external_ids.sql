-- +goose Up
-- With the uid it has the order of a list: without it the database would rather
-- read all sandboxes of a workspace in that order than sort the few that fit.
DROP INDEX sandboxes_external_id;
CREATE INDEX sandboxes_external_id ON sandboxes (workspace, external_id, created_at, uid) WHERE external_id <> '';

-- +goose Down
DROP INDEX sandboxes_external_id;
CREATE INDEX sandboxes_external_id ON sandboxes (workspace, external_id, created_at) WHERE external_id <> '';
