-- +goose Up
-- From where users have logged in with their password: there they can always try,
-- whatever others do elsewhere.
CREATE TABLE login_sources (
    sub     TEXT NOT NULL REFERENCES users (sub) ON DELETE CASCADE,
    network TEXT NOT NULL,
    used_at BIGINT NOT NULL,
    PRIMARY KEY (sub, network)
);

-- The network that a device asked from, while it waits.
ALTER TABLE grants ADD COLUMN source TEXT NOT NULL DEFAULT '';
CREATE INDEX grants_waiting ON grants (source, expires_at, id) WHERE phase = 'pending';

-- +goose Down
DROP INDEX grants_waiting;
ALTER TABLE grants DROP COLUMN source;
DROP TABLE login_sources;
