-- +goose Up
CREATE TABLE users (
    sub        TEXT PRIMARY KEY,
    email      TEXT NOT NULL UNIQUE, -- in lower case
    password   TEXT NOT NULL,        -- argon2id, in the PHC form; empty is none
    epoch      BIGINT NOT NULL,      -- grows when all tokens become void
    created_at BIGINT NOT NULL,
    body       TEXT NOT NULL
);

CREATE TABLE members (
    workspace TEXT NOT NULL REFERENCES workspaces (name) ON DELETE CASCADE,
    sub       TEXT NOT NULL REFERENCES users (sub) ON DELETE CASCADE,
    role      TEXT NOT NULL,
    PRIMARY KEY (workspace, sub)
);
CREATE INDEX members_sub ON members (sub);

CREATE TABLE invitations (
    id         TEXT PRIMARY KEY,
    workspace  TEXT NOT NULL REFERENCES workspaces (name) ON DELETE CASCADE,
    email      TEXT NOT NULL,
    hash       TEXT NOT NULL, -- SHA-256 of the token, hexadecimal
    expires_at BIGINT NOT NULL,
    body       TEXT NOT NULL,
    UNIQUE (workspace, email)
);

CREATE TABLE service_accounts (
    client_id  TEXT PRIMARY KEY,
    workspace  TEXT NOT NULL REFERENCES workspaces (name) ON DELETE CASCADE,
    hash       TEXT NOT NULL, -- SHA-256 of the client secret, hexadecimal
    scopes     TEXT NOT NULL, -- a JSON array
    created_at BIGINT NOT NULL,
    body       TEXT NOT NULL
);
CREATE INDEX service_accounts_workspace ON service_accounts (workspace, created_at, client_id);

CREATE TABLE oauth_clients (
    client_id TEXT PRIMARY KEY,
    workspace TEXT NOT NULL REFERENCES workspaces (name) ON DELETE CASCADE,
    body      TEXT NOT NULL
);

-- What a user granted to a client: from the code to the last refresh.
CREATE TABLE grants (
    id         TEXT PRIMARY KEY,
    sub        TEXT NOT NULL, -- empty until a user agreed
    user_code  TEXT,          -- of the device flow
    phase      TEXT NOT NULL, -- pending, agreed, active, revoked
    expires_at BIGINT NOT NULL,
    body       TEXT NOT NULL
);
CREATE UNIQUE INDEX grants_user_code ON grants (user_code) WHERE user_code IS NOT NULL;
CREATE INDEX grants_expires ON grants (expires_at);
CREATE INDEX grants_sub ON grants (sub);

ALTER TABLE api_keys ADD COLUMN sub TEXT NOT NULL DEFAULT 'admin';

-- Every key so far is of the one user of the first start.
INSERT INTO users (sub, email, password, epoch, created_at, body)
    SELECT 'admin', 'admin', '', 0, MIN(created_at), '{"sub":"admin","email":"admin"}' FROM workspaces HAVING COUNT(*) > 0;
INSERT INTO members (workspace, sub, role) SELECT name, 'admin', 'admin' FROM workspaces;

-- +goose Down
ALTER TABLE api_keys DROP COLUMN sub;
DROP TABLE grants;
DROP TABLE oauth_clients;
DROP TABLE service_accounts;
DROP TABLE invitations;
DROP TABLE members;
DROP TABLE users;
