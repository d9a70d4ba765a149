package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/dozehq/doze"
)

// BuildPhase is where a build is. It is finer than what the API shows.
type BuildPhase string

// The phases of a build, in their order. After a start of the platform, a build in
// BuildQueued or BuildRunning begins again, and one in BuildDeploying is deployed again.
const (
	BuildOffered   BuildPhase = "uploading" // its files are awaited
	BuildQueued    BuildPhase = "queued"    // it waits for its turn
	BuildRunning   BuildPhase = "building"
	BuildDeploying BuildPhase = "deploying" // the image is there, and its sandbox gets a machine
	BuildEnded     BuildPhase = "ended"     // its status says how
)

// Build is the record of a build.
type Build struct {
	doze.Build
	Phase BuildPhase `json:"-"`
	// UID is that of the sandbox that gets the image. Empty is none.
	UID string `json:"uid,omitempty"`
	// Token is the hash of what the address of the upload has. It is empty once the
	// files are there.
	Token    []byte    `json:"token,omitempty"`
	Until    doze.Time `json:"until,omitzero"`  // when the address expires
	Queued   doze.Time `json:"queued,omitzero"` // since when it waits
	Archive  int64     `json:"archive,omitempty"`
	Attempts int       `json:"attempts,omitempty"` // how often a node was asked for it
	Hidden   Hidden    `json:"-"`
}

// Hidden is what a record of a build has sealed, until the build ends.
type Hidden struct {
	Secrets map[string]string `json:"secrets,omitempty"` // of the build, by id
	// Change is the body of the request that changes the sandbox, which counts when the
	// image is there.
	Change json.RawMessage `json:"change,omitempty"`
}

const (
	errNoBuild   = "there is no such build"
	buildColumns = `id, workspace, name, phase, created_at, sealed, body`
	buildPlace   = "build/" // of what is sealed in a record
)

// Builds returns those of a workspace, the newest first.
func (s *Store) Builds(ctx context.Context, workspace string) ([]Build, error) {
	all, err := collect(ctx, s.read, s.scanBuild, `SELECT `+buildColumns+` FROM builds WHERE workspace = $1 ORDER BY created_at DESC, id`, workspace)
	return all, wrap(err, "list builds")
}

// BuildsOf returns those of a name in a workspace, the newest first.
func (s *Store) BuildsOf(ctx context.Context, workspace, name string) ([]Build, error) {
	all, err := collect(ctx, s.read, s.scanBuild, `SELECT `+buildColumns+` FROM builds
		WHERE workspace = $1 AND name = $2 ORDER BY created_at DESC, id`, workspace, name)
	return all, wrap(err, "list the builds of a name")
}

// Build returns one by its id, or NotFound.
func (s *Store) Build(ctx context.Context, id string) (Build, error) {
	b, err := one(ctx, s.read, s.scanBuild, errNoBuild, `SELECT `+buildColumns+` FROM builds WHERE id = $1`, id)
	return b, wrap(err, "read build")
}

// UnfinishedBuilds returns those that have not ended, the oldest first.
func (s *Store) UnfinishedBuilds(ctx context.Context) ([]Build, error) {
	all, err := collect(ctx, s.read, s.scanBuild, `SELECT `+buildColumns+` FROM builds WHERE phase <> 'ended' ORDER BY created_at, id`)
	return all, wrap(err, "read unfinished builds")
}

// BuildIDs returns the ids of all builds on record.
func (s *Store) BuildIDs(ctx context.Context) (map[string]bool, error) {
	all, err := collect(ctx, s.read, scanText, `SELECT id FROM builds`)
	ids := make(map[string]bool, len(all))
	for _, id := range all {
		ids[id] = true
	}
	return ids, wrap(err, "read the ids of builds")
}

