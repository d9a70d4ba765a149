-- +goose Up
CREATE TABLE nodes (
    id         TEXT PRIMARY KEY, -- as the node made it; never reused
    state      TEXT NOT NULL,    -- ready, cordoned, draining, lost
    epoch      BIGINT NOT NULL,  -- grows with each loss: what an earlier one was told counts no more
    created_at BIGINT NOT NULL,
    leased     BIGINT NOT NULL DEFAULT 0, -- 1: it said that it has a lease which ends
    body       TEXT NOT NULL
);
CREATE TABLE places (
    kind TEXT NOT NULL, -- machine, snapshot, volume, builder, image
    id   TEXT NOT NULL,
    node TEXT NOT NULL,
    epoch BIGINT NOT NULL, -- grows with each node that gets it
    PRIMARY KEY (kind, id)
);
CREATE INDEX places_node ON places (node);
CREATE TABLE join_tokens (
    id         TEXT PRIMARY KEY, -- its public part
    hash       TEXT NOT NULL,    -- of its secret part, hexadecimal
    expires_at BIGINT NOT NULL
);

-- +goose Down
DROP TABLE join_tokens;
DROP TABLE places;
DROP TABLE nodes;
