-- +goose Up
ALTER TABLE networks ADD COLUMN address TEXT NOT NULL DEFAULT ''; -- of an egress IP, once it has one
CREATE UNIQUE INDEX networks_address ON networks (address) WHERE address <> '';

-- +goose Down
DROP INDEX networks_address;
ALTER TABLE networks DROP COLUMN address;
