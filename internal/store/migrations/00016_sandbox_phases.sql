-- +goose Up
-- A list of a status asks for the sandboxes of each of its phases, in an order:
-- without these the database would read all those of the workspace, until it
-- found enough that fit.
CREATE INDEX sandboxes_phase_created ON sandboxes (workspace, phase, created_at, uid);
CREATE INDEX sandboxes_phase_name ON sandboxes (workspace, phase, name, uid);

-- +goose Down
DROP INDEX sandboxes_phase_created;
DROP INDEX sandboxes_phase_name;
