-- +goose Up
-- What is in a name, a display name or a label is the beginning of one of its
-- rests, which an index finds. Without it a search would read all sandboxes of
-- the workspace. The rows of those that are there come with the next version.
CREATE TABLE sandbox_pieces (
    workspace TEXT NOT NULL,
    piece     TEXT NOT NULL,
    uid       TEXT NOT NULL,
    PRIMARY KEY (workspace, piece, uid)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE sandbox_pieces;
