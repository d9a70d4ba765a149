package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/dozehq/doze"
)

// Preview is the record of a preview.
type Preview struct {
	doze.Preview
	ID    string // never reused
	UID   string // of its sandbox
	Label string // the first of its host
}

// PreviewToken is the record of a token, which can be read again.
type PreviewToken struct {
	doze.PreviewToken
	ID string
}

const (
	previewColumns = `p.id, p.uid, p.label, p.body`
	tokenColumns   = `id, sealed, body` //nolint:gosec // names of columns
	tokenPlace     = "preview token/"
	errNoPreview   = "there is no such preview"
	// notOver leaves out previews whose time has passed.
	notOver = `(p.expires_at = 0 OR p.expires_at > $1)`
)

// Previews returns those of a sandbox, by name.
func (s *Store) Previews(ctx context.Context, uid string, now time.Time) ([]Preview, error) {
	all, err := collect(ctx, s.read, scanPreview, `SELECT `+previewColumns+` FROM previews p WHERE `+notOver+` AND p.uid = $2 ORDER BY p.name`, millis(now), uid)
	return all, wrap(err, "list previews")
}

// LivingPreviews returns the previews of all living sandboxes.
func (s *Store) LivingPreviews(ctx context.Context, now time.Time) ([]Preview, error) {
	all, err := collect(ctx, s.read, scanPreview, `SELECT `+previewColumns+` FROM previews p
		JOIN sandboxes ON sandboxes.uid = p.uid WHERE `+notOver+` AND sandboxes.`+alive, millis(now))
	return all, wrap(err, "read previews")
}

// Preview returns one of a sandbox, or NotFound.
func (s *Store) Preview(ctx context.Context, uid, name string, now time.Time) (Preview, error) {
	return one(ctx, s.read, scanPreview, errNoPreview, `SELECT `+previewColumns+` FROM previews p
		WHERE `+notOver+` AND p.uid = $2 AND p.name = $3`, millis(now), uid, name)
}

// PutPreview adds a preview or, if it has one with its id already, replaces
// it. A name or a label that is taken is a Conflict. With yield, which must not
// use the store, a preview of the same workspace gives the label up: it becomes
// what yield makes of it, and is returned so.
func (s *Store) PutPreview(ctx context.Context, p Preview, yield func(Preview) Preview, now time.Time) (moved []Preview, err error) {
	var known bool // by its name
	err = s.update(ctx, func(tx *sql.Tx) error {
		// Those whose time has passed, or whose sandbox has, hold no label.
		if _, err := tx.ExecContext(ctx, `DELETE FROM previews WHERE (label = $1 OR uid = $2) AND expires_at <> 0 AND expires_at <= $3`, p.Label, p.UID, millis(now)); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM previews WHERE label = $1
			AND uid IN (SELECT uid FROM sandboxes WHERE NOT (`+alive+`))`, p.Label); err != nil {
			return err
		}
		if p.Spec.CustomDomain != "" {
			// A workspace that may not use the domain any more has left it.
			if _, err := tx.ExecContext(ctx, `DELETE FROM previews WHERE label = $1 AND NOT EXISTS (SELECT 1 FROM custom_domains d
				WHERE d.verified = $2 AND (d.workspace = previews.workspace OR EXISTS (SELECT 1 FROM domain_shares s
				WHERE s.workspace = d.workspace AND s.name = d.name AND s.target IN (previews.workspace, $3))))`,
				p.Label, p.Spec.CustomDomain, doze.DomainEverybody); err != nil {
				return err
			}
		}
		if yield != nil {
			if moved, err = displace(ctx, tx, p, yield); err != nil {
				return err
			}
		}
		if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM previews WHERE uid = $1 AND name = $2 AND id <> $3)`,
			p.UID, p.Metadata.Name, p.ID).Scan(&known); err != nil {
			return err
		}
		return writePreview(ctx, tx, p)
	})
	switch {
	case duplicate(err) && known:
		return nil, doze.Errorf(doze.Conflict, "the sandbox has a preview %s already: choose another name, or change that one with PUT", p.Metadata.Name)
	case duplicate(err) && yield != nil: // of this workspace it would have yielded
		return nil, doze.Errorf(doze.Conflict, "a preview that is not of this workspace has the address that %s would have: choose another prefixUrl", p.Metadata.Name)
	case duplicate(err):
		return nil, doze.Errorf(doze.Conflict, "another preview has the address that %s would have: choose another prefixUrl, or take the address over with force=true", p.Metadata.Name)
	}
	return moved, wrap(err, "write preview")
}