// InsertBuild adds a record. More than may be under way in the workspace is Exhausted. It
// forgets the oldest builds that have ended beyond [doze.BuildsMax], and returns their
// ids.
func (s *Store) InsertBuild(ctx context.Context, b Build) (forgotten []string, err error) {
	body, sealed, err := s.encodeBuild(&b)
	if err != nil {
		return nil, wrap(err, "encode build")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		n, err := one(ctx, tx, scanNumber, "", `SELECT COUNT(*) FROM builds WHERE workspace = $1 AND phase <> 'ended'`, b.Workspace)
		if err != nil {
			return err
		}
		if n >= doze.BuildsWaitingMax {
			return doze.Errorf(doze.Exhausted, "the workspace has %d builds that have not ended, which is the limit: wait for one, or cancel it", n)
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO builds (`+buildColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			b.ID, b.Workspace, b.Name, string(b.Phase), millis(b.CreatedAt.Time), sealed, body)
		if err != nil {
			return err
		}
		forgotten, err = collect(ctx, tx, scanText, `DELETE FROM builds WHERE id IN (SELECT id FROM builds
			WHERE workspace = $1 AND phase = 'ended' ORDER BY created_at DESC, id LIMIT $2 OFFSET $3) RETURNING id`,
			b.Workspace, listMax, doze.BuildsMax)
		return err
	})
	return forgotten, wrap(err, "insert build")
}

// ChangeBuild hands a build to fn and writes what fn makes of it, in one transaction. A
// build that has ended is a Conflict. When fn says that its archive has come, the bytes
// count against the workspace's quota of the disk. What is sealed is forgotten at the end.
func (s *Store) ChangeBuild(ctx context.Context, id string, fn func(*Build) error) (b Build, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		b, err = one(ctx, tx, s.scanBuild, errNoBuild, `SELECT `+buildColumns+` FROM builds WHERE id = $1`, id)
		if err != nil {
			return err
		}
		if b.Phase == BuildEnded {
			return doze.Errorf(doze.Conflict, "the build has ended: it is %s", b.Status)
		}
		had := b.Archive
		if err := fn(&b); err != nil {
			return err
		}
		if more := b.Archive - had; more > 0 {
			if err := s.checkQuota(ctx, tx, b.Workspace, doze.QuotaDisk, megabytes(more)); err != nil {
				return err
			}
		}
		if b.Phase == BuildEnded {
			b.Hidden, b.Token = Hidden{}, nil
		}
		body, sealed, err := s.encodeBuild(&b)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE builds SET phase = $1, sealed = $2, body = $3 WHERE id = $4`, string(b.Phase), sealed, body, id)
		return err
	})
	return b, wrap(err, "change build")
}

// scanArchive is how many bytes the archive of a build takes.
func scanArchive(r row) (bytes int64, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return 0, err
	}
	var b struct {
		Archive int64 `json:"archive"`
	}
	return b.Archive, json.Unmarshal([]byte(body), &b)
}

func (s *Store) encodeBuild(b *Build) (body, sealed string, err error) {
	raw, err := json.Marshal(b)
	if err != nil || len(b.Hidden.Secrets) == 0 && len(b.Hidden.Change) == 0 {
		return string(raw), "", err
	}
	plain, err := json.Marshal(b.Hidden)
	if err != nil {
		return "", "", err
	}
	return string(raw), hex.EncodeToString(s.cipher.Seal(plain, buildPlace+b.ID)), nil
}

func (s *Store) scanBuild(r row) (b Build, err error) {
	var id, workspace, name, phase, sealed, body string
	var created int64
	if err := r.Scan(&id, &workspace, &name, &phase, &created, &sealed, &body); err != nil {
		return b, err
	}
	if err := json.Unmarshal([]byte(body), &b); err != nil {
		return b, fmt.Errorf("the body of build %s is damaged: %w", id, err)
	}
	b.ID, b.Workspace, b.Name, b.Phase = id, workspace, name, BuildPhase(phase)
	if b.CreatedAt.IsZero() {
		b.CreatedAt = doze.Time{Time: time.UnixMilli(created).UTC()}
	}
	if sealed == "" {
		return b, nil
	}
	raw, err := hex.DecodeString(sealed)
	if err != nil {
		return b, fmt.Errorf("what is sealed of build %s is damaged: %w", id, err)
	}
	plain, err := s.cipher.Unseal(raw, buildPlace+id)
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(plain, &b.Hidden)
}