// displace takes its label away from whichever other preview of the workspace of p
// has it.
func displace(ctx context.Context, tx *sql.Tx, p Preview, yield func(Preview) Preview) ([]Preview, error) {
	moved, err := collect(ctx, tx, scanPreview, `SELECT `+previewColumns+` FROM previews p
		WHERE p.label = $1 AND p.workspace = $2 AND p.id <> $3`, p.Label, p.Metadata.Workspace, p.ID)
	for i, other := range moved {
		moved[i] = yield(other)
		if moved[i].Label == p.Label {
			return nil, doze.Errorf(doze.Conflict, "the preview %s of the sandbox %s has that address by its own name: choose another prefixUrl",
				other.Metadata.Name, other.Metadata.ResourceName)
		}
		if err := writePreview(ctx, tx, moved[i]); err != nil {
			return nil, err
		}
	}
	return moved, err
}

// writePreview adds the record of a preview, or replaces it.
func writePreview(ctx context.Context, tx *sql.Tx, p Preview) error {
	body, err := json.Marshal(p.Preview)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO previews (id, uid, workspace, name, label, expires_at, body) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (id) DO UPDATE SET label = excluded.label, expires_at = excluded.expires_at, body = excluded.body`,
		p.ID, p.UID, p.Metadata.Workspace, p.Metadata.Name, p.Label, millis(p.Deadline()), string(body))
	return err
}

// DeletePreview removes a preview of a sandbox with its tokens and returns it,
// or NotFound.
func (s *Store) DeletePreview(ctx context.Context, uid, name string) (Preview, error) {
	return one(ctx, s.write, scanPreview, errNoPreview, `DELETE FROM previews WHERE uid = $1 AND name = $2 RETURNING id, uid, label, body`, uid, name)
}

// DeletePreviews removes all previews of sandboxes and returns them.
func (s *Store) DeletePreviews(ctx context.Context, uids []string) (all []Preview, err error) {
	for some := range slices.Chunk(uids, listMax) {
		// Most sandboxes have none. When many end at once, none of those must
		// wait for the one writer.
		marks, args := listOf(some)
		there, err := collect(ctx, s.read, scanText, `SELECT id FROM previews WHERE uid IN (`+marks+`) LIMIT 1`, args...)
		if err != nil {
			return all, wrap(err, "read previews")
		}
		if len(there) == 0 {
			continue
		}
		gone, err := collect(ctx, s.write, scanPreview, `DELETE FROM previews WHERE uid IN (`+marks+`) RETURNING id, uid, label, body`, args...)
		if err != nil {
			return all, wrap(err, "delete previews")
		}
		all = append(all, gone...)
	}
	return all, nil
}

// PreviewTokens returns the tokens of a preview, oldest first.
func (s *Store) PreviewTokens(ctx context.Context, preview string) ([]PreviewToken, error) {
	all, err := collect(ctx, s.read, s.scanToken, `SELECT `+tokenColumns+` FROM preview_tokens WHERE preview = $1 ORDER BY created_at, id`, preview)
	return all, wrap(err, "list preview tokens")
}

// InsertPreviewToken adds a token to a preview.
func (s *Store) InsertPreviewToken(ctx context.Context, preview string, t PreviewToken, now time.Time) error {
	sealed := hex.EncodeToString(s.cipher.Seal([]byte(t.Spec.Token), tokenPlace+t.ID))
	t.Spec.Token = ""
	body, err := json.Marshal(t.PreviewToken)
	if err != nil {
		return wrap(err, "encode preview token")
	}
	_, err = s.write.ExecContext(ctx, `INSERT INTO preview_tokens (id, preview, created_at, sealed, body) VALUES ($1, $2, $3, $4, $5)`,
		t.ID, preview, millis(now), sealed, string(body))
	return wrap(err, "insert preview token")
}

// DeletePreviewTokens removes tokens by their ids.
func (s *Store) DeletePreviewTokens(ctx context.Context, ids []string) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, `DELETE FROM preview_tokens WHERE id = $1`, id); err != nil {
				return err
			}
		}
		return nil
	})
	return wrap(err, "delete preview tokens")
}

func scanPreview(r row) (p Preview, err error) {
	var body string
	if err := r.Scan(&p.ID, &p.UID, &p.Label, &body); err != nil {
		return p, err
	}
	return p, json.Unmarshal([]byte(body), &p.Preview)
}

func (s *Store) scanToken(r row) (t PreviewToken, err error) {
	var text, body string
	if err := r.Scan(&t.ID, &text, &body); err != nil {
		return t, err
	}
	if err := json.Unmarshal([]byte(body), &t.PreviewToken); err != nil {
		return t, err
	}
	sealed, err := hex.DecodeString(text)
	if err != nil {
		return t, err
	}
	plain, err := s.cipher.Unseal(sealed, tokenPlace+t.ID)
	t.Spec.Token = string(plain)
	return t, err
}
